"""A cell of a grid: one training run, and what came of it.

A grid's folder holds `grid.json` (what was asked for, and its cells), `cells/NAME/` (an ordinary run's folder for each
cell, with `result.json` and `similarities.npz` when it is finished, `failure.txt` if it failed), `tables/` and
`figures/`; what bootstraps gave is in `.resamples.npz`, which can be removed at any time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        row: the line of the table, or the curve of the figure, it belongs to, as people read it: `DiffAug, semi`.
        column: its place along that: a label count, a prefix length ...; empty where a row has only one.
        recipe: the recipe's name.
        changes: `key=value` on top of it: the encoder, the data, and what the row and column stand for.
        setting: which of the row's tuning settings it has, from 0; its `key=value` are among the changes.
        seed: of the run.
        draw: of the labels, where not all are used.
        group: rows are compared within a group (`semi-supervised`, `supervised` ...).
        baseline: whether the row is one that the method of the paper is compared with.
    """

    row: str
    column: str
    recipe: str
    changes: tuple[str, ...]
    setting: int = 0
    seed: int = 42
    draw: int = 0
    group: str = ""
    baseline: bool = False

    @property
    def name(self) -> str:
        """Its folder: unique within a grid, and readable."""
        parts = [self.row, self.column, f"setting{self.setting}", f"draw{self.draw}", f"seed{self.seed}"]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)


@dataclass(frozen=True)
class Result:
    """What a finished cell left.

    Attributes:
        scores: Spearman x 100 by task: `STS-B dev` (which chose the checkpoint), `STS-B`, `STS12` ..., and `average`
            over the test tasks.
        seconds: the training took, without a stage 1 that was taken over from another run.
        gib: memory at the most: the GPU's, or without one the process's.
        steps: of each stage that ran, by its number.
        best_at: stage and step of the checkpoint that was kept.
        stage1_end: how stage 1 ended, in words.
        machine: device, and versions of torch and transformers.
    """

    scores: dict[str, float]
    seconds: float
    gib: float
    steps: dict[str, int] = field(default_factory=dict)
    best_at: dict[str, int] | None = None
    stage1_end: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
