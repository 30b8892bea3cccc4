"""`build`: a folder of runs in, a page out."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.progress import progress_bar
from diffaug.report.data import Sentences, map_data, metric_data, pair_data, run_data
from diffaug.report.embeddings import Projection
from diffaug.report.grids import GridRuns, read_grid
from diffaug.report.page import Page
from diffaug.report.pairs import SIMILARITIES, pair_sets
from diffaug.report.runs import Run, find_folders, read_run
from diffaug.report.settings import compare


def build(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    projection: Projection | None = "pca",
    maps: int = 12,
    pairs: int = 20,
    device: str | None = None,
) -> Path:
    """Write a report on all runs at or below a folder: one HTML file that needs nothing else.

    Args:
        folder: a run's folder, the folder of a reproduced experiment, or any folder that has such folders below it.
        out: the file to write.
        projection: how embeddings come down to two dimensions; None: no map, and no model is loaded for one.
        maps: of how many models, at the most. Of a reproduced experiment each row and column has one.
        pairs: how many of the pairs that a model puts most too near, and too far, are shown.
        device: where models run that have to embed sentences; left out, the GPU if there is one.

    Returns:
        The file.

    Raises:
        DiffaugError: there are no runs, or a file of one cannot be read.
    """
    folder, out = Path(folder), Path(out)
    if out.is_dir():
        raise DiffaugError(f"{out} is a folder; name the file to write, as in {out / 'report.html'}")
    grids, alone = _collect(folder)
    runs = [run for grid in grids for run in grid.runs] + alone
    models = _mapped(runs, maps) if projection is not None else {}
    embeds = sum(run.model is not None and not (run.folder / SIMILARITIES).is_file() for run in runs)
    with progress_bar("embedding", len(models) + embeds, show=sys.stderr.isatty()) as advance:

        def encode(model: Path, sentences: list[str]) -> NDArray[np.float32]:
            from diffaug.embedder import Embedder

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a long sentence was cut was said when the model was trained
                vectors = Embedder.from_pretrained(model, device=device).encode(sentences, show_progress=False)
            advance(1)
            return vectors

        sets, notes = pair_sets(runs, encode)
        sentences = Sentences()
        worst = pair_data(sets, pairs, sentences)
        drawn = None if projection is None else map_data(runs, sets, models, projection, encode, sentences)
    settings = compare([run.recipe for run in runs])
    series = run_data(runs, settings.own)
    page = Page(folder, grids, runs, settings, notes)
    text = page.html(
        {
            "runs": series,
            "shared": settings.shared,
            "metrics": metric_data(series),
            "pairs": worst,
            "map": drawn,
            "no_map": _why_no_map(projection, models) if drawn is None else None,
            "sentences": sentences.texts(),
        }
    )
    with atomic_file(out) as temporary:
        temporary.write_text(text, "utf-8")
    return out


def _why_no_map(projection: Projection | None, models: Mapping[int, Path]) -> str:
    if projection is None:
        return "There is no map: it was not asked for (--map none)."
    if not models:
        return (
            "There is no map: it needs a run with its model, and none of these has one in its folder best/. It was "
            "removed when the run was scored (--no-keep-models), did not come along when the folder was copied, or is "
            "still to be trained."
        )
    return "There is no map: it needs dev or test pairs, and there are none that could be read."


def _collect(folder: Path) -> tuple[list[GridRuns], list[Run]]:
    if not folder.is_dir():
        raise DiffaugError(f"{folder} is {'a file' if folder.exists() else 'not there'}; give a folder with runs")
    grid_folders, run_folders = find_folders(folder)
    grids = [read_grid(path) for path in grid_folders]
    alone = [read_run(path, _name(path, folder)) for path in run_folders]
    if not alone and not any(grid.runs for grid in grids):
        raise DiffaugError(
            f"there are no runs in {folder} or below it (no folder has a recipe.yaml); diffaug train --out makes one"
        )
    if len(grids) > 1:
        for grid in grids:
            for run in grid.runs:
                run.name = f"{_name(grid.grid.folder, folder)}: {run.name}"
    return grids, alone


def _name(path: Path, below: Path) -> str:
    relative = path.relative_to(below).as_posix()
    return path.absolute().name if relative == "." else relative


def _mapped(runs: Sequence[Run], count: int) -> dict[int, Path]:
    """Whose models are drawn on a map, by their places: those whose curves are shown first, then the others."""
    order = sorted(range(len(runs)), key=lambda i: not runs[i].shown)
    with_model = [(i, model) for i in order if (model := runs[i].model) is not None]
    return dict(sorted(with_model[:count]))
