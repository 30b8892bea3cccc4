"""What `adapt` tries, by kind and number of labels."""

from __future__ import annotations

from dataclasses import dataclass

from diffaug.data.records import Classes, Labelled


@dataclass(frozen=True)
class Candidate:
    """One way to use the labels.

    Attributes:
        name: in tables.
        recipe: how the encoder is trained; None: it stays as it is.
        changes: of the recipe's settings, as `key=value`.
        text: whether the classifier learns from unlabelled text too, by label spreading.
    """

    name: str
    recipe: str | None = None
    changes: tuple[str, ...] = ()
    text: bool = False

    @property
    def key(self) -> str:
        """The name of its folder."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower())


UNTOUCHED = "as it is"
_ON_CPU = ("stage2.batch_size=32", "stage2.steps=100")
_STAGE1_ON_CPU = ("stage1.batch_size=32", "stage1.steps=50")


def candidates(labelled: Labelled, with_text: bool, on_gpu: bool) -> list[Candidate]:
    """The candidates, the untouched model first.

    With classes, the untouched model has logistic regression on its vectors. Unlabelled text adds label spreading. On
    a CPU, batches are smaller and steps fewer.
    """
    classes = isinstance(labelled, Classes)
    spread = classes and with_text
    sizes = () if on_gpu else _ON_CPU
    if classes:
        sizes = (*sizes, "stage2.learning_rate=5e-5", "stage2.temperature=0.07")
    simcse = Candidate("SimCSE", "adapt-simcse", sizes, spread)
    diffaug = Candidate("DiffAug", "adapt-diffaug", (*sizes, *(() if on_gpu else _STAGE1_ON_CPU)), spread)
    frozen = [Candidate(UNTOUCHED)]
    if spread:
        frozen.append(Candidate("label spreading", text=True))
    return [*frozen, simcse, diffaug]
