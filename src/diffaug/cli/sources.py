"""`diffaug data ls`, `get` and `status`: download public data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from diffaug.models.views.synonym import GET_WORDNET

Folder = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="The data folder; default: $DIFFAUG_DATA or ~/.cache/diffaug/data.",
        show_default=False,
    ),
]


def register(data_app: typer.Typer) -> None:
    """Add these commands to the group ``data``."""
    data_app.command("ls")(list_sources)
    data_app.command("get")(get)
    data_app.command("status")(status)


def list_sources() -> None:
    """List the public data sets that can be downloaded."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from diffaug.data.catalogue import SOURCES

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "what", "rows", "checksum", "licence"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for source in SOURCES:
        rows = [file.rows for file in source.files]
        counted = " + ".join(f"{n:,}" for n in rows if n is not None)
        known = "known" if all(file.sha256 for file in source.files) else ""
        table.add_row(source.name, source.what, counted, known, source.licence)
    # Output to a file or pipe does not depend on the window's width.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    typer.echo(f"WordNet, for synonym replacement, is downloaded with its own tool: {GET_WORDNET}")


def get(
    names: Annotated[list[str], typer.Argument(help="Names from 'diffaug data ls'.")],
    to: Folder = None,
    given: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Use this file, or this folder with the files, instead of downloading them.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Download again, even if the files are complete.")] = False,
) -> None:
    """Download public data and check it; an interrupted download is resumed."""
    from diffaug.data import sources
    from diffaug.errors import DiffaugError

    if given is not None and len(names) != 1:
        raise DiffaugError("--from needs exactly one name")
    if "wordnet" in names:
        raise DiffaugError(f"WordNet is downloaded with its own tool: run {GET_WORDNET}")
    folder = to or sources.data_folder()
    for source in [sources.find_source(name) for name in names]:
        with _progress() as advance:
            home = sources.get(source, folder, given=given, again=again, advance=advance)
        typer.echo(f"{source.name} is in {home}")


def status(to: Folder = None) -> None:
    """Show which data sets are downloaded, and whether they are complete. The exit code is 1 if one is damaged."""
    from diffaug.data import sources

    folder = to or sources.data_folder()
    typer.echo(f"data folder: {folder}")
    damaged = False
    for source in sources.SOURCES:
        found = sources.status(source, folder)
        damaged |= found.state == "damaged"
        typer.echo(f"{source.name:12} {found.state}" + (f": {found.detail}" if found.detail else ""))
    if damaged:
        typer.echo("download damaged data sets again: diffaug data get NAME --again")
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """One progress bar per file on a terminal; no output in a log."""
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def advance(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name)
            progress.update(bars[name], completed=done, total=total)

        yield advance
