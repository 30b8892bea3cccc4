"""`build` reads a folder of runs and writes the report."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import SIMILARITIES
from diffaug.files import check_output, write_text
from diffaug.progress import progress_bar
from diffaug.report.data import Sentences, map_data, metric_data, pair_data, run_data
from diffaug.report.embeddings import Projection
from diffaug.report.grids import GridRuns, read_grid
from diffaug.report.page import Page
from diffaug.report.pairs import pair_sets
from diffaug.report.runs import Run, find_folders, read_run
from diffaug.report.settings import compare_settings


def build(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    projection: Projection | None = "pca",
    maps: int = 12,
    pairs: int = 20,
    device: str | None = None,
) -> Path:
    """Write a report on all runs in a folder and its subfolders, as one self-contained HTML file.

    Args:
        folder: the folder of a run, of a reproduced experiment, or any parent of such folders.
        out: the file to write.
        projection: how embeddings are reduced to two dimensions; None leaves the map out.
        maps: maximum number of models on the map. An experiment has one model per row and column.
        pairs: number of pairs shown per model that are ranked too high, and too low.
        device: device for models that must encode sentences; default: the GPU if there is one.

    Returns:
        The path of the file.

    Raises:
        DiffaugError: there are no runs, or a file of a run cannot be read.
    """
    folder, out = Path(folder), Path(out)
    if out.is_dir():
        raise DiffaugError(f"{out} is a folder; name the file to write, as in {out / 'report.html'}")
    # An earlier page in the folder may be replaced, a file of a run may not.
    check_output(out, (path for path in folder.rglob("*") if path.suffix != ".html" and path.is_file()))
    try:
        text = _page(folder, projection, maps, pairs, device)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # Files are checked when they are read, but not every value in them.
        raise DiffaugError(f"a file in {folder} is damaged ({type(error).__name__}: {error!s:.200})") from error
    write_text(out, text)
    return out


def _page(folder: Path, projection: Projection | None, maps: int, pairs: int, device: str | None) -> str:
    grids, single_runs = _collect(folder)
    runs = [run for grid in grids for run in grid.runs] + single_runs
    models = _mapped(runs, maps) if projection is not None else {}
    embeds = sum(run.model is not None and not (run.folder / SIMILARITIES).is_file() for run in runs)
    with progress_bar("embedding", len(models) + embeds, show=sys.stderr.isatty()) as advance:

        def encode(model: Path, sentences: list[str]) -> NDArray[np.float32]:
            from diffaug.embedder import Embedder

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # truncated sentences were reported during training
                vectors = Embedder.from_pretrained(model, device=device).encode(sentences, show_progress=False)
            advance(1)
            return vectors

        with _offline():
            sets, notes = pair_sets(runs, encode)
            sentences = Sentences()
            worst = pair_data(sets, pairs, sentences)
            drawn = None if projection is None else map_data(runs, sets, models, projection, encode, sentences)
    settings = compare_settings([run.recipe for run in runs])
    series = run_data(runs, settings.own)
    page = Page(folder, grids, runs, settings, notes)
    return page.html(
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


@contextmanager
def _offline() -> Iterator[None]:
    """Read models and data sets of the hub from its cache only: a report never goes online."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE

    def switch(value: bool) -> None:
        constants.HF_HUB_OFFLINE = value
        if datasets := sys.modules.get("datasets.config"):  # it copies the value when it is imported
            datasets.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]

    switch(True)
    try:
        yield
    finally:
        switch(before)


def _why_no_map(projection: Projection | None, models: Mapping[int, Path]) -> str:
    if projection is None:
        return "There is no map: it was turned off with --map none."
    if not models:
        return (
            "There is no map: it needs a trained model, and no run has one in its folder best/. Models are missing if "
            "the grid ran with --no-keep-models, if best/ was not copied, or if training has not finished."
        )
    return "There is no map: it needs dev or test pairs, and none could be read."


def _collect(folder: Path) -> tuple[list[GridRuns], list[Run]]:
    if not folder.is_dir():
        raise DiffaugError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}; give a folder with runs")
    grid_folders, run_folders = find_folders(folder)
    grids = [read_grid(path) for path in grid_folders]
    single_runs = [read_run(path, _name(path, folder)) for path in run_folders]
    if not single_runs and not any(grid.runs for grid in grids):
        raise DiffaugError(
            f"there are no runs in {folder} (no subfolder has a recipe.yaml); create one with diffaug train --out"
        )
    if len(grids) > 1:
        for grid in grids:
            for run in grid.runs:
                run.name = f"{_name(grid.grid.folder, folder)}: {run.name}"
    return grids, single_runs


def _name(path: Path, below: Path) -> str:
    relative = path.relative_to(below).as_posix()
    return path.absolute().name if relative == "." else relative


def _mapped(runs: Sequence[Run], count: int) -> dict[int, Path]:
    """Models for the map, by run index. Runs whose curves are shown at first take precedence."""
    order = sorted(range(len(runs)), key=lambda i: not runs[i].shown)
    with_model = [(i, model) for i in order if (model := runs[i].model) is not None]
    return dict(sorted(with_model[:count]))
