"""Hard negatives from your own text: sentences that a model finds similar to an anchor but that do not belong to it."""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from diffaug.data.columns import Columns
from diffaug.data.labels import Label
from diffaug.data.problems import SKIP_OPTION, OnBad
from diffaug.data.read import LabelNames, read_labelled, read_text
from diffaug.data.records import Classes, Labelled, LabelledPairs, PositivePairs, Triplets, normal
from diffaug.data.table import Source
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError

log = logging.getLogger("diffaug.data")

# Similarities in memory at a time.
_BLOCK = 1 << 24


@dataclass(frozen=True)
class NegativeRules:
    """Which sentences may be negatives of a pair. What belongs to the anchor is left out before anything is counted.

    Attributes:
        range_min: skip this many of the nearest sentences that fit; they are the likeliest false negatives.
        range_max: look at this many of the nearest sentences.
        max_score: the highest cosine with the anchor.
        min_score: the lowest.
        absolute_margin: a negative's cosine is at least this much below the positive's; of several positives of an
            anchor, below that of the least similar one.
        relative_margin: likewise, as a fraction of the positive's cosine: 0.05 is at most 95 % of it.
    """

    range_min: int = 0
    range_max: int = 100
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = 0.05

    def __post_init__(self) -> None:
        for name in ("max_score", "min_score", "absolute_margin", "relative_margin"):
            if (value := getattr(self, name)) is not None and not math.isfinite(value):
                raise DiffaugError(f"{name} must be a finite number, got {value}")
        if not 0 <= self.range_min < self.range_max:
            raise DiffaugError(
                f"range_min must be at least 0 and below range_max, got {self.range_min} and {self.range_max}"
            )

    def ceiling(self, positive: float) -> float:
        """The highest cosine of a negative, given that of the positive."""
        limits = [np.inf if self.max_score is None else self.max_score]
        if self.absolute_margin is not None:
            limits.append(positive - self.absolute_margin)
        if self.relative_margin is not None:
            limits.append(positive - abs(positive) * self.relative_margin)
        return float(min(limits))


def mine_hard_negatives(
    model: Embedder | str | os.PathLike[str],
    labels: Source | Labelled,
    text: Source | None = None,
    *,
    num_negatives: int = 3,
    sampling: Literal["top", "random"] = "top",
    range_min: int = 0,
    range_max: int = 100,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = 0.05,
    seed: int = 0,
    columns: Columns | None = None,
    label_names: LabelNames | None = None,
    text_column: str | int | None = None,
    on_bad: OnBad = "error",
) -> Triplets:
    """Add hard negatives to pairs that belong together, or to sentences with a class.

    An anchor itself, all its positives, what is equal to one of them but for case and spaces, and all sentences of its
    class are never negatives. By default a negative must also be less similar to the anchor than the positive is.

    Args:
        model: finds similar sentences: an `Embedder`, or what `Embedder.from_pretrained` takes.
        labels: positive pairs, triplets, labelled pairs (those labelled entailment or same), or sentences with a class,
            each of which gets another one of its class as the positive.
        text: sentences to find negatives in; default: all sentences of the labels.
        num_negatives: the most negatives of a pair. Each one makes a triplet.
        sampling: the most similar ones that fit, or random ones of those that fit.
        range_min: see `NegativeRules`, as for the following.
        range_max: see above.
        max_score: see above.
        min_score: see above.
        absolute_margin: see above.
        relative_margin: see above.
        seed: of the random choice.
        columns: which column of the labels is what, if the names are not the usual ones.
        label_names: what unusual labels of pairs mean; see `diffaug.data.read.read_labelled_pairs`.
        text_column: the column of the text with the sentences, if the name is not the usual one.
        on_bad: what to do with rows of both that cannot be used.

    Returns:
        the triplets, in the order of the anchors. Pairs without a negative that fits are left out; the log counts them.

    Raises:
        DiffaugError: the labels have no pairs that belong together, or no pair has a negative that fits.
    """
    rules = NegativeRules(range_min, range_max, max_score, min_score, absolute_margin, relative_margin)
    if num_negatives < 1:
        raise DiffaugError(f"num_negatives must be at least 1, got {num_negatives}")
    embedder = model if isinstance(model, Embedder) else Embedder.from_pretrained(model)
    data = (
        labels
        if isinstance(labels, Labelled)
        else read_labelled(labels, columns, on_bad, label_names, how_to_skip=SKIP_OPTION)
    )
    pairs, belongs = _pairs(data)
    if not pairs:
        raise DiffaugError(f"these {len(data):,} {data.kind} have no two sentences that belong together")
    own = (sentence for column in data.texts() for sentence in column)
    corpus = list(dict.fromkeys(own if text is None else read_text(text, text_column, on_bad, SKIP_OPTION)))
    place: dict[str, list[int]] = {}
    for i, sentence in enumerate(corpus):
        place.setdefault(normal(sentence), []).append(i)
    documents = embedder.encode(corpus)
    anchors = list(dict.fromkeys(anchor for anchor, _ in pairs))
    number = {anchor: i for i, anchor in enumerate(anchors)}
    positives: list[list[str]] = [[] for _ in anchors]
    for anchor, positive in pairs:
        positives[number[anchor]].append(positive)
    queries = embedder.encode(anchors)
    targets = list(dict.fromkeys(positive for _, positive in pairs))
    vectors = dict(zip(targets, embedder.encode(targets), strict=True))
    lottery, found = random.Random(seed), Triplets([], [], [])
    without = 0
    step = max(1, _BLOCK // len(corpus))
    for start in range(0, len(anchors), step):
        block = queries[start : start + step] @ documents.T
        for anchor, scores, given in zip(anchors[start:], block, positives[start:], strict=False):
            excluded = [i for key in belongs[normal(anchor)] for i in place.get(key, ())]
            ranked = _nearest(scores, excluded, rules.range_max)
            low = -np.inf if rules.min_score is None else rules.min_score
            # What is nearer than any of the anchor's positives may be another one.
            high = rules.ceiling(min(float(vectors[positive] @ queries[number[anchor]]) for positive in given))
            candidates = [i for i in ranked if low <= scores[i] <= high][rules.range_min :]
            for positive in given:
                fitting = candidates
                if sampling == "random":
                    fitting = sorted(lottery.sample(fitting, min(num_negatives, len(fitting))), key=fitting.index)
                without += not fitting
                for i in fitting[:num_negatives]:
                    found.anchors.append(anchor)
                    found.positives.append(positive)
                    found.negatives.append(corpus[i])
    if not found:
        raise DiffaugError(
            f"none of {len(pairs):,} pairs has a negative that fits; give more text, raise range_max or lower "
            "the margins"
        )
    if without:
        log.warning("%s of %s pairs have no negative that fits and are left out", f"{without:,}", f"{len(pairs):,}")
    return found


def _pairs(data: Labelled) -> tuple[list[tuple[str, str]], dict[str, set[str]]]:
    """The pairs that belong together, and for the key of each sentence the keys of all that belong to it."""
    belongs: dict[str, set[str]] = {}
    if isinstance(data, Classes):
        members: dict[str, list[str]] = {}
        for sentence, name in data:
            members.setdefault(name, []).append(sentence)
        pairs = []
        for group in members.values():
            keys = {normal(sentence) for sentence in group}
            for sentence in group:
                belongs.setdefault(normal(sentence), set()).update(keys)
            pairs += list(zip(group, group[1:] + group[:1], strict=True)) if len(group) > 1 else []
        return pairs, belongs
    if isinstance(data, PositivePairs):
        pairs = list(zip(data.anchors, data.positives, strict=True))
    elif isinstance(data, LabelledPairs):
        pairs = [(first, second) for first, second, label in data if label is Label.ENTAILMENT]
    else:
        raise DiffaugError(f"{data.kind} do not say which sentences belong together; give pairs that match, or classes")
    for first, second in dict.fromkeys(pairs):
        for a, b in ((first, second), (second, first)):
            belongs.setdefault(normal(a), {normal(a)}).add(normal(b))
    return list(dict.fromkeys(pairs)), belongs


def _nearest(scores: np.ndarray, excluded: Iterable[int], count: int) -> list[int]:
    """The ``count`` nearest sentences, nearest first."""
    scores = scores.copy()
    scores[list(excluded)] = -np.inf
    count = min(count, len(scores))
    nearest = np.argpartition(-scores, count - 1)[:count]
    nearest = nearest[np.argsort(-scores[nearest], kind="stable")]
    return [int(i) for i in nearest if np.isfinite(scores[i])]
