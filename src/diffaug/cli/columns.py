"""The options --column and --label."""

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


Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="LABEL=MEANING", help="What a label means, e.g. same=entailment; repeatable."),
]


def parse_labels(options: list[str] | None) -> dict[str, str] | None:
    """Parse the option --label to a mapping from labels to meanings."""
    labels: dict[str, str] = {}
    for option in options or ():
        label, equals, meaning = option.rpartition("=")
        if not (equals and label and meaning):
            raise DiffaugError(f"--label must have the form LABEL=MEANING, got {option!r}")
        labels[label] = meaning
    return labels or None


def parse_columns(options: list[str] | None, name: str = "--column") -> dict[str, str | int] | None:
    """Parse the option ``name`` to a mapping from roles to columns."""
    columns: dict[str, str | int] = {}
    for option in options or ():
        role, equals, column = option.partition("=")
        if not (equals and role and column):
            raise DiffaugError(f"{name} must have the form ROLE=NAME, got {option!r}")
        columns[role] = column
    return columns or None
