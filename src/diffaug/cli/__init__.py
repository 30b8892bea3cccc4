"""The command line, one file per group of commands. Commands import heavy modules when they run: `--help` is fast."""

from __future__ import annotations

import os
import sys
import warnings

import typer

from diffaug.cli import (
    adapt,
    convert,
    data,
    embed,
    evaluate,
    explore,
    export,
    index,
    label,
    push,
    quickstart,
    report,
    reproduce,
    serve,
    train,
    tune,
)
from diffaug.errors import DiffaugError
from diffaug.version import __version__

app = typer.Typer(
    name="diffaug",
    help="Sentence embeddings when labels are few.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
quickstart.register(app)
embed.register(app)
index.register(app)
data.register(app)
train.register(app)
tune.register(app)
adapt.register(app)
evaluate.register(app)
explore.register(app)
push.register(app)
convert.register(app)
export.register(app)
reproduce.register(app)
report.register(app)
serve.register(app)
label.register(app)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"diffaug {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; a `DiffaugError` is printed as one sentence, without a traceback."""
    # By default OpenMP threads spin while they wait for each other. On a machine with other processes this made
    # training five times slower. Must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Warnings without the line of code, which does not help the user of a command.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except DiffaugError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except OSError as error:
        # Each command says what it cannot read or write; this is for the rest, such as a name that is too long.
        if not error.strerror:
            raise
        named = "" if error.filename is None else f"{str(error.filename)[:100]}: "
        typer.secho(f"error: {named}{error.strerror}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("interrupted", err=True)
        sys.exit(130)
