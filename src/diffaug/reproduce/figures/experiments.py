"""What draws which experiment. All of it needs matplotlib, so `draw` imports this module when a figure is asked for."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from diffaug.reproduce.figures import aux_weight, cost, divergence, dots, low_label, prefix_length, stage1_steps
from diffaug.reproduce.grid import Grid

DRAWINGS: dict[str, Callable[[Grid], Figure]] = {
    "main": dots.main,
    "low-label": low_label.figure,
    "ablation": dots.ablation,
    "prefix-length": prefix_length.figure,
    "stage1-steps": stage1_steps.figure,
    "aux-weight": aux_weight.figure,
    "divergence": divergence.figure,
    "cost": cost.figure,
}
"""By the experiment's name."""
