"""Dense layers behind the pooling."""

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
    """Linear + activation, once for each entry; the identity if there is none."""
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(d.inputs, d.outputs, bias=d.bias), _ACTIVATIONS[d.activation]()) for d in layers)
    )
