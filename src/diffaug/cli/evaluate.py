"""`diffaug eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Model, TruncateDim, Trust
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError
from diffaug.files import check_output


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
            help="A folder with the public tasks, in any known layout, or 'hub'; can be repeated; default: the folder "
            "of 'diffaug data get'.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            "-t",
            help="Groups (sts, transfer, geometry) and names (STS12, STS-B-dev, MR, your own ...), separated by "
            "commas; default: sts, or none if own data is given.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Your own scored pairs: Spearman and Pearson.")
    ] = None,
    triplets: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Your own triplets: accuracy.")] = None,
    retrieval: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Your own queries and documents, a file or BEIR folder: MRR, nDCG@10."),
    ] = None,
    ignore_identical_ids: Annotated[
        bool,
        typer.Option("--ignore-identical-ids", help="In retrieval, leave out the document with the query's own id."),
    ] = False,
    column: Columns = None,
    versus: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare with this model, on the same rows; 'before' is the backbone that the model was trained from.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the full result as JSON.", show_default=False)
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap and of cross-validation.")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 turns intervals off.")] = 1000,
    batch_size: Annotated[int | None, typer.Option(help="Sentences per batch; default: by number of tokens.")] = None,
    truncate_dim: TruncateDim = None,
    plugins: Plugins = None,
    device: Device = None,
    trust_remote_code: Trust = False,
) -> None:
    """Score a model on STS and transfer tasks, on your own data, or against another model."""
    inputs = [model, versus, *(data or ()), *(pairs or ()), *(triplets or ()), *(retrieval or ())]
    for target in (json_file, markdown_file):
        # Fail now, not after minutes of computation.
        if target is not None:
            check_output(target, inputs)
            if target.is_dir():
                raise DiffaugError(f"{target} cannot be written: it is a folder")
    from diffaug.evaluation import evaluate as run
    from diffaug.evaluation.render import needed_width, rich_result

    result = run(
        model,
        data,
        tasks,
        pairs=_named(pairs),
        triplets=_named(triplets),
        retrieval=_named(retrieval),
        ignore_identical_ids=ignore_identical_ids,
        columns=parse_columns(column),
        versus=versus,
        seed=seed,
        resamples=resamples,
        truncate_dim=truncate_dim,
        batch_size=batch_size,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    if json_file is not None:
        result.save_json(json_file)
    if markdown_file is not None:
        result.save_markdown(markdown_file)
    from rich.console import Console

    Console(width=max(Console().width, needed_width(result))).print(rich_result(result))


def _named(sources: list[str] | None) -> dict[str, str] | None:
    """Files by name without suffixes, or by path if two have the same name."""
    if not sources:
        return None
    names = [Path(source).name.split(".")[0] or source for source in sources]
    return {name if names.count(name) == 1 else path: path for name, path in zip(names, sources, strict=True)}
