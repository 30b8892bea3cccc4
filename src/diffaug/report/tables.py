"""The tables and figures of a reproduced experiment, as parts of the page."""

from __future__ import annotations

import base64

from diffaug.errors import DiffaugError
from diffaug.report.markup import Html, join, tag
from diffaug.report.sections import scrolling
from diffaug.reproduce.grid import Grid
from diffaug.tabular import Section

# A figure larger than this would make the page slow to open.
_LARGEST = 400_000


def grid_tables(grid: Grid) -> Html:
    """The tables that `diffaug reproduce` makes of a grid, with their notes; or why there are none yet."""
    from diffaug.reproduce.summary import summarise
    from diffaug.reproduce.tables import notes, parts

    try:
        summary = summarise(grid)
        found = [
            join(section_table(part.section), tag("p", " ".join(f"{text}." for text in part.caption), class_="caption"))
            for part in parts(summary)
        ]
        remarks = [tag("li", note) for note in notes(summary)]
    except DiffaugError as error:
        return tag("p", f"There is no table yet: {error}", class_="note")
    return join(*found, tag("ul", *remarks, class_="notes") if remarks else None)


def grid_figures(grid: Grid) -> Html:
    """The figures that were drawn of a grid."""
    found = []
    for path in sorted((grid.folder / "figures").glob("*.svg")):
        if path.stat().st_size <= _LARGEST:
            source = "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
            found.append(tag("figure", tag("img", src=source, alt=f"Figure: {path.stem.replace('-', ' ')}")))
    return join(*found)


def section_table(section: Section) -> Html:
    """A table below its title."""
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
    table = tag("table", tag("thead", tag("tr", *head)), *body, class_="results")
    return join(tag("h3", section.title), scrolling(table, section.title))


def _kind(section: Section, column: int, text: str = "") -> str | None:
    if column >= section.texts:
        return "number"
    return "below" if text.startswith(" ") else "text"
