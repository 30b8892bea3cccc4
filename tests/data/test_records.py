"""Columns, and the way from labelled pairs to triplets and back."""

from __future__ import annotations

import random

import pytest

from diffaug.data.labels import Label
from diffaug.data.records import LabelledPairs, ScoredPairs, Triplets, pairs_from_triplets, triplets_from_pairs
from diffaug.errors import DiffaugError

E, N, C, NOT = Label.ENTAILMENT, Label.NEUTRAL, Label.CONTRADICTION, Label.NOT_ENTAILMENT


def labelled(*rows: tuple[str, str, Label]) -> LabelledPairs:
    return LabelledPairs(*(list(column) for column in zip(*rows, strict=True)))  # type: ignore[arg-type]


def test_columns_have_one_length() -> None:
    with pytest.raises(DiffaugError, match="must have the same length"):
        Triplets(["a"], ["b"], [])


def test_rows_can_be_taken_in_any_order() -> None:
    pairs = ScoredPairs(["a", "b", "c"], ["d", "e", "f"], [1.0, 2.0, 3.0])
    assert len(pairs) == 3
    assert list(pairs.take([2, 0])) == [("c", "f", 3.0), ("a", "d", 1.0)]


def test_triplets_from_pairs_by_hand() -> None:
    pairs = labelled(
        ("p", "e1", E),
        ("q", "c1", C),
        ("p", "n1", N),
        ("p", "c2", C),
        ("p", "e2", E),
        ("q", "e3", E),
        ("p", "e4", E),
        ("p", "c3", C),
        ("r", "e5", E),
    )
    # The k-th entailment of a premise meets its k-th contradiction; e4 and e5 are left over.
    assert list(triplets_from_pairs(pairs)) == [("p", "e1", "c2"), ("q", "e3", "c1"), ("p", "e2", "c3")]


@pytest.mark.parametrize("labels", [(E, N, C), (E, NOT)])
def test_triplets_from_pairs_against_grouping(labels: tuple[Label, ...]) -> None:
    generator = random.Random(0)
    rows = [(f"p{generator.randrange(40)}", f"h{i}", generator.choice(labels)) for i in range(500)]
    expected = set()
    for premise in {row[0] for row in rows}:
        entailed = [h for p, h, label in rows if p == premise and label is E]
        denied = [h for p, h, label in rows if p == premise and label is labels[-1]]
        expected |= {(premise, *both) for both in zip(entailed, denied, strict=False)}
    found = list(triplets_from_pairs(labelled(*rows)))
    assert len(found) == len(expected) > 50
    assert set(found) == expected


def test_triplets_need_a_premise_with_both() -> None:
    with pytest.raises(DiffaugError, match=r"no triplet can be built from these 2 pairs: .* and a contradiction"):
        triplets_from_pairs(labelled(("p", "a", E), ("q", "b", C)))
    with pytest.raises(DiffaugError, match="a hypothesis that is not entailed"):
        triplets_from_pairs(labelled(("p", "a", E), ("q", "b", NOT)))


def test_binary_pairs_from_triplets() -> None:
    pairs = pairs_from_triplets(Triplets(["p", "q"], ["pe", "qe"], ["pc", "qc"]))
    rows = list(zip(pairs.premises, pairs.hypotheses, pairs.binary(), strict=True))
    assert rows == [("p", "pe", 1), ("p", "pc", 0), ("q", "qe", 1), ("q", "qc", 0)]
    assert list(triplets_from_pairs(pairs)) == [("p", "pe", "pc"), ("q", "qe", "qc")]


def test_classes_as_numbers() -> None:
    pairs = labelled(("p", "a", C), ("p", "b", E), ("p", "c", N))
    assert pairs.three_way() == [2, 0, 1]
    assert pairs.binary() == [0, 1, 0]
    assert pairs.without_neutral().hypotheses == ["a", "b"]
    with pytest.raises(DiffaugError, match="needs entailment, neutral and contradiction"):
        labelled(("p", "a", E), ("p", "b", NOT)).three_way()
