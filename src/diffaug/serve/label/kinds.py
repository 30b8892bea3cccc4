"""The kinds of questions, their possible answers, and the columns of the labels that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffaug.errors import DiffaugError

SKIP, UNUSABLE = "skip", "both wrong"
"""Answers to questions of every kind: asked again of somebody else, and never exported."""

NAMES = ("same-different", "triplets", "scores", "classes")
# Keys of classes. Letters that mean something else on the page are left out: s, b, u.
_KEYS = "123456789acdefghijklmnopqrtvwxyz"
_MAX_SCORE = 5
_DISPUTED = 2  # a difference of scores that is a disagreement; the mean of closer scores is exported


@dataclass(frozen=True)
class Choice:
    """A possible answer: as it is stored, the key on the page, and in words."""

    value: str
    key: str
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    Attributes:
        name: one of `NAMES`.
        prompt: the question in words.
        fields: the names of the sentences of a question.
        choices: the answers.
        columns: the header of the exported file.
    """

    name: str
    prompt: str
    fields: tuple[str, ...]
    choices: tuple[Choice, ...]
    columns: tuple[str, ...]

    @property
    def values(self) -> set[str]:
        """Everything that can be stored as an answer."""
        return {SKIP, UNUSABLE, *(choice.value for choice in self.choices)}

    def decide(self, values: Sequence[str]) -> str | None:
        """The common answer of several people; None if they disagree."""
        if self.name == "scores" and UNUSABLE not in values:
            numbers = [float(value) for value in values]
            if max(numbers) - min(numbers) >= _DISPUTED:
                return None
            return f"{sum(numbers) / len(numbers):g}"
        return values[0] if len(set(values)) == 1 else None

    def row(self, texts: Sequence[str], value: str) -> tuple[str, ...] | None:
        """The row of an answered question in the exported file; None if it gives none."""
        if value in (SKIP, UNUSABLE):
            return None
        if self.name == "triplets":
            anchor, first, second = texts
            return (anchor, first, second) if value == "first" else (anchor, second, first)
        return (*texts, value)

    def suggested(self, suggestion: str, value: str) -> str:
        """A suggested answer in the exported file, beside the answer."""
        if self.name == "triplets" and suggestion:
            return "positive" if suggestion == value else "negative"  # the column it names
        return suggestion


def make_kind(name: str, classes: Sequence[str] = ()) -> Kind:
    """The kind of that name.

    Raises:
        DiffaugError: classes are missing, repeated or too many, or given for another kind.
    """
    if name != "classes" and classes:
        raise DiffaugError(f"--class is for --kind classes, not for {name}")
    pair = ("sentence1", "sentence2")
    choices: tuple[Choice, ...]
    if name == "same-different":
        choices = (Choice("same", "1", "Same"), Choice("different", "2", "Different"))
        return Kind(name, "Do these two mean the same?", pair, choices, (*pair, "label"))
    if name == "scores":
        words: Mapping[int, str] = {0: "0 – unrelated", _MAX_SCORE: f"{_MAX_SCORE} – same meaning"}
        choices = tuple(Choice(str(i), str(i), words.get(i, str(i))) for i in range(_MAX_SCORE + 1))
        return Kind(name, "How similar in meaning are these two?", pair, choices, (*pair, "score"))
    if name == "triplets":
        choices = (Choice("first", "1", "The first"), Choice("second", "2", "The second"))
        fields = ("anchor", "first", "second")
        return Kind(name, "Which of the two is closer in meaning?", fields, choices, ("anchor", "positive", "negative"))
    if name != "classes":
        raise DiffaugError(f"the kind must be one of {', '.join(NAMES)}, got {name!r}")
    if not 2 <= len(set(classes)) <= len(_KEYS) or len(set(classes)) < len(classes):
        raise DiffaugError(f"--kind classes needs 2 to {len(_KEYS)} different classes: --class billing --class login")
    if wrong := [one for one in classes if one in (SKIP, UNUSABLE) or one != one.strip() or not one]:
        raise DiffaugError(f"{wrong[0]!r} cannot be the name of a class; choose another one")
    choices = tuple(Choice(one, key, one) for one, key in zip(classes, _KEYS, strict=False))
    return Kind(name, "Which class is this?", ("text",), choices, ("text", "label"))
