"""Recipes: what a training run does, as typed settings read from YAML and changed with `key=value`.

A key that does not exist is an error that names the nearest one; so is a value of the wrong type.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from diffaug.errors import DiffaugError

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class ModelSettings:
    """The encoder to train.

    Attributes:
        backbone: a folder or hub name; `embedded` is the small encoder that comes with the package.
        template: prompt with `{}` and `[MASK]`, or null.
        final_stop: add a missing final full stop to a sentence.
        prefix_length: learned vectors a view.
        prefix_dropout: dropout on them while they learn.
    """

    backbone: str = "bert-base-uncased"
    template: str | None = 'This sentence of "{}" means [MASK].'
    final_stop: bool = True
    prefix_length: int = 8
    prefix_dropout: float = 0.1


@dataclass(frozen=True)
class DataSettings:
    """Where sentences come from. A source is a file, `hub:NAME/CONFIG/SPLIT`, or `sample:NAME` for the embedded data.

    Attributes:
        nli: triplets, or labelled pairs from which triplets are built.
        unlabelled: sentences, for the semi-supervised settings.
        dev: scored pairs that choose the best checkpoint; null: alignment and uniformity choose it.
        test: scored pairs scored once, at the end.
        columns: for a source, which column is what where the names are not the usual ones, as in
            {nli: {premise: text_a, hypothesis: text_b, label: gold}}.
        on_bad: what to do with unusable rows: `error`, or `skip` and count them.
        max_length: word pieces of a sentence in training, template not counted.
        labels: how much of nli to keep: a fraction up to 1.0, or a number of examples above 1.
        label_draw: which draw of that size; draws of one number are nested.
    """

    nli: str | None = None
    unlabelled: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    on_bad: Literal["error", "skip"] = "error"
    max_length: int = 32
    labels: float = 1.0
    label_draw: int = 0


@dataclass(frozen=True)
class Stage1Settings:
    """Stage 1: the prefixes learn on NLI pairs, the backbone is frozen.

    Attributes:
        steps: how long; `auto` stops when delta has peaked and kappa has levelled off.
        max_steps: the most steps `auto` may take.
    """

    steps: int | Literal["auto"] = 2000
    max_steps: int = 3000
    batch_size: int = 128
    learning_rate: float = 1e-3
    warmup: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Stage2Settings:
    """Stage 2: everything learns with a contrastive loss.

    Attributes:
        objective: `unlabelled`: a sentence under both prefixes; `triplets`: premise, entailment, hard negative.
        epochs: passes over the contrastive data; `steps` is used instead if set.
        role_learning_rates: other rates for a role: backbone, prefix, projection, classifier.
        temperature: of the contrastive loss.
        denoise: subtract what the template alone says.
        aux_weight: weight of the NLI cross entropy computed in the same step; 0 leaves it out.
        aux_batch_size: NLI pairs a step for it.
        gradient_cache: rows that go through the encoder at a time, for batches larger than memory; null: all.
    """

    objective: Literal["unlabelled", "triplets"] = "unlabelled"
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 256
    learning_rate: float = 1e-5
    role_learning_rates: dict[str, float] = field(default_factory=dict)
    warmup: float = 0.0
    weight_decay: float = 0.0
    temperature: float = 0.05
    denoise: bool = True
    aux_weight: float = 0.0
    aux_batch_size: int = 128
    gradient_cache: int | None = None


@dataclass(frozen=True)
class LoopSettings:
    """The loop, for both stages.

    Attributes:
        precision: `auto` is bf16 on a GPU that has it and fp32 elsewhere.
        accumulate: batches whose gradients are added up for one step; they share no negatives.
        clip: the largest gradient norm; null for none.
        eval_every: steps between evaluations.
        save_minutes: how often the state of the run is saved; also when it is interrupted.
        patience: evaluations of stage 2 without a better score before training stops; null: never.
        trackers: also log to these, through accelerate: tensorboard, wandb, mlflow.
    """

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    accumulate: int = 1
    clip: float | None = 1.0
    eval_every: int = 50
    save_minutes: float = 5.0
    patience: int | None = None
    trackers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReleasedBehaviour:
    """What the paper's released code does and the paper does not say. All off: each is a way to compare, not advice.

    Attributes:
        denoise_counts_prefix: the bare template stands for a sentence longer by one view's prefix than it is.
        stage1_schedule_of_stage2: stage 1's learning rate decays over stage 2's number of steps.
        stage1_through_projection: stage 1's classifier reads vectors behind the untrained projection.
        best_from_stage1: a checkpoint of stage 1 may be the result.
    """

    denoise_counts_prefix: bool = False
    stage1_schedule_of_stage2: bool = False
    stage1_through_projection: bool = False
    best_from_stage1: bool = False


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str
    method: str
    seed: int = 42
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    stage1: Stage1Settings = field(default_factory=Stage1Settings)
    stage2: Stage2Settings = field(default_factory=Stage2Settings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    released: ReleasedBehaviour = field(default_factory=ReleasedBehaviour)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as YAML and JSON take them."""
        return asdict(self)

    def to_yaml(self) -> str:
        """The resolved recipe: every setting spelled out."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_path(name_or_path: str) -> Path:
    """The file of a recipe given by its name or its path."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        return path
    if name_or_path in recipe_names():
        return RECIPES / f"{name_or_path}.yaml"
    raise DiffaugError(f"there is no recipe {name_or_path!r}{_nearest(name_or_path, recipe_names())}")


def load_recipe(name_or_path: str, changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name or from a YAML file.

    Args:
        name_or_path: one of `recipe_names()`, or the path of a .yaml file.
        changes: `key=value` strings such as `stage1.steps=auto`; values are read as YAML.
    """
    path = recipe_path(name_or_path)
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise DiffaugError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise DiffaugError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} holds no settings")
    for change in changes:
        _apply(values, change)
    return recipe_from_dict(values, source=str(path))


def recipe_from_dict(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values, every key and type checked."""
    recipe: Recipe = _build(Recipe, values, source, "")
    return recipe


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise DiffaugError(f"cannot read the change {change!r}: write it as key=value, such as stage1.steps=500")
    *groups, last = key.strip().split(".")
    place = values
    for group in groups:
        inner = place.setdefault(group, {})
        if not isinstance(inner, dict):
            raise DiffaugError(f"cannot set {key}: {group} is a single value, not a group of settings")
        place = inner
    try:
        place[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DiffaugError(f"cannot read the value of {change!r}: {' '.join(str(error).split())}") from error


def _build(cls: Any, values: Any, source: str, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise DiffaugError(f"{source}: {where or 'the recipe'} must be a group of settings, not {values!r}")
    hints = get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise DiffaugError(f"{source}: unknown setting {_join(where, key)!r}{_nearest(str(key), hints)}")
    built = {}
    for f in fields(cls):
        if f.name not in values:
            continue
        path, hint, value = _join(where, f.name), hints[f.name], values[f.name]
        build = _build if is_dataclass(hint) else _checked
        built[f.name] = build(hint, value, source, path)
    try:
        return cls(**built)
    except TypeError as error:
        raise DiffaugError(f"{source}: {error}") from error


def _checked(hint: Any, value: Any, source: str, where: str) -> Any:
    """``value`` as type ``hint`` (an int becomes a float where one is wanted), or an error that says what fits."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _checked(option, value, source, where)
            except DiffaugError:
                continue
    elif origin is Literal:
        if value in args:
            return value
    elif origin is list:
        if isinstance(value, list):
            return [_checked(args[0], item, source, where) for item in value]
    elif origin is dict:
        if isinstance(value, Mapping):
            return {str(key): _checked(args[1], item, source, f"{where}.{key}") for key, item in value.items()}
    elif hint is float:
        # YAML reads 1e-5 as a string; whoever writes it means a number.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                pass
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise DiffaugError(f"{source}: {where} = {value!r} does not fit; it takes {_describe(hint)}")


def _describe(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return " or ".join(repr(option) for option in args)
    if origin in (list, dict):
        return {list: "a list", dict: "a group of key: value"}[origin]
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}[hint]


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
