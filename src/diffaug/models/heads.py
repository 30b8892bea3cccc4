"""Layers behind the pooling: dense heads of a model, and a projector that only training knows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from diffaug.models.config import Activation, DenseConfig

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "identity": nn.Identity,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
}


def build_head(layers: Sequence[DenseConfig]) -> nn.Sequential:
    """Linear + activation (+ norm), once for each entry; the identity if there is none."""
    return nn.Sequential(*(_dense(layer) for layer in layers))


def _dense(layer: DenseConfig) -> nn.Sequential:
    parts = [nn.Linear(layer.inputs, layer.outputs, bias=layer.bias), _ACTIVATIONS[layer.activation]()]
    if layer.layer_norm is not None:
        parts.append(nn.LayerNorm(layer.outputs, eps=layer.layer_norm))
    return nn.Sequential(*parts)


class BatchNormProjector(nn.Sequential):
    """DiffCSE's projector, in training only: (rows, width) -> (rows, width).

    Linear to twice the width, batch norm, ReLU, Linear back, batch norm without scale and shift. The linear layers
    have no bias, which the norms would take out again; nor do the norms keep running statistics, which only inference
    would read. Rows are normalised over the batch they come in: with several processes, gather the vectors of all of
    them first, and the result is that of one process.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Linear(width, 2 * width, bias=False),
            nn.BatchNorm1d(2 * width, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(2 * width, width, bias=False),
            nn.BatchNorm1d(width, affine=False, track_running_stats=False),
        )
