"""The option --engine of commands that can use several machines."""

from __future__ import annotations

from typing import Annotated

import typer

from diffaug.cluster import Engine as _Engine

Engine = Annotated[
    _Engine, typer.Option(help="local: this machine; ray: the nodes of a Ray cluster (RAY_ADDRESS, or a new one here).")
]
