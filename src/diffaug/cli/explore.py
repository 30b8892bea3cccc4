"""`diffaug explore`, `duplicates` and `outliers`."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Model, OnBad, Trust, load_embedder
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError
from diffaug.files import check_output, write_text

if TYPE_CHECKING:
    from diffaug.explore import Collection

Sentences = Annotated[
    str, typer.Argument(help="Vectors that `encode` wrote to Parquet, or files with sentences as for `encode`.")
]
Array = Annotated[
    Path | None,
    typer.Option("--vectors", help="The .npy file that `encode` wrote for these files.", show_default=False),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write a .csv or .jsonl file instead of printing CSV.")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(explore)
    app.command()(duplicates)
    app.command()(outliers)


def explore(
    sentences: Sentences,
    vectors: Array = None,
    model: Model = None,
    versus: Annotated[
        str | None, typer.Option(help="A second model, whose projection is added.", show_default=False)
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(min=0, help="Number of clusters, 0: none; default: by the number of sentences.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of clusters and projection.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the table to this .parquet file instead.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that the viewer listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port; the next free one if it is taken.")] = 5055,
    column: Columns = None,
    on_bad: OnBad = "error",
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Open sentences and their vectors in Embedding Atlas, a viewer in the browser."""
    from diffaug.explore import atlas_table, require_atlas

    require_atlas()
    if out is not None:
        if out.suffix != ".parquet":
            raise DiffaugError(f"--out must end in .parquet, got {out}")
        check_output(out, [sentences, vectors, model, versus])
    collection = _load(sentences, vectors, model, device, trust_remote_code, column, on_bad)
    second = None if versus is None else load_embedder(versus, device, trust_remote_code)
    typer.echo(f"projecting {len(collection):,} sentences", err=True)
    if out is not None:
        names = atlas_table(out, collection, second, clusters, seed)
        typer.echo(f"{len(collection):,} rows with {', '.join(names)} -> {out}", err=True)
        return
    with tempfile.TemporaryDirectory(prefix="diffaug-explore-") as folder:
        # The viewer shows the name of the file.
        table = Path(folder) / f"{Path(sentences).resolve().name.split('.')[0] or 'sentences'}.parquet"
        atlas_table(table, collection, second, clusters, seed)
        del collection, second
        columns = ["--text", "sentence", "--x", "x", "--y", "y", "--neighbors", "neighbors"]
        address = ["--host", host, "--port", str(port), "--duckdb", "wasm"]  # queries run in the browser
        ended = subprocess.run(
            [sys.executable, "-m", "embedding_atlas.cli", str(table), *columns, *address], check=False
        )
    if ended.returncode not in (0, 130, -2, -15):
        raise DiffaugError(f"Embedding Atlas ended with status {ended.returncode}; its messages are above")


def duplicates(
    sentences: Sentences,
    vectors: Array = None,
    threshold: Annotated[float, typer.Option(help="The lowest cosine of two near-duplicates.")] = 0.95,
    out: Out = None,
    column: Columns = None,
    on_bad: OnBad = "error",
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """List groups of sentences that are nearly the same."""
    from diffaug.explore import Duplicate, near_duplicates

    collection = _load(sentences, vectors, model, device, trust_remote_code, column, on_bad, out)
    found = near_duplicates(collection, threshold)
    groups = found[-1].group if found else 0
    typer.echo(f"{len(found):,} of {len(collection):,} sentences in {groups:,} groups", err=True)
    _write(found, Duplicate, out)


def outliers(
    sentences: Sentences,
    vectors: Array = None,
    limit: Annotated[int, typer.Option(min=1, help="How many sentences to list.")] = 100,
    neighbours: Annotated[int, typer.Option(min=1, help="Number of nearest neighbours of each sentence.")] = 10,
    out: Out = None,
    column: Columns = None,
    on_bad: OnBad = "error",
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """List the sentences that are least similar to their nearest neighbours."""
    from diffaug.explore import Outlier
    from diffaug.explore import outliers as find

    collection = _load(sentences, vectors, model, device, trust_remote_code, column, on_bad, out)
    _write(find(collection, limit, neighbours), Outlier, out)


def _load(
    sentences: str,
    vectors: Path | None,
    model: str | None,
    device: str | None,
    trust_remote_code: bool,
    column: list[str] | None,
    on_bad: str,
    out: Path | None = None,
) -> Collection:
    """The sentences and vectors. The model is loaded only if there are no vectors."""
    from diffaug.explore import load_collection
    from diffaug.inference.stored import StoredVectors

    if out is not None:
        if out.suffix not in (".csv", ".jsonl"):
            raise DiffaugError(f"--out must end in .csv or .jsonl, got {out}")
        check_output(out, [sentences, vectors, model])
    computed = vectors is not None or StoredVectors.open(sentences) is not None
    if computed and model is not None:
        raise DiffaugError("--model does not apply to vectors that were computed before; leave it out")
    embedder = None if computed else load_embedder(model, device, trust_remote_code)
    return load_collection(sentences, vectors, model=embedder, columns=parse_columns(column), on_bad=on_bad)  # type: ignore[arg-type]


def _write(rows: Sequence[Any], kind: type, out: Path | None) -> None:
    names, text = [field.name for field in fields(kind)], io.StringIO()
    if out is not None and out.suffix == ".jsonl":
        text.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    else:
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(map(asdict, rows))
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_text(out, text.getvalue())
