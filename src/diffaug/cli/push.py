"""`diffaug push`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from diffaug.cli.embed import Trust
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(push)


def push(
    model: Annotated[str, typer.Argument(help="A diffaug, sentence-transformers or transformers folder.")],
    repo: Annotated[str, typer.Argument(help="owner/name on the hub; created if it does not exist.")],
    private: Annotated[
        bool | None, typer.Option(help="Whether a new repository is private; default: the owner's settings.")
    ] = None,
    branch: Annotated[str | None, typer.Option(help="Push to this branch; created if it does not exist.")] = None,
    token: Annotated[
        str | None, typer.Option(help="A token with write access; default: HF_TOKEN or 'hf auth login'.")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence for the card: mit, apache-2.0 ...")] = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores for the card, from 'diffaug eval --json FILE'.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own card, instead of the generated one.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="The commit message.")] = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Push a model to the hub, with a card made from its recipe and scores."""
    report = None if scores is None else _json(scores)
    own_card = None if card is None else _read(card)
    from diffaug.embedder import Embedder

    embedder = Embedder.from_pretrained(model, device="cpu", trust_remote_code=trust_remote_code)
    url = embedder.push_to_hub(
        repo,
        private=private,
        branch=branch,
        token=token,
        license=license,
        report=report,
        card=own_card,
        message=message,
    )
    typer.echo(url)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DiffaugError(f"{path} cannot be read: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise DiffaugError(f"{path} is not the output of diffaug eval --json")
    return content
