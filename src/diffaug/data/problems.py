"""What is wrong with a row of somebody's data, and what becomes of it: an error, or a row skipped and counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diffaug.errors import DiffaugError

logger = logging.getLogger("diffaug.data")

# Enough to see what is going on; a million messages would only fill the memory.
_KEPT = 5


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used.

    Attributes:
        source: the file, as the user named it.
        unit: what ``number`` counts, ``line`` or ``row``.
        number: where in the source, from 1; in a text file an editor jumps there.
        kind: a short name for the sort of problem, the same for all of a sort.
        detail: what is wrong with this very row.
        harmless: such rows belong to the data, and are skipped and counted whatever ``on_bad`` says: an empty line of
            raw text, a pair without a gold label, a row of another split.
    """

    source: str
    unit: str
    number: int
    kind: str
    detail: str
    harmless: bool = False

    def __str__(self) -> str:
        return f"{self.source}, {self.unit} {self.number:,}: {self.detail}"


OnBad = Literal["error", "skip"] | Callable[[Problem], None]
"""What happens to a bad row: stop with an error, skip it and count, or skip it and call this with the problem."""


class ProblemCount:
    """Counts problems by kind and keeps the first few; pass one as ``on_bad`` to have the numbers afterwards."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.first: list[Problem] = []

    def __call__(self, problem: Problem) -> None:
        self.kinds[problem.kind] += 1
        if len(self.first) < _KEPT:
            self.first.append(problem)

    def __len__(self) -> int:
        return self.kinds.total()

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def __str__(self) -> str:
        """The kinds with their counts, most frequent first: ``3 empty sentence, 1 unknown label``."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())


class Reporter:
    """Where readers send problems: does with them what ``on_bad`` says, and keeps count.

    Attributes:
        count: of the bad rows.
        skipped: of the harmless ones, which ``on_bad`` never sees, by kind.
    """

    def __init__(self, on_bad: OnBad) -> None:
        if not callable(on_bad) and on_bad not in ("error", "skip"):
            raise DiffaugError(f"on_bad must be 'error', 'skip' or a function, not {on_bad!r}")
        self.count = ProblemCount()
        self.skipped = ProblemCount()
        self._on_bad = on_bad

    def __call__(self, problem: Problem) -> None:
        if problem.harmless:
            self.skipped(problem)
            return
        if self._on_bad == "error":
            raise DiffaugError(
                f"{problem}; repair the {problem.unit}, or have such {problem.unit}s skipped and counted "
                "(on_bad='skip', in a recipe data.on_bad)"
            )
        self.count(problem)
        if callable(self._on_bad):
            self._on_bad(problem)

    def conclude(self, source: str, kept: int) -> None:
        """After the last row: nothing usable is an error even when skipping; what was skipped is logged."""
        rows = len(self.count) + len(self.skipped) + kept
        if kept == 0:
            if not rows:
                raise DiffaugError(f"{source} holds column names but no rows")
            found = ", ".join(str(count) for count in (self.count, self.skipped) if count)
            first = (self.count or self.skipped).first[0]
            raise DiffaugError(f"{source} holds no usable row ({found}); the first problem: {first}")
        if callable(self._on_bad):
            return
        if self.count:
            logger.warning(
                "%s: skipped %s of %s rows (%s); the first: %s",
                source,
                f"{len(self.count):,}",
                f"{rows:,}",
                self.count,
                self.count.first[0],
            )
        if self.skipped:
            logger.warning(
                "%s: left out %s of %s rows (%s)", source, f"{len(self.skipped):,}", f"{rows:,}", self.skipped
            )


def quoted(value: object, width: int = 40) -> str:
    """A piece of user data for a message: short, and without characters that a terminal could not show."""
    text = repr(value)
    if len(text) > width:
        text = text[: width - 4] + "..." + text[-1]
    return text
