"""Backbones: transformers encoders, loaded so that nothing is left to chance."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
import transformers  # its model classes are imported when they are used
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from diffaug.errors import DiffaugError
from diffaug.models.io.fetch import BACKBONE_FILES, find_folder
from diffaug.models.plain_bert import PlainBert, read_checkpoint, supported

P = ParamSpec("P")
T = TypeVar("T")
# More than any model has.
_LARGEST = {
    "num_hidden_layers": 1_000,
    "num_attention_heads": 10_000,
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "vocab_size": 100_000_000,
}
_LAYER = re.compile(r"\.\d+\.")
# Weights of the wrong shape are reported, and refused here by name.
_STRICT: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}


def load_backbone(
    source: str, *, trust_remote_code: bool = False, revision: str | None = None, plain: bool = False
) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerBase]:
    """A plain transformers encoder, in float32, and its tokenizer, from a folder or by its hub name.

    ``plain``: a `PlainBert` takes its place where it can, for inference only.

    Raises:
        DiffaugError: no such model, weights that are missing, pickled or damaged, or code of the model's own that
            was not allowed to run.
    """
    kind = None if plain else transformers.AutoModel
    return _load(kind, source, trust_remote_code=trust_remote_code, revision=revision)


def load_masked_lm(source: str) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerBase]:
    """A masked language model, as `load_backbone` loads an encoder: its head for predicting tokens must be there."""
    return _load(transformers.AutoModelForMaskedLM, source, trust_remote_code=False, revision=None)


def load_mlm_transform(source: str) -> dict[str, Tensor] | None:
    """The transform of a BERT checkpoint's masked language model: linear layer, activation, LayerNorm.

    Returns:
        its weights: ``dense.weight``, ``dense.bias``, ``LayerNorm.weight`` and ``LayerNorm.bias``; None if the
        checkpoint has no such weights, is not a BERT, or has an activation other than GELU.
    """
    folder = str(find_folder(source, None, BACKBONE_FILES))
    with quiet(), explained(source):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.model_type != "bert" or config.hidden_act != "gelu":
            return None
        model, report = transformers.BertForMaskedLM.from_pretrained(
            folder, config=config, use_safetensors=True, **_STRICT
        )
    absent = _names([*report["missing_keys"], *report["mismatched_keys"]])
    if any(name.startswith("cls.predictions.transform.") for name in absent):
        return None
    return dict(model.cls.predictions.transform.state_dict())


def _load(
    model_class: type[transformers.AutoModel] | type[transformers.AutoModelForMaskedLM] | None,
    source: str,
    *,
    trust_remote_code: bool,
    revision: str | None,
) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerBase]:
    # Found first: asked for a name, transformers tries the hub for half a minute, file by file, where there is none.
    folder = str(find_folder(source, revision, BACKBONE_FILES))
    with quiet(), explained(source):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        _check_config(config, source)
        if config.is_encoder_decoder or getattr(config, "is_decoder", False):
            raise DiffaugError(f"{source} is a '{config.model_type}' model with a decoder; an encoder is needed")
        model = plain_bert(config, read_checkpoint(Path(folder))) if model_class is None else None
        report: dict[str, Any] = {}
        if model is None:
            model_class = model_class or transformers.AutoModel
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                **_STRICT,
                **(_without_pooler(config) if model_class is transformers.AutoModel else {}),
            )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        tokenizer("Probe.")  # some damage shows only here
    _check_vocabulary(tokenizer, Path(folder), source)
    if report:
        # A checkpoint of another task brings keys of its head, which are rightly left out; nothing may be missing.
        more = _more_layers(model, report["unexpected_keys"])
        complain(source, report["missing_keys"], report["mismatched_keys"], more)
    check_finite(model.state_dict(), source)
    return model, tokenizer


def build_backbone(
    config: dict[str, Any], weights: Mapping[str, Tensor], source: str, *, plain: bool = False
) -> transformers.PreTrainedModel:
    """A backbone from its configuration and exactly its weights, in float32; ``source`` is named in errors.

    ``plain``: as for `load_backbone`.
    """
    with quiet(), explained(source):
        backbone_config = AutoConfig.for_model(**config)
        _check_config(backbone_config, source)
        if plain and (model := plain_bert(backbone_config, weights)) is not None:
            check_finite(weights, source)
            return model
        model, report = transformers.MODEL_MAPPING[type(backbone_config)].from_pretrained(
            None, config=backbone_config, state_dict=dict(weights), **_STRICT, **_without_pooler(backbone_config)
        )
    complain(source, report["missing_keys"], report["mismatched_keys"], report["unexpected_keys"])
    check_finite(weights, source)
    return model


def plain_bert(config: PreTrainedConfig, weights: Mapping[str, Tensor] | None) -> transformers.PreTrainedModel | None:
    """A `PlainBert`; None if it cannot stand in for transformers' class, or if the weights are not exactly its own."""
    if weights is None or not supported(config.to_dict()):
        return None
    try:
        return cast("transformers.PreTrainedModel", PlainBert(config, weights).eval())
    except RuntimeError:  # of `load_state_dict`
        return None


def with_transformers(backbone: nn.Module) -> nn.Module:
    """The same backbone, in place of a `PlainBert` as transformers' class."""
    if not isinstance(backbone, PlainBert):
        return backbone
    first, weights = next(backbone.parameters()), backbone.state_dict()
    full = build_backbone(backbone.config.to_diff_dict(), weights, "the model")
    return full.to(first.device, first.dtype).eval()


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The tokenizer saved in ``folder``."""
    if not (Path(folder) / "tokenizer_config.json").is_file():
        raise DiffaugError(f"{folder} has no tokenizer_config.json; copy or save the model again")
    with quiet(), explained(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer("Probe.")  # some damage shows only here
    _check_vocabulary(tokenizer, Path(folder), folder)
    return tokenizer


def first_position(backbone: transformers.PreTrainedModel) -> int:
    """The position number of a row's first token: 0, but behind the padding's number in RoBERTa's family."""
    padding = getattr(_position_table(backbone), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def position_limit(backbone: transformers.PreTrainedModel) -> int | None:
    """How many positions there are for a row; None if there is no end to them."""
    table = _position_table(backbone)
    if table is not None:
        return int(table.num_embeddings) - first_position(backbone)
    limit = getattr(backbone.config, "max_position_embeddings", None)
    return None if limit is None or limit < 1 else int(limit)


def _position_table(backbone: transformers.PreTrainedModel) -> nn.Embedding | None:
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    return table if isinstance(table, nn.Embedding) else None


def _without_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """BERT's pooler is never used, and most checkpoints lack it: do not let it be made up at random."""
    model_class = transformers.MODEL_MAPPING.get(type(config), None)
    takes = model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters
    return {"add_pooling_layer": False} if takes else {}


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, folder: Path, source: str) -> None:
    """Without its vocabulary file a tokenizer loads all the same, and knows five words."""
    names = sorted(set(tokenizer.vocab_files_names.values()))
    if names and not any((folder / name).is_file() for name in names):
        raise DiffaugError(f"{source} has no vocabulary for its tokenizer ({' or '.join(names)}); fetch it again")


def complain(source: str, missing: Any = (), mismatched: Any = (), unexpected: Any = ()) -> None:
    """Raise if the weights and the architecture do not fit each other, with the first few names."""
    for what, keys in (
        ("lacks", missing),
        ("has the wrong shape for", mismatched),
        ("has the unexpected", unexpected),
    ):
        if keys:
            names = _names(keys)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise DiffaugError(
                f"{source}: the checkpoint {what} {', '.join(names[:3])}{more}; it is damaged or was saved for "
                "another architecture, and running it would give meaningless results"
            )


def _check_config(config: PreTrainedConfig, source: str) -> None:
    """Refuse what loads but fails later, as a rate that is NaN, and sizes that take all memory or time."""
    for name, largest in _LARGEST.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and not 1 <= size <= largest:
            raise DiffaugError(f"{source}: {name} must be between 1 and {largest:,} in the model's configuration")
    for name, value in config.to_dict().items():
        if isinstance(value, float) and not math.isfinite(value):
            raise DiffaugError(f"{source}: {name} must be a finite number in the model's configuration, got {value}")


def _more_layers(model: transformers.PreTrainedModel, unexpected: Any) -> list[str]:
    """Unexpected weights of layers like the model's own: its configuration has fewer layers than its weights."""
    prefix = f"{model.base_model_prefix}."
    kinds = {_LAYER.sub(".#.", name.removeprefix(prefix)) for name in model.state_dict()}
    layers = (name for name in _names(unexpected) if _LAYER.search(name))
    return [name for name in layers if _LAYER.sub(".#.", name.removeprefix(prefix)) in kinds]


def check_finite(weights: Mapping[str, Tensor], source: str) -> None:
    """Check that no weight is NaN or infinite: every vector would be NaN.

    Raises:
        DiffaugError: one is.
    """
    for name, tensor in weights.items():
        # A sum takes one pass and no memory, and is not finite if one of its terms is not.
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():
            raise DiffaugError(f"{source}: the weight {name} is not finite; the file is damaged, or training diverged")


def _names(keys: Any) -> list[str]:
    return sorted(key if isinstance(key, str) else key[0] for key in keys)  # or (name, shape, shape)


def fill(module: nn.Module, weights: Mapping[str, Tensor], source: str, part: str) -> None:
    """Load exactly these weights into a part of a model, which is named in errors."""
    expected = module.state_dict()
    common = expected.keys() & weights.keys()
    complain(
        source,
        missing=[f"{part}.{key}" for key in expected.keys() - common],
        mismatched=[f"{part}.{key}" for key in common if expected[key].shape != weights[key].shape],
        unexpected=[f"{part}.{key}" for key in weights.keys() - common],
    )
    check_finite(weights, source)
    module.load_state_dict(weights)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' loading bars and reports: what matters in them is raised as an error here."""
    bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def loader(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions that load a folder, their first argument: see `explained`."""

    @wraps(function)
    def load(*args: P.args, **kwargs: P.kwargs) -> T:
        with explained(str(args[0])):
            return function(*args, **kwargs)

    return load


@contextmanager
def explained(source: str) -> Iterator[None]:
    """Turn the ways in which loading fails into one sentence each.

    Damaged files make transformers and tokenizers raise errors of almost any class.
    """
    try:
        yield
    except DiffaugError:
        raise
    except SafetensorError as error:
        raise DiffaugError(
            f"{source}: the weights are truncated or damaged ({error}); fetch or save them again"
        ) from error
    except BaseException as error:
        # tokenizers' panics are no Exceptions.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            text = "it brings Python code of its own; pass trust_remote_code=True only if you trust its author"
        elif "safetensors" in text:
            text = "it has no safetensors weights, and pickled ones are never read; convert it first"
        elif not isinstance(error, (OSError, ValueError, ImportError, StrictDataclassError)):
            text = f"a file is damaged or of a newer version ({type(error).__name__}: {text[:300]})"
        raise DiffaugError(f"{source} cannot be loaded: {text[:400]}") from error
