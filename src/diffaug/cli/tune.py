"""`diffaug tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffaug.cli.engine import Engine
from diffaug.cli.interruption import resumable
from diffaug.cli.plugins import Plugins
from diffaug.config import load_recipe


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(tune)


def tune(
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="A recipe's name (diffaug recipes ls) or YAML file.")],
    search: Annotated[
        list[str],
        typer.Option(
            "--search",
            metavar="KEY=VALUES",
            help="Values of a setting, as in stage2.temperature=0.03,0.05, stage2.learning_rate=log:1e-5..1e-4 or "
            "views.length=4..16; or a YAML file of them. Can be repeated.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the search; the same command continues it.")
    ],
    trials: Annotated[int, typer.Option("--trials", "-n", help="The number of settings to try.", min=1)] = 20,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Change a setting for all trials: data.dev=my.csv ...")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Trials at the same time, each on its own GPU if any; 1 by default, with --engine ray as many as fit.",
            min=1,
        ),
    ] = None,
    engine: Engine = "local",
    prune: Annotated[bool, typer.Option(help="End trials that are worse than the median.")] = True,
    plugins: Plugins = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Search for better settings of a recipe on your own data."""
    from diffaug.tuning.preflight import check_tuning

    settings = load_recipe(recipe, changes or [], plugins or [])
    check_tuning(settings, search, out, trials, 1 if workers is None else workers)  # before the slow imports below
    from rich.console import Console

    from diffaug.tabular import rich_table
    from diffaug.tuning.run import tune as run

    report = None if quiet else lambda line: typer.echo(line, err=True)
    with resumable(out):
        result = run(settings, search, out, trials=trials, workers=workers, engine=engine, prune=prune, report=report)
    console = Console()
    console.print(rich_table(result.table(), console.width))
    typer.echo(result.verdict)
    typer.echo(f"settings   {' '.join(result.changes) or 'those of the recipe'}   (all of them: {out / 'best.yaml'})")
    typer.echo(f"model      {result.model}")
