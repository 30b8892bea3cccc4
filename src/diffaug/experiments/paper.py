"""Numbers of the paper, which specifications quote, shown beside ours where the encoder is the same."""

from __future__ import annotations

from collections.abc import Iterator

from diffaug.experiments.results import Published
from diffaug.experiments.spec import GridSpec, PublishedTable


class Quoted:
    """The numbers that a specification quotes for one encoder: the last part of a name or folder counts."""

    def __init__(self, spec: GridSpec, encoder: str) -> None:
        self._same_columns = spec.same_columns
        tables = [table for table in spec.published if table.encoder == encoder_name(encoder)]
        self._numbers = {place: number for table in tables for place, number in numbers(table)}

    def get(self, row: str, column: str, task: str) -> Published | None:
        """A number of the paper, or None where there is none.

        Args:
            row, column: labels in our grid; a number of labels is looked up as the fraction it is in the paper.
            task: as in our results: `STS12` ..., `average`, `STS-B dev`; for the cost, `minutes` and `gib`.
        """
        return self._numbers.get((row, self._same_columns.get(column.replace(",", ""), column), task))


def encoder_name(encoder: str) -> str:
    """The last part of a name or folder."""
    return encoder.rstrip("/").rsplit("/", 1)[-1]


def numbers(table: PublishedTable) -> Iterator[tuple[tuple[str, str, str], Published]]:
    """Every number of a table, by row, column and task."""
    for row, cells in table.rows.items():
        for head, cell in zip(table.heads, cells, strict=True):
            if cell is not None:
                yield (row, head, table.task) if table.heads_are == "columns" else (row, "", head), _number(cell)


def _number(cell: float | str) -> Published:
    """A number, or `80.61 ± .2`."""
    if isinstance(cell, float):
        return Published(cell, None)
    mean, _, deviation = cell.partition(" ± ")
    return Published(float(mean), float(deviation))
