"""`diffaug report`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffaug.cli.embed import Device
from diffaug.cli.plugins import Plugins


class Map(str, Enum):
    """How embeddings are reduced to two dimensions."""

    pca = "pca"
    tsne = "tsne"
    none = "none"


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(report)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run, a reproduced experiment, or a parent folder of these.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    map_by: Annotated[
        Map, typer.Option("--map", help="Map of embeddings: pca, tsne (needs scikit-learn), or none.")
    ] = Map.pca,
    maps: Annotated[int, typer.Option(min=1, help="Maximum number of models on the map.")] = 12,
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs to show per model that are ranked too high, and too low.")
    ] = 20,
    sentences: Annotated[
        Path | None,
        typer.Option(help="Sentences for the map; default: the training data of the runs.", show_default=False),
    ] = None,
    plugins: Plugins = None,
    device: Device = None,
) -> None:
    """Write one page about all runs in a folder: verdict, scores, curves, settings, worst pairs, map of embeddings."""
    from diffaug.report import build

    projection: Literal["pca", "tsne"] | None = None
    if map_by is not Map.none:
        projection = "tsne" if map_by is Map.tsne else "pca"
    path = build(folder, out, projection=projection, maps=maps, pairs=pairs, sentences=sentences, device=device)
    typer.echo(f"{path}   ({path.stat().st_size / 1e6:.1f} MB)")
