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
        backbone: a folder or hub name; `embedded` is the small encoder of the package. All parts of an embedding model
            (a folder of diffaug or sentence-transformers) are trained further and saved: dense layers, learned views,
            normalisation, prompts. `pooling` determines its pooling and template.
        pooling: how token states become a vector; null: the mask token if there is a template, otherwise the mean;
            `auto`: pooling and template of the embedding model that training starts from; for a plain encoder, as null.
        train_pooling: the pooling in training; null: as at inference.
        template: a prompt with `{}` and `[MASK]`, or null.
        second_template: the template of the second view in training; null: the same.
        final_stop: add a missing final full stop to a sentence within a template.
        train_final_stop: the same for training sentences; null: as `final_stop`.
        head: a dense layer after the pooling: `none`, in `training` only, or `kept` at inference.
        head_kind: `tanh`: a new linear layer with tanh; `mlm` (PromptBERT only): the transform of the checkpoint's
            masked language model (linear, GELU, LayerNorm), applied before the bare template's vector is subtracted;
            `auto` (PromptBERT only): `mlm` if the checkpoint has BERT's transform, otherwise `tanh`.
        denoise: subtract the vector of the bare template at inference; for training, see `stage2.denoise`.
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
        kind: `dropout` only; a learned module per view: `prefix`, `adapter` or `lora`; `cutoff`: ConSERT's
            augmentations of the embeddings; `synonym`: one word of the second view is replaced; or the name of a
            plugin's views.
        same: one learned module for both views.
        length: the number of vectors of a prefix.
        dropout: the dropout rate on the vectors of a prefix in training.
        bottleneck: the inner width of an adapter, or the rank of LoRA.
        scale: the factor of LoRA's update.
        first, second: ConSERT's augmentations of each view with their rates, as in {feature_cutoff: 0.2}.
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
            pairs labelled *same* or *different*, scored pairs, sentences with a class, or matching pairs.
        proportions: for a list of files in nli, the ratio of their numbers of batches; null: files of one kind are
            joined, and several kinds are mixed by their numbers of examples.
        per_class: for sentences with a class, how many of each class are in a batch.
        nli_classes: 2: entailment and contradiction, without neutral pairs; 3: all labels.
        unlabelled: sentences without labels, for the unsupervised and semi-supervised settings.
        dev: scored pairs that select the best checkpoint; null: alignment and uniformity select it.
        test: scored pairs that are scored once, at the end.
        columns: for a source, the columns of its roles if they have unusual names, as in
            {nli: {premise: text_a, hypothesis: text_b, label: gold}}; in a file without header a number, from 1.
        label_names: what unusual labels of nli mean, as in {same: entailment, other: contradiction}.
        on_bad: what to do with unusable rows: `error`, or `skip` and count them.
        max_length: the most word pieces of a sentence in training, without the template.
        labels: how much of nli to use: a fraction up to 1.0, or a number of examples above 1.
        label_draw: the number of the random draw; the smaller subset of a draw is part of the larger one.
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
    """Stage 1: NLI classification. DiffAug trains only its prefixes, other methods the backbone.

    Attributes:
        steps: the number of steps; null: as many as `epochs` take; `auto` (DiffAug with prefixes): until delta and
            kappa have levelled off.
        max_steps: the maximum number of steps of `auto`.
        epochs: passes over the labelled data, if `steps` is null.
        batch_size: labelled examples per step. A triplet is two pairs, which share their premise: 128 triplets are
            256 pairs.
        learning_rate: the highest learning rate; it decays linearly to zero.
        warmup: the fraction of the steps in which the learning rate rises from zero.
        weight_decay: the weight decay of AdamW.
        again: train the learned views of a diffaug model again; false: leave out stage 1 for such a model.
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
            `triplets`: premise, entailment and hard negative, or positive pairs; `labels`: labelled data of any kind
            with the loss of that kind.
        label_loss: the loss of the objective `labels`, if the data allow several: `contrastive`, `cosent` or `angle`;
            `auto`: `cosent` for scored pairs and pairs labelled same or different, otherwise `contrastive`.
        epochs: passes over these data, if `steps` is null.
        steps: the number of steps; null: as many as `epochs` take.
        batch_size: sentences, pairs or triplets per step, over all processes together.
        learning_rate: the highest learning rate.
        role_learning_rates: other learning rates by role: backbone, views, projection, classifier ...
        frozen: roles that are not trained.
        schedule: the learning rate after the warm-up: `linear` decay to zero, or `constant`.
        warmup: the fraction of the steps in which the learning rate rises from zero.
        weight_decay: the weight decay of AdamW.
        dropout: use the backbone's dropout in training.
        loss: the contrastive loss: `info_nce`, `nt_xent`, or the name of a plugin's; null: that of the method.
        loss_options: the settings of a plugin's loss.
        temperature: the temperature of the contrastive loss.
        weight: the weight of the contrastive loss (for a flow: of its bits per dimension).
        denoise: subtract the vector of the bare template in training.
        aux_weight: the weight of the auxiliary loss, the NLI cross entropy in the same step; 0: no auxiliary loss.
        aux_batch_size: labelled examples per step of the auxiliary loss, counted as in stage 1.
        gradient_cache: rows that pass through the encoder at a time, for batches larger than memory; null: all.
        matryoshka: dimensions, such as [384, 128, 64]: the loss is the sum of the losses of the vectors truncated to
            each of them; empty: the loss of whole vectors.
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
        levels: the number of levels; after each level except the last, half of the channels are split off.
        steps: the number of steps of each level.
        hidden: the inner width of a step's coupling.
        continues: the half of the channels that continues to the next level; `first` follows the released code.
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
        mask_rate: the fraction of the tokens that are masked.
        weight: the weight of the detection loss.
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
            through a learned linear layer if their widths differ; or the `similarity` of all pairs of sentences in a
            batch, for any widths. `auto`: `cosine` if the widths are equal, otherwise `similarity`.
    """

    teacher: str | None = None
    loss: Literal["auto", "cosine", "mse", "similarity"] = "auto"


@dataclass(frozen=True)
class LoopSettings:
    """The training loop of both stages.

    Attributes:
        precision: `auto` is bf16 on a GPU that supports it, otherwise fp32.
        fast: use the fastest execution path that fits model and machine; false: the plain path.
        check_fast: before each stage, compare loss and gradients of one batch on the fast and the plain path, and take
            the plain path if they differ; false: no comparison.
        accumulate: batches whose gradients are summed for one step; they share no negatives.
        clip: the maximum gradient norm; null: no clipping.
        adam_epsilon: the epsilon of AdamW.
        adam_bias_correction: correct both moments for their start at zero; false, as in the original BERT code, makes
            the steps of the first few hundred batches larger.
        eval_every: steps between evaluations.
        select: the checkpoint that is the result: the `best` on data.dev, without it by alignment and uniformity; the
            `last`; `auto`: the best on data.dev, without it the last.
        save_minutes: minutes between checkpoints; an interrupted run also saves one.
        patience: evaluations of stage 2 without a better score after which training stops; null: no early stopping.
        trackers: trackers that also get all measurements: tensorboard, wandb, mlflow.
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
    """Behaviour of the released code that the paper does not mention. All are off; they serve comparisons.

    Attributes:
        denoise_counts_prefix: the bare template is that of a sentence longer by the length of one prefix.
        stage1_schedule_of_stage2: stage 1's learning rate decays over stage 2's number of steps.
        stage1_through_projection: the NLI classifier of stage 1 and of the auxiliary loss reads the output of the
            projection, which stage 1 does not train.
        stage1_clips_scaled_gradients: in stage 1 the gradients of the frozen backbone, with fp16's loss scale, count
            towards the norm that is clipped, so that the gradients of the prefixes become very small.
        best_from_stage1: a checkpoint of stage 1 may be the result.
    """

    denoise_counts_prefix: bool = False
    stage1_schedule_of_stage2: bool = False
    stage1_through_projection: bool = False
    stage1_clips_scaled_gradients: bool = False
    best_from_stage1: bool = False


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. A stage that is null is left out.

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
