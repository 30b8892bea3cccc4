from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffaug.data.collate import Collator
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, Pooling
from diffaug.models.encoder import Encoder
from diffaug.models.pooling import POOLINGS

TEMPLATE = 'This sentence of "{}" means [MASK].'
LAYERS = {"mean": [-1], "first_last": [1, -1], "static_last": [0, -1], "last2": [-2, -1]}


def states_by_hand(backbone: Any, **inputs: Any) -> list[np.ndarray]:
    """What goes into the first layer, what comes out of each, and last the model's own output."""
    layers = backbone.layers if hasattr(backbone, "layers") else backbone.encoder.layer
    states: list[np.ndarray] = []

    def note(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not states:
            states.append((args[0] if args else kwargs["hidden_states"]).numpy())
        states.append((out[0] if isinstance(out, tuple) else out).numpy())

    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    last = backbone(**inputs).last_hidden_state.numpy()
    for handle in handles:
        handle.remove()
    # A model may normalise what its last layer gives: "last" means its output.
    return [*states[:-1], last]


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", ["bert", "modernbert"])
@torch.no_grad()
def test_pooling_by_hand(
    tiny: Callable[[str], Path], sentences: list[str], family: str, pooling: Pooling, padded: bool
) -> None:
    backbone, tokenizer = load_backbone(str(tiny(family)))
    config = ModelConfig(pooling=pooling, template=TEMPLATE if pooling == "mask" else None)
    collator = Collator(tokenizer, config)
    ids, _ = collator.ids(sentences)
    rows = collator.rows(ids if padded else [row[:4] for row in ids if len(row) >= 4])
    assert (rows.attention_mask is not None) == padded

    vectors = Encoder(backbone, config).eval()(rows).numpy()

    states = states_by_hand(backbone, input_ids=rows.input_ids, attention_mask=rows.attention_mask)
    assert len(states) == backbone.config.num_hidden_layers + 1
    for i, row in enumerate(rows.input_ids.tolist()):
        length = row.index(tokenizer.sep_token_id) + 1
        if pooling == "cls":
            expected = states[-1][i, 0]
        elif pooling == "mask":
            expected = states[-1][i, row.index(tokenizer.mask_token_id)]
        else:
            layers = [states[layer][i, :length].astype(np.float64) for layer in LAYERS[pooling]]
            expected = np.mean(layers, axis=0).mean(axis=0)
        np.testing.assert_allclose(vectors[i], expected, atol=2e-6)
