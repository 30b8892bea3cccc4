"""From a specification to cells: every row and column with its settings, seeds and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from diffaug.config import Recipe, load_recipe, missing_section
from diffaug.errors import DiffaugError
from diffaug.experiments.budget import Budget, NoSettingsError, Setting, check_equal
from diffaug.experiments.data import DataFiles, MissingDataError, change, generator_for
from diffaug.experiments.results import Cell, place_name
from diffaug.experiments.spec import GridSpec, RowSpec, Value, column_value, experiment_names, paper_spec

_DRAW = "data.label_draw"
# Settings that a grid varies itself, and the option that does.
_RESERVED = {"seed": "--seeds", _DRAW: "--draws"}


@dataclass(frozen=True)
class PlanOptions:
    """What a grid is asked for beside its specification.

    Attributes:
        data: the files.
        encoder: the backbone of every run; None: that of each recipe.
        seeds: of the runs; the first one is used to choose among settings.
        draws: number of draws of the labels, where only a part of them is used.
        changes: `key=value` for every run whose recipe has the section that it is in; they override everything but
            seeds and draws.
        budget: which settings rows may try.
        columns: instead of those of the specification.
        rows: patterns such as `SimCSE*`, in upper or lower case: only matching rows; empty: all.
        generator: the masked language model of DiffCSE; None: the recipe's own, or the embedded one if the encoder has
            its vocabulary.
    """

    data: DataFiles
    encoder: str | None
    seeds: tuple[int, ...]
    draws: int
    changes: tuple[str, ...]
    budget: Budget
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    generator: str | None = None

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise DiffaugError("a grid needs at least one seed, and all seeds must differ")
        if self.draws < 1:
            raise DiffaugError(f"the number of draws must be at least 1, got {self.draws}")
        for entry in self.changes:
            key = entry.partition("=")[0].strip()
            if key in _RESERVED:
                raise DiffaugError(f"a grid sets {key} of each run itself; use {_RESERVED[key]} instead of --set {key}")

    def request(self, experiment: str) -> dict[str, Any]:
        """All that decides which cells a grid has, as recorded in `grid.json`."""
        files = asdict(self.data)
        del files["made"], files["named"]
        # One folder is recorded as text, as in grids from before there could be several.
        folders = [str(folder) for folder in files.pop("folders")]
        return {
            "experiment": experiment,
            "encoder": self.encoder,
            "data": {"folder": folders[0] if len(folders) == 1 else folders, **files},
            "seeds": list(self.seeds),
            "draws": self.draws,
            "changes": list(self.changes),
            "budget": self.budget.to_dict(),
            "columns": list(self.columns),
            "generator": self.generator,
        }


@dataclass(frozen=True)
class Column:
    """A column: its label, its changes, and the number of labelled examples if not all are used."""

    name: str = ""
    changes: tuple[str, ...] = ()
    labels: int | None = None


@dataclass(frozen=True)
class Plan:
    """The cells of a grid.

    Attributes:
        spec: its specification.
        cells: the first round: every row and column with all its settings, first seed and draw.
        rows: the rows that were asked for.
        columns_are: what a column stands for; empty in a grid without columns.
        notes: sentences without their full stop for the tables: budget, rows that were left out, what differs from the
            paper.
        seeds: all of them.
        draws: how many.
    """

    spec: GridSpec
    cells: list[Cell]
    seeds: tuple[int, ...]
    draws: int = 1
    rows: frozenset[str] = frozenset()
    columns_are: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def about(self) -> dict[str, Any]:
        """What `grid.json` records for tables and figures."""
        spec = self.spec
        shown = {"title": spec.title, "columns_are": self.columns_are, "notes": list(self.notes)}
        paper = spec.name in experiment_names() and spec is paper_spec(spec.name)
        return shown if paper else {**shown, "spec": spec.to_dict()}

    def more(self, cell: Cell) -> list[Cell]:
        """The second round of a cell whose setting was chosen: its other seeds and draws."""
        return other_runs(cell, self.seeds, self.draws)


def other_runs(cell: Cell, seeds: Sequence[int], draws: int) -> list[Cell]:
    """A cell with the other seeds and draws.

    A model that is not trained is the same with every seed, and all labels are the same in every draw.
    """
    # A grid from before there was an error for it may set a stage that the recipe does not have.
    if not _trains(_recipe(cell.recipe, _fitting(cell.recipe, (), cell.changes))):
        return []
    drawn = any(entry.startswith(f"{_DRAW}=") for entry in cell.changes)
    kept = [entry for entry in cell.changes if entry.partition("=")[0] not in _RESERVED]
    found = []
    for draw in range(draws if drawn else 1):
        for seed in seeds:
            changes = (*kept, *([f"{_DRAW}={draw}"] if drawn else []), f"seed={seed}")
            found.append(replace(cell, changes=changes, draw=draw, seed=seed))
    return [other for other in found if (other.draw, other.seed) != (cell.draw, cell.seed)]


def make_plan(spec: GridSpec, options: PlanOptions) -> Plan:
    """The plan of a grid.

    Rows without their data are left out with a note. So are rows that were not asked for and have no settings in the
    budget.

    Raises:
        DiffaugError: no row can be run, a pattern matches no row, rows have different numbers of settings, or a change
            does not fit its recipe.
    """
    asked = frozenset(row.name for row in spec.rows if _matches(row, options.rows, spec))
    columns, notes = _columns(spec, options)
    cells: list[Cell] = []
    counts: dict[str, int] = {}
    absent: dict[str, list[str]] = {}
    for row in spec.rows:
        try:
            made = [_cells(row, column, spec, options) for column in columns if _has_cell(row, column)]
        except MissingDataError as missing:
            absent.setdefault(str(missing), []).append(row.name)
            continue
        except NoSettingsError:
            if row.name in asked:
                raise
            continue
        for found in made:
            cells += found
        if _trains(_recipe(row.recipe, tuple(row.changes))):
            counts |= {place_name(row.name, found[0].column): len(found) for found in made}
    notes += _change_notes(cells, options.changes)
    left_out = [f"{', '.join(rows)}: left out; missing: {what}" for what, rows in absent.items()]
    if not any(cell.row in asked for cell in cells):
        raise DiffaugError(f"{spec.name} cannot be run. {'. '.join(left_out)}")
    tuning = options.budget.words(check_equal(counts), spec.dev_name) if counts else []
    if any(not _trains(_recipe(cell.recipe, ())) for cell in cells):
        tuning.append("Rows without training are the same with every seed, and run once")
    labelled = spec.columns is not None and columns != [Column()]
    return Plan(
        spec,
        cells,
        options.seeds,
        options.draws,
        asked,
        spec.columns.name or spec.columns.setting or "" if labelled and spec.columns else "",
        (*notes, *spec.notes, *tuning, *left_out),
    )


def _trains(recipe: Recipe) -> bool:
    return recipe.stage1 is not None or recipe.stage2 is not None


def _fitting(name: str, given: Sequence[str], changes: Sequence[str]) -> tuple[str, ...]:
    """The changes of a recipe, itself changed by ``given``, that are not below a section that is null."""
    kept: tuple[str, ...] = ()
    for entry in changes:
        if missing_section(_recipe(name, (*given, *kept)).to_dict(), entry) is None:
            kept += (entry,)
    return kept


def _change_notes(cells: Sequence[Cell], changes: Sequence[str]) -> list[str]:
    """Say which rows a change does not apply to.

    Raises:
        DiffaugError: it applies to no row.
    """
    recipes = {cell: _recipe(cell.recipe, cell.changes).to_dict() for cell in cells} if changes else {}
    notes = []
    for entry in changes:
        section = entry.partition(".")[0].strip()
        without = {cell for cell, recipe in recipes.items() if missing_section(recipe, entry)}
        if without and len(without) == len(cells):
            raise DiffaugError(f"--set {entry} applies to no row: their recipes have no {section}")
        rows = {cell.row for cell in cells if cell not in without}
        names = [place_name(*cell.place) if cell.row in rows else cell.row for cell in cells if cell in without]
        if names:
            notes.append(
                f"--set {entry} applies only where there is a {section}, not to {'; '.join(dict.fromkeys(names))}"
            )
    return notes


@cache
def _recipe(name: str, changes: tuple[str, ...]) -> Recipe:
    return load_recipe(name, changes)


def _matches(row: RowSpec, patterns: Sequence[str], spec: GridSpec) -> bool:
    def fits(name: str, pattern: str) -> bool:
        # Names contain brackets, which are not meant as part of a pattern.
        return fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))

    for pattern in patterns:
        if not any(fits(other.name, pattern) for other in spec.rows):
            raise DiffaugError(f"no row matches {pattern!r}; there are: {'; '.join(r.name for r in spec.rows)}")
    return not patterns or any(fits(row.name, pattern) for pattern in patterns)


def _has_cell(row: RowSpec, column: Column) -> bool:
    return column.labels != 0 or row.without_labels is not None


def _with_changes(name: str, row: RowSpec, options: PlanOptions) -> tuple[str, ...]:
    return (*row.changes, *_fitting(name, row.changes, options.changes))


def _columns(spec: GridSpec, options: PlanOptions) -> tuple[list[Column], list[str]]:
    """The columns, and notes about them."""
    columns, asked = spec.columns, options.columns
    if columns is None:
        if asked:
            raise DiffaugError(f"{spec.name} has no columns, but --column {asked[0]} was given; leave it out")
        return [Column()], []
    if columns.labels is not None:
        return _label_columns(spec, options, asked or columns.labels)
    setting, instead = columns.setting or "", columns.instead

    def build(value: Value) -> Column:
        name, text = column_value(value, columns)
        return Column(name, tuple(instead.get(text, [f"{setting}={text}"])))

    return _distinct(asked or columns.values, build) or [Column()], []


def _distinct(values: Sequence[Value], build: Callable[[Value], Column]) -> list[Column]:
    columns = [build(value) for value in values]
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise DiffaugError(f"the columns {', '.join(names)} must all differ")
    return columns


def _label_columns(spec: GridSpec, options: PlanOptions, values: Sequence[Value]) -> tuple[list[Column], list[str]]:
    recipes = [_recipe(row.recipe, _with_changes(row.recipe, row, options)) for row in spec.rows]
    total = options.data.count_labels(recipes)
    columns = _distinct(values, lambda value: _label_column(str(value).strip(), total))
    assert spec.columns is not None
    note = f"There are {total:,} {spec.columns.name or 'labelled examples'}"
    if spec.columns.total not in (None, total) and spec.columns.otherwise:
        note += f"; {spec.columns.otherwise}"
    notes = [note]
    if any(column.labels for column in columns):
        draws = f"{options.draws} draws" if options.draws > 1 else "one draw"
        seeds = f"{len(options.seeds)} seeds" if len(options.seeds) > 1 else "one seed"
        notes.append(f"A part of the labels: {draws} of them, {seeds} each; a small draw lies within the larger ones")
    return columns, notes


def _label_column(text: str, total: int) -> Column:
    """The column of `10%`, `10 %`, `0.1`, `27560` or `27,560` labels."""
    number = text.removesuffix("%").strip().replace(",", "")
    try:
        value = float(number)
    except ValueError:
        raise DiffaugError(f"{text!r} is not a number of labels; write 10%, 0.1 or a number such as 27560") from None
    if text.endswith("%") or 0 < value < 1 or "." in number:
        part = value / 100 if text.endswith("%") else value
        labels, name = 0 if part == 0 else max(1, round(part * total)), f"{100 * part:g} %"
    else:
        labels, name = int(value), "0 %" if value == 0 else f"{int(value):,}"
    if not 0 <= labels <= total:
        raise DiffaugError(f"the number of labels must be between 0 and {total:,}, got {text}")
    if labels == total:
        return Column(name)
    # A number, not a fraction: one example would be 1.0, which means all of them.
    if labels == 1:
        raise DiffaugError(f"{text}: one labelled example is too few to train on; ask for more")
    return Column(name, (f"data.labels={labels}",) if labels else (), labels)


def _cells(row: RowSpec, column: Column, spec: GridSpec, options: PlanOptions) -> list[Cell]:
    """One cell per setting, with the first seed and draw."""
    name = row.recipe if column.labels != 0 else row.without_labels or row.recipe
    recipe = _recipe(name, tuple(row.changes))
    below = [] if options.encoder is None else [change("model.backbone", options.encoder)]
    below += options.data.changes_for(recipe, _recipe(name, _with_changes(name, row, options)).data)
    if recipe.method == "diffcse":
        below += generator_for(options.encoder or recipe.model.backbone, options.generator)
    tries: list[Setting] = options.budget.settings_of(name, column.labels) if _trains(recipe) else [()]
    for entry in dict.fromkeys(entry for setting in tries for entry in setting):
        if section := missing_section(recipe.to_dict(), entry):
            raise NoSettingsError(
                f"the budget {options.budget.name!r} sets {entry} for the recipe {name!r}, which has no {section}; add "
                "a family for this recipe to it"
            )
    draw = (f"{_DRAW}=0",) if column.labels else ()
    seed = options.seeds[0]
    asked = _fitting(name, (*row.changes, *column.changes), options.changes)
    found = []
    for number, setting in enumerate(tries if spec.tune else tries[:1]):
        changes = [*below, *setting, *row.changes, *column.changes, *asked, *draw, f"seed={seed}"]
        cell = Cell(row.name, column.name, name, _effective(changes), number, seed, 0, row.group, row.baseline)
        try:
            load_recipe(cell.recipe, cell.changes)
        except DiffaugError as error:
            raise DiffaugError(f"{place_name(*cell.place)}, setting {number}: {error}") from error
        found.append(cell)
    return found


def _effective(changes: Sequence[str]) -> tuple[str, ...]:
    """The changes that no later one overrides, by setting the same key or the whole group it is in."""
    keys = [entry.partition("=")[0].strip() for entry in changes]
    return tuple(
        entry
        for place, (key, entry) in enumerate(zip(keys, changes, strict=True))
        if not any(key == later or key.startswith(f"{later}.") for later in keys[place + 1 :])
    )
