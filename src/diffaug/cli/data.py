"""`diffaug data`: check data before training, and download public data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffaug.cli.columns import Columns, Labels, parse_columns, parse_labels
from diffaug.errors import DiffaugError
from diffaug.models.views.synonym import GET_WORDNET

_KINDS = {
    "sentences": "SENTENCES",
    "triplets": "TRIPLETS",
    "labelled": "LABELLED_PAIRS",
    "scored": "SCORED_PAIRS",
    "positive": "POSITIVE_PAIRS",
    "classes": "CLASSES",
}
Folder = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="The data folder; by default $DIFFAUG_DATA or ~/.cache/diffaug/data.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add this group of commands to ``app``."""
    data_app = typer.Typer(help="Check your own data and download public data.", no_args_is_help=True)
    data_app.command()(check)
    data_app.command()(mine)
    data_app.command("ls")(list_datasets)
    data_app.command()(get)
    data_app.command()(status)
    data_app.command()(cache)
    app.add_typer(data_app, name="data")


def check(
    file: Annotated[
        str, typer.Argument(help="A .txt, .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, hub:... or sample:...")
    ],
    column: Columns = None,
    label: Labels = None,
    kind: Annotated[
        str | None, typer.Option(help=f"The expected kind: {', '.join(_KINDS)}; default: recognised.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Evaluation data: report what it shares with the file; repeatable."),
    ] = None,
) -> None:
    """Show what a file contains and what it can be used for. The exit code is 1 if it cannot be used."""
    from diffaug.data.check import check as check_data
    from diffaug.data.columns import Kind

    if kind is not None and kind not in _KINDS:
        raise DiffaugError(f"--kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    expected = None if kind is None else Kind[_KINDS[kind]]
    report = check_data(file, parse_columns(column), expected, against or (), parse_labels(label))
    typer.echo(str(report))
    if not report.usable:
        raise typer.Exit(1)


def mine(
    labels: Annotated[str, typer.Argument(help="Pairs that belong together, triplets, or sentences with a class.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .csv file of triplets to write.")],
    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Sentences to find negatives in; default: those of the labels."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model that finds them; default: the embedded encoder.")
    ] = None,
    num_negatives: Annotated[int, typer.Option(help="Negatives per pair; each makes a triplet.")] = 3,
    sampling: Annotated[str, typer.Option(help="top: the most similar that fit; random: any that fit.")] = "top",
    range_min: Annotated[int, typer.Option(help="Skip this many of the most similar sentences.")] = 0,
    range_max: Annotated[int, typer.Option(help="Look at this many of the most similar sentences.")] = 100,
    max_score: Annotated[float | None, typer.Option(help="Highest cosine of anchor and negative.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Lowest cosine of anchor and negative.")] = None,
    absolute_margin: Annotated[
        float | None, typer.Option(help="How far a negative's cosine is below the positive's, at least.")
    ] = None,
    relative_margin: Annotated[
        float,
        typer.Option(help="The same as a fraction of the positive's cosine; a large negative number switches it off."),
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of --sampling random.")] = 0,
    column: Columns = None,
    label: Labels = None,
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of --text with the sentences.", show_default=False),
    ] = None,
    on_bad: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with rows that cannot be used.")
    ] = "error",
) -> None:
    """Find hard negatives in your own text, and write triplets."""
    if out.suffix != ".csv":
        raise DiffaugError(f"--out must end in .csv, got {out}")
    if out.exists():
        raise DiffaugError(f"{out} exists; choose another name, or remove it")
    if sampling not in ("top", "random"):
        raise DiffaugError(f"--sampling must be top or random, got {sampling!r}")
    import csv

    from diffaug.embedder import Embedder
    from diffaug.files import atomic_file, check_output
    from diffaug.mining import mine_hard_negatives

    check_output(out)
    triplets = mine_hard_negatives(
        Embedder.from_pretrained(model),
        labels,
        text,
        num_negatives=num_negatives,
        sampling=sampling,  # type: ignore[arg-type] # checked above
        range_min=range_min,
        range_max=range_max,
        max_score=max_score,
        min_score=min_score,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        seed=seed,
        columns=parse_columns(column),
        label_names=parse_labels(label),
        text_column=text_column,
        on_bad=on_bad,
    )
    with atomic_file(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("anchor", "positive", "negative"), *triplets])
    typer.echo(f"{len(triplets):,} triplets of {len(set(triplets.anchors)):,} anchors -> {out}", err=True)


def list_datasets() -> None:
    """List the public data sets that can be downloaded."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from diffaug.data.public.catalogue import DATASETS

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "what", "rows", "checksum", "licence"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for dataset in DATASETS:
        rows = " + ".join(f"{file.rows:,}" for file in dataset.files if file.rows is not None)
        known = "known" if all(file.sha256 for file in dataset.files) else ""
        table.add_row(dataset.name, dataset.what, rows, known, dataset.licence)
    # A file or a pipe has no width to fit.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    typer.echo(f"WordNet, for synonym replacement, has its own downloader: {GET_WORDNET}")


def get(
    names: Annotated[list[str], typer.Argument(help="Names from 'diffaug data ls'.")],
    to: Folder = None,
    local: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Copy this file, or the folder with the files, instead of downloading.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Download even if the data is there and complete.")] = False,
) -> None:
    """Download public data and check it. An interrupted download is resumed."""
    from diffaug.data.public import store

    if local is not None and len(names) != 1:
        raise DiffaugError("--from needs exactly one name")
    if "wordnet" in names:
        raise DiffaugError(f"WordNet has its own downloader: run {GET_WORDNET}")
    folder = to or store.data_folder()
    for dataset in [store.find_dataset(name) for name in names]:
        with _progress() as advance:
            home = store.get(dataset, folder, local=local, again=again, advance=advance)
        typer.echo(f"{dataset.name} is in {home}")


def status(to: Folder = None) -> None:
    """Show which public data sets are there and complete. The exit code is 1 if one is damaged."""
    from diffaug.data.public import store

    folder = to or store.data_folder()
    typer.echo(f"data folder: {folder}")
    damaged = False
    for dataset in store.DATASETS:
        found = store.status(dataset, folder)
        damaged |= found.state == "damaged"
        typer.echo(f"{dataset.name:12} {found.state}" + (f": {found.detail}" if found.detail else ""))
    if damaged:
        typer.echo("download damaged data again: diffaug data get NAME --again")
        raise typer.Exit(1)


def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove it.")] = False) -> None:
    """Show the large text that training has read and tokenised on this machine ($DIFFAUG_CACHE)."""
    from diffaug.data import disk_cache

    if clear:
        disk_cache.clear()
    entries = disk_cache.entries()
    typer.echo(f"{disk_cache.corpus_cache()}: {_megabytes(sum(entry.size for entry in entries))}")
    for entry in entries:
        parts = [entry.folder.parent.name, f"{_megabytes(entry.size):>10}"]
        if "sentences" in entry.details:
            parts.append(f"{entry.details['sentences']:,} sentences")
        typer.echo("  ".join([*parts, *entry.details.get("sources", [])]))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar for each file on a terminal; nothing in a log."""
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
