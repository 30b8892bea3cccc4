"""`diffaug export`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from diffaug.cli.embed import Trust
from diffaug.errors import DiffaugError

# The function behind each form: it is called with an Embedder, the folder to make, and ``overwrite``.
TARGETS = {
    "sentence-transformers": "diffaug.embedder:Embedder.save",  # every saved model is such a folder
}


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(export)


def export(
    model: Annotated[
        str, typer.Argument(help="A diffaug, sentence-transformers or transformers folder, or a hub name.")
    ],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    to: Annotated[str, typer.Option(metavar="FORM", help=f"One of: {', '.join(TARGETS)}.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Write a model in a form that other libraries read."""
    if to not in TARGETS:
        raise DiffaugError(f"cannot export to {to!r}; choose one of: {', '.join(TARGETS)}")
    if folder.exists() and not overwrite:
        raise DiffaugError(f"{folder} exists already; choose another path or pass --overwrite")
    from diffaug.embedder import Embedder

    embedder = Embedder.from_pretrained(model, device="cpu", trust_remote_code=trust_remote_code)
    _exporter(to)(embedder, folder, overwrite=overwrite)
    typer.echo(f"{model} -> {folder}", err=True)


def _exporter(to: str) -> Callable[..., None]:
    """The function of a form, imported when it is needed: some need packages that others do not have."""
    module, _, path = TARGETS[to].partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return cast("Callable[..., None]", found)
