"""The mean of the weights before and after training.

It often generalises better than the trained weights, above all with few labels and on other domains: Wortsman et al.,
Robust Fine-Tuning of Zero-Shot Models (CVPR 2022).
"""

from __future__ import annotations

import torch

from diffaug.embedder import Embedder


def average_with(trained: Embedder, start: Embedder) -> Embedder:
    """Set the weights of ``trained`` to the mean of both models' weights.

    Weights that only the trained model has, such as new views, stay as they are.
    """
    before = start.encoder.state_dict()
    with torch.no_grad():
        for name, weight in trained.encoder.state_dict().items():
            if weight.is_floating_point() and name in before and before[name].shape == weight.shape:
                weight.lerp_(before[name].to(weight), 0.5)
    return trained
