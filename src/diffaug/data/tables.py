"""A table is what every source of data looks like to the readers: numbered rows of cells, with or without names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

Row = tuple[int, Sequence[object]]

# Rows looked at before the columns are settled.
HEAD = 100


class _Missing:
    """Stands in a row for a named cell that the row does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass
class Table:
    """Rows from one source.

    Attributes:
        name: what messages call the source.
        format: the format in words, for people.
        names: the names of the columns; None if the source has only their order.
        rows: each with its number, from 1: the line in a text file (its first, when a row spans several), else the row.
        unit: what the rows' numbers count, ``line`` or ``row``.
        may_have_header: the first row may turn out to be the columns' names (CSV and TSV).
        separator: what stands between cells of a text file.
        whole_lines: a row is a line of plain text, so there are no columns to speak of.
        late: names that only rows after the first have, and the number of the first row with each; found in reading.
    """

    name: str
    format: str
    names: tuple[str, ...] | None
    rows: Iterator[Row]
    unit: str = "row"
    may_have_header: bool = False
    separator: str | None = None
    whole_lines: bool = False
    late: dict[str, int] = field(default_factory=dict)

    def head(self) -> list[Row]:
        """The first rows, which stay in the table."""
        first = list(islice(self.rows, HEAD))
        self.rows = chain(first, self.rows)
        return first


def table_from_objects(objects: Iterable[object], name: str, format: str) -> Table:
    """A table from Python objects: strings, sequences of cells, or mappings from names to cells."""
    return table_from_numbered(enumerate(objects, start=1), name, format, unit="row")


def table_from_numbered(numbered: Iterable[tuple[int, object]], name: str, format: str, unit: str) -> Table:
    """As `table_from_objects`, of objects that carry their numbers. Mappings need not all have the same keys."""
    numbered = iter(numbered)
    head = list(islice(numbered, HEAD))
    names: dict[str, None] = {}
    for _, item in head:
        if isinstance(item, Mapping):
            names.update(dict.fromkeys(str(key) for key in item))
    columns = tuple(names) or None
    late: dict[str, int] = {}
    return Table(name, format, columns, _cells(chain(head, numbered), columns, late), unit, late=late)


def _cells(
    numbered: Iterable[tuple[int, object]], names: tuple[str, ...] | None, late: dict[str, int]
) -> Iterator[Row]:
    known = frozenset(names or ())
    for number, item in numbered:
        if isinstance(item, Mapping):
            if not item.keys() <= known:
                for key in item:
                    if str(key) not in known:
                        late.setdefault(str(key), number)
            yield number, [item.get(name, MISSING) for name in names or ()]
        elif names is not None:
            yield number, [MISSING] * len(names)
        elif isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
            yield number, item
        else:
            yield number, (item,)
