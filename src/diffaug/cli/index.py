"""`diffaug index build` and `diffaug index add`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Keep, Model, OnBad, TruncateDim, Trust, load_embedder
from diffaug.cli.plugins import Plugins
from diffaug.files import check_output

if TYPE_CHECKING:
    from diffaug.inference.index import Index
    from diffaug.inference.stored import StoredVectors

Sources = Annotated[
    list[str],
    typer.Argument(help="Vectors that `encode` wrote to Parquet, or files as for `encode`, which are encoded."),
]

_app = typer.Typer(help="A searchable index of vectors, texts and columns on disk.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.add_typer(_app, name="index")


@_app.command()
def build(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the index.", show_default=False)],
    column: Columns = None,
    keep: Keep = None,
    on_bad: OnBad = "error",
    overwrite: Annotated[bool, typer.Option(help="Replace an index in that folder.")] = False,
    model: Model = None,
    truncate_dim: TruncateDim = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Build an index. From 100,000 rows on, search is approximate if its measured recall is high; it is printed."""
    from diffaug.inference.index import Index

    check_output(out, sources)
    with _vectors(sources, out, column, keep, on_bad, model, truncate_dim, device, trust_remote_code) as vectors:
        index = Index.build(out, vectors, overwrite=overwrite)
    typer.echo(f"{index.rows:,} documents -> {out}; {index.quality}", err=True)


@_app.command()
def add(
    index: Annotated[Path, typer.Argument(help="The folder of an index.")],
    sources: Sources,
    column: Columns = None,
    keep: Keep = None,
    on_bad: OnBad = "error",
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Add documents to an index without building it again."""
    from diffaug.inference.index import Index

    found = Index.open(index)
    model = model or found.vectors.model
    width = found.vectors.width
    with _vectors(sources, index, column, keep, on_bad, model, width, device, trust_remote_code, found) as vectors:
        added = found.add(vectors)
    typer.echo(f"{added:,} documents added, now {found.rows:,} -> {index}; {found.quality}", err=True)


@contextmanager
def _vectors(
    sources: list[str],
    index: Path,
    column: list[str] | None,
    keep: list[str] | None,
    on_bad: OnBad,
    model: str | None,
    truncate_dim: int | None,
    device: str | None,
    trust_remote_code: bool,
    extended: Index | None = None,
) -> Iterator[StoredVectors | Path]:
    """Vectors that were computed before, or those of other files, computed now and stored until the index is built."""
    from diffaug.data.documents import DocumentReader
    from diffaug.inference.stored import StoredVectors

    stored = StoredVectors.open(sources, verify=True)
    if stored is not None:
        yield stored
        return
    if extended is not None:  # before all documents are encoded
        reader = DocumentReader(sources, parse_columns(column), keep, on_bad)
        extended.require_columns(reader.columns, sources[0])
    embedder = load_embedder(model, device, trust_remote_code, truncate_dim)
    index.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{index.name}.", dir=index.parent) as folder:
        vectors = Path(folder) / "vectors"
        embedder.encode_files(sources, vectors, columns=parse_columns(column), keep=keep, on_bad=on_bad)
        yield vectors
