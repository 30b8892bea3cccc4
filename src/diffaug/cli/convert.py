"""`diffaug convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffaug.errors import DiffaugError

_KINDS = ("simcse", "promptbert", "diffcse", "diffaug")
_SETTINGS = ("unsup", "sup")


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(convert)


def convert(
    source: Annotated[str, typer.Argument(help="The released checkpoint: a folder, or a name on the hub.")],
    out: Annotated[Path, typer.Argument(help="The folder to write, which must not exist yet.")],
    kind: Annotated[
        str | None,
        typer.Option(help=f"The release: {', '.join(_KINDS)}; left out, the names of the weights tell."),
    ] = None,
    setting: Annotated[
        str | None,
        typer.Option(help="unsup or sup, which embed differently; left out, weights and name tell."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Of PromptBERT and DiffAug, if not the one of their scripts; with {} and [MASK]."),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", help="Read pickled weights, with torch's reader that makes tensors only."),
    ] = False,
    revision: Annotated[str | None, typer.Option(help="The version on the hub.")] = None,
) -> None:
    """Turn a released SimCSE, PromptBERT, DiffCSE or DiffAug checkpoint into a model with the same embeddings."""
    for option, value, known in (("--kind", kind, _KINDS), ("--setting", setting, _SETTINGS)):
        if value is not None and value not in known:
            raise DiffaugError(f"{option} {value!r} is unknown; there are {', '.join(known)}")
    from diffaug.integrations.released import convert as run

    options: dict[str, Any] = {"kind": kind, "setting": setting, "template": template}
    made = run(source, out, **options, allow_pickle=allow_pickle, revision=revision)
    words = (
        {"unsup": "unsupervised ", "sup": "supervised "}[made.setting] if made.kind in ("simcse", "promptbert") else ""
    )
    typer.echo(f"{words}{made.kind} -> {out}")
