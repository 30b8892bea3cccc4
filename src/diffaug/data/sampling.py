"""Few labels: drawing a part of the data so that smaller draws lie within larger ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar, overload

from diffaug.data.records import LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.errors import DiffaugError

Columns = TypeVar("Columns", PositivePairs, Triplets, LabelledPairs, ScoredPairs)
Item = TypeVar("Item")


def draw_indices(total: int, seed: int, *, fraction: float | None = None, count: int | None = None) -> list[int]:
    """Which of ``total`` rows a draw takes, in ascending order.

    Every row gets a random number from the seed, and the rows with the smallest are taken. So the 1 % draw of a seed
    is contained in its 10 % draw, on every platform and Python version.

    Args:
        total: number of rows there are.
        seed: another seed, another draw.
        fraction: the part to take, above 0 and up to 1; rounded to whole rows, at least one.
        count: or the number of rows to take.

    Raises:
        DiffaugError: neither or both of fraction and count, or one that is out of range.
    """
    if (fraction is None) == (count is None):
        raise DiffaugError("say how much to draw with either a fraction or a count")
    if total < 1:
        raise DiffaugError("there are no rows to draw from")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise DiffaugError(f"the fraction to draw must be above 0 and at most 1, not {fraction}")
        count = max(1, round(fraction * total))
    assert count is not None
    if not 1 <= count <= total:
        raise DiffaugError(f"cannot draw {count:,} rows out of {total:,}")
    # Python promises that random() gives the same numbers for a seed for ever; it does not for shuffle and sample.
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(total)]
    return sorted(sorted(range(total), key=keys.__getitem__)[:count])


@overload
def draw(rows: Columns, seed: int, *, fraction: float | None = None, count: int | None = None) -> Columns: ...
@overload
def draw(rows: Sequence[Item], seed: int, *, fraction: float | None = None, count: int | None = None) -> list[Item]: ...


def draw(rows, seed, *, fraction=None, count=None):  # type: ignore[no-untyped-def]
    """The rows that `draw_indices` takes, in the order they have: a part of triplets, pairs or a list of sentences."""
    indices = draw_indices(len(rows), seed, fraction=fraction, count=count)
    if isinstance(rows, (PositivePairs, LabelledPairs, ScoredPairs)):
        return rows.take(indices)
    return [rows[i] for i in indices]
