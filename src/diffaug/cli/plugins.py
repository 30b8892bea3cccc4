"""The option `--plugin` of all commands that read recipes or load models."""

from __future__ import annotations

from typing import Annotated

import typer

from diffaug.config.registry import load_plugins


def _load(plugins: list[str] | None) -> list[str]:
    found: list[str] = load_plugins(plugins or [])
    return found


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Import a module or .py file with your own methods, views, losses or tasks; can be repeated.",
        callback=_load,
        show_default=False,
    ),
]
