"""`diffaug adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(adapt)


def adapt(
    model: Annotated[str, typer.Argument(help="A finished embedding model: a folder or hub name.")],
    labels: Annotated[str, typer.Option("--labels", "-l", metavar="FILE", help="Your labels, of any kind.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the result; an interrupted one is continued.")
    ],
    text: Annotated[
        str | None, typer.Option(metavar="FILE", help="Unlabelled sentences of your domain.", show_default=False)
    ] = None,
    dev: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Labels of the same kind that decide, instead of cross-validation.", show_default=False
        ),
    ] = None,
    column: Columns = None,
    folds: Annotated[int, typer.Option(help="Parts of the labels, each held out once.", min=2)] = 3,
    more: Annotated[int, typer.Option(help="Additional labels of the forecast.", min=1)] = 300,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Try only this candidate; repeat for several.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds and training.", min=0)] = 42,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Adapt a model to your labels, if cross-validation shows that it helps."""
    from rich.console import Console

    from diffaug.adaptation import adapt as run
    from diffaug.adaptation.run import MODEL
    from diffaug.tabular import rich_table

    result = run(
        model,
        labels,
        out,
        text=text,
        dev=dev,
        columns=parse_columns(column),
        folds=folds,
        more=more,
        only=only,
        seed=seed,
        report=(lambda line: None) if quiet else (lambda line: typer.echo(line, err=True)),
    )
    console = Console()
    console.print(rich_table(result.table(), console.width))
    typer.echo(result.verdict)
    if result.forecast is not None:
        typer.echo(result.forecast.words())
    typer.echo(f"model      {result.model or model}   ({result.seconds:.0f} s)")
    if result.model is not None:
        typer.echo(f"next       diffaug encode --model {out / MODEL} sentences.txt -o vectors.npy")
