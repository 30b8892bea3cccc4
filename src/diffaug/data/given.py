"""Data passed in Python: rows of any form, brought to one that can be counted and read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from diffaug.errors import DiffaugError

PASSED = "passed in memory"


@dataclass(frozen=True)
class Given:
    """Rows and what messages call them.

    Attributes:
        name: as in "the data passed as nli".
        rows: mappings, sequences or strings; can be read any number of times.
        count: how many.
    """

    name: str
    rows: Iterable[Any]
    count: int

    @classmethod
    def take(cls, name: str, source: Iterable[Any]) -> Given:
        """Keep what can be read again (a list, a data set), and read to its end what cannot (a generator).

        Raises:
            DiffaugError: something that holds no rows.
        """
        rows = iterable_rows(source)
        kept = rows if isinstance(rows, Sized) else list(rows)
        return cls(name, kept, len(kept))

    def __str__(self) -> str:
        """What a recipe records in place of a file."""
        return f"{PASSED}, {self.count:,} rows"


def iterable_rows(source: Any) -> Iterable[Any]:
    """The rows of a Python object: any iterable of rows, a `datasets.Dataset`, or a table of pandas, polars or pyarrow.

    Raises:
        DiffaugError: it holds no rows, or several sets of them.
    """
    if isinstance(source, Mapping):
        keys = ", ".join(repr(key) for key in list(source)[:4])
        raise DiffaugError(
            f"cannot read data from a {type(source).__name__} with {keys}; pass one of its entries, or a list of rows"
        )
    if hasattr(source, "columns"):  # a table: iterating over one gives its columns, or their names
        for method, arguments in (("to_pylist", ()), ("to_dicts", ()), ("to_dict", ("records",))):
            if hasattr(source, method):
                rows: list[Any] = getattr(source, method)(*arguments)
                return rows
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes)):
        raise DiffaugError(
            f"cannot read data from a {type(source).__name__}; give a file, a hub name or a list of rows"
        )
    if hasattr(source, "features") and hasattr(source, "column_names"):
        plain: Any = source.with_format(None)  # type: ignore[attr-defined] # numbers not as those of numpy or torch
        return _DatasetRows(plain) if isinstance(plain, Sized) else _with_label_names(plain)
    return source


class _DatasetRows:
    """The rows of a `datasets.Dataset`, read as often as asked for, none of them kept."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[dict[str, object]]:
        return _with_label_names(self._dataset)


def _with_label_names(dataset: Any) -> Iterator[dict[str, object]]:
    """Rows of a data set, coded labels by their names: what 0 means differs from one data set to the next."""
    named = {
        column: feature.names
        for column, feature in (dataset.features or {}).items()
        if getattr(feature, "names", None) is not None
    }
    for row in dataset:
        for column, names in named.items():
            code = row[column]
            if isinstance(code, int) and 0 <= code < len(names):
                row = {**row, column: names[code]}
        yield row
