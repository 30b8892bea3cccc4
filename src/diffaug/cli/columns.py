"""The option --column."""

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
        help="The column of a role, e.g. sentence=body or score=rating; in a file without header a number, from 1.",
    ),
]


def parse_columns(options: list[str] | None) -> dict[str, str | int] | None:
    """Parse the option to a mapping from roles to columns."""
    columns: dict[str, str | int] = {}
    for option in options or ():
        role, equals, name = option.partition("=")
        if not (equals and role and name):
            raise DiffaugError(f"--column must have the form ROLE=NAME, got {option!r}")
        columns[role] = name
    return columns or None
