"""The output of a backbone's embedding layer, and a way to change it during one forward.

Cutoff augmentations zero parts of it, and DiffCSE replaces the embedding of the first token with a sentence vector.
Both use `EmbeddingOutput`, a forward hook that is attached during one forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.backbone import first_position
from diffaug.models.eval_mode import evaluating

Change = Callable[[Tensor], Tensor]
"""(sequences, length, hidden size) -> the same shape."""


def embedding_layer(backbone: PreTrainedModel) -> nn.Module:
    """The module whose output is the input of the first transformer layer: (sequences, length, hidden size).

    That is the embedding block of BERT-like models (words, positions, layer norm, dropout), or the projection after it
    in ALBERT and in an ELECTRA with small embeddings. It is found in a tiny forward, as the outermost module whose
    output is the tensor that transformers reports as the first hidden state.

    Raises:
        DiffaugError: no module of the backbone outputs that tensor.
    """
    outputs: list[tuple[nn.Module, Any]] = []
    modules = list(backbone.modules())
    handles = [m.register_forward_hook(lambda module, _, output: outputs.append((module, output))) for m in modules]
    try:
        states = _tiny_forward(backbone, output_hidden_states=True).get("hidden_states")
    finally:
        for handle in handles:
            handle.remove()
    found = {module for module, output in outputs if states and output is states[0]}
    if not found:
        raise DiffaugError(
            f"a '{backbone.config.model_type}' backbone has no embedding layer that can be changed: no module of it "
            "outputs the input of its first layer; use BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT, "
            "ModernBERT or another model that has one"
        )
    return next(module for module in modules if module in found)  # parents come before their children


def reads_positions(backbone: PreTrainedModel) -> bool:
    """Whether `position_ids` change the output of ``backbone``; models with relative positions ignore them."""
    in_order = torch.arange(4, device=backbone.device).unsqueeze(0) + first_position(backbone)
    try:
        states = [
            _tiny_forward(backbone, position_ids=positions).last_hidden_state
            for positions in (in_order, in_order.flip(1))
        ]
    except TypeError:  # its forward does not have that keyword
        return False
    return not torch.equal(*states)


class EmbeddingOutput:
    """Changes the output of a backbone's embedding layer during one forward::

        with output.changed(lambda embeddings: embeddings * 0.5):
            backbone(input_ids=ids)

    Args:
        backbone: its embedding layer is looked up once, here.

    Raises:
        DiffaugError: it has no embedding layer that can be changed.
    """

    # Not an nn.Module: as a submodule of one, the layer would be registered and saved twice.

    def __init__(self, backbone: PreTrainedModel) -> None:
        self._layer = embedding_layer(backbone)
        self._kind = str(backbone.config.model_type)

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """The context of one forward. The output goes through ``change`` exactly once, or an error is raised."""
        calls = 0

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            changed = change(output)
            if changed.shape != output.shape:
                raise ValueError(f"embeddings of shape {tuple(output.shape)} came back as {tuple(changed.shape)}")
            return changed

        handle = self._layer.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()
        if calls != 1:
            raise DiffaugError(
                f"the embedding layer of the '{self._kind}' backbone ran {calls} times in one forward instead of once, "
                "so that a change of its output would be lost; do not pass inputs_embeds to the backbone"
            )


@torch.no_grad()
def _tiny_forward(backbone: PreTrainedModel, **keywords: Any) -> Any:
    """Four different tokens through the backbone, without dropout, which would advance the random state."""
    tokens = torch.arange(4, device=backbone.device).unsqueeze(0)
    with evaluating(backbone):
        return backbone(input_ids=tokens, attention_mask=torch.ones_like(tokens), **keywords)
