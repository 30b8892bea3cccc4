"""What the training loop and its callbacks share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from accelerate import Accelerator

from diffaug.config import Recipe
from diffaug.methods.base import Method, Stage
from diffaug.training.checkpoint import Progress
from diffaug.training.precision import Precision
from diffaug.training.scoring import Scorer
from diffaug.training.tracking import Tracker


@dataclass
class TrainingContext:
    """A run.

    Attributes:
        recipe: its settings.
        method: what is trained.
        stages: as the method planned them.
        scorer: evaluates.
        tracker: writes metrics and messages.
        accelerator: device and processes.
        precision: of the computation.
        folder: of the run.
        progress: the current stage and step, the best scores so far.
    """

    recipe: Recipe
    method: Method
    stages: list[Stage]
    scorer: Scorer
    tracker: Tracker
    accelerator: Accelerator
    precision: Precision
    folder: Path
    progress: Progress = field(default_factory=Progress)
