"""What `adapt` tries, by kind of labels, model and device."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.linear import fits_linear
from diffaug.config import load_recipe
from diffaug.data.records import Classes, ScoredPairs, Triplets
from diffaug.errors import DiffaugError
from diffaug.models.attention import attention_shape
from diffaug.models.config import AdapterConfig, LoraConfig, PrefixConfig
from diffaug.models.encoder import Encoder

UNTOUCHED, SPREADING, LINEAR, SELF_TRAINING = "as it is", "label spreading", "linear map", "self-training"
SIMCSE, DIFFAUG = "SimCSE", "DiffAug"
_AVERAGED = ", averaged"


@dataclass(frozen=True)
class Candidate:
    """One way to use the labels.

    Attributes:
        training: the name of what is learned.
        recipe: how the encoder is trained; None: it stays as it is.
        changes: of the recipe's settings, as `key=value`.
        averaged: the weights are the mean of those before and after training.
        spreads: the classifier learns from unlabelled text too, by label spreading.
        pseudo_labels: the encoder learns from unlabelled text too, with the classes that spread to it.
        linear: a linear map of the vectors is learned.
        by_default: whether it is tried without being named.
    """

    training: str
    recipe: str | None = None
    changes: tuple[str, ...] = ()
    averaged: bool = False
    spreads: bool = False
    pseudo_labels: bool = False
    linear: bool = False
    by_default: bool = True

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.training + _AVERAGED * self.averaged

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


# On a CPU, batches are smaller and steps fewer, so that all takes minutes.
_ON_CPU = ("stage2.batch_size=32", "stage2.steps=80")
_STAGE1_ON_CPU = ("stage1.batch_size=32", "stage1.steps=40")
_CLASSES = ("stage2.learning_rate=5e-5", "stage2.temperature=0.07", "stage2.warmup=0.07")
_SCORES = ("stage2.learning_rate=5e-5",)
_SELF_TRAINING = (*_CLASSES, "stage2.batch_size=192", "stage2.steps=300")
_SELF_TRAINING_ON_CPU = (*_CLASSES, "stage2.batch_size=64", "stage2.steps=60")


def candidates(inputs: Inputs, model: Encoder, on_gpu: bool) -> list[Candidate]:
    """All candidates, the untouched model first.

    With classes, a classifier on the vectors is part of every candidate. Unlabelled text is used with classes only.
    """
    labelled = inputs.labelled
    classes = isinstance(labelled, Classes)
    text = classes and bool(inputs.text)
    found = [Candidate(UNTOUCHED)]
    if text:
        found.append(Candidate(SPREADING, spreads=True))
    if not classes and fits_linear(model.config):
        found.append(Candidate(LINEAR, linear=True))
    if model.config.flow is not None:
        return found
    trained = []
    plain = model.config.views is None  # SimCSE has no learned views, and would drop those of the model
    if text and plain:
        changes = _SELF_TRAINING if on_gpu else _SELF_TRAINING_ON_CPU
        trained.append(Candidate(SELF_TRAINING, "adapt-simcse", changes, spreads=True, pseudo_labels=True))
    if not isinstance(labelled, Classes) or _repeats(labelled):
        settings: tuple[str, ...] = () if on_gpu else _ON_CPU
        settings += _CLASSES if classes else _SCORES if isinstance(labelled, ScoredPairs) else ()
        views = _view_settings(model)
        if plain:
            # On held-out triplets it is level with DiffAug, on other data it is worse (docs/adapt.md).
            named = isinstance(labelled, Triplets) and views is not None
            trained.append(Candidate(SIMCSE, "adapt-simcse", settings, by_default=not named))
        if views is not None:
            stage1 = () if on_gpu else _STAGE1_ON_CPU
            trained.append(Candidate(DIFFAUG, "adapt-diffaug", (*settings, *stage1, *views)))
    for candidate in trained:
        found.append(candidate)
        if model.config.denoise is None:  # its table of vectors cannot be averaged
            found.append(replace(candidate, averaged=True))
    return found


def find_names(known: Sequence[Candidate], names: Sequence[str]) -> list[str]:
    """The names of the candidates that a user names, without regard to case.

    Raises:
        DiffaugError: there is no candidate of one of these names.
    """
    there = {candidate.name.casefold(): candidate.name for candidate in known}
    if unknown := [name for name in names if name.casefold() not in there]:
        raise DiffaugError(
            f"there is no candidate {unknown[0]!r} for these labels; there are {', '.join(map(repr, there.values()))}"
        )
    return [there[name.casefold()] for name in names]


def cheap(known: Sequence[Candidate], only: Sequence[str] | None) -> list[Candidate]:
    """The candidates that take seconds; if ``only`` names others, those that are compared with all the same.

    Label spreading is always among them: it tells whether unlabelled text helps.
    """
    always = (UNTOUCHED, SPREADING)
    return [each for each in known if not each.trains and (only is None or each.name in (*always, *only))]


def trained(
    known: Sequence[Candidate], only: Sequence[str] | None, text_helps: bool | None, on_gpu: bool
) -> list[Candidate]:
    """The candidates that train the encoder.

    Without ``only``, those that are tried by default. If unlabelled text helps, self-training takes the place of
    SimCSE. On a CPU nothing is trained then, since the few steps that it can do are worse than label spreading alone.
    If text does not help, no candidate uses it.

    Args:
        known: all candidates.
        only: names of those to try; None: the default.
        text_helps: whether label spreading is better than a classifier that learns from labels alone; None: there is
            no text.
        on_gpu: whether there is a GPU.
    """

    def by_default(candidate: Candidate) -> bool:
        if text_helps:
            return on_gpu and (candidate.pseudo_labels or candidate.training == DIFFAUG)
        return candidate.by_default and not candidate.pseudo_labels

    chosen = [each for each in known if each.trains and (by_default(each) if only is None else each.name in only)]
    return [replace(each, spreads=bool(text_helps)) for each in chosen]


def learns(candidate: Candidate, inputs: Inputs) -> bool:
    """Whether it learns from the labels: the untouched model does from classes, a classifier, and from pairs not."""
    return candidate.changes_model or isinstance(inputs.labelled, Classes)


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
