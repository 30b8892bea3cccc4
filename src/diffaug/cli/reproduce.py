"""`diffaug reproduce`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffaug.reproduce.grid import Grid
    from diffaug.reproduce.plans import PlanSettings

EXPERIMENTS = ("main", "low-label", "ablation", "prefix-length", "stage1-steps", "aux-weight", "divergence", "cost")
# Every recipe's own.
_FIRST_SEED = 42


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(reproduce)


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"The table or figure: {', '.join(EXPERIMENTS)}.")],
    encoder: Annotated[str, typer.Option("--encoder", "-e", help="The backbone of all runs: a folder or hub name.")],
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            "-d",
            metavar="DIR",
            help="The folder with NLI triplets and pairs, sentences, and STS tasks; repeat for several.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The grid's folder; one that is unfinished is continued.")
    ],
    seeds: Annotated[int, typer.Option(help="Runs of each row, with different seeds.", min=1)] = 3,
    draws: Annotated[int, typer.Option(help="Draws of the labels, where only a part is used.", min=1)] = 5,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs at the same time.", min=1)] = 1,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Change a setting of all runs: stage2.steps=100 ...")
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="The settings each row may try: paper, paper-search, released, small, or a YAML file."
        ),
    ] = "paper",
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Run this row alone, as 'SimCSE*'; repeat for several.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="VALUE", help="A column instead of the paper's, as 10%; repeat for several."),
    ] = None,
    triplets: Annotated[str | None, typer.Option(metavar="FILE", help="NLI triplets, not those in DIR.")] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Labelled pairs, not those in DIR; files that are repeated are joined."),
    ] = None,
    sentences: Annotated[str | None, typer.Option(metavar="FILE", help="Unlabelled text, not that in DIR.")] = None,
    dev: Annotated[str | None, typer.Option(metavar="FILE", help="Scored pairs instead of STS-B dev.")] = None,
    target: Annotated[str | None, typer.Option(metavar="FILE", help="The tasks' sentences, for flows.")] = None,
    generator: Annotated[str | None, typer.Option(metavar="MODEL", help="DiffCSE's masked language model.")] = None,
    keep_models: Annotated[bool, typer.Option(help="Keep every run's model when it is scored.")] = True,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Take finished runs that are the same over from this grid; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and do nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table alone.")] = False,
) -> None:
    """Run the grid behind a table or figure of the paper; finished runs are kept, the rest is continued."""
    from diffaug.reproduce.budget import load_budget
    from diffaug.reproduce.grid import GRID, MADE, Grid
    from diffaug.reproduce.listing import listing
    from diffaug.reproduce.plans import DataFiles, PlanSettings, plan
    from diffaug.reproduce.reuse import Reuse
    from diffaug.reproduce.run import GridInterrupted, run_grid

    with tempfile.TemporaryDirectory() as nowhere:
        begun = (out / GRID).is_file()
        # A grid that is there has made its data already, and its cells name them.
        made = Path(nowhere) if dry_run and not begun else out / MADE
        files = DataFiles.find(data, made, triplets=triplets, pairs=pairs, sentences=sentences, dev=dev, target=target)
        settings = PlanSettings(
            encoder=encoder,
            data=files,
            seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + seeds)),
            draws=draws,
            changes=tuple(changes or ()),
            budget=load_budget(budget),
            columns=tuple(columns or ()),
            generator=generator,
        )
        planned = plan(experiment, settings)
        rows = _rows(experiment, settings, only)
        reused = Reuse(reuse, planned, out, data) if reuse else None
        about = {"title": planned.title, "columns_are": planned.columns_are, "notes": list(planned.notes)}
        arguments = (out, _request(experiment, settings), about, planned.cells)
        if dry_run:
            grid = Grid.begin(*arguments) if begun else Grid(*arguments)
            for line in [*listing(grid, planned.more, rows, reused), *(f"{note}." for note in planned.notes)]:
                typer.echo(line)
            return
    grid = Grid.begin(*arguments)
    try:
        failures = run_grid(
            grid, planned, data, jobs=jobs, rows=rows, keep_models=keep_models, reuse=reused, quiet=quiet
        )
    except GridInterrupted as interrupted:
        typer.secho(str(interrupted), err=True)
        _show(grid)
        raise typer.Exit(128 + interrupted.signal) from None
    _show(grid)
    if failures:
        typer.secho(f"{len(failures)} of the cells failed; the same command tries them again:", err=True)
        for cell, failure in failures:
            typer.secho(f"  {cell.name}: {failure.splitlines()[0]}", err=True)
        raise typer.Exit(1)


def _rows(experiment: str, settings: PlanSettings, only: list[str] | None) -> set[str] | None:
    """The names of the rows that were asked for; a grid has all of them, whichever are run now."""
    if not only:
        return None
    from dataclasses import replace

    from diffaug.reproduce.plans import plan

    return {cell.row for cell in plan(experiment, replace(settings, rows=tuple(only))).cells}


def _request(experiment: str, settings: PlanSettings) -> dict[str, Any]:
    """All that decides which cells a grid has, and what they are made of."""
    from dataclasses import asdict

    files = asdict(settings.data)
    del files["made"]
    # One folder stands alone, as it does in grids that were begun before there could be several.
    folders = [str(folder) for folder in files.pop("folders")]
    files = {"folder": folders[0] if len(folders) == 1 else folders, **files}
    budget = asdict(settings.budget)
    for words in ("about", "notes"):  # these may be put better while a grid is under way
        del budget[words]
    return {
        "experiment": experiment,
        "encoder": settings.encoder,
        "data": files,
        "seeds": list(settings.seeds),
        "draws": settings.draws,
        "changes": list(settings.changes),
        "budget": budget,
        "columns": list(settings.columns),
        "generator": settings.generator,
    }


def _show(grid: Grid) -> None:
    """The table, as far as there is one, and where the files are."""
    if not grid.results():
        return
    from diffaug.reproduce.output import write_figures, write_tables

    typer.echo(write_tables(grid))
    figures, why_not = write_figures(grid)
    typer.echo(f"tables in {grid.folder / 'tables'}" + (f", figures in {grid.folder / 'figures'}" if figures else ""))
    if why_not is not None:
        typer.secho(why_not, err=True)
