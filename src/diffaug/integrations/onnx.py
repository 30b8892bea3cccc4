"""Export to ONNX: a graph from input ids to embeddings, for ONNX Runtime in any language.

The graph is `Encoder.forward` at inference and contains view modules, positions, pooling, flow, head and normalisation.
It does not contain tokenisation, which `diffaug_onnx.json` describes.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder
from diffaug.inference.onnx_runner import (
    DESCRIPTION,
    FORMAT_VERSION,
    GRAPH,
    INPUTS,
    OUTPUT,
    OnnxRunner,
    describe_input,
    required,
)
from diffaug.models.batch import PaddedBatch
from diffaug.models.encoder import Encoder
from diffaug.version import __version__

if TYPE_CHECKING:
    from diffaug.embedder import Embedder

Precision = Literal["int8"]

# The oldest opset that PyTorch's exporter writes without conversion.
_OPSET = 18
# An ONNX file is limited to 2 GB; larger models store their weights in separate files.
_LARGEST_FILE = 2_000_000_000
# Maximum difference between components of both runtimes' normalised vectors.
_TOLERANCE = 1e-4
# Sentences of different lengths for tracing and comparison.
_PROBE = ("Yes.", "A dog runs through the park.", "The market fell on Monday, and nobody knew why it did: " * 8)


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        difference: largest difference between components of PyTorch's and ONNX Runtime's normalised vectors, on a few
            sentences, before quantisation.
        size: bytes of graph and weights.
        unquantized_size: the same before quantisation; None without quantisation.
    """

    difference: float
    size: int
    unquantized_size: int | None = None


def export_onnx(
    embedder: Embedder, folder: Path, *, quantize: Precision | None = None, overwrite: bool = False
) -> Exported:
    """Write a model as ONNX, with its tokenizer and a description, to one folder, atomically.

    `Embedder.from_pretrained` loads the folder. It is only written if both runtimes compute the same vectors.

    Args:
        embedder: the model.
        folder: the folder to write.
        quantize: ``int8`` for 8-bit weights with one scale per column, and dynamic quantisation of activations.
        overwrite: replace the folder if it exists.

    Raises:
        DiffaugError: a package of the extra ``onnx`` is missing, the model cannot be exported, or the folder cannot be
            written.
    """
    if quantize not in (None, *get_args(Precision)):
        raise DiffaugError(f"quantize must be {' or '.join(get_args(Precision))}, got {quantize!r}")
    for package in ("onnx", "onnxscript", "onnxruntime"):
        required(package)
    encoder, collator = embedder.encoder, embedder.collator
    # Store the number of positions explicitly, since it cannot be read from the graph.
    config = replace(encoder.config, max_length=collator.max_length)
    description = {
        "format_version": FORMAT_VERSION,
        "diffaug_version": __version__,
        "precision": quantize or "float32",
        "width": encoder.width,
        "input": describe_input(collator, config),
        "model": config.to_dict(),
        "method": embedder.provenance.method,
        "recipe": embedder.provenance.recipe,
        "scores": embedder.provenance.scores,
    }
    device = embedder.device
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        embedder.runner.move("cpu")
        try:
            _write_graph(embedder, temporary / GRAPH)
            difference = _difference(embedder, OnnxRunner(temporary / GRAPH, config))
        finally:
            embedder.runner.move(device)
        unquantized = None if quantize is None else _size(temporary)
        if quantize is not None:
            _quantize(temporary / GRAPH)
        size = _size(temporary)
        embedder.tokenizer.save_pretrained(temporary)
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return Exported(difference, size, unquantized)


class _Graph(nn.Module):
    """The traced module: two input tensors, one output tensor."""

    def __init__(self, encoder: Encoder, mask_at: int | None) -> None:
        super().__init__()
        self.encoder = encoder
        self._mask_at = mask_at

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        pool_positions = None
        if self._mask_at is not None:
            # The template's mask token has a fixed position relative to the start or the end of the row. So the graph
            # needs no third input, and ignores mask tokens in the sentence.
            from_start = attention_mask.sum(1) if self._mask_at < 0 else torch.zeros_like(input_ids[:, 0])
            pool_positions = from_start + self._mask_at
        vectors: Tensor = self.encoder(PaddedBatch(input_ids, attention_mask, pool_positions))
        return vectors


def _write_graph(embedder: Embedder, path: Path) -> None:
    encoder, collator = embedder.encoder, embedder.collator
    rows = collator.rows(collator.ids(_PROBE)[0])
    longest = None if collator.max_length is None else collator.max_length + len(collator.template)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=longest)
    weights = sum(tensor.nbytes for tensor in encoder.state_dict().values())
    try:
        with _quiet(), _flags_as_values(encoder), torch.no_grad():
            shapes = {name: {0: batch, 1: length} for name in INPUTS}
            graph = _Graph(encoder, collator.template.mask_at).eval()
            traced = torch.export.export(
                graph, (rows.input_ids, rows.attention_mask), dynamic_shapes=shapes, strict=False
            )
            torch.onnx.export(
                traced,
                (),
                path,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes=shapes,
                opset_version=_OPSET,
                dynamo=True,
                external_data=weights > _LARGEST_FILE,
                verbose=False,
            )
    except OSError:  # for example a full disk, which is not a problem of the model
        raise
    except Exception as error:  # errors of the tracer, of the exporter and of the model
        raise _refusal(encoder, " ".join(str(error).split())[:300]) from error


def _difference(embedder: Embedder, runner: OnnxRunner) -> float:
    """The largest difference between both runtimes' vectors; raises if it exceeds the tolerance."""
    ids, _ = embedder.collator.ids(_PROBE)
    largest = 0.0
    for part in (ids, ids[1:2]):
        rows = embedder.collator.rows(part)
        expected = embedder.runner(rows)
        try:
            found = runner(rows)
        except Exception as error:  # ONNX Runtime has one exception class per error code
            raise _refusal(embedder.encoder, " ".join(str(error).split())[:300]) from error
        lengths = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
        largest = max(largest, float(np.abs((found - expected) / lengths).max()))
    if not largest <= _TOLERANCE:  # also true for NaN
        raise _refusal(embedder.encoder, f"its vectors in ONNX Runtime differ from PyTorch's by {largest:.1e}")
    return largest


def _quantize(path: Path) -> None:
    """Replace a graph by one with 8-bit weights."""
    large = _size(path.parent) > _LARGEST_FILE
    model = required("onnx").load(path)
    # The quantiser transposes some weights and would then fail on their recorded shapes.
    del model.graph.value_info[:]
    for file in path.parent.glob(f"{GRAPH}*"):
        file.unlink()
    with _quiet():
        required("onnxruntime.quantization").quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            # Use 7 of 8 bits: on CPUs without VNNI, products of 8-bit numbers can overflow.
            reduce_range=True,
            use_external_data_format=large,
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{GRAPH}*"))


def _refusal(encoder: Encoder, why: str) -> DiffaugError:
    return DiffaugError(
        f"this model, with a '{encoder.backbone.config.model_type}' backbone, cannot be exported to ONNX with "
        f"torch {torch.__version__}: {why}"
    )


@contextmanager
def _flags_as_values(encoder: nn.Module) -> Iterator[None]:
    """Replace boolean buffers by Python values: tracing cannot follow a branch on a tensor."""
    flags = [
        (module, name, flag)
        for module in encoder.modules()
        for name, flag in module.named_buffers(recurse=False)
        if flag.dtype == torch.bool and flag.ndim == 0
    ]
    for module, name, flag in flags:
        delattr(module, name)
        setattr(module, name, bool(flag))
    try:
        yield
    finally:
        for module, name, flag in flags:
            delattr(module, name)
            module.register_buffer(name, flag)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' logs, warnings and output; errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
