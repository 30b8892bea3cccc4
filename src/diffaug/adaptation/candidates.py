"""What `adapt` tries, by kind of labels, model and device."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.linear import fits_linear
from diffaug.config import load_recipe
from diffaug.data.records import Classes
from diffaug.errors import DiffaugError
from diffaug.models.attention import attention_shape
from diffaug.models.config import AdapterConfig, LoraConfig, PrefixConfig
from diffaug.models.encoder import Encoder

UNTOUCHED, SPREADING, LINEAR, SELF_TRAINING = "as it is", "label spreading", "linear map", "self-training"
SIMCSE, DIFFAUG = "SimCSE", "DiffAug"


@dataclass(frozen=True)
class Candidate:
    """One way to use the labels.

    Attributes:
        name: in tables.
        recipe: how the encoder is trained; None: it stays as it is.
        changes: of the recipe's settings, as `key=value`.
        spreads: the classifier learns from unlabelled text too, by label spreading.
        pseudo_labels: the encoder learns from unlabelled text too, with the classes that spread to it.
        linear: a linear map of the vectors is learned.
    """

    name: str
    recipe: str | None = None
    changes: tuple[str, ...] = ()
    spreads: bool = False
    pseudo_labels: bool = False
    linear: bool = False

    @property
    def trains(self) -> bool:
        """Whether the encoder is trained, which takes longer than everything else."""
        return self.recipe is not None

    @property
    def changes_model(self) -> bool:
        """Whether the vectors become others."""
        return self.trains or self.linear

    def cost(self) -> float:
        """How long training takes, compared with other candidates: sentences through the encoder."""
        if self.recipe is None:
            return 0.0
        recipe = load_recipe(self.recipe, self.changes)
        stages = [stage for stage in (recipe.stage1, recipe.stage2) if stage is not None]
        return sum(float(stage.batch_size * int(stage.steps or 0)) for stage in stages)

    @property
    def key(self) -> str:
        """The name of its files."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower())


# On a CPU, batches are smaller and steps fewer, so that all takes minutes.
_ON_CPU = ("stage2.batch_size=32", "stage2.steps=80")
_STAGE1_ON_CPU = ("stage1.batch_size=32", "stage1.steps=40")
_CLASSES = ("stage2.learning_rate=5e-5", "stage2.temperature=0.07", "stage2.warmup=0.07")
_SELF_TRAINING = (*_CLASSES, "stage2.batch_size=192", "stage2.steps=300")
_SELF_TRAINING_ON_CPU = (*_CLASSES, "stage2.batch_size=64", "stage2.steps=60")


def candidates(inputs: Inputs, model: Encoder, on_gpu: bool) -> list[Candidate]:
    """The candidates, the untouched model first.

    With classes, a classifier on the vectors is part of every candidate. Unlabelled text is used with classes only.
    """
    labelled = inputs.labelled
    classes = isinstance(labelled, Classes)
    spreads = classes and bool(inputs.text)
    found = [Candidate(UNTOUCHED)]
    if spreads:
        found.append(Candidate(SPREADING, spreads=True))
    if not classes and fits_linear(model.config):
        found.append(Candidate(LINEAR, linear=True))
    if model.config.flow is not None or (isinstance(labelled, Classes) and not spreads and not _repeats(labelled)):
        return found
    plain = model.config.views is None  # SimCSE has no learned views, and would drop those of the model
    settings = (*(() if on_gpu else _ON_CPU), *(_CLASSES if classes else ()))
    if spreads and plain:
        changes = _SELF_TRAINING if on_gpu else _SELF_TRAINING_ON_CPU
        found.append(Candidate(SELF_TRAINING, "adapt-simcse", changes, spreads=True, pseudo_labels=True))
    elif plain:
        found.append(Candidate(SIMCSE, "adapt-simcse", settings))
    views = _view_settings(model)
    if views is not None and (on_gpu or not spreads):
        stage1 = () if on_gpu else _STAGE1_ON_CPU
        found.append(Candidate(DIFFAUG, "adapt-diffaug", (*settings, *stage1, *views), spreads=spreads))
    return found


def named(only: Sequence[str] | None, known: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with these names, and the untouched model; None: all.

    Raises:
        DiffaugError: there is no such candidate.
    """
    if only is None:
        return list(known)
    names = [candidate.name for candidate in known]
    if unknown := [name for name in only if name not in names]:
        raise DiffaugError(f"there is no candidate {unknown[0]!r} for these labels; there are {', '.join(names)}")
    return [candidate for candidate in known if candidate.name in (UNTOUCHED, *only)]


def _repeats(labelled: Classes) -> bool:
    """Whether at least two classes have two sentences to learn from, also if half of them are held out."""
    return sum(size > 3 for size in Counter(labelled.classes).values()) > 1


def _view_settings(model: Encoder) -> tuple[str, ...] | None:
    """The settings of the learned views: those of the model, or new ones that its backbone supports; None: neither."""
    views = model.config.views
    if isinstance(views, PrefixConfig):
        return "views.kind=prefix", f"views.length={views.length}"
    if isinstance(views, AdapterConfig):
        return "views.kind=adapter", f"views.bottleneck={views.bottleneck}"
    if isinstance(views, LoraConfig):
        return "views.kind=lora", f"views.bottleneck={views.rank}", f"views.scale={views.scale}"
    if views is not None:
        return None
    try:
        attention_shape(copy.deepcopy(model.backbone))  # a copy: it changes the attention function
    except DiffaugError:
        return "views.kind=adapter", "views.bottleneck=64"
    return ()
