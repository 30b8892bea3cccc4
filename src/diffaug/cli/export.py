"""`diffaug export`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffaug.cli.embed import Trust
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError
from diffaug.files import check_output

if TYPE_CHECKING:
    from diffaug.data.records import ScoredPairs
    from diffaug.embedder import Embedder
    from diffaug.integrations.onnx import Exported

# The export function of each format; arguments: an Embedder, the folder, ``overwrite``, and its own options.
TARGETS = {
    "sentence-transformers": "diffaug.integrations.st_native:export_sentence_transformers",
    "onnx": "diffaug.integrations.onnx:export_onnx",
    "peft": "diffaug.integrations.peft:export_peft",
}


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(export)


def export(
    model: Annotated[
        str, typer.Argument(help="A diffaug, sentence-transformers or transformers folder, a hub name, or embedded.")
    ],
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"One of: {', '.join(TARGETS)}.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    quantize: Annotated[
        str | None, typer.Option(metavar="int8", help="ONNX: quantise the weights.", show_default=False)
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Scored pairs to measure the loss by --quantize; default: sample:test.",
            show_default=False,
        ),
    ] = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Export a model to the format of another library."""
    if to not in TARGETS:
        raise DiffaugError(f"--to must be one of {', '.join(TARGETS)}, got {to!r}")
    if quantize is not None and to != "onnx":
        raise DiffaugError("--quantize needs --to onnx")
    if score is not None and quantize is None:
        raise DiffaugError("--score needs --quantize")
    if folder.exists() and not overwrite:
        raise DiffaugError(f"{folder} exists already; choose another path or pass --overwrite")
    check_output(folder, [model, score])
    from diffaug.data.read import read_scored_pairs
    from diffaug.embedder import Embedder

    # Read the pairs first, so that an error in the file is reported at once.
    data = score or "sample:test"
    pairs = None if quantize is None else read_scored_pairs(data)
    embedder = Embedder.from_pretrained(model, device="cpu", trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"quantize": quantize} if quantize else {}
    if to == "sentence-transformers":
        options["card"] = _card(Path(model).expanduser())
    exported = _exporter(to)(embedder, folder, overwrite=overwrite, **options)
    typer.echo(f"{model} -> {folder}", err=True)
    if to == "sentence-transformers":
        _print_modules(folder, exported)
    if to == "onnx":
        typer.echo(f"{'vectors':10s} differ from PyTorch's by at most {exported.difference:.1e}")
    if pairs is not None:
        _print_loss(embedder, Embedder.from_pretrained(folder), exported, pairs, data)


def _card(folder: Path) -> str | None:
    """The card of a diffaug or sentence-transformers model; that of a plain backbone does not describe the export."""
    from diffaug.hub.card import CARD
    from diffaug.models.io.foreign import is_sentence_transformers
    from diffaug.models.io.saved import is_saved_model

    known = is_saved_model(folder) or is_sentence_transformers(folder)
    return (folder / CARD).read_text("utf-8", "replace") if known and (folder / CARD).is_file() else None


def _print_modules(folder: Path, obstacle: str | None) -> None:
    """Print whether a folder for sentence-transformers has native modules, and how to load it."""
    if obstacle is None:
        typer.echo(f"{'modules':10s} native: diffaug is not needed to load them")
        typer.echo(f"{'load':10s} SentenceTransformer({str(folder)!r})")
    else:
        typer.echo(f"{'modules':10s} diffaug's, which must be installed; sentence-transformers has none for {obstacle}")
        typer.echo(f"{'load':10s} SentenceTransformer({str(folder)!r}, trust_remote_code=True)")


def _print_loss(before: Embedder, after: Embedder, exported: Exported, pairs: ScoredPairs, data: str) -> None:
    """Print the size and the score before and after quantisation."""
    from diffaug.training.scoring import spearman

    assert exported.unquantized_size is not None
    full, small = exported.unquantized_size / 1e6, exported.size / 1e6
    typer.echo(f"{'size':10s} {full:.1f} MB -> {small:.1f} MB")
    first, second = spearman(before, pairs), spearman(after, pairs)
    typer.echo(
        f"{'spearman':10s} {first:.2f} -> {second:.2f} ({second - first:+.2f}) on {len(pairs.scores):,} pairs, {data}"
    )


def _exporter(to: str) -> Callable[..., Any]:
    """Import the function of a format; some need packages that may not be installed."""
    module, _, path = TARGETS[to].partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return cast("Callable[..., Any]", found)
