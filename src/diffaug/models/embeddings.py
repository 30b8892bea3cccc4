"""The embedding layer of a backbone: what its first transformer layer reads, and a way to change it for one forward.

Cutoff augmentations zero parts of it, and DiffCSE puts a sentence's vector in the place of its first token. Both go
through `EmbeddingOutput`, a torch hook that is there during one forward only, so that no model is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.backbone import first_position
from diffaug.models.eval_mode import evaluating

Change = Callable[[Tensor], Tensor]
"""(rows, length, hidden size) -> the same shape."""


def embedding_layer(backbone: PreTrainedModel) -> nn.Module:
    """The module whose output goes into the first transformer layer as it is: (rows, length, hidden size).

    That is the whole embedding block of BERT and its like (words, positions, normalisation, dropout), and the
    projection behind it in ALBERT and in an ELECTRA with small embeddings. It is found in one tiny forward, as the
    outermost module that puts out the very tensor which transformers reports as the first hidden state.

    Raises:
        DiffaugError: no module of the backbone puts that tensor out, so that nothing could change it.
    """
    put_out: list[tuple[nn.Module, Any]] = []
    modules = list(backbone.modules())
    handles = [m.register_forward_hook(lambda module, _, output: put_out.append((module, output))) for m in modules]
    try:
        states = _tiny_forward(backbone, output_hidden_states=True).get("hidden_states")
    finally:
        for handle in handles:
            handle.remove()
    found = {module for module, output in put_out if states and output is states[0]}
    if not found:
        raise DiffaugError(
            f"a '{backbone.config.model_type}' backbone has no embedding layer that could be changed: no module of it "
            "puts out what its first layer reads; use BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT, "
            "ModernBERT or another model that has one"
        )
    return next(module for module in modules if module in found)  # parents come before their children


def reads_positions(backbone: PreTrainedModel) -> bool:
    """Whether `position_ids` given to ``backbone`` change what it puts out: they do in most models, as positions
    added to the embeddings or as angles of a rotation, and are ignored by those with relative positions only."""
    in_order = torch.arange(4, device=backbone.device).unsqueeze(0) + first_position(backbone)
    try:
        states = [
            _tiny_forward(backbone, position_ids=positions).last_hidden_state
            for positions in (in_order, in_order.flip(1))
        ]
    except TypeError:  # a forward without that keyword
        return False
    return not torch.equal(*states)


class EmbeddingOutput:
    """Changes what a backbone's embedding layer puts out, in one forward at a time.

    Either around the forward::

        with output.changed(lambda embeddings: embeddings * 0.5):
            backbone(input_ids=ids)

    or with `start` before it and `finish` behind it.

    Args:
        backbone: its embedding layer is looked for once, here.

    Raises:
        DiffaugError: it has none that could be changed.
    """

    # No nn.Module: as a child of one, the layer would be registered and saved a second time.

    def __init__(self, backbone: PreTrainedModel) -> None:
        self._layer = embedding_layer(backbone)
        self._kind = str(backbone.config.model_type)
        self._handle: RemovableHandle | None = None
        self._calls = 0

    def start(self, change: Change) -> None:
        """From here on, the embedding layer's output goes through ``change``."""
        self.cancel()  # of a forward that failed half-way
        self._calls = 0

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            self._calls += 1
            changed = change(output)
            if changed.shape != output.shape:
                raise ValueError(f"embeddings of shape {tuple(output.shape)} came back as {tuple(changed.shape)}")
            return changed

        self._handle = self._layer.register_forward_hook(hook)

    def finish(self) -> None:
        """No longer, and raise unless it did so exactly once: a change is never dropped silently."""
        self.cancel()
        if self._calls != 1:
            raise DiffaugError(
                f"the embedding layer of the '{self._kind}' backbone ran {self._calls} times in one forward instead "
                "of once, and a change of its output would be lost; do not run the backbone on ready-made embeddings"
            )

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """`start` and `finish` around one forward."""
        self.start(change)
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        self.finish()

    def cancel(self) -> None:
        """No longer, whether or not it did so: for a forward that will not happen."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


@torch.no_grad()
def _tiny_forward(backbone: PreTrainedModel, **keywords: Any) -> Any:
    """Four different tokens through the backbone, without dropout, which would leave its mark on the random state."""
    tokens = torch.arange(4, device=backbone.device).unsqueeze(0)
    with evaluating(backbone):
        return backbone(input_ids=tokens, attention_mask=torch.ones_like(tokens), **keywords)
