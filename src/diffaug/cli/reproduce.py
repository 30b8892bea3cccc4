"""`diffaug reproduce` and `diffaug grid`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffaug.cli.plugins import Plugins

if TYPE_CHECKING:
    from collections.abc import Collection

    from diffaug.experiments.grid import Grid
    from diffaug.experiments.spec import GridSpec

EXPERIMENTS = ("main", "low-label", "ablation", "prefix-length", "stage1-steps", "aux-weight", "divergence", "cost")
# That of all recipes.
_FIRST_SEED = 42

Encoder = Annotated[str | None, typer.Option("--encoder", "-e", help="The backbone of all runs: a folder or hub name.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DIR",
        help="The folder with NLI triplets and pairs, sentences, and STS tasks; repeat for several.",
    ),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="The grid's folder; one that is unfinished is continued.")
]
Seeds = Annotated[int | None, typer.Option(help="Runs of each row, with different seeds; 3 by default.", min=1)]
Draws = Annotated[int | None, typer.Option(help="Draws of the labels, where only a part is used; 5 by default.", min=1)]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Runs at the same time, each on its own GPU if any.", min=1)]
Changes = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Change a setting of all runs: stage2.steps=100 ...")
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The settings each row may try: paper (the default), paper-search, released, small, or a YAML file.",
    ),
]
Only = Annotated[
    list[str] | None, typer.Option(metavar="ROW", help="Only run and show this row, as 'SimCSE*'; repeat for several.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="VALUE", help="A column instead of the usual ones, as 10%; repeat for several."),
]
Triplets = Annotated[str | None, typer.Option(metavar="FILE", help="NLI triplets, not those in DIR.")]
Pairs = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Labelled pairs, not those in DIR; files that are repeated are joined."),
]
Sentences = Annotated[str | None, typer.Option(metavar="FILE", help="Unlabelled text, not that in DIR.")]
Dev = Annotated[str | None, typer.Option(metavar="FILE", help="Scored pairs instead of STS-B dev.")]
Target = Annotated[str | None, typer.Option(metavar="FILE", help="The tasks' sentences, for flows.")]
Generator = Annotated[str | None, typer.Option(metavar="MODEL", help="DiffCSE's masked language model.")]
KeepModels = Annotated[bool, typer.Option(help="Keep every run's model when it is scored.")]
Reused = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Take finished runs that are the same over from this grid; repeatable."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Continue or take over even if data or models have changed; the tables say so.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs, and do nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the table alone.")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(reproduce)
    app.command()(grid)


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"The table or figure: {', '.join(EXPERIMENTS)}.")],
    out: Out,
    encoder: Encoder = None,
    data: Data = None,
    seeds: Seeds = None,
    draws: Draws = None,
    jobs: Jobs = 1,
    changes: Changes = None,
    plugins: Plugins = None,
    budget: Budget = None,
    only: Only = None,
    columns: Columns = None,
    triplets: Triplets = None,
    pairs: Pairs = None,
    sentences: Sentences = None,
    dev: Dev = None,
    target: Target = None,
    generator: Generator = None,
    keep_models: KeepModels = True,
    reuse: Reused = None,
    force: Force = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run the grid behind a table or figure of the paper; finished runs are kept, the rest is continued."""
    from diffaug.experiments.spec import paper_spec

    spec = paper_spec(experiment)
    for option, value in (("--encoder", encoder), ("--data", data)):
        if not value:
            raise typer.BadParameter(f"name it for diffaug reproduce {experiment}", param_hint=option)
    files = _Files(data, triplets, pairs, sentences, dev, target, generator)
    request = _Request(encoder, files, seeds, draws, changes, budget, only, columns)
    _run(spec, request, out, _How(jobs, keep_models, reuse, force, dry_run, quiet, plugins))


def grid(
    spec: Annotated[Path, typer.Argument(metavar="FILE", help="The specification of the grid, a YAML file.")],
    out: Out,
    encoder: Encoder = None,
    data: Data = None,
    seeds: Seeds = None,
    draws: Draws = None,
    jobs: Jobs = 1,
    changes: Changes = None,
    plugins: Plugins = None,
    budget: Budget = None,
    only: Only = None,
    columns: Columns = None,
    triplets: Triplets = None,
    pairs: Pairs = None,
    sentences: Sentences = None,
    dev: Dev = None,
    target: Target = None,
    generator: Generator = None,
    keep_models: KeepModels = True,
    reuse: Reused = None,
    force: Force = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run your own grid of recipes and settings; options override what its file says."""
    from diffaug.experiments.spec import load_spec

    files = _Files(data, triplets, pairs, sentences, dev, target, generator)
    request = _Request(encoder, files, seeds, draws, changes, budget, only, columns)
    _run(load_spec(spec), request, out, _How(jobs, keep_models, reuse, force, dry_run, quiet, plugins))


@dataclass(frozen=True)
class _Files:
    data: list[Path] | None
    triplets: str | None
    pairs: list[str] | None
    sentences: str | None
    dev: str | None
    target: str | None
    generator: str | None


@dataclass(frozen=True)
class _Request:
    """Options that decide what is run; None: as in the specification."""

    encoder: str | None
    files: _Files
    seeds: int | None
    draws: int | None
    changes: list[str] | None
    budget: str | None
    only: list[str] | None
    columns: list[str] | None


@dataclass(frozen=True)
class _How:
    """Options that decide how it is run."""

    jobs: int
    keep_models: bool
    reuse: list[Path] | None
    force: bool
    dry_run: bool
    quiet: bool
    plugins: list[str] | None


def _run(spec: GridSpec, request: _Request, out: Path, how: _How) -> None:
    from diffaug.experiments.budget import load_budget
    from diffaug.experiments.data import DataFiles, TaskFiles
    from diffaug.experiments.grid import GRID, MADE, Grid
    from diffaug.experiments.plan import PlanOptions, make_plan
    from diffaug.experiments.reuse import Reuse
    from diffaug.experiments.run import GridInterrupted, run_grid
    from diffaug.experiments.schedule import listing

    seeds = request.seeds or spec.seeds
    files, own = request.files, spec.data
    folders = files.data or [Path(folder) for folder in own.folders]
    tasks = TaskFiles(tuple(folders), spec.tasks)
    with tempfile.TemporaryDirectory() as nowhere:
        # A grid that was begun has its converted data already, and its cells name it.
        made = Path(nowhere) if how.dry_run and not (out / GRID).is_file() else out / MADE
        options = PlanOptions(
            data=DataFiles.find(
                folders,
                made,
                triplets=files.triplets or own.triplets,
                pairs=files.pairs or own.pairs,
                sentences=files.sentences or own.sentences,
                dev=files.dev or own.dev,
                target=files.target or own.target,
            ),
            encoder=request.encoder or spec.encoder,
            seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + seeds)),
            draws=request.draws or spec.draws,
            changes=tuple(request.changes or ()),
            budget=load_budget(request.budget or spec.budget),
            columns=tuple(request.columns or ()),
            rows=tuple(request.only or ()),
            generator=files.generator or own.generator,
        )
        plan = make_plan(spec, options)
        rows = {cell.row for cell in plan.cells} & plan.rows
        reuse = Reuse(how.reuse, plan, out, tasks, force=how.force) if how.reuse else None
        folder = Grid.begin(out, options.request(spec.name), plan.about, plan.cells, write=not how.dry_run)
        if how.dry_run:
            for line in [*listing(folder, plan.more, rows, reuse), *(f"{note}." for note in plan.notes)]:
                typer.echo(line)
            return
    shown = rows if request.only else None
    try:
        failures = run_grid(
            folder,
            plan,
            tasks,
            jobs=how.jobs,
            rows=rows,
            keep_models=how.keep_models,
            reuse=reuse,
            force=how.force,
            quiet=how.quiet,
            plugins=(*spec.plugins, *(how.plugins or ())),
        )
    except GridInterrupted as interrupted:
        typer.secho(str(interrupted), err=True)
        _show(folder, shown)
        raise typer.Exit(128 + interrupted.signal) from None
    _show(folder, shown)
    if failures:
        typer.secho(f"{len(failures)} of the cells failed; the same command tries them again:", err=True)
        for cell, failure in failures:
            typer.secho(f"  {cell.name}: {failure.splitlines()[0]}", err=True)
        raise typer.Exit(1)


def _show(folder: Grid, rows: Collection[str] | None) -> None:
    """Print the tables, as far as there are any, and write tables and figures of these rows."""
    from diffaug.errors import DiffaugError

    if not folder.results():
        return
    from diffaug.experiments.tables import write_tables

    typer.echo(write_tables(folder, rows))
    drawn, reason = False, "they need matplotlib, pip install 'diffaug[report]'"
    if find_spec("matplotlib") is not None:
        from diffaug.experiments.figures import draw

        try:
            drawn = bool(draw(folder, folder.folder / "figures", rows))
        except DiffaugError as error:
            reason = str(error)
    typer.echo(f"tables in {folder.folder / 'tables'}" + (f", figures in {folder.folder / 'figures'}" if drawn else ""))
    if not drawn:
        typer.secho(f"no figures: {reason}", err=True)
