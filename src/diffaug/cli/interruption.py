"""What commands that can be continued do after Ctrl-C or SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """End the command with one sentence if the block is interrupted; ``out`` is the folder that keeps its work."""
    from diffaug.training.loop import TrainingInterrupted

    try:
        yield
    except (TrainingInterrupted, KeyboardInterrupt) as interrupted:
        typer.secho(f"interrupted; the same command continues in {out}", err=True)
        raise typer.Exit(128 + getattr(interrupted, "signal", 2)) from None
