"""`diffaug train` and `diffaug recipes`."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from diffaug.cli.plugins import Plugins
from diffaug.config import load_recipe, recipe_names, recipe_path, recipe_text
from diffaug.errors import DiffaugError
from diffaug.files import check_output

recipes = typer.Typer(help="List, show and copy the recipes included in the package.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(train)
    app.add_typer(recipes, name="recipes")


def train(
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="A recipe's name (diffaug recipes ls) or YAML file.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The run's folder; it must not exist, unless --resume is given.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Change a setting: stage1.steps=auto, data.nli=my.csv ...")
    ] = None,
    plugins: Plugins = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished run, or start it.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Resume even if data, backbone or tokenizer have changed; it is recorded.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the summary.")] = False,
) -> None:
    """Train a model: stage 1, then stage 2; the best checkpoint is saved in OUT/best."""
    settings = load_recipe(recipe, changes or [], plugins or [])
    # The process group does not exist yet; launchers set the rank of each process.
    if os.environ.get("RANK", "0") == "0":
        from diffaug.training.preflight import check_start

        check_start(settings, out, resume)  # before the slow imports below
        if not quiet:
            _show_notes()
    from diffaug.distributed import is_first
    from diffaug.training.loop import TrainingInterrupted
    from diffaug.training.run import train as run

    try:
        result = run(settings, out, resume=resume, force=force, quiet=quiet)
    except TrainingInterrupted as interrupted:
        typer.secho(str(interrupted), err=True)
        raise typer.Exit(128 + interrupted.signal) from None
    if not is_first():
        return
    if result.stage1_end:
        typer.echo(f"stage 1 ended {result.stage1_end}")
    for name, score in result.scores.items():
        before = f"   before training {result.before[name]:.2f}" if name in result.before else ""
        typer.echo(f"{name:10s} {score:.2f}{before}" if name in ("dev", "test") else f"{name:10s} {score:.3f}")
    typer.echo(f"model      {result.model}   ({result.seconds:.0f} s)")
    if worse := [name for name, before in result.before.items() if result.scores[name] < before]:
        typer.secho(
            f"warning: on {' and '.join(worse)} the model is worse than the backbone before training; more data or "
            "steps, another learning rate or another recipe may help",
            fg=typer.colors.YELLOW,
            err=True,
        )


def _show_notes() -> None:
    """Print the notes of the data readers, for example on duplicates and truncated sentences."""
    logger = logging.getLogger("diffaug.data")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(_Notes())


class _Notes(logging.Handler):
    """Prints messages without formatting on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


@recipes.command("ls")
def ls() -> None:
    """List the recipes."""
    width = max(map(len, recipe_names()))
    for name in recipe_names():
        typer.echo(f"{name:{width}s}  {recipe_text(name).splitlines()[0].lstrip('# ')}")


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe's name or YAML file.")],
    resolved: Annotated[bool, typer.Option("--resolved", help="Show all settings, including defaults.")] = False,
) -> None:
    """Print a recipe."""
    typer.echo(load_recipe(name).to_yaml() if resolved else recipe_text(name), nl=False)


@recipes.command()
def cp(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    target: Annotated[Path, typer.Argument(help="The file to write.")],
) -> None:
    """Copy a recipe to a file that you can edit."""
    if target.suffix not in {".yaml", ".yml"}:
        raise DiffaugError(f"{target} must end in .yaml")
    if target.exists():
        raise DiffaugError(f"{target} exists already; choose another file")
    check_output(target)
    try:
        shutil.copyfile(recipe_path(name), target)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror}") from error
    typer.echo(f"{name} -> {target}")
