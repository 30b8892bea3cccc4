"""The option that says which column of a file is what."""

from __future__ import annotations

from typing import Annotated

import typer

from diffaug.errors import DiffaugError

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        "-c",
        metavar="ROLE=NAME",
        help="Which column is what, as in sentence=body or score=rating; in a file without header a number, from 1.",
    ),
]


def parse_columns(options: list[str] | None) -> dict[str, str | int] | None:
    """What was given with the option, as the readers take it."""
    columns: dict[str, str | int] = {}
    for option in options or ():
        role, equals, name = option.partition("=")
        if not (equals and role and name):
            raise DiffaugError(f"--column {option!r} is not of the form ROLE=NAME")
        columns[role] = name
    return columns or None
