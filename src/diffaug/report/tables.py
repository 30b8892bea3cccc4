"""The tables and figures of a reproduced experiment, as parts of the page."""

from __future__ import annotations

import base64

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.tables import Part, notes, parts
from diffaug.report.markup import Html, join, tag
from diffaug.report.sections import MANY, scrolling
from diffaug.tabular import Section

# A figure larger than this would make the page slow to open.
_LARGEST = 400_000


def grid_results(grid: Grid) -> Html:
    """The tables and figures that `diffaug reproduce` makes of a grid, with their notes; or why there are none yet.

    The figures stand behind the first table, which has the same numbers, and settings that fill a screen are closed.
    """
    from diffaug.experiments.summary import summarise

    try:
        summary = summarise(grid)
        found = [_part(part) for part in parts(summary)]
        remarks = [tag("li", note) for note in notes(summary)]
    except DiffaugError as error:
        return join(tag("p", f"There is no table yet: {error}", class_="note"), grid_figures(grid))
    return join(*found[:1], grid_figures(grid), *found[1:], tag("ul", *remarks, class_="notes") if remarks else None)


def _part(part: Part) -> Html:
    caption = tag("p", " ".join(f"{text}." for text in part.caption), class_="caption")
    title, table = part.section.title, scrolling(section_table(part.section), part.section.title)
    if part.key == "settings" and len(part.section.rows) > MANY:
        summary = tag("summary", title, tag("span", f"{len(part.section.rows)} rows", class_="quiet"))
        return tag("details", summary, table, caption, class_="all-runs")
    return join(tag("h3", title), table, caption)


def grid_figures(grid: Grid) -> Html:
    """The figures that were drawn of a grid."""
    found = []
    for path in sorted((grid.folder / "figures").glob("*.svg")):
        if path.stat().st_size <= _LARGEST:
            source = "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
            found.append(tag("figure", tag("img", src=source, alt=f"Figure: {path.stem.replace('-', ' ')}")))
    return join(*found)


def section_table(section: Section) -> Html:
    """A table, without its title."""
    head = [tag("th", name, scope="col", class_=_kind(section, j)) for j, name in enumerate(section.columns)]
    body = []
    for heading, rows in section.blocks():
        lines = []
        if heading is not None:
            group = tag("th", tag("span", heading), scope="rowgroup", colspan=len(section.columns))
            lines.append(tag("tr", group, class_="group"))
        for i in rows:
            cells = [
                tag(
                    "td" if j else "th",
                    tag("b", text) if (i, j) in section.bold and text else text,
                    scope=None if j else "row",
                    class_=_kind(section, j, text),
                )
                for j, text in enumerate(section.rows[i])
            ]
            lines.append(tag("tr", *cells))
        body.append(tag("tbody", *lines))
    return tag("table", tag("thead", tag("tr", *head)), *body, class_="results")


def _kind(section: Section, column: int, text: str = "") -> str | None:
    if column >= section.texts:
        return "number"
    return "below" if text.startswith(" ") else "text"
