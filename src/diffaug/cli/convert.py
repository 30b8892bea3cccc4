"""`diffaug convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffaug.errors import DiffaugError
from diffaug.files import check_output

_KINDS = ("simcse", "promptbert", "diffcse", "diffaug")
_SETTINGS = ("unsup", "sup")


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(convert)


def convert(
    source: Annotated[str, typer.Argument(help="The released checkpoint: a folder or a name on the hub.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    kind: Annotated[
        str | None,
        typer.Option(help=f"The release: {', '.join(_KINDS)}; default: recognised by the names of the weights."),
    ] = None,
    setting: Annotated[
        str | None,
        typer.Option(help="unsup or sup; default: recognised by weights and name."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Template of PromptBERT or DiffAug, with {} and [MASK]; default: that of their scripts."),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", help="Read pickled weights, with torch's weights_only loader."),
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
) -> None:
    """Convert a released SimCSE, PromptBERT, DiffCSE or DiffAug checkpoint to a model with the same embeddings."""
    for option, value, known in (("--kind", kind, _KINDS), ("--setting", setting, _SETTINGS)):
        if value is not None and value not in known:
            raise DiffaugError(f"{option} must be one of {', '.join(known)}, got {value!r}")
    check_output(out, [source])
    from diffaug.integrations.released import convert as run

    options: dict[str, Any] = {"kind": kind, "setting": setting, "template": template}
    made = run(source, out, **options, allow_pickle=allow_pickle, revision=revision)
    words = (
        {"unsup": "unsupervised ", "sup": "supervised "}[made.setting] if made.kind in ("simcse", "promptbert") else ""
    )
    typer.echo(f"{words}{made.kind} -> {out}")
