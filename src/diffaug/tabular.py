"""Tables of text that can be rendered for the terminal, as Markdown and as LaTeX."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Text is wrapped between words; only longer words are broken.
_LONGEST_WORD = 32

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
    "–": "--",
    "−": "$-$",
    "[": "{[}",  # after the end of a row it would be read as an optional argument
    "]": "{]}",
    "*": "$^{*}$",
}
_NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")


@dataclass(frozen=True)
class Section:
    """A table of text.

    Attributes:
        title: the line above the table.
        columns: column names.
        rows: one cell per column.
        bold: bold cells, as (row, column).
        headings: group headings over the whole width, by the index of the group's first row.
        texts: number of text columns, from the left; the others are numbers and right-aligned.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    headings: Mapping[int, str] = field(default_factory=dict)
    texts: int = 1

    def blocks(self) -> Iterator[tuple[str | None, range]]:
        """The groups of rows, each with its heading or None."""
        starts = sorted({0, *self.headings})
        for start, end in zip(starts, [*starts[1:], len(self.rows)], strict=True):
            if start in self.headings or start < end:
                yield self.headings.get(start), range(start, end)

    def widths(self) -> list[int]:
        """The width of each column in characters."""
        return [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]


def whole_rows(rows: list[list[str]], chosen: set[int]) -> frozenset[tuple[int, int]]:
    """All cells of some rows, for `Section.bold`."""
    return frozenset((row, column) for row in chosen for column in range(len(rows[row])))


def markdown(section: Section) -> list[str]:
    """The lines of a Markdown table, with its title."""
    align = [":--"] * section.texts + ["--:"] * (len(section.columns) - section.texts)
    head = [_escape_markdown(column) for column in section.columns]
    lines = [f"**{section.title}**", "", _markdown_row(head), _markdown_row(align)]
    for heading, rows in section.blocks():
        if heading is not None:
            lines.append(_markdown_row([f"*{_escape_markdown(heading)}*"] + [""] * (len(section.columns) - 1)))
        for i in rows:
            cells = [_escape_markdown(cell) for cell in section.rows[i]]
            lines.append(
                _markdown_row([f"**{c}**" if (i, j) in section.bold and c else c for j, c in enumerate(cells)])
            )
    return lines


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape_markdown(cell: str) -> str:
    return cell.strip().replace("|", "\\|").replace("*", "\\*")


def latex(section: Section) -> list[str]:
    """The lines of a LaTeX ``tabular`` with booktabs rules, without the title."""
    texts, numbers = section.texts, len(section.columns) - section.texts
    lines = [rf"\begin{{tabular}}{{{'l' * texts}{'r' * numbers}}}", r"\toprule", _latex_row(section.columns)]
    for heading, rows in section.blocks():
        lines.append(r"\midrule")
        if heading is not None:
            lines.append(rf"\multicolumn{{{len(section.columns)}}}{{l}}{{\emph{{{escape_latex(heading)}}}}} \\")
        lines += [_latex_row(section.rows[i], {j for r, j in section.bold if r == i}) for i in rows]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(cells: list[str], bold: set[int] | None = None) -> str:
    escaped = map(escape_latex, cells)
    return (
        " & ".join(rf"\textbf{{{cell}}}" if j in (bold or ()) and cell else cell for j, cell in enumerate(escaped))
        + r" \\"
    )


def escape_latex(text: str) -> str:
    """Escape LaTeX commands and typographic characters.

    Leading spaces, which indent a row below the one above, become a quad.
    """
    indent = r"\quad " if text.startswith(" ") else ""
    return indent + "".join(_LATEX.get(character, character) for character in _NEGATIVE.sub("−", text.lstrip()))


def fitted(section: Section, width: int, gap: int = 3) -> list[Section]:
    """Split a table into tables of at most ``width`` characters.

    Text is wrapped first. If that is not enough, the number columns are distributed; each part repeats the text
    columns.
    """
    texts = section.texts
    widths = _wrapped_widths(section, width, gap)
    room = width - _total_width(widths[:texts], gap)
    parts: list[list[int]] = [[]]
    for column in range(texts, len(widths)):
        if parts[-1] and sum(widths[j] + gap for j in [*parts[-1], column]) > room:
            parts.append([])
        parts[-1].append(column)
    return [section] if len(parts) == 1 else [_select_columns(section, [*range(texts), *cols]) for cols in parts]


def _select_columns(section: Section, columns: list[int]) -> Section:
    """A table of some columns, without the rows that have no number in them."""
    kept = [i for i, row in enumerate(section.rows) if any(row[j] for j in columns[section.texts :])]
    return replace(
        section,
        columns=[section.columns[j] for j in columns],
        rows=[[section.rows[i][j] for j in columns] for i in kept],
        bold=frozenset((kept.index(i), columns.index(j)) for i, j in section.bold if i in kept and j in columns),
        headings={bisect_left(kept, i): heading for i, heading in section.headings.items()},
    )


def needed_width(section: Section, gap: int = 3) -> int:
    """The width of the table in characters, without wrapping."""
    return _total_width(section.widths(), gap)


def _total_width(widths: list[int], gap: int) -> int:
    return sum(widths) + gap * len(widths) + 2


def _wrapped_widths(section: Section, width: int, gap: int) -> list[int]:
    """Column widths, with text columns narrowed until the table fits or no word allows more."""
    widths = section.widths()
    texts = list(zip(section.columns, *section.rows, strict=True))[: section.texts]
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    while _total_width(widths, gap) > width:
        candidates = [j for j in range(section.texts) if widths[j] > min(words[j], _LONGEST_WORD)]
        if not candidates:
            break
        widths[max(candidates, key=lambda j: widths[j])] -= 1
    return widths


def rich_table(section: Section, width: int | None = None, *, gap: int = 3) -> RenderableType:
    """Render a table for the terminal.

    Args:
        section: the table; split it with `fitted` if it is too wide.
        width: width of the terminal, to which text is wrapped; default: no wrapping.
        gap: spaces between columns, 2 or 3.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.padding import Padding

    widths = section.widths() if width is None else _wrapped_widths(section, width, gap)
    if not section.headings:
        return _block(section, range(len(section.rows)), widths, gap)
    # rich has no cells that span columns, so each group is a table of its own, with the same widths.
    parts: list[RenderableType] = [_block(section, range(0), widths, gap, edge=False)]
    for number, (heading, rows) in enumerate(section.blocks()):
        if heading is not None:
            parts.append(("\n" if number else "") + f"[italic]{escape(heading)}[/italic]")
        parts.append(_block(section, rows, widths, gap, header=False, edge=False))
    return Padding(Group(*parts), (0, 0, 1, 1))


def _block(
    section: Section, rows: range, widths: list[int], gap: int, *, header: bool = True, edge: bool = True
) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(section.title) if header else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, gap - 2),  # the box adds one space between columns
        show_header=header,
        show_edge=edge,
    )
    for j, (column, width) in enumerate(zip(section.columns, widths, strict=True)):
        table.add_column(escape(column), justify="left" if j < section.texts else "right", width=width, overflow="fold")
    for i in rows:
        cells = enumerate(map(escape, section.rows[i]))
        table.add_row(*(f"[bold]{cell}[/bold]" if (i, j) in section.bold else cell for j, cell in cells))
    return table
