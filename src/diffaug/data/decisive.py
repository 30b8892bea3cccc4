"""Labels that can decide something: enough of them, of more than one kind, none of which contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from diffaug.data.problems import quoted
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, Triplets, normal
from diffaug.errors import DiffaugError

_FEWEST, _FEWEST_OF_A_KIND = 20, 5


def check_decisive(labelled: Labelled, what: str, *, learned_from: bool = True) -> None:
    """Raise if labels cannot tell which of two models is better.

    Args:
        labelled: the labels.
        what: their name in the error.
        learned_from: whether a classifier learns from them too, for which a class needs two sentences.
    """
    if len(labelled) < _FEWEST:
        raise DiffaugError(
            f"{what} are {len(labelled)} rows; at least {_FEWEST} are needed to tell whether training helps"
        )
    if isinstance(labelled, ScoredPairs):
        labelled.check_they_rank(what)
    elif isinstance(labelled, LabelledPairs):
        same = sum(labelled.binary())
        if min(same, len(labelled) - same) < _FEWEST_OF_A_KIND:
            raise DiffaugError(
                f"{what} have {same} pairs that are the same and {len(labelled) - same} that differ; at least "
                f"{_FEWEST_OF_A_KIND} of each are needed"
            )
        _check_consistent(zip(labelled.premises, labelled.hypotheses, strict=True), labelled.words(), what)
    elif isinstance(labelled, Triplets):
        pairs = [(anchor, other) for anchor, *others in labelled for other in others]
        _check_consistent(pairs, ["positive", "negative"] * len(labelled), what)
    elif isinstance(labelled, Classes):
        _check_classes(labelled, what, learned_from)


def _check_classes(labelled: Classes, what: str, learned_from: bool) -> None:
    sizes = Counter(labelled.classes)
    if len(sizes) < 2:
        raise DiffaugError(f"{what} have one class only ({labelled.classes[0]!r}); at least two are needed")
    _check_consistent(((sentence,) for sentence in labelled.sentences), labelled.classes, what)
    single = [name for name, size in sizes.items() if size < 2]
    if single and learned_from:
        raise DiffaugError(
            f"{len(single)} of {len(sizes)} classes of {what} have one sentence only, such as {single[0]!r}; add "
            "sentences, or leave these classes out"
        )


def _check_consistent(items: Iterable[tuple[str, ...]], labels: Sequence[str], what: str) -> None:
    """Raise if two equal sentences or pairs, in either order, have different labels."""
    seen: dict[tuple[str, ...], str] = {}
    for item, label in zip(items, labels, strict=True):
        first = seen.setdefault(tuple(sorted(map(normal, item))), label)
        if first != label:
            shown = " and ".join(quoted(text, 60) for text in item)
            raise DiffaugError(
                f"{what} contradict each other: {shown} {'is' if len(item) == 1 else 'are'} both "
                f"{quoted(first, 60)} and {quoted(label, 60)}; correct these rows"
            )
