"""The tables of a reproduced experiment: on a terminal, as Markdown, as LaTeX, and everything as JSON."""

from __future__ import annotations

import io
import json
import shutil
import textwrap
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, get_args

from diffaug import tabular
from diffaug.errors import DiffaugError
from diffaug.reproduce.findings import Summary
from diffaug.reproduce.tables.layout import Part, parts
from diffaug.reproduce.tables.notes import notes
from diffaug.reproduce.tables.plain import to_dict
from diffaug.tabular import Section

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Form", "Part", "notes", "parts", "render", "to_dict"]

Form = Literal["terminal", "markdown", "latex", "json"]

_GAP = 2  # spaces between the columns of a terminal: every one of its 80 characters is needed
# In LaTeX: characters of a line of a table that fit into one of two columns of a page, and across a page (what is wider
# is set small); and of a line of a long cell of text.
_NARROW, _WIDE, _TEXT = 48, 96, 62


def render(summary: Summary, form: Form, *, width: int | None = None, styled: bool = True) -> str:
    """The tables of a grid as text.

    Args:
        summary: of the grid.
        form: which.
        width: of the terminal; left out, that of the one there is.
        styled: bold text on the terminal, by escape codes (which `typer.echo` takes out where they do not belong).

    Raises:
        DiffaugError: there is no such form.
    """
    if form == "json":
        return json.dumps(to_dict(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "markdown":
        return _markdown(summary)
    if form == "latex":
        return _latex(summary)
    if form == "terminal":
        return _terminal(summary, width or shutil.get_terminal_size().columns, styled)
    raise DiffaugError(f"tables come as {', '.join(get_args(Form))}, not as {form!r}")


def _markdown(summary: Summary) -> str:
    lines = [f"## {summary.title}", ""]
    for part in parts(summary):
        lines += [*tabular.markdown(part.section), "", _sentences(part.caption), ""]
    lines += [f"- {note}" for note in notes(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _latex(summary: Summary) -> str:
    lines = [r"% Needs \usepackage{booktabs}."]
    for part in parts(summary):
        section = _in_lines(part.section)
        width = tabular.needed_width(section, _GAP)
        table = "table" if width <= _NARROW else "table*"
        caption = tabular.escape_latex(_sentences([f"{summary.title}: {section.title}", *part.caption]))
        lines += [
            rf"\begin{{{table}}}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{summary.experiment}-{part.key}}}",
            *([r"\scriptsize"] if width > _WIDE else []),
            *tabular.latex(section),
            rf"\end{{{table}}}",
            "",
        ]
    if found := notes(summary):
        lines += [r"\begin{itemize}", *(rf"\item {tabular.escape_latex(note)}" for note in found), r"\end{itemize}"]
    return "\n".join(lines).rstrip() + "\n"


def _in_lines(section: Section) -> Section:
    """The table with long text, such as settings, in several rows: LaTeX would let it run off the page."""
    rows: list[list[str]] = []
    starts: list[int] = []
    for row in section.rows:
        starts.append(len(rows))
        texts = [textwrap.wrap(cell, _TEXT, break_on_hyphens=False) for cell in row[: section.texts]]
        columns = [*texts, *([cell] for cell in row[section.texts :])]
        rows += [list(cells) for cells in zip_longest(*columns, fillvalue="")]
    headings = {starts[i]: heading for i, heading in section.headings.items()}
    return replace(section, rows=rows, headings=headings, bold=frozenset((starts[i], j) for i, j in section.bold))


def _terminal(summary: Summary, width: int, styled: bool) -> str:
    from rich.console import Console
    from rich.markup import escape

    shown: list[RenderableType] = [f"[bold]{escape(summary.title)}[/bold]", ""]
    for part in parts(summary):
        shown += [tabular.rich_table(piece, width, gap=_GAP) for piece in tabular.fitted(part.section, width, _GAP)]
        shown += [escape(_sentences(part.caption)), ""]
    shown += [escape(note) for note in notes(summary)]
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=styled, color_system="standard" if styled else None, highlight=False
    )
    for one in shown:
        console.print(one)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _sentences(parts: list[str]) -> str:
    """As running text."""
    return " ".join(f"{part}." for part in parts)
