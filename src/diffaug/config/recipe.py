"""Recipes: what a training run does, as typed settings read from YAML and changed with `key=value`.

A key that does not exist is an error that names the nearest one; so is a value of the wrong type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from diffaug.config.registry import load_plugins
from diffaug.config.safe_yaml import parse_yaml
from diffaug.config.typed import build, hint_at, is_text, nearest
from diffaug.config.values import check_values
from diffaug.errors import DiffaugError

RECIPES = Path(__file__).parents[1] / "recipes"
Option = bool | int | float | str
"""A setting of a plugin's own."""


@dataclass(frozen=True)
class ModelSettings:
    """The encoder to train.

    Attributes:
        backbone: a folder or hub name; `embedded` is the small encoder that comes with the package. Of an embedding
            model (a folder of diffaug or sentence-transformers), everything is trained further and saved again: dense
            layers, learned views, normalisation, prompts; pooling and template as `pooling` says.
        pooling: how token states become a vector; null: at the mask token of a template, else the mean; `auto`: pooling
            and template of the embedding model that training starts from, and as null for a plain encoder.
        train_pooling: another pooling while training, where a method has one.
        template: prompt with `{}` and `[MASK]`, or null.
        second_template: the prompt of the second view in training, if it is another one.
        final_stop: add a missing final full stop to a sentence within a template.
        train_final_stop: the same for the training sentences; null: as `final_stop`.
        head: a dense layer behind the pooling: `none`, in `training` only, or `kept` at inference.
        head_kind: `tanh`: a new linear layer with tanh; `mlm` (PromptBERT only): the transform of the checkpoint's
            masked language model (linear, GELU, LayerNorm), applied before the template's share is subtracted;
            `auto` (PromptBERT only): `mlm` if the checkpoint has BERT's transform, else `tanh`.
        denoise: subtract the vector of the bare template at inference too; in training `stage2.denoise` decides.
    """

    backbone: str = "bert-base-uncased"
    pooling: Literal["cls", "mean", "first_last", "static_last", "last2", "mask", "auto"] | None = None
    train_pooling: Literal["cls", "mean", "first_last", "static_last", "last2", "mask"] | None = None
    template: str | None = None
    second_template: str | None = None
    final_stop: bool = True
    train_final_stop: bool | None = None
    head: Literal["none", "training", "kept"] = "none"
    head_kind: Literal["tanh", "mlm", "auto"] = "tanh"
    denoise: bool = False


@dataclass(frozen=True)
class ViewSettings:
    """How the two views of a sentence differ.

    Attributes:
        kind: `dropout` alone; a learned module for each view: `prefix`, `adapter` or `lora`; `cutoff`: ConSERT's
            changes of the embedding layer's output; `synonym`: a word of the second view is exchanged; or that
            of a plugin.
        same: one learned module for both views.
        length: the number of vectors of a prefix.
        dropout: the dropout rate on the vectors of a prefix in training.
        bottleneck: the inner width of an adapter, or the rank of LoRA.
        scale: the factor of LoRA's update.
        first, second: ConSERT's changes of each view and their rates, as in {feature_cutoff: 0.2}.
        options: the settings of a plugin's views.
    """

    kind: str = "dropout"
    same: bool = False
    length: int = 8
    dropout: float = 0.1
    bottleneck: int = 4
    scale: float = 1.0
    first: dict[str, float] = field(default_factory=dict)
    second: dict[str, float] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSettings:
    """Where sentences come from. A source is a file, `hub:NAME/CONFIG/SPLIT`, or `sample:NAME` for the embedded data.

    `nli` and `unlabelled` may be lists of sources, which are joined.

    Attributes:
        nli: the labelled data (called so because the papers' labels are NLI data): triplets, pairs with an NLI label,
            pairs that belong together or not (*same*, *different*), pairs with a score, sentences with a
            class, or pairs that all belong together.
        proportions: for a list of files in nli, the share of the batches that comes from each; null: files of one kind
            are joined, and several kinds are mixed by their numbers of examples.
        per_class: of sentences with a class, how many of each class are in a batch.
        nli_classes: 2: entailment or contradiction, neutral pairs left out; 3: all labels.
        unlabelled: sentences without labels, for the unsupervised and semi-supervised settings.
        dev: scored pairs that choose the best checkpoint; null: alignment and uniformity choose it.
        test: scored pairs that are scored once, at the end.
        columns: for a source, which column is what where the names are not the usual ones, as in
            {nli: {premise: text_a, hypothesis: text_b, label: gold}}; in a file without header a number, from 1.
        label_names: what the labels of nli mean where they are not the usual ones, as in
            {same: entailment, other: contradiction}.
        on_bad: what to do with unusable rows: `error`, or `skip` and count them.
        max_length: word pieces of a sentence in training, template not counted.
        labels: how much of nli to keep: a fraction up to 1.0, or a number of examples above 1.
        label_draw: which draw of that size; draws of one number are nested.
    """

    nli: str | list[str] | None = None
    proportions: list[float] | None = None
    per_class: int = 4
    nli_classes: Literal[2, 3] = 2
    unlabelled: str | list[str] | None = None
    dev: str | None = None
    test: str | None = None
    columns: dict[str, dict[str, str | int]] = field(default_factory=dict)
    label_names: dict[str, str] | None = None
    on_bad: Literal["error", "skip"] = "error"
    max_length: int = 32
    labels: float = 1.0
    label_draw: int = 0


@dataclass(frozen=True)
class Stage1Settings:
    """Stage 1: NLI pairs are classified. DiffAug trains its prefixes alone, other methods the backbone.

    Attributes:
        steps: the number of steps; null: as many as `epochs` take; `auto` (DiffAug with prefixes) stops
            when delta has peaked and kappa has levelled off.
        max_steps: the most steps `auto` may take.
        epochs: passes over the labelled data, used where `steps` is null.
        batch_size: labelled examples per step. A triplet is two pairs, which share their premise: 128 triplets are
            256 pairs.
        learning_rate: the highest learning rate; it decays linearly to zero.
        warmup: the share of the steps in which the learning rate rises from zero.
        weight_decay: of AdamW.
        again: train the views of a model that has them already; false: leave out stage 1 then.
    """

    steps: int | Literal["auto"] | None = None
    max_steps: int = 3000
    epochs: float = 1.0
    batch_size: int = 128
    learning_rate: float = 1e-3
    warmup: float = 0.0
    weight_decay: float = 0.0
    again: bool = False


@dataclass(frozen=True)
class Stage2Settings:
    """Stage 2: the contrastive loss (for a flow: its likelihood; for distillation: the distance from the teacher).

    Attributes:
        objective: `unlabelled`: two views of a sentence; `nli_sentences`: the same, with the sentences of the NLI data;
            `triplets`: premise, entailment, hard negative, or pairs that lack the last; `labels`: labelled data of any
            kind with the loss of that kind.
        label_loss: of the objective `labels`, where the data allow several: `contrastive`, `cosent` or `angle`; `auto`:
            `cosent` for pairs with a score or labelled same and different, `contrastive` for everything else.
        epochs: passes over those data, used where `steps` is null.
        steps: the number of steps; null: as many as `epochs` take.
        batch_size: sentences, pairs or triplets per step, over all processes together.
        learning_rate: the highest learning rate.
        role_learning_rates: other learning rates by role: backbone, views, projection, classifier ...
        frozen: roles that do not learn.
        schedule: what the learning rate does after the warm-up: `linear` decay to zero, or `constant`.
        warmup: the share of the steps in which the learning rate rises from zero.
        weight_decay: of AdamW.
        dropout: use the backbone's dropout in training.
        loss: the contrastive loss: `info_nce`, `nt_xent`, or that of a plugin; null: that of the method.
        loss_options: the settings of a plugin's loss.
        temperature: the temperature of the contrastive loss.
        weight: the weight of the contrastive loss (for a flow: of its bits per dimension).
        denoise: subtract the vector of the bare template in training.
        aux_weight: weight of the NLI cross entropy computed in the same step; 0 leaves it out.
        aux_batch_size: labelled examples per step for it, counted as in stage 1.
        gradient_cache: rows that go through the encoder at a time, for batches larger than memory; null: all.
        matryoshka: dimensions, such as [384, 128, 64]: the loss is the sum of the losses of the vectors truncated to
            each of them, so that users of the model may truncate its vectors; empty: the loss of whole vectors.
        matryoshka_weights: the weight of each of these losses; null: 1 each.
    """

    objective: Literal["unlabelled", "nli_sentences", "triplets", "labels"] = "unlabelled"
    label_loss: Literal["auto", "contrastive", "cosent", "angle"] = "auto"
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 256
    learning_rate: float = 1e-5
    role_learning_rates: dict[str, float] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    schedule: Literal["linear", "constant"] = "linear"
    warmup: float = 0.0
    weight_decay: float = 0.0
    dropout: bool = True
    loss: str | None = None
    loss_options: dict[str, Option] = field(default_factory=dict)
    temperature: float = 0.05
    weight: float = 1.0
    denoise: bool = True
    aux_weight: float = 0.0
    aux_batch_size: int = 128
    gradient_cache: int | None = None
    matryoshka: list[int] = field(default_factory=list)
    matryoshka_weights: list[float] | None = None


@dataclass(frozen=True)
class FlowSettings:
    """The flow of BERT-flow.

    Attributes:
        levels: the number of levels; after each but the last, half of the channels are done.
        steps: the number of steps of each level.
        hidden: the inner width of a step's coupling.
        continues: which half of the channels goes on to the next level; `first` is that of the released code.
        output_scale: couplings end with a learned scale for each channel, as in the released code.
    """

    levels: int = 2
    steps: int = 3
    hidden: int = 32
    continues: Literal["first", "second"] = "second"
    output_scale: bool = False


@dataclass(frozen=True)
class ReplacedSettings:
    """DiffCSE's replaced-token detection.

    Attributes:
        generator: the masked language model that fills in words: a folder or hub name, or `embedded`. It needs the
            backbone's vocabulary.
        mask_rate: the part of a sentence's tokens that it fills in.
        weight: the weight of the detection's loss.
    """

    generator: str | None = None
    mask_rate: float = 0.3
    weight: float = 0.005


@dataclass(frozen=True)
class DistilSettings:
    """Distillation.

    Attributes:
        teacher: the model to learn from: a folder or hub name.
        loss: what is compared: the `cosine` or the mean squared error (`mse`) of the vectors of student and teacher,
            through a learned linear layer if their widths differ; or the `similarity` of all two sentences of a batch,
            for any widths. `auto`: `cosine` if the widths are equal, else `similarity`.
    """

    teacher: str | None = None
    loss: Literal["auto", "cosine", "mse", "similarity"] = "auto"


@dataclass(frozen=True)
class LoopSettings:
    """The loop, for both stages.

    Attributes:
        precision: `auto` is bf16 on a GPU that has it and fp32 elsewhere.
        fast: send rows through the encoder in the fastest way that fits model and machine; false: in the plain one.
        check_fast: before each stage, compare loss and gradients of one batch in the fast and in the plain way, and run
            the plain one if they differ; false: trust the fast one.
        accumulate: batches whose gradients are added up for one step; they share no negatives.
        clip: the largest gradient norm; null for none.
        adam_epsilon: what AdamW adds to the root of the second moment.
        adam_bias_correction: correct both moments for their start at zero; false, as in the original BERT code, makes
            the steps of the first few hundred batches larger.
        eval_every: steps between evaluations.
        select: which checkpoint is the result: the `best` on data.dev, or by alignment and uniformity where there is
            none; the `last`; `auto`: the best on data.dev, and the last where there is none.
        save_minutes: how often the state of the run is saved; also when it is interrupted.
        patience: evaluations of stage 2 without a better score before training stops; null: never.
        trackers: also log to these, through accelerate: tensorboard, wandb, mlflow.
    """

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    fast: bool = True
    check_fast: bool = True
    accumulate: int = 1
    clip: float | None = 1.0
    adam_epsilon: float = 1e-8
    adam_bias_correction: bool = True
    eval_every: int = 50
    select: Literal["best", "last", "auto"] = "best"
    save_minutes: float = 5.0
    patience: int | None = None
    trackers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReleasedBehaviour:
    """What the paper's released code does and the paper does not say. All off: each is a way to compare, not advice.

    Attributes:
        denoise_counts_prefix: the bare template stands for a sentence longer by one view's prefix than it is.
        stage1_schedule_of_stage2: stage 1's learning rate decays over stage 2's number of steps.
        stage1_through_projection: the NLI classifier reads vectors behind the projection, which stage 1 leaves
            untrained; in stage 2 the auxiliary loss does too.
        stage1_clips_scaled_gradients: in stage 1 the frozen backbone gets gradients too. They keep fp16's loss scale
            and count towards the norm that is clipped, so that the prefixes' own gradients become very small.
        best_from_stage1: a checkpoint of stage 1 may be the result.
    """

    denoise_counts_prefix: bool = False
    stage1_schedule_of_stage2: bool = False
    stage1_through_projection: bool = False
    stage1_clips_scaled_gradients: bool = False
    best_from_stage1: bool = False


@dataclass(frozen=True)
class Recipe:
    """A whole run. A stage that is null is left out.

    Attributes:
        name: the name of the recipe.
        method: a method of the package, or of a plugin.
        plugins: modules that register methods, views, losses or tasks: names of modules, or .py files relative to the
            recipe's file. They are imported when the recipe is read.
        options: the settings of a plugin's method.
        seed: the seed of initial weights, dropout and the order of the data.
    """

    name: str
    method: str
    plugins: list[str] = field(default_factory=list)
    options: dict[str, Option] = field(default_factory=dict)
    seed: int = 42
    model: ModelSettings = field(default_factory=ModelSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    data: DataSettings = field(default_factory=DataSettings)
    stage1: Stage1Settings | None = None
    stage2: Stage2Settings | None = None
    flow: FlowSettings = field(default_factory=FlowSettings)
    replaced: ReplacedSettings = field(default_factory=ReplacedSettings)
    distil: DistilSettings = field(default_factory=DistilSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    released: ReleasedBehaviour = field(default_factory=ReleasedBehaviour)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as YAML and JSON take them."""
        return asdict(self)

    def to_yaml(self) -> str:
        """The resolved recipe: every setting spelled out."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def source_list(setting: str | list[str] | None) -> list[str]:
    """The sources of a data setting: none, one, or several to be joined."""
    if setting is None:
        return []
    return [setting] if isinstance(setting, str) else list(setting)


# Sections that a recipe may leave out.
_OPTIONAL = tuple(f.name for f in fields(Recipe) if f.default is None)
_NULL = ("", "~", "null")


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_path(name_or_path: str, beside: Path = Path()) -> Path:
    """The file of a recipe given by its name or its path; a relative path starts in the folder ``beside``."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        return beside / path
    if name_or_path in recipe_names():
        return RECIPES / f"{name_or_path}.yaml"
    raise DiffaugError(f"there is no recipe {name_or_path!r}{nearest(name_or_path, recipe_names())}")


def load_recipe(name_or_path: str, changes: Iterable[str] = (), plugins: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name or from a YAML file.

    Two keys belong to the file and not to the settings. `extends: NAME` starts from another recipe, by its name or by
    its path relative to this file. `backbones` holds
    settings for other backbones than the recipe's own, by their name, as in
    `roberta-base: {stage2: {batch_size: 512}}`; they are used when `model.backbone` is that name, or a path or hub
    name that ends in it.

    Args:
        name_or_path: one of `recipe_names()`, or the path of a .yaml file.
        changes: `key=value` strings such as `stage1.steps=auto`; values are read as YAML, except text, which needs no
            quotes. They go above all.
        plugins: modules or .py files to import in addition to those of the recipe; they are added to its `plugins`.

    Raises:
        DiffaugError: the file cannot be read, a key or value does not fit, or a change is below a section that is null.
    """
    path = recipe_path(name_or_path)
    values = _read(path)
    if plugins := list(plugins):
        values["plugins"] = [*values.get("plugins", []), *load_plugins(plugins)]
    changes = [changes] if isinstance(changes, str) else list(changes)
    parsed = [_parse(change) for change in changes]
    backbones = values.pop("backbones", {})
    if not isinstance(backbones, dict):
        raise DiffaugError(f"{path}: backbones must be a group of settings for each name of a backbone")
    chosen = {"model": copy.deepcopy(values.get("model"))}
    for keys, value in parsed:
        if keys[0] == "model":
            _set(chosen, keys, value)
    model = chosen["model"]
    backbone = str(model.get("backbone") or "") if isinstance(model, dict) else ""
    values = _merged(values, backbones.get(backbone.rstrip("/").rsplit("/", 1)[-1], {}))
    changed = copy.deepcopy(values)
    for keys, value in parsed:
        _set(changed, keys, value)
        if keys == ["plugins"]:
            changed["plugins"] = load_plugins(value)
    try:
        return recipe_from_dict(changed, source=str(path))
    except DiffaugError:
        # A mistake in a change must not be looked for in the file.
        recipe_from_dict(values, source=str(path))
        for change, (keys, value) in zip(changes, parsed, strict=True):
            _set(values, keys, value)
            recipe_from_dict(values, source=f"the change {change!r}")
        raise


def change_recipe(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """A recipe with `key=value` changes, as `load_recipe` takes them.

    Raises:
        DiffaugError: a key or value does not fit, or a change is below a section that is null.
    """
    values, changes = recipe.to_dict(), list(changes)
    for change in changes:
        _set(values, *_parse(change))
    return recipe_from_dict(values, source=f"the change {' '.join(changes)!r}" if changes else "recipe")


def recipe_from_dict(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values: every key, type and range checked. Its plugins must have been loaded."""
    recipe: Recipe = build(Recipe, values, source)
    check_values(recipe.to_dict(), source)
    return recipe


def recipe_text(name_or_path: str) -> str:
    """The file of a recipe, comments and all.

    Raises:
        DiffaugError: there is none, or it cannot be read.
    """
    return _text(recipe_path(name_or_path))


def read_settings(path: Path) -> dict[str, Any]:
    """The values of a YAML file, unchecked.

    Raises:
        DiffaugError: it cannot be read, or is not a group of keys and values.
    """
    values = parse_yaml(_text(path), str(path))
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} holds no settings")
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise DiffaugError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DiffaugError(f"{path} is not UTF-8; convert it first (iconv -t utf-8)") from error


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a file, on top of those of the recipe it extends."""
    values = read_settings(path)
    if "plugins" in values:
        values["plugins"] = load_plugins(values["plugins"], path.parent)
    if "extends" not in values:
        return values
    if path.resolve() in seen:
        raise DiffaugError(f"{path} extends itself")
    base = recipe_path(str(values.pop("extends")), path.parent)
    below = _read(base, (*seen, path.resolve()))
    if isinstance(below.get("plugins"), list) and isinstance(values.get("plugins"), list):
        values["plugins"] = list(dict.fromkeys([*below["plugins"], *values["plugins"]]))
    return _merged(below, values)


def _merged(below: Mapping[str, Any], above: Any) -> dict[str, Any]:
    """Both groups of settings, inner groups merged too; what is in ``above`` goes."""
    if not isinstance(above, Mapping):
        raise DiffaugError(f"settings must be a group of key: value, not {above!r}")
    merged = dict(below)
    for key, value in above.items():
        inner = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if inner else copy.deepcopy(value)
    return merged


def _parse(change: str) -> tuple[list[str], Any]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise DiffaugError(f"cannot read the change {change!r:.200}: write it as key=value, such as stage1.steps=500")
    keys = key.strip().split(".")
    text = text.strip()
    if is_text(hint_at(Recipe, keys)) and text.lower() not in _NULL:
        return keys, _unquoted(text)
    return keys, parse_yaml(text, f"the value of {change!r:.200}")


def _unquoted(text: str) -> str:
    """Text as it stands; if the whole of it is in quotes, what YAML reads in them."""
    if text[:1] in ("'", '"'):
        with suppress(DiffaugError):
            value = parse_yaml(text, "")
            if isinstance(value, str):
                return value
    return text


def missing_section(values: Mapping[str, Any], change: str) -> str | None:
    """The section that a change is below, if it is null in a recipe (as plain values): `stage1` or `stage2`."""
    section, dot, _ = change.partition("=")[0].strip().partition(".")
    return section if dot and section in _OPTIONAL and values.get(section) is None else None


def _set(values: dict[str, Any], keys: list[str], value: Any) -> None:
    if section := missing_section(values, ".".join(keys)):
        raise DiffaugError(
            f"cannot set {'.'.join(keys)}: the recipe has no {section} (it is null); add one with its settings, as in "
            f"--set '{section}={{{keys[1]}: ...}}', or choose another recipe"
        )
    *groups, last = keys
    place = values
    for group in groups:
        if place.get(group) is None:
            place[group] = {}
        place = place[group]
        if not isinstance(place, dict):
            raise DiffaugError(f"cannot set {'.'.join(keys)}: {group} is a single value, not a group of settings")
    place[last] = value
