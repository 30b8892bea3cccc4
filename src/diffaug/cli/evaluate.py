"""`diffaug eval`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Model, Trust
from diffaug.errors import DiffaugError


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command("eval")(evaluate)


def evaluate(
    model: Model = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DIR",
            help="A folder with the public tasks, in any known layout (repeat for several), or 'hub'; left out, where "
            "'diffaug data get' puts them.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            "-t",
            help="Groups (sts, transfer, geometry) and names (STS12, STS-B-dev, MR ...), with commas; left out, sts, "
            "or none if own data is given.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Scored pairs of your own: Spearman and Pearson.")
    ] = None,
    triplets: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Triplets of your own: accuracy.")] = None,
    retrieval: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A file or BEIR folder of queries and documents: recall at k, MRR."),
    ] = None,
    column: Columns = None,
    versus: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Compare with this model on the same rows.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.", show_default=False)
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write tables as Markdown.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap and the folds.")] = 0,
    resamples: Annotated[int, typer.Option(help="Of the bootstrap; 0 leaves intervals out.")] = 1000,
    batch_size: Annotated[int | None, typer.Option(help="Sentences in a batch; left out, by number of tokens.")] = None,
    device: Device = None,
    trust_remote_code: Trust = False,
) -> None:
    """Score a model on STS and transfer tasks, on your own data, or against another model."""
    for target in (json_file, markdown_file):
        # Known after minutes of work is known too late.
        if target is not None and (target.is_dir() or not os.access(_existing(target), os.W_OK)):
            raise DiffaugError(f"{target} cannot be written")
    from diffaug.evaluation import evaluate as run
    from diffaug.evaluation.render import needed_width, rich_result

    report = run(
        model,
        data,
        tasks,
        pairs=_named(pairs),
        triplets=_named(triplets),
        retrieval=_named(retrieval),
        columns=parse_columns(column),
        versus=versus,
        seed=seed,
        resamples=resamples,
        batch_size=batch_size,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    if json_file is not None:
        report.save_json(json_file)
    if markdown_file is not None:
        report.save_markdown(markdown_file)
    from rich.console import Console

    Console(width=max(Console().width, needed_width(report))).print(rich_result(report))


def _existing(path: Path) -> Path:
    """The nearest folder above ``path`` that is there."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _named(sources: list[str] | None) -> dict[str, str] | None:
    """Files by their names without endings, or where two have the same one, by their paths."""
    if not sources:
        return None
    names = [Path(source).name.split(".")[0] or source for source in sources]
    return {name if names.count(name) == 1 else path: path for name, path in zip(names, sources, strict=True)}
