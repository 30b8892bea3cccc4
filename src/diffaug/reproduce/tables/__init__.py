"""The tables of a reproduced experiment: on a terminal, as Markdown, as LaTeX, and everything as JSON."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Literal, get_args

from diffaug import tabular
from diffaug.errors import DiffaugError
from diffaug.reproduce.findings import Summary
from diffaug.reproduce.tables.layout import Part, parts
from diffaug.reproduce.tables.notes import notes
from diffaug.reproduce.tables.plain import to_dict

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Form", "Part", "notes", "parts", "render", "to_dict"]

Form = Literal["terminal", "markdown", "latex", "json"]

_GAP = 2  # spaces between the columns of a terminal: every one of its 80 characters is needed
# Characters of a line of a table that fit into one of two columns of a page, and across a page.
_NARROW, _WIDE = 48, 96


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
    lines = [r"% Needs \usepackage{booktabs} and \usepackage{graphicx}."]
    for part in parts(summary):
        section, width = part.section, tabular.needed_width(part.section, _GAP)
        table = "table" if width <= _NARROW else "table*"
        # Settings are long lines of text: these tables are made smaller as a whole.
        begin, end = ([r"\resizebox{\textwidth}{!}{%"], ["}"]) if width > _WIDE else ([], [])
        caption = tabular.escape_latex(_sentences([f"{summary.title}: {section.title}", *part.caption]))
        lines += [
            rf"\begin{{{table}}}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{summary.experiment}-{part.key}}}",
            *begin,
            *tabular.latex(section),
            *end,
            rf"\end{{{table}}}",
            "",
        ]
    if found := notes(summary):
        lines += [r"\begin{itemize}", *(rf"\item {tabular.escape_latex(note)}" for note in found), r"\end{itemize}"]
    return "\n".join(lines).rstrip() + "\n"


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
