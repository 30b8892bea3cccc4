"""How grids are spoken of: cells, and lists of them, the same wherever people read them.

Settings and draws are counted from 0, as in the names of folders and in `grid.json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffaug.reproduce.cell import Cell

# As many as a note can name and still be a note.
_NAMED = 6


def run_words(cell: Cell) -> list[str]:
    """Which of the runs of its row and column a cell is: `setting 0`, `draw 1`, `seed 43`."""
    return [f"setting {cell.setting}", f"draw {cell.draw}", f"seed {cell.seed}"]


def cell_words(cell: Cell) -> str:
    """A cell in a line: `DiffAug, semi  1 %  setting 2  draw 1  seed 43`."""
    return "  ".join(part for part in (cell.row, cell.column, *run_words(cell)) if part)


def cell_sentence(cell: Cell) -> str:
    """A cell within a sentence: `DiffAug, semi at 1 %, setting 2, draw 1, seed 43`."""
    return ", ".join([place_words(cell.row, cell.column), *run_words(cell)])


def place_words(row: str, column: str) -> str:
    """A row at a column, if it has any: `DiffAug, semi at 1 %`."""
    return f"{row} at {column}" if column else row


def setting_words(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What tells the settings of a row apart: for each of its cells the `key=value` that not all of them have."""
    common = set.intersection(*(set(cell.changes) for cell in cells))
    return tuple(", ".join(change for change in cell.changes if change not in common) for cell in cells)


def compact_words(setting: str) -> str:
    """A setting of `setting_words` with the keys of one part of a recipe together, for a narrow column.

    `stage2.learning_rate=3e-5, stage2.steps=600` becomes `stage2: learning_rate=3e-5, steps=600`.
    """
    parts: dict[str, list[str]] = {}
    for change in filter(None, setting.split(", ")):
        key, equals, value = change.partition("=")
        part, _, name = key.rpartition(".")
        parts.setdefault(part, []).append(name + equals + value)
    return "; ".join((f"{part}: " if part else "") + ", ".join(changes) for part, changes in sorted(parts.items()))


def listed(names: Sequence[str]) -> str:
    """Names in a row; of many, the first ones."""
    return "; ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and what it counts: `1 run`, `1,200 runs`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
