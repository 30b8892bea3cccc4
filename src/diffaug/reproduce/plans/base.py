"""What the plans of all experiments have in common: rows and columns become cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from diffaug.config import Recipe, load_recipe
from diffaug.errors import DiffaugError
from diffaug.reproduce.budget import Budget, Setting, check_equal
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.plans.files import DataFiles, MissingDataError, change
from diffaug.reproduce.plans.generator import generator_for
from diffaug.reproduce.words import place_words

_DRAW = "data.label_draw"


@dataclass(frozen=True)
class PlanSettings:
    """What a grid is asked for.

    Attributes:
        encoder: the backbone of every run: a folder or a hub name.
        data: the files there are.
        seeds: of the runs; the first one chooses among a row's settings.
        draws: of the labels, where only a part of them is used.
        changes: `key=value` for every run, above all else but the seeds and draws.
        budget: which settings rows may try.
        columns: instead of the experiment's own: parts or counts of labels, prefix lengths, steps, weights.
        rows: patterns such as `SimCSE*`, upper or lower case: only the rows that match one; empty: all.
        generator: the masked language model of DiffCSE; None: the recipe's own, or the embedded one if the encoder has
            its vocabulary.
    """

    encoder: str
    data: DataFiles
    seeds: tuple[int, ...]
    draws: int
    changes: tuple[str, ...]
    budget: Budget
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    generator: str | None = None

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise DiffaugError("a grid needs at least one seed, and none of them twice")
        if self.draws < 1:
            raise DiffaugError(f"there must be at least one draw of the labels, not {self.draws}")


@dataclass(frozen=True)
class Row:
    """A line of a table: a recipe, what is changed in it, and what it is compared with.

    Attributes:
        name: as people read it; the paper's figures go by it.
        recipe: a recipe's name.
        group: rows are compared within a group.
        baseline: whether the method of the paper is compared with it.
        changes: what makes the row, on top of recipe and setting.
    """

    name: str
    recipe: str
    group: str
    baseline: bool = True
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A place along a row.

    Attributes:
        name: as people read it.
        changes: what it stands for.
        labels: how many labelled examples are left, if not all.
        recipe: the recipe there, if it is another than the row's.
    """

    name: str = ""
    changes: tuple[str, ...] = ()
    labels: int | None = None
    recipe: str | None = None


@dataclass(frozen=True)
class Plan:
    """The cells of an experiment.

    Attributes:
        experiment: its name.
        title: for people.
        cells: the first round: every row and column with all its settings, first seed and draw.
        columns_are: what a column stands for, in words; empty where rows have only one.
        notes: what a reader of the table must know, in whole sentences without their full stop: the budget, rows that
            were left out and why, what differs from the paper.
        seeds: all of them.
        draws: how many.
        one_at_a_time: the cells measure time or memory, so nothing may run beside them.
        record: what else to measure of a finished run, given its folder, before its cell counts as finished; None:
            nothing.
    """

    experiment: str
    title: str
    cells: list[Cell]
    columns_are: str
    notes: tuple[str, ...]
    seeds: tuple[int, ...]
    draws: int
    one_at_a_time: bool = False
    record: Callable[[Path], None] | None = None

    def more(self, cell: Cell) -> list[Cell]:
        """The other seeds and draws of a cell that was chosen among its row's settings.

        A model that is not trained is the same with every seed; all of the labels are the same in every draw.
        """
        if not trains(load_recipe(cell.recipe, cell.changes)):
            return []
        every = [(draw, seed) for draw in range(self.draws if _drawn(cell) else 1) for seed in self.seeds]
        return [_again(cell, draw, seed) for draw, seed in every if (draw, seed) != (cell.draw, cell.seed)]


def trains(recipe: Recipe) -> bool:
    """Whether anything is learned."""
    return recipe.stage1 is not None or recipe.stage2 is not None


def build_plan(
    experiment: str,
    title: str,
    lines: Iterable[tuple[Row, Sequence[Column]]],
    settings: PlanSettings,
    *,
    columns_are: str = "",
    notes: Sequence[str] = (),
    tuned: bool = True,
    one_at_a_time: bool = False,
    record: Callable[[Path], None] | None = None,
) -> Plan:
    """The plan of an experiment.

    Args:
        experiment, title, columns_are, one_at_a_time, record: see `Plan`.
        lines: every row with its columns.
        settings: what was asked for.
        notes: come before those about budget and data.
        tuned: rows try all settings of the budget; else the first alone, where a row's or column's own changes matter.

    Raises:
        DiffaugError: no row can be run, a pattern matches no row, rows have unequal budgets, or a change does not fit
            its recipe; the message names the row.
    """
    kept = _chosen(list(lines), settings.rows)
    cells: list[Cell] = []
    counts: dict[str, int] = {}
    absent: dict[str, list[str]] = {}
    for row, columns in kept:
        try:
            made = [_cells(row, column, settings, tuned) for column in columns]
        except MissingDataError as missing:
            absent.setdefault(str(missing), []).append(row.name)
            continue
        for found in made:
            cells += found
        if trains(_recipe(row.recipe)):
            counts |= {place_words(row.name, found[0].column): len(found) for found in made}
    without = [f"{', '.join(rows)}: left out, for want of {what}" for what, rows in absent.items()]
    if not cells:
        raise DiffaugError(f"{experiment} cannot be run. {'. '.join(without)}")
    said = settings.budget.words(check_equal(counts)) if counts else []
    if any(not trains(_recipe(cell.recipe)) for cell in cells):
        said.append("Rows without training are the same with every seed, and run once")
    return Plan(
        experiment,
        title,
        cells,
        columns_are,
        (*notes, *said, *without),
        settings.seeds,
        settings.draws,
        one_at_a_time,
        record,
    )


def own_columns(settings: PlanSettings, default: Sequence[str], build: Callable[[str], Column]) -> list[Column]:
    """The columns that were asked for, or the experiment's own.

    Raises:
        DiffaugError: a column that is there twice, or what ``build`` raises.
    """
    columns = [build(text.strip()) for text in settings.columns or default]
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise DiffaugError(f"the columns {', '.join(names)} name one of them twice")
    return columns


def no_columns(experiment: str, settings: PlanSettings) -> None:
    """Raise if columns were asked for where there are none."""
    if settings.columns:
        raise DiffaugError(f"{experiment} has no columns to choose; it was given {', '.join(settings.columns)}")


def _chosen(lines: list[tuple[Row, Sequence[Column]]], patterns: Sequence[str]) -> list[tuple[Row, Sequence[Column]]]:
    for pattern in patterns:
        if not any(_matches(row, pattern) for row, _ in lines):
            names = "; ".join(row.name for row, _ in lines)
            raise DiffaugError(f"no row matches {pattern!r}; there are: {names}")
    return [line for line in lines if not patterns or any(_matches(line[0], pattern) for pattern in patterns)]


def _matches(row: Row, pattern: str) -> bool:
    # Names hold brackets, which would be a pattern of their own.
    return fnmatchcase(row.name.lower(), pattern.lower().replace("[", "[[]"))


def _cells(row: Row, column: Column, settings: PlanSettings, tuned: bool) -> list[Cell]:
    """A cell a setting."""
    name = column.recipe or row.recipe
    recipe = _recipe(name)
    below = [change("model.backbone", settings.encoder), *settings.data.changes_for(recipe)]
    if recipe.method == "diffcse":
        below += generator_for(settings.encoder, settings.generator)
    tries: list[Setting] = settings.budget.settings_of(name, column.labels) if trains(recipe) else [()]
    draw = (f"{_DRAW}=0",) if column.labels is not None and column.labels > 0 else ()
    found = []
    for number, setting in enumerate(tries if tuned else tries[:1]):
        changes = [
            *below,
            *setting,
            *row.changes,
            *column.changes,
            *settings.changes,
            *draw,
            f"seed={settings.seeds[0]}",
        ]
        cell = Cell(
            row=row.name,
            column=column.name,
            recipe=name,
            changes=_effective(changes),
            setting=number,
            seed=settings.seeds[0],
            draw=0,
            group=row.group,
            baseline=row.baseline,
        )
        try:
            load_recipe(cell.recipe, cell.changes)
        except DiffaugError as error:
            raise DiffaugError(f"{place_words(cell.row, cell.column)}, setting {number}: {error}") from error
        found.append(cell)
    return found


@cache
def _recipe(name: str) -> Recipe:
    return load_recipe(name)


def _effective(changes: Sequence[str]) -> tuple[str, ...]:
    """Changes without those that a later one undoes, by setting the same key or the whole group it is in."""
    keys = [entry.partition("=")[0].strip() for entry in changes]
    return tuple(
        entry
        for place, (key, entry) in enumerate(zip(keys, changes, strict=True))
        if not any(key == later or key.startswith(f"{later}.") for later in keys[place + 1 :])
    )


def _drawn(cell: Cell) -> bool:
    return any(entry.startswith(f"{_DRAW}=") for entry in cell.changes)


def _again(cell: Cell, draw: int, seed: int) -> Cell:
    kept = [entry for entry in cell.changes if entry.partition("=")[0] not in ("seed", _DRAW)]
    drawn = [f"{_DRAW}={draw}"] if _drawn(cell) else []
    return replace(cell, changes=(*kept, *drawn, f"seed={seed}"), draw=draw, seed=seed)
