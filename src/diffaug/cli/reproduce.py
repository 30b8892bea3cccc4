"""`diffaug reproduce` and `diffaug grid`."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffaug.cli.engine import Engine
from diffaug.cli.plugins import Plugins

if TYPE_CHECKING:
    from collections.abc import Collection

    from diffaug.experiments.grid import Grid
    from diffaug.experiments.spec import GridSpec

EXPERIMENTS = ("main", "low-label", "ablation", "prefix-length", "stage1-steps", "aux-weight", "divergence", "cost")
# That of all recipes.
_FIRST_SEED = 42


@dataclass(frozen=True)
class Options:
    """The options of both commands; None: as in the specification."""

    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The grid's folder; an unfinished grid continues.")
    ]
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="The backbone of all runs: a folder or hub name.")
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DIR",
            help="The folder with NLI triplets and pairs, sentences, and STS tasks; repeat for several.",
        ),
    ] = None
    seeds: Annotated[int | None, typer.Option(help="Runs of each row, with different seeds; 3 by default.", min=1)] = (
        None
    )
    draws: Annotated[
        int | None, typer.Option(help="Draws of the labels, where only a part is used; 5 by default.", min=1)
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            help="Runs at the same time, each on its own GPU if any; 1 by default, with --engine ray as many as fit.",
            min=1,
        ),
    ] = None
    engine: Engine = "local"
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Change a setting of all runs: stage2.steps=100 ...")
    ] = None
    plugins: Plugins = None
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The settings each row may try: paper (the default), paper-search, released, small, or a YAML file.",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Run and show only this row, as in 'SimCSE*'; repeatable."),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="VALUE", help="A column that replaces the usual ones, as in 10%; repeatable."),
    ] = None
    triplets: Annotated[str | None, typer.Option(metavar="FILE", help="NLI triplets, instead of those in DIR.")] = None
    pairs: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Labelled pairs, instead of those in DIR; several files are joined."),
    ] = None
    sentences: Annotated[str | None, typer.Option(metavar="FILE", help="Raw text, instead of that in DIR.")] = None
    dev: Annotated[str | None, typer.Option(metavar="FILE", help="Scored pairs instead of STS-B dev.")] = None
    target: Annotated[str | None, typer.Option(metavar="FILE", help="The tasks' sentences, for flows.")] = None
    generator: Annotated[str | None, typer.Option(metavar="MODEL", help="DiffCSE's masked language model.")] = None
    keep_models: Annotated[bool, typer.Option(help="Keep every run's model when it is scored.")] = True
    reuse: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Copy finished runs with the same settings from this grid; repeatable."),
    ] = None
    force: Annotated[
        bool,
        typer.Option("--force", help="Continue, or copy runs, even if data or models have changed; the tables say so."),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and do nothing.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")] = False


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(_with_options(reproduce))
    app.command()(_with_options(grid))


def _with_options(command: Callable[[Any, Options], None]) -> Callable[..., None]:
    """The command with the fields of `Options` as its options, as typer reads them from a signature."""
    argument, _ = inspect.signature(command, eval_str=True).parameters.values()
    options = inspect.signature(Options, eval_str=True).parameters.values()

    @wraps(command)
    def expanded(**given: Any) -> None:
        command(given.pop(argument.name), Options(**given))

    expanded.__signature__ = inspect.Signature([argument, *options])  # type: ignore[attr-defined]
    return expanded


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"The table or figure: {', '.join(EXPERIMENTS)}.")], options: Options
) -> None:
    """Run the grid behind a table or figure of the paper. The same command continues an unfinished grid."""
    from diffaug.experiments.spec import paper_spec

    spec = paper_spec(experiment)
    for option, value in (("--encoder", options.encoder), ("--data", options.data)):
        if not value:
            raise typer.BadParameter(f"diffaug reproduce {experiment} needs it", param_hint=option)
    _run(spec, options)


def grid(
    spec: Annotated[Path, typer.Argument(metavar="FILE", help="The specification of the grid, a YAML file.")],
    options: Options,
) -> None:
    """Run your own grid of recipes and settings; options override what its file says."""
    from diffaug.experiments.spec import load_spec

    _run(load_spec(spec), options)


def _run(spec: GridSpec, options: Options) -> None:
    from diffaug.experiments.budget import load_budget
    from diffaug.experiments.data import DataFiles, TaskFiles
    from diffaug.experiments.grid import GRID, MADE, Grid
    from diffaug.experiments.plan import PlanOptions, make_plan
    from diffaug.experiments.reuse import Reuse
    from diffaug.experiments.run import GridInterrupted, run_grid
    from diffaug.experiments.schedule import listing

    out, own = options.out, spec.data
    folders = options.data or [Path(folder) for folder in own.folders]
    tasks = TaskFiles(tuple(folders), spec.tasks)
    with tempfile.TemporaryDirectory() as nowhere:
        # A grid that was begun has its converted data already, and its cells name it.
        made = Path(nowhere) if options.dry_run and not (out / GRID).is_file() else out / MADE
        asked = PlanOptions(
            data=DataFiles.find(
                folders,
                made,
                triplets=options.triplets or own.triplets,
                pairs=options.pairs or own.pairs,
                sentences=options.sentences or own.sentences,
                dev=options.dev or own.dev,
                target=options.target or own.target,
            ),
            encoder=options.encoder or spec.encoder,
            seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + (options.seeds or spec.seeds))),
            draws=options.draws or spec.draws,
            changes=tuple(options.changes or ()),
            budget=load_budget(options.budget or spec.budget),
            columns=tuple(options.columns or ()),
            rows=tuple(options.only or ()),
            generator=options.generator or own.generator,
        )
        plan = make_plan(spec, asked)
        rows = {cell.row for cell in plan.cells} & plan.rows
        reuse = Reuse(options.reuse, plan, out, tasks, force=options.force) if options.reuse else None
        folder = Grid.begin(out, asked.request(spec.name), plan.about, plan.cells, write=not options.dry_run)
        if options.dry_run:
            for line in [*listing(folder, plan.more, rows, reuse), *(f"{note}." for note in plan.notes)]:
                typer.echo(line)
            return
    shown = rows if options.only else None
    try:
        failures = run_grid(
            folder,
            plan,
            tasks,
            jobs=options.jobs,
            engine=options.engine,
            rows=rows,
            keep_models=options.keep_models,
            reuse=reuse,
            force=options.force,
            quiet=options.quiet,
            plugins=(*spec.plugins, *(options.plugins or ())),
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
