"""`diffaug report`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffaug.cli.embed import Device


class Map(str, Enum):
    """How embeddings come down to two dimensions."""

    pca = "pca"
    tsne = "tsne"
    none = "none"


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(report)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run, a reproduced experiment, or a folder with such below it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    map_by: Annotated[
        Map, typer.Option("--map", help="The map of embeddings: pca, tsne (needs scikit-learn), or none.")
    ] = Map.pca,
    maps: Annotated[int, typer.Option(min=1, help="Models with a map, at the most.")] = 12,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs a model puts most too near, and too far, to show.")] = 20,
    device: Device = None,
) -> None:
    """One page on all runs in a folder: scores, curves, settings, the pairs that go wrong, a map of embeddings."""
    from diffaug.report import build

    projection: Literal["pca", "tsne"] | None = None
    if map_by is not Map.none:
        projection = "tsne" if map_by is Map.tsne else "pca"
    path = build(folder, out, projection=projection, maps=maps, pairs=pairs, device=device)
    typer.echo(f"{path}   ({path.stat().st_size / 1e6:.1f} MB)")
