"""What a model is, apart from its weights: everything inference needs to know, saved with it in `diffaug.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from diffaug.errors import DiffaugError

Pooling = Literal["cls", "mean", "first_last", "static_last", "last2", "mask"]
Activation = Literal["tanh", "identity", "gelu", "relu"]


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
class DenseConfig:
    """A linear layer and an activation, behind the pooling."""

    inputs: int
    outputs: int
    bias: bool = True
    activation: Activation = "tanh"


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model's inference.

    Attributes:
        pooling: see `diffaug.models.pooling`.
        template: the text around a sentence, `{}` in its place, with one mask token written `[MASK]`; None for none.
        final_stop: add a full stop to a sentence that ends in none of ``. ? ! " '`` (prompts expect one).
        prefix: the prefix of the views, if any.
        head: dense layers applied to the pooled vector.
        normalize: the model's output is scaled to length one, also when the caller does not ask for it.
        max_length: word pieces of a sentence (template and special tokens not counted) beyond which it is cut; None:
            as many as the backbone has positions for.
        lowercase: lower the text before tokenising.
        prompt: text put before every sentence.
    """

    pooling: Pooling = "mean"
    template: str | None = None
    final_stop: bool = False
    prefix: PrefixConfig | None = None
    head: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise DiffaugError(f"unknown pooling {self.pooling!r}; choose one of {', '.join(get_args(Pooling))}")
        if (self.pooling == "mask") != (self.template is not None):
            raise DiffaugError("pooling 'mask' and a template belong together: set both or neither")
        if self.template is not None and (self.template.count("{}") != 1 or self.template.count("[MASK]") != 1):
            raise DiffaugError(f"a template holds one {{}} and one [MASK]; this one does not: {self.template!r}")
        if self.max_length is not None and self.max_length < 1:
            raise DiffaugError(f"max_length must be at least 1, not {self.max_length}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The reverse of `to_dict`; an unknown or missing key is an error, as is a value of the wrong type."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise DiffaugError(f"unknown model settings: {', '.join(unknown)}")
        if missing := sorted(known - set(values)):
            raise DiffaugError(f"missing model settings: {', '.join(missing)}")
        try:
            prefix = None if values["prefix"] is None else PrefixConfig(**values["prefix"])
            head = tuple(DenseConfig(**dense) for dense in values["head"])
        except TypeError as error:
            raise DiffaugError(f"model settings cannot be read: {error}") from error
        return cls(**{**values, "prefix": prefix, "head": head})


@dataclass
class Provenance:
    """Where a model comes from: carried with it, and not needed to run it."""

    method: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
