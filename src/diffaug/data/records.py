"""Data in memory as training and evaluation use it: parallel columns."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from diffaug.data.labels import Label
from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from typing_extensions import Self


class Records:
    """Base class: the fields of a subclass are lists of the same length.

    Attributes:
        kind: what the rows are, for messages.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        if len(set(lengths.values())) > 1:
            raise DiffaugError(f"all columns must have the same length, got {lengths}")

    def _columns(self) -> list[list[Any]]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def texts(self) -> list[list[str]]:
        """The columns of sentences, without labels and scores."""
        labels = ("labels", "scores", "classes")
        return [getattr(self, field.name) for field in fields(self) if field.name not in labels]  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._columns()[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The rows, as tuples in the order of the fields."""
        return zip(*self._columns(), strict=True)

    def take(self, indices: Iterable[int]) -> Self:
        """The rows with these indices, in this order."""
        indices = list(indices)
        return type(self)(*([column[i] for i in indices] for column in self._columns()))


@dataclass(frozen=True)
class PositivePairs(Records):
    """Two sentences that belong together: a question and its duplicate, a query and its answer."""

    kind: ClassVar[str] = "positive pairs"
    anchors: list[str]
    positives: list[str]


@dataclass(frozen=True)
class Triplets(PositivePairs):
    """A sentence, one that it entails, and a similar one that it contradicts (the hard negative)."""

    kind: ClassVar[str] = "triplets"
    negatives: list[str]


@dataclass(frozen=True)
class LabelledPairs(Records):
    """Premise, hypothesis, and the label of the pair."""

    kind: ClassVar[str] = "labelled pairs"
    premises: list[str]
    hypotheses: list[str]
    labels: list[Label]

    def words(self) -> list[str]:
        """The labels as people name them: same and different in data with two labels."""
        if Label.NOT_ENTAILMENT not in self.labels:
            return [label.value for label in self.labels]
        return ["same" if label is Label.ENTAILMENT else "different" for label in self.labels]

    def binary(self) -> list[int]:
        """1 for entailment, 0 for everything else."""
        return [int(label is Label.ENTAILMENT) for label in self.labels]

    def without_neutral(self) -> LabelledPairs:
        """All pairs but the neutral ones, for a classifier with two classes."""
        return self.take(i for i, label in enumerate(self.labels) if label is not Label.NEUTRAL)

    def three_way(self) -> list[int]:
        """0 for entailment, 1 for neutral, 2 for contradiction.

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
class ScoredPairs(Records):
    """Two sentences and their similarity as judged by people, on any increasing scale."""

    kind: ClassVar[str] = "scored pairs"
    first: list[str]
    second: list[str]
    scores: list[float]

    def check_they_rank(self, source: object) -> None:
        """Raise if all scores are equal; the error names ``source``."""
        if len(set(self.scores)) < 2:
            raise DiffaugError(
                f"{source}: every score is {self.scores[0]:g}, so there is no ranking to compare with; scored pairs "
                "need at least two different scores"
            )


@dataclass(frozen=True)
class Classes(Records):
    """Sentences and the class of each: an intent, a topic, a kind of ticket."""

    kind: ClassVar[str] = "sentences with a class"
    sentences: list[str]
    classes: list[str]


Labelled = PositivePairs | LabelledPairs | ScoredPairs | Classes
"""Labelled data of any kind; triplets are positive pairs too."""


def normal(text: str) -> str:
    """A sentence without differences in case and spaces, which make no other sentence of it."""
    return " ".join(text.casefold().split())


AnyRecords = TypeVar("AnyRecords", bound=Records)


def concatenate(parts: Sequence[AnyRecords]) -> AnyRecords:
    """The rows of all parts, which must be of one type."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part._columns() for part in parts), strict=True)
    return type(parts[0])(*([cell for column in lists for cell in column] for lists in columns))


def triplets_from_pairs(pairs: LabelledPairs) -> Triplets:
    """Combine the k-th entailment of each premise with its k-th contradiction, in the order of the data.

    No hypothesis is used twice; surplus and neutral hypotheses are not used. In data with two labels, the hypotheses
    that are not entailed take the place of contradictions.

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
        positives, negatives = waiting.setdefault(premise, (deque(), deque()))
        (positives if label is Label.ENTAILMENT else negatives).append(hypothesis)
        if positives and negatives:
            triplets.anchors.append(premise)
            triplets.positives.append(positives.popleft())
            triplets.negatives.append(negatives.popleft())
    if not triplets:
        raise DiffaugError(
            f"no triplet can be built from these {len(pairs):,} pairs: no premise has both an entailment and a "
            f"{'contradiction' if three else 'hypothesis that is not entailed'}"
        )
    return triplets


def pairs_from_triplets(triplets: Triplets) -> LabelledPairs:
    """The pairs of stage 1, two per triplet: (anchor, positive) is entailment, (anchor, negative) contradiction."""
    return LabelledPairs(
        [anchor for anchor in triplets.anchors for _ in range(2)],
        [sentence for _, positive, negative in triplets for sentence in (positive, negative)],
        [Label.ENTAILMENT, Label.CONTRADICTION] * len(triplets),
    )


def summary(data: Labelled) -> str:
    """What labelled data are to a training run, in one line: ``150 pairs: 90 same, 60 different``."""
    count = f"{len(data):,}"
    if isinstance(data, Triplets):
        return f"{count} triplets: a sentence, one that belongs to it and a hard negative"
    if isinstance(data, PositivePairs):
        return f"{count} pairs that belong together; the other pairs of a batch are the negatives"
    if isinstance(data, ScoredPairs):
        return f"{count} pairs with scores from {min(data.scores):g} to {max(data.scores):g}"
    if isinstance(data, Classes):
        sizes = Counter(data.classes).values()
        each = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
        return f"{count} sentences of {len(sizes):,} classes, {each} per class"
    counts = Counter(data.labels)
    if Label.NOT_ENTAILMENT in counts:
        return f"{count} pairs: {counts[Label.ENTAILMENT]:,} same, {counts[Label.NOT_ENTAILMENT]:,} different"
    return f"{count} pairs: " + ", ".join(f"{counts[label]:,} {label.value}" for label in Label if counts[label])
