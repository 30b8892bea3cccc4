"""Data as training and evaluation see it: parallel columns, a million rows of which fit in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from diffaug.data.labels import Label
from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from typing_extensions import Self


class _Columns:
    """What the dataclasses below have in common: their fields are lists of one length.

    Attributes:
        kind: what the rows are, for messages.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        if len(set(lengths.values())) > 1:
            raise DiffaugError(f"columns of different length: {lengths}")

    def _lists(self) -> list[list[Any]]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._lists()[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The rows, as tuples in the order of the fields."""
        return zip(*self._lists(), strict=True)

    def take(self, indices: Iterable[int]) -> Self:
        """The rows at these places, in this order."""
        indices = list(indices)
        return type(self)(*([column[i] for i in indices] for column in self._lists()))


@dataclass(frozen=True)
class PositivePairs(_Columns):
    """Two sentences that belong together: a question and its duplicate, a query and what answers it."""

    kind: ClassVar[str] = "positive pairs"
    anchors: list[str]
    positives: list[str]


@dataclass(frozen=True)
class Triplets(PositivePairs):
    """A sentence, one that follows from it, and one that looks alike but contradicts it: its hard negative."""

    kind: ClassVar[str] = "triplets"
    negatives: list[str]


@dataclass(frozen=True)
class LabelledPairs(_Columns):
    """Premise and hypothesis, and what the first says about the second."""

    kind: ClassVar[str] = "labelled pairs"
    premises: list[str]
    hypotheses: list[str]
    labels: list[Label]

    def binary(self) -> list[int]:
        """1 where the premise entails the hypothesis, 0 elsewhere."""
        return [int(label is Label.ENTAILMENT) for label in self.labels]

    def without_neutral(self) -> LabelledPairs:
        """The pairs that are entailed or are not, for a classifier with two classes."""
        return self.take(i for i, label in enumerate(self.labels) if label is not Label.NEUTRAL)

    def three_way(self) -> list[int]:
        """0 entailment, 1 neutral, 2 contradiction.

        Raises:
            DiffaugError: the data has two labels only.
        """
        order = {Label.ENTAILMENT: 0, Label.NEUTRAL: 1, Label.CONTRADICTION: 2}
        if Label.NOT_ENTAILMENT in self.labels:
            raise DiffaugError(
                "these pairs are labelled entailment or not; a method with three classes needs entailment, neutral "
                "and contradiction"
            )
        return [order[label] for label in self.labels]


@dataclass(frozen=True)
class ScoredPairs(_Columns):
    """Two sentences and how similar people find them, on any scale that grows with similarity."""

    kind: ClassVar[str] = "scored pairs"
    first: list[str]
    second: list[str]
    scores: list[float]

    def check_they_rank(self, source: object) -> None:
        """Raise if all scores are one and the same; ``source`` is named in the error."""
        if len(set(self.scores)) < 2:
            raise DiffaugError(
                f"{source}: every score is {self.scores[0]:g}, so no ranking can be compared with them; scored pairs "
                "need at least two different scores"
            )


Records = TypeVar("Records", bound=_Columns)


def join(parts: Sequence[Records]) -> Records:
    """The rows of all parts, which must be of one type, in their order."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part._lists() for part in parts), strict=True)
    return type(parts[0])(*([cell for column in lists for cell in column] for lists in columns))


def triplets_from_pairs(pairs: LabelledPairs) -> Triplets:
    """Join an entailed and a contradicted hypothesis of the same premise, in the order of the file.

    The k-th entailment of a premise meets its k-th contradiction, so no hypothesis is used twice; what is left over,
    and all neutral hypotheses, are not used. In data with two labels, what is not entailed takes the place of the
    contradiction.

    Raises:
        DiffaugError: no premise has both.
    """
    three = Label.CONTRADICTION in pairs.labels
    opposite = Label.CONTRADICTION if three else Label.NOT_ENTAILMENT
    waiting: dict[str, tuple[deque[str], deque[str]]] = {}
    triplets = Triplets([], [], [])
    for premise, hypothesis, label in pairs:
        if label is not Label.ENTAILMENT and label is not opposite:
            continue
        entailed, denied = waiting.setdefault(premise, (deque(), deque()))
        (entailed if label is Label.ENTAILMENT else denied).append(hypothesis)
        if entailed and denied:
            triplets.anchors.append(premise)
            triplets.positives.append(entailed.popleft())
            triplets.negatives.append(denied.popleft())
    if not triplets:
        raise DiffaugError(
            f"no triplet can be built from these {len(pairs):,} pairs: no premise comes with both an entailment and "
            f"a {'contradiction' if three else 'hypothesis that is not entailed'}"
        )
    return triplets


def pairs_from_triplets(triplets: Triplets) -> LabelledPairs:
    """The binary pairs of stage 1: (premise, entailment) is 1, (premise, contradiction) is 0; two for each triplet."""
    return LabelledPairs(
        [anchor for anchor in triplets.anchors for _ in range(2)],
        [sentence for _, positive, negative in triplets for sentence in (positive, negative)],
        [Label.ENTAILMENT, Label.CONTRADICTION] * len(triplets),
    )
