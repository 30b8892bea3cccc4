"""Tables for people, written once and shown three ways: on a terminal, as Markdown, and as LaTeX."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Text is folded between words; only a word that is longer than this is broken.
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
    "[": "{[}",  # behind the end of a row it would be an argument of that
    "]": "{]}",
    "*": "$^{*}$",
}
_NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")


@dataclass(frozen=True)
class Section:
    """A table of text.

    Attributes:
        title: a line above it.
        columns: their names.
        rows: a cell for each column.
        bold: which cells stand out, as (row, column).
        headings: what stands above a row, over the whole width: the name of the group that begins there.
        texts: how many columns from the left are text; the others are numbers, which end at the right.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    headings: Mapping[int, str] = field(default_factory=dict)
    texts: int = 1

    def blocks(self) -> Iterator[tuple[str | None, range]]:
        """The runs of rows that headings make, each with its heading."""
        starts = sorted({0, *self.headings})
        for start, end in zip(starts, [*starts[1:], len(self.rows)], strict=True):
            if start in self.headings or start < end:
                yield self.headings.get(start), range(start, end)

    def widths(self) -> list[int]:
        """The characters that each column needs."""
        return [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]


def whole_rows(rows: list[list[str]], chosen: set[int]) -> frozenset[tuple[int, int]]:
    """The cells of some rows, for `Section.bold`."""
    return frozenset((row, column) for row in chosen for column in range(len(rows[row])))


def markdown(section: Section) -> list[str]:
    """The lines of a Markdown table, below its title."""
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
    """The lines of a LaTeX ``tabular`` with the rules of booktabs; its title is left to a caption."""
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
    """Text in which nothing is a command any more, and typographic signs are written as LaTeX has them.

    Spaces at the beginning, which mean that a row belongs to the one above, become a quad.
    """
    indent = r"\quad " if text.startswith(" ") else ""
    return indent + "".join(_LATEX.get(character, character) for character in _NEGATIVE.sub("−", text.lstrip()))


def fitted(section: Section, width: int, gap: int = 3) -> list[Section]:
    """The table as one or several, one below the other, that need no more than ``width`` characters on a terminal.

    Text is folded first; then the columns of numbers are shared out, each part repeating the columns of text.
    """
    texts = section.texts
    widths = _folded(section, width, gap)
    room = width - _taken(widths[:texts], gap)
    parts: list[list[int]] = [[]]
    for column in range(texts, len(widths)):
        if parts[-1] and sum(widths[j] + gap for j in [*parts[-1], column]) > room:
            parts.append([])
        parts[-1].append(column)
    return [section] if len(parts) == 1 else [_of_columns(section, [*range(texts), *cols]) for cols in parts]


def _of_columns(section: Section, columns: list[int]) -> Section:
    """Some of the columns, and the rows that have a number in them."""
    kept = [i for i, row in enumerate(section.rows) if any(row[j] for j in columns[section.texts :])]
    return replace(
        section,
        columns=[section.columns[j] for j in columns],
        rows=[[section.rows[i][j] for j in columns] for i in kept],
        bold=frozenset((kept.index(i), columns.index(j)) for i, j in section.bold if i in kept and j in columns),
        headings={bisect_left(kept, i): heading for i, heading in section.headings.items()},
    )


def needed_width(section: Section, gap: int = 3) -> int:
    """The characters a line must have room for, if nothing is folded."""
    return _taken(section.widths(), gap)


def _taken(widths: list[int], gap: int) -> int:
    return sum(widths) + gap * len(widths) + 2


def _folded(section: Section, width: int, gap: int) -> list[int]:
    """The columns' widths, those of text made narrower where that makes the table fit, or comes nearer to it."""
    widths = section.widths()
    texts = list(zip(section.columns, *section.rows, strict=True))[: section.texts]
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    while _taken(widths, gap) > width:
        foldable = [j for j in range(section.texts) if widths[j] > min(words[j], _LONGEST_WORD)]
        if not foldable:
            break
        widths[max(foldable, key=lambda j: widths[j])] -= 1
    return widths


def rich_table(section: Section, width: int | None = None, *, gap: int = 3) -> RenderableType:
    """The table for a terminal.

    Args:
        section: what to show; `fitted` breaks up what is too wide.
        width: the terminal's; text is folded to fit it. Left out, nothing is folded.
        gap: spaces between columns, 2 or 3.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.padding import Padding

    widths = section.widths() if width is None else _folded(section, width, gap)
    if not section.headings:
        return _block(section, range(len(section.rows)), widths, gap)
    # A heading goes over all columns, which a cell of a table cannot: each block is a table, of the same widths.
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
        padding=(0, 1, 0, gap - 2),  # between two columns the box has a space of its own
        show_header=header,
        show_edge=edge,
    )
    for j, (column, width) in enumerate(zip(section.columns, widths, strict=True)):
        table.add_column(escape(column), justify="left" if j < section.texts else "right", width=width, overflow="fold")
    for i in rows:
        cells = enumerate(map(escape, section.rows[i]))
        table.add_row(*(f"[bold]{cell}[/bold]" if (i, j) in section.bold else cell for j, cell in cells))
    return table
