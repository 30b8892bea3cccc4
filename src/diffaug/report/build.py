"""`build` reads a folder of runs and writes the report."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.files import check_output, write_text
from diffaug.progress import rate_progress
from diffaug.report.data import Sentences, map_data, metric_data, pair_data, run_data
from diffaug.report.embeddings import Projection
from diffaug.report.grids import GridRuns, read_grid
from diffaug.report.page import Page
from diffaug.report.pairs import Encode, PairReader, PairSet, cosines_of, pair_sets
from diffaug.report.runs import Run, find_folders, read_run
from diffaug.report.sentences import own_sentences
from diffaug.report.settings import compare_settings
from diffaug.report.verdict import Cosines, judge_runs

if TYPE_CHECKING:
    from diffaug.embedder import Embedder


def build(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    projection: Projection | None = "pca",
    maps: int = 12,
    pairs: int = 20,
    sentences: str | os.PathLike[str] | None = None,
    device: str | None = None,
) -> Path:
    """Write a report on all runs in a folder and its subfolders, as one self-contained HTML file.

    Args:
        folder: the folder of a run, of a reproduced experiment, or any parent of such folders.
        out: the file to write.
        projection: how embeddings are reduced to two dimensions; None leaves the map out.
        maps: maximum number of models on the map. An experiment has one model per row and column.
        pairs: number of pairs shown per model that are ranked too high, and too low.
        sentences: a file with sentences for the map, with or without classes; default: the training data of the runs.
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
        given = None if sentences is None else Path(sentences)
        text = _page(folder, projection, maps, pairs, given, device)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # Files are checked when they are read, but not every value in them.
        raise DiffaugError(f"a file in {folder} is damaged ({type(error).__name__}: {error!s:.200})") from error
    write_text(out, text)
    return out


def _page(
    folder: Path, projection: Projection | None, maps: int, pairs: int, sentences: Path | None, device: str | None
) -> str:
    grids, single_runs = _collect(folder)
    runs = [run for grid in grids for run in grid.runs] + single_runs
    with rate_progress("embedding", "sentences", None, show=sys.stderr.isatty()) as advance, _offline():
        encode = _encoder(device, advance)
        reader = PairReader()
        sets, notes = pair_sets(runs, reader, encode)
        verdict = judge_runs(single_runs, reader, _cosines(runs, sets, encode))
        texts = Sentences()
        worst = pair_data(sets, pairs, texts)
        drawn, why = _map(runs, projection, maps, sentences, encode, texts)
    settings = compare_settings([run.recipe for run in runs])
    series = run_data(runs, settings.own)
    page = Page(folder, grids, runs, settings, notes, verdict)
    return page.html(
        {
            "runs": series,
            "shared": settings.shared,
            "metrics": metric_data(series),
            "pairs": worst,
            "map": drawn,
            "map_notes": why,
            "sentences": texts.texts(),
        }
    )


def _encoder(device: str | None, advance: Callable[[int], None]) -> Encode:
    @lru_cache(maxsize=2)
    def load(model: str) -> Embedder:
        from diffaug.embedder import Embedder

        return Embedder.from_pretrained(model, device=device)

    def encode(model: str | Path, sentences: list[str]) -> NDArray[np.float32]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # truncated sentences were reported during training
            vectors = load(str(model)).encode(sentences, show_progress=False)
        advance(len(sentences))
        return vectors

    return encode


def _cosines(runs: Sequence[Run], sets: Sequence[PairSet], encode: Encode) -> Cosines:
    """What `judge_runs` compares. What was computed for the worst pairs is used again."""

    def cosines(run: Run, pairs: ScoredPairs, trained: bool) -> NDArray[np.float64]:
        known = next((one.cosines.get(runs.index(run)) for one in sets if one.pairs == pairs), None)
        if trained and known is not None:
            return known
        model = run.model if trained else run.backbone
        if model is None:
            raise DiffaugError(f"{run.name} has no model in its folder best/")
        return cosines_of(encode, model, pairs)

    return cosines


def _map(
    runs: Sequence[Run],
    projection: Projection | None,
    maps: int,
    given: Path | None,
    encode: Encode,
    texts: Sentences,
) -> tuple[dict[str, Any] | None, list[str]]:
    """The map, and notes on what it lacks; or None and why."""
    if projection is None:
        return None, ["There is no map: it was turned off with --map none."]
    models = _mapped(runs, maps)
    if not models:
        return None, [
            "There is no map: it needs a trained model, and no run has one in its folder best/. Models are missing if "
            "the grid ran with --no-keep-models, if best/ was not copied, or if training has not finished."
        ]
    own, notes = own_sentences([runs[i] for i in models], given)
    if own is None or len(own.texts) < 2:
        return None, ["There is no map: no sentences could be read; name a file with --sentences.", *notes]
    backbones = {i: name for i in models if (name := runs[i].backbone) is not None}
    drawn, missing = map_data(own, models, backbones, projection, encode, texts)
    return drawn, missing


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
