"""The command line: a file a group of commands. Commands import what they run when they run, so `--help` is instant."""

from __future__ import annotations

import os
import sys
import warnings

import typer

from diffaug.cli import convert, data, embed, evaluate, export, push, report, reproduce, train
from diffaug.errors import DiffaugError
from diffaug.version import __version__

app = typer.Typer(
    name="diffaug",
    help="Sentence embeddings when labels are few.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
embed.register(app)
data.register(app)
train.register(app)
evaluate.register(app)
push.register(app)
convert.register(app)
export.register(app)
reproduce.register(app)
report.register(app)


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
    """Run the command line; what the user can put right is one sentence on standard error, not a traceback."""
    # OpenMP's threads spin while they wait for each other. On a machine with other work to do, where one of them may
    # not be running at all, that made training five times slower. Must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A warning is for the user of the command, who has no use for the line of code it came from.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except DiffaugError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("interrupted", err=True)
        sys.exit(130)
