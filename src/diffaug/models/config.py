"""What a model is, apart from its weights: everything inference needs to know, saved with it in `diffaug.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from diffaug.errors import DiffaugError

Pooling = Literal["cls", "mean", "first_last", "static_last", "last2", "mask"]
Activation = Literal["tanh", "identity", "gelu", "relu"]
Settings = TypeVar("Settings")

SENTENCE_ENDS = ".?!\"'"


@dataclass(frozen=True)
class PrefixConfig:
    """Learned keys and values, ``length`` for each of ``views`` views; at inference all of them are in use."""

    views: int = 2
    length: int = 8

    @property
    def total(self) -> int:
        """Vectors of all views together; also the position at which the tokens start."""
        return self.views * self.length


@dataclass(frozen=True)
class AdapterConfig:
    """Bottleneck layers behind attention and feed-forward, a set for each view; at inference the mean of the sets."""

    views: int = 2
    bottleneck: int = 4


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank updates of the query and value projections, a set for each view; at inference the mean of the sets."""

    views: int = 2
    rank: int = 4
    scale: float = 1.0


@dataclass(frozen=True)
class PluginViewsConfig:
    """Learned views of a plugin.

    Attributes:
        kind: the name that they are registered under.
        plugin: the module or .py file that registers them. It is never imported because a model names it.
        views: the number of views.
        options: further arguments of their class.
    """

    kind: str
    plugin: str
    views: int
    options: dict[str, Any]


ViewsConfig = PrefixConfig | AdapterConfig | LoraConfig | PluginViewsConfig
"""The settings of a view module that is saved with the model."""


@dataclass(frozen=True)
class FlowConfig:
    """A normalising flow behind the pooling: see `diffaug.models.flow.Flow` for its settings."""

    levels: int = 2
    steps: int = 3
    hidden: int = 32
    continues: Literal["first", "second"] = "second"
    output_scale: bool = False


@dataclass(frozen=True)
class DenoiseConfig:
    """What the template says by itself is taken off at inference: a vector for each length a sentence may have.

    Attributes:
        lengths: how many there are, the first for a sentence of no tokens.
        template_tokens: tokens of a row that are not the sentence's.
        behind_head: whether they are taken off what the head gives, or off what it is given.
    """

    lengths: int
    template_tokens: int
    behind_head: bool = False


@dataclass(frozen=True)
class DenseConfig:
    """A linear layer and an activation, behind the pooling; ``layer_norm``: the epsilon of a norm behind them."""

    inputs: int
    outputs: int
    bias: bool = True
    activation: Activation = "tanh"
    layer_norm: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model's inference.

    Attributes:
        pooling: see `diffaug.models.pooling`.
        template: the text around a sentence, `{}` in its place, with one mask token written `[MASK]`; None for none.
        final_stop: add a full stop to a sentence that lacks one (prompts expect it).
        prefix, adapter, lora, plugin_views: the learned module of the views, if any; one of them at most.
        flow: the flow the pooled vector goes through, if any.
        head: dense layers applied to the pooled vector.
        normalize: the model's output is scaled to length one, also when the caller does not ask for it.
        max_length: word pieces of a sentence (template and special tokens not counted) beyond which it is cut; None:
            as many as the backbone has positions for.
        lowercase: lower the text before tokenising.
        prompt: text put before every sentence.
        prompts: further prompts by name, as sentence-transformers saves them. They are kept for it, and not used here.
        sentence_ends: the characters behind which ``final_stop`` adds none.
        denoise: what is taken off the vector for its template, if the model does so at inference.
        matryoshka: the dimensions to which its vectors may be truncated, if it was trained for that.
    """

    pooling: Pooling = "mean"
    template: str | None = None
    final_stop: bool = False
    prefix: PrefixConfig | None = None
    adapter: AdapterConfig | None = None
    lora: LoraConfig | None = None
    plugin_views: PluginViewsConfig | None = None
    flow: FlowConfig | None = None
    head: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""
    prompts: dict[str, str] = field(default_factory=dict, hash=False)
    sentence_ends: str = SENTENCE_ENDS
    denoise: DenoiseConfig | None = None
    matryoshka: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise DiffaugError(f"unknown pooling {self.pooling!r}; choose one of {', '.join(get_args(Pooling))}")
        if (self.pooling == "mask") != (self.template is not None):
            raise DiffaugError("pooling 'mask' and a template belong together: set both or neither")
        if self.template is not None and (self.template.count("{}") != 1 or self.template.count("[MASK]") != 1):
            raise DiffaugError(f"a template holds one {{}} and one [MASK]; this one does not: {self.template!r}")
        if sum(getattr(self, part) is not None for part in VIEW_PARTS) > 1:
            raise DiffaugError("a model has one kind of views, not several of them")
        if self.denoise is not None and self.template is None:
            raise DiffaugError("denoising needs a template; set model.template, or model.denoise=false")
        if self.max_length is not None and self.max_length < 1:
            raise DiffaugError(f"max_length must be at least 1, got {self.max_length}")

    @property
    def views(self) -> ViewsConfig | None:
        """The settings of the view module, if the model has one."""
        return self.prefix or self.adapter or self.lora or self.plugin_views

    def with_views(self, views: ViewsConfig | None) -> ModelConfig:
        """The same with these views."""
        parts: dict[str, Any] = {part: views if isinstance(views, kind) else None for part, kind in VIEW_PARTS.items()}
        return replace(self, **parts)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it. Only a model that has them has the keys in `_OPTIONAL`."""
        return {key: value for key, value in asdict(self).items() if key not in _OPTIONAL or value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The reverse of `to_dict`; an unknown or missing key is an error, as is a value of the wrong type."""
        read = {**_OPTIONAL, **_table(values, "model")}
        if isinstance(flow := read.get("flow"), dict):
            # Flows of older versions do not name what they could not choose.
            read["flow"] = {"continues": "second", "output_scale": False, **flow}
        for name, kind in _PARTS.items():
            if read.get(name) is not None:
                read[name] = _read(kind, read[name], name)
        if isinstance(read.get("head"), list):
            read["head"] = tuple(_read(DenseConfig, dense, "head") for dense in read["head"])
        if isinstance(sizes := read["matryoshka"], list) and all(type(size) is int for size in sizes):
            read["matryoshka"] = tuple(sizes)
        return _read(cls, read, "model")


# Settings that only some models have, and their values in all others.
_OPTIONAL: dict[str, Any] = {"plugin_views": None, "prompts": {}, "matryoshka": ()}
VIEW_PARTS: dict[str, type] = {
    "prefix": PrefixConfig,
    "adapter": AdapterConfig,
    "lora": LoraConfig,
    "plugin_views": PluginViewsConfig,
}
_PARTS: dict[str, type] = {
    **VIEW_PARTS,
    "flow": FlowConfig,
    "denoise": DenoiseConfig,
}


def _read(kind: type[Settings], values: Any, what: str) -> Settings:
    """Settings from JSON: every key known, none missing, each value of its type."""
    hints = get_type_hints(kind)
    if unknown := sorted(_table(values, what).keys() - hints.keys()):
        raise DiffaugError(f"unknown {what} settings: {', '.join(unknown)}")
    if missing := sorted(hints.keys() - values.keys()):
        raise DiffaugError(f"missing {what} settings: {', '.join(missing)}")
    for name, hint in hints.items():
        if get_origin(hint) is Literal:
            fits = values[name] in get_args(hint)
        else:
            # To Python a bool is an int, to a reader it is not; the entries of `head` have been read already.
            fits = isinstance(values[name], get_origin(hint) if get_origin(hint) in (tuple, dict) else hint)
            fits &= hint is bool or not isinstance(values[name], bool)
        if not fits:
            raise DiffaugError(f"the {what} setting {name} cannot be {values[name]!r:.80}")
    return kind(**values)


def _table(values: Any, what: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise DiffaugError(f"the {what} settings must be a mapping of names to values, got {values!r:.80}")
    return values


@dataclass
class Provenance:
    """Where a model comes from: carried with it, and not needed to run it."""

    method: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
