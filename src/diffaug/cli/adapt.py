"""`diffaug adapt` and `diffaug forecast`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffaug.cli.columns import Columns, parse_columns, parse_labels
from diffaug.cli.columns import Labels as LabelMeanings
from diffaug.cli.engine import Engine
from diffaug.cli.interruption import resumable

Model = Annotated[str, typer.Argument(help="A finished embedding model: a folder or hub name.")]
Labels = Annotated[str, typer.Option("--labels", "-l", metavar="FILE", help="Your labels, of any kind.")]
Text = Annotated[
    str | None, typer.Option(metavar="FILE", help="Unlabelled sentences of your domain.", show_default=False)
]
Dev = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Labels of the same kind to score on, instead of cross-validation.", show_default=False
    ),
]
More = Annotated[int, typer.Option(help="The number of additional labels of the forecast.", min=1)]
TextColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column of --text with the sentences.", show_default=False)
]
OnBad = Annotated[Literal["error", "skip"], typer.Option(help="What to do with rows that cannot be used.")]
Seed = Annotated[int, typer.Option(help="Seed of folds, draws and training.", min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(adapt)
    app.command()(forecast)


def adapt(
    model: Model,
    labels: Labels,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the result; an interrupted one is continued.")
    ],
    text: Text = None,
    dev: Dev = None,
    column: Columns = None,
    label: LabelMeanings = None,
    text_column: TextColumn = None,
    on_bad: OnBad = "error",
    folds: Annotated[int, typer.Option(help="Number of parts of the labels, each held out once.", min=2, max=10)] = 3,
    more: More = 300,
    confidence: Annotated[
        float, typer.Option(help="Confidence that a gain needs, from 0.5 to below 1; 0.5 takes the highest score.")
    ] = 0.9,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Try only this candidate; repeat for several.")
    ] = None,
    seed: Seed = 42,
    engine: Engine = "local",
    quiet: Quiet = False,
) -> None:
    """Adapt a model to your labels, if cross-validation shows that it helps."""
    from rich.console import Console

    from diffaug.adaptation import adapt as run
    from diffaug.adaptation.candidates import UNTOUCHED
    from diffaug.tabular import rich_table

    with resumable(out):
        result = run(
            model,
            labels,
            out,
            text=text,
            dev=dev,
            columns=parse_columns(column),
            label_names=parse_labels(label),
            text_column=text_column,
            on_bad=on_bad,
            folds=folds,
            more=more,
            confidence=confidence,
            only=only,
            seed=seed,
            engine=engine,
            report=_reporter(quiet),
        )
    console = Console()
    console.print(rich_table(result.table(), console.width))
    typer.echo(result.verdict)
    if result.forecast is not None:
        typer.echo(result.forecast.words())
        if result.chosen not in (UNTOUCHED, result.forecast.candidate):
            typer.echo(
                f"A forecast of {result.chosen} takes longer, since it trains several times: diffaug forecast with the "
                f'same options and --candidate "{result.chosen}"'
            )
    typer.echo(f"model      {result.model or model}   ({result.seconds:.0f} s)")
    if result.model is not None:
        command = "predict sentences.txt" if "class" in result.labels else "encode sentences.txt -o vectors.npy"
        typer.echo(f"next       diffaug {command} --model {shlex.quote(str(result.model))}")


def forecast(
    model: Model,
    labels: Labels,
    more: More = 300,
    text: Text = None,
    dev: Dev = None,
    column: Columns = None,
    label: LabelMeanings = None,
    text_column: TextColumn = None,
    on_bad: OnBad = "error",
    candidate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the labels are used, one of adapt's candidates; default: one that does not train the encoder.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 42,
    quiet: Quiet = False,
) -> None:
    """Estimate what more labels would bring."""
    from diffaug.adaptation import forecast as run

    found = run(
        model,
        labels,
        more,
        text=text,
        dev=dev,
        columns=parse_columns(column),
        label_names=parse_labels(label),
        text_column=text_column,
        on_bad=on_bad,
        candidate=candidate,
        seed=seed,
        report=_reporter(quiet),
    )
    for size, score in zip(found.sizes, found.scores, strict=True):
        typer.echo(f"{size:>8,} labels   {found.measure} {score:.2f}")
    typer.echo(found.words())


def _reporter(quiet: bool) -> Callable[[str], None]:
    return (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
