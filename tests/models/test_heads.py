"""The batch norm projector against the same in numpy."""

from __future__ import annotations

import numpy as np
import torch

from diffaug.models.heads import BatchNormProjector


def by_hand(projector: BatchNormProjector, vectors: np.ndarray) -> np.ndarray:
    """Linear, batch norm, ReLU, Linear, batch norm without scale and shift."""
    weights = {name: value.detach().numpy().astype(np.float64) for name, value in projector.state_dict().items()}

    def normalised(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    hidden = normalised(vectors @ weights["0.weight"].T) * weights["1.weight"] + weights["1.bias"]
    return normalised(np.maximum(hidden, 0) @ weights["3.weight"].T)


def test_projector_by_hand() -> None:
    torch.manual_seed(0)
    projector = BatchNormProjector(6)
    torch.nn.init.normal_(projector[1].weight)
    torch.nn.init.normal_(projector[1].bias)
    vectors = np.random.default_rng(0).normal(size=(9, 6))
    found = projector(torch.from_numpy(vectors).float())
    np.testing.assert_allclose(found.detach().numpy(), by_hand(projector, vectors), atol=1e-4)


def test_projector_keeps_nothing_of_the_batches_it_saw() -> None:
    projector = BatchNormProjector(6)
    assert sorted(projector.state_dict()) == ["0.weight", "1.bias", "1.weight", "3.weight"]
    vectors = torch.randn(4, 6)
    first = projector.train()(vectors)
    projector(torch.randn(8, 6) * 5)
    assert torch.equal(projector.eval()(vectors), first)
