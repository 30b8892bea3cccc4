"""Rows that cannot be used: raise an error, or skip and count them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diffaug.errors import DiffaugError

logger = logging.getLogger("diffaug.data")

# Only the first problems are stored: a file of a million bad rows must not fill the memory.
_STORED = 5
HOW_TO_SKIP = "on_bad='skip' (in a recipe: data.on_bad)"
SKIP_OPTION = "--on-bad skip (in Python: on_bad='skip')"
"""`HOW_TO_SKIP` of commands with an option of their own, without recipe."""


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used.

    Attributes:
        source: the file, as the user named it.
        unit: what ``number`` counts, ``line`` or ``row``.
        number: line or row number, starting at 1.
        kind: short category, used for counting.
        detail: what is wrong with this row.
        harmless: the row is not an error and is skipped whatever ``on_bad`` says: an empty line of plain text, a pair
            without a gold label, a row of another split.
        advice: what to do about it, if that is not to correct the row.
    """

    source: str
    unit: str
    number: int
    kind: str
    detail: str
    harmless: bool = False
    advice: str = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.source}, {self.unit} {self.number:,}: {self.detail}{advice}"


OnBad = Literal["error", "skip"] | Callable[[Problem], None]
"""What to do with a bad row: raise an error, skip and count it, or skip it and call this function."""


class ProblemCount:
    """Counts problems by kind and stores the first few. Pass one as ``on_bad`` to get the counts."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.first: list[Problem] = []

    def __call__(self, problem: Problem) -> None:
        self.kinds[problem.kind] += 1
        if len(self.first) < _STORED:
            self.first.append(problem)

    def __len__(self) -> int:
        return self.kinds.total()

    def __str__(self) -> str:
        """Counts by kind, most frequent first: ``3 empty sentence, 1 unknown label``."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())


class Reporter:
    """Handles the problems of one source as ``on_bad`` says, and counts them.

    Args:
        on_bad: what to do with a bad row.
        how_to_skip: the setting that skips bad rows, for messages.

    Attributes:
        bad: counts of bad rows.
        skipped: counts of harmless rows, which are never passed to ``on_bad``.
        notes: what else the user should know about the source.
    """

    def __init__(self, on_bad: OnBad, how_to_skip: str = HOW_TO_SKIP) -> None:
        if not callable(on_bad) and on_bad not in ("error", "skip"):
            raise DiffaugError(f"on_bad must be 'error', 'skip' or a function, got {on_bad!r}")
        self.bad = ProblemCount()
        self.skipped = ProblemCount()
        self.notes: list[str] = []
        self._on_bad = on_bad
        self._how_to_skip = how_to_skip

    def __call__(self, problem: Problem) -> None:
        if problem.harmless:
            self.skipped(problem)
            return
        if self._on_bad == "error":
            raise DiffaugError(
                f"{problem}; fix the {problem.unit}, or skip such {problem.unit}s with {self._how_to_skip}"
            )
        self.bad(problem)
        if callable(self._on_bad):
            self._on_bad(problem)

    def note(self, source: str, text: str) -> None:
        """Store a note, and log it unless the caller looks at problems itself."""
        self.notes.append(text)
        if not callable(self._on_bad):
            logger.warning("%s: %s", source, text)

    def finish(self, source: str, used: int) -> None:
        """Log what was skipped, after the last row.

        Raises:
            DiffaugError: no row could be used. This is an error even with ``on_bad="skip"``.
        """
        rows = len(self.bad) + len(self.skipped) + used
        if used == 0:
            if not rows:
                raise DiffaugError(f"{source} has column names but no rows")
            counts = ", ".join(str(count) for count in (self.bad, self.skipped) if count)
            first = (self.bad or self.skipped).first[0]
            raise DiffaugError(f"{source} has no usable row ({counts}); the first problem: {first}")
        if callable(self._on_bad):
            return
        if self.bad:
            message = "%s: skipped %s of %s rows with problems (%s); the first: %s"
            logger.warning(message, source, f"{len(self.bad):,}", f"{rows:,}", self.bad, self.bad.first[0])
        if self.skipped:
            message = "%s: skipped %s of %s rows (%s)"
            logger.warning(message, source, f"{len(self.skipped):,}", f"{rows:,}", self.skipped)


def raise_problem(problem: Problem) -> None:
    """Raise an error for any problem; the default of the line reader."""
    raise DiffaugError(str(problem))


def printable(name: str) -> str:
    """A name from user data as it is, or its repr if it has line breaks or other control characters."""
    return name if name.isprintable() else repr(name)


def quoted(value: object, width: int = 40) -> str:
    """The repr of a value from user data, shortened and safe to print on any terminal."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 4] + "..." + text[-1]
