"""`diffaug data`: check data before training, and download public data."""

from __future__ import annotations

from typing import Annotated

import typer

from diffaug.cli import sources
from diffaug.cli.columns import Columns, parse_columns
from diffaug.errors import DiffaugError

_KINDS = {
    "sentences": "SENTENCES",
    "triplets": "TRIPLETS",
    "labelled": "LABELLED_PAIRS",
    "scored": "SCORED_PAIRS",
    "positive": "POSITIVE_PAIRS",
}

data_app = typer.Typer(help="Check data, and download public data.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add this group of commands to ``app``."""
    data_app.command()(check)
    sources.register(data_app)
    app.add_typer(data_app, name="data")


def check(
    file: Annotated[
        str, typer.Argument(help="A .txt, .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, hub:... or sample:...")
    ],
    column: Columns = None,
    kind: Annotated[
        str | None, typer.Option(help=f"The expected kind: {', '.join(_KINDS)}; default: recognised.")
    ] = None,
) -> None:
    """Show what a file contains and what it can be used for. The exit code is 1 if it cannot be used."""
    from diffaug.data.check import check as check_data
    from diffaug.data.layout import Kind

    if kind is not None and kind not in _KINDS:
        raise DiffaugError(f"--kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    report = check_data(file, parse_columns(column), None if kind is None else Kind[_KINDS[kind]])
    typer.echo(str(report))
    if not report.usable:
        raise typer.Exit(1)
