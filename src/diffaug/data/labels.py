"""The labels of sentence pairs and the ways in which files write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from numbers import Real

from diffaug.data.problems import quoted
from diffaug.errors import DiffaugError


class Label(str, Enum):
    """What a premise says about a hypothesis. Data with two labels has only the first and the last."""

    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"
    NOT_ENTAILMENT = "not_entailment"


_SPELLINGS = {
    Label.ENTAILMENT: (
        *("entailment", "entails", "entailed", "e", "true"),
        *("same", "duplicate", "paraphrase", "match", "equivalent", "similar", "yes"),
    ),
    Label.NEUTRAL: ("neutral", "n"),
    Label.CONTRADICTION: ("contradiction", "contradicts", "contradictory", "c"),
    Label.NOT_ENTAILMENT: (
        *("not_entailment", "non_entailment", "not_entailed", "no_entailment", "not", "false"),
        *("different", "not_same", "not_duplicate", "not_paraphrase", "no_match", "not_equivalent", "dissimilar", "no"),
    ),
}
_WORDS = {word: label for label, words in _SPELLINGS.items() for word in words}
# Numbers have one meaning in data with two labels and another in data with three, where the order is SNLI's.
_TWO = {1: Label.ENTAILMENT, 0: Label.NOT_ENTAILMENT}
_THREE = {0: Label.ENTAILMENT, 1: Label.NEUTRAL, 2: Label.CONTRADICTION}

# 3,5 as Excel writes it in many countries. 1,234 is no score: it may be a thousand.
_DECIMAL_COMMA = re.compile(r"[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,}))")
_NAMES_LABEL_1 = re.compile(r"is_|entail|duplicate|paraphrase|same|match|equal|equivalent|positive", re.IGNORECASE)

KNOWN_LABELS = (
    "entailment, neutral, contradiction (or 0, 1, 2), or entailment, not_entailment (or same, different, or 1, 0)"
)


def parse_label(value: object) -> Label | int | None:
    """The label in a cell; a number from 0 to 2 if its meaning depends on the whole file; None if unknown."""
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in ("0", "1", "2"):
            return int(word)
        return _WORDS.get(word.replace(" ", "_").replace("-", "_"))
    if isinstance(value, bool):
        return Label.ENTAILMENT if value else Label.NOT_ENTAILMENT
    if isinstance(value, Real) and value in (0, 1, 2):
        return int(float(value))
    return None


def has_no_gold_label(value: object) -> bool:
    """Whether a cell says that the annotators did not agree: ``-`` in files of SNLI and MultiNLI, -1 on the hub."""
    return label_key(value) in ("-", "-1")


def code_meanings(codes: set[int], column: str, *, has_no_gold: bool) -> tuple[dict[int, Label], bool]:
    """What the numbers of a file mean, and whether that is sure.

    Three labels if a 2 occurs, or pairs without a gold label, as SNLI and MultiNLI have; two labels if the name of the
    column is that of label 1, such as ``is_duplicate``. Otherwise 0 and 1 are read as two labels, which is a guess: in
    a file of SNLI without contradictions 0 is entailment.
    """
    if 2 in codes or (codes and has_no_gold):
        return _THREE, True
    return _TWO, not codes or _NAMES_LABEL_1.match(column) is not None


def label_mapping(labels: Mapping[str | int, str]) -> dict[str, Label]:
    """A user's names for the labels, keyed by `label_key`."""
    parsed = {}
    for name, meaning in labels.items():
        label = parse_label(meaning)
        if not isinstance(label, Label):
            raise DiffaugError(
                f"the label {quoted(name)} cannot mean {quoted(meaning)}; use one of "
                f"{', '.join(label.value for label in Label)}"
            )
        parsed[label_key(name)] = label
    return parsed


def label_key(value: object) -> str:
    """The key of a cell's label in a user's mapping: 1, 1.0, ``1`` and `` 1`` are the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip().casefold()


def parse_score(value: object) -> float | None:
    """The number in a cell; None if there is none, or if it is nan or infinite."""
    if isinstance(value, bool) or not isinstance(value, (str, Real)):
        return None
    if isinstance(value, str):
        if "_" in value:  # Python reads 1_000 as a number; people do not
            return None
        if _DECIMAL_COMMA.fullmatch(value.strip()):
            value = value.replace(",", ".")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
