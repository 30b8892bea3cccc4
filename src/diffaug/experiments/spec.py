"""The specification of a grid: one YAML file with rows, columns, seeds, budget, tables and figures.

The experiments of the paper are such files in `paper/`; a user's own grid is written the same way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from diffaug.config import parse_yaml, read_settings
from diffaug.config.registry import load_plugins
from diffaug.config.typed import build, nearest
from diffaug.errors import DiffaugError

PAPER = Path(__file__).parent / "paper"
TIME, DROPOUT = "time-and-memory", "dropout-divergence"
"""What a grid can measure beside scores."""

Value = str | int | float | bool
Score = Literal["dev", "average"]
Table = Literal["scores", "cost", "stage1", "tests", "lead", "settings"]


@dataclass(frozen=True)
class RowSpec:
    """A row of the table.

    Attributes:
        name: the label.
        recipe: name of a recipe, or path of a recipe file.
        group: rows are compared within a group.
        baseline: whether other rows of its group are compared with this row.
        changes: `key=value` changes of the recipe.
        without_labels: the recipe in a column without labels; null: the row has no cell there.
    """

    name: str
    recipe: str
    group: str = ""
    baseline: bool = True
    changes: list[str] = field(default_factory=list)
    without_labels: str | None = None


@dataclass(frozen=True)
class ColumnSpec:
    """The columns: values of one setting, or amounts of labels.

    Attributes:
        setting: key of a recipe, such as `stage2.temperature`.
        values: its values; empty: one column, unless others are asked for.
        instead: changes that replace `setting=value` at a value.
        minimum: the smallest value allowed.
        labels: parts (`10 %`) or numbers of labelled examples.
        name: what a column stands for, used in titles.
        total: expected number of labelled examples; with another number, the note `otherwise` is added.
        otherwise: see `total`.
    """

    setting: str | None = None
    values: list[Value] = field(default_factory=list)
    instead: dict[str, list[str]] = field(default_factory=dict)
    minimum: float | None = None
    labels: list[Value] | None = None
    name: str = ""
    total: int | None = None
    otherwise: str = ""


@dataclass(frozen=True)
class DataSpec:
    """Data of all rows; each source replaces what recipes name. The attributes are the options of `diffaug grid`."""

    folders: list[str] = field(default_factory=list)
    triplets: str | None = None
    pairs: str | list[str] | None = None
    sentences: str | None = None
    dev: str | None = None
    target: str | None = None
    generator: str | None = None


@dataclass(frozen=True)
class MetricSpec:
    """A curve that runs record in `metrics.jsonl`.

    Attributes:
        metric, stage: its name and stage.
        title: of the panel.
        reference: a recorded metric that is drawn as a horizontal line, labelled `reference_name`.
    """

    metric: str
    stage: int
    title: str
    reference: str | None = None
    reference_name: str = ""


@dataclass(frozen=True)
class FigureSpec:
    """A figure.

    Attributes:
        kind: `dots`: a score by row; `lines`: a score along the columns; `bars`: training time and memory by row;
            `curves`: metrics by training step.
        score: of dots and lines.
        x: title of the x axis; empty: what columns stand for.
        by_group: lines: one panel per group.
        scale: lines: of the x axis.
        steps_of_stage: lines: a column that is not a number is drawn at the number of steps this stage took.
        metrics: curves: one panel each; lines: further panels with the mean over the last tenth of the stage.
        mark: curves: mark the step at which `stage1.steps=auto` ends stage 1.
    """

    kind: Literal["dots", "lines", "bars", "curves"]
    score: Score = "average"
    x: str = ""
    by_group: bool = False
    scale: Literal["log", "linear"] = "log"
    steps_of_stage: int | None = None
    metrics: list[MetricSpec] = field(default_factory=list)
    mark: Literal["automatic-end-of-stage1"] | None = None


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper whose numbers are shown beside ours.

    Attributes:
        label: of the table in the paper's source.
        about: what it contains.
        encoder: of all its numbers.
        heads_are: whether `heads` are tasks or columns.
        heads: one name per number of a row.
        rows: numbers by row: `80.61`, or `80.61 ± .2` with a standard deviation; null: none.
        task: where `heads` are columns, the task of the numbers.
    """

    label: str
    about: str
    encoder: str
    heads_are: Literal["tasks", "columns"]
    heads: list[str]
    rows: dict[str, list[float | str | None]]
    task: str = "average"


@dataclass(frozen=True)
class GridSpec:
    """A grid.

    Attributes:
        title: above the tables.
        rows: of the tables.
        name: names the files of tables and figures; by default the name of the specification's file.
        columns: null: every row has one cell.
        plugins: modules or .py files, relative to this file, with methods, views, losses and tasks of your own.
        encoder: the backbone of all rows; null: that of each recipe.
        data: of all rows.
        tasks: files of scored pairs by the name of the task, scored in addition to the STS tasks in the data folders;
            `task:NAME` is a registered task with scored pairs.
        seeds: number of seeds.
        draws: number of draws of the labels, where only a part of them is used.
        budget: which settings rows may try: name or file.
        tune: rows try all settings of the budget; false: only the first, where row and column are what matters.
        measure: what is measured beside scores: `time-and-memory` (one run at a time), `dropout-divergence`, or
            `module:function`, a function that is called with the folder of a finished run.
        dev_name: how the score on the dev pairs is called in tables.
        scores: what is compared.
        tables: `scores`; `cost`: time and memory; `stage1`: the end of stage 1; `tests`: each row against the strongest
            baseline; `lead`: each row against each baseline at every column; `settings`: chosen settings and runs.
        figures: null: lines for numeric columns, dots otherwise.
        notes: sentences without their full stop, shown below the tables.
        published: tables of a paper.
        same_columns: columns under which the paper's numbers are looked up, as in {2756: 1 %}.
        stated: numbers that the paper's text gives.
    """

    title: str
    rows: list[RowSpec]
    name: str = ""
    columns: ColumnSpec | None = None
    plugins: list[str] = field(default_factory=list)
    encoder: str | None = None
    data: DataSpec = field(default_factory=DataSpec)
    tasks: dict[str, str] = field(default_factory=dict)
    seeds: int = 3
    draws: int = 5
    budget: str = "paper"
    tune: bool = True
    measure: list[str] = field(default_factory=list)
    dev_name: str = "dev"
    scores: list[Score] = field(default_factory=lambda: ["average"])
    tables: list[Table] = field(default_factory=lambda: ["scores", "tests", "settings"])
    figures: list[FigureSpec] | None = None
    notes: list[str] = field(default_factory=list)
    published: list[PublishedTable] = field(default_factory=list)
    same_columns: dict[str, str] = field(default_factory=dict)
    stated: dict[str, float] = field(default_factory=dict)

    def drawings(self, columns: Sequence[str]) -> list[FigureSpec]:
        """The figures of a grid with these columns."""
        if self.figures is not None:
            return self.figures
        numeric = columns and all(column[:1].isdigit() for column in columns)
        return [FigureSpec("lines" if numeric else "dots", self.scores[0] if self.scores else "average")]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def experiment_names() -> list[str]:
    """The experiments of the paper."""
    return sorted(path.stem for path in PAPER.glob("*.yaml"))


@cache
def paper_spec(name: str) -> GridSpec:
    """The specification of an experiment of the paper.

    Raises:
        DiffaugError: there is no such experiment.
    """
    if name not in experiment_names():
        raise DiffaugError(f"there is no experiment {name!r}{nearest(name, experiment_names())}")
    return load_spec(PAPER / f"{name}.yaml")


def load_spec(path: Path) -> GridSpec:
    """Read a specification and import its plugins.

    Raises:
        DiffaugError: the file cannot be read, a key or value does not fit, or two rows have the same name.
    """
    spec: GridSpec = build(GridSpec, read_settings(path), str(path))
    spec = replace(spec, name=spec.name or path.stem, plugins=load_plugins(spec.plugins, path.parent))
    _check(spec, path)
    return spec


def spec_of(info: Mapping[str, Any]) -> GridSpec:
    """The specification of a grid, given what `grid.json` records about it.

    The paper's experiments are recorded by name, a user's grid with its whole specification.
    """
    experiment = str(info.get("experiment", ""))
    if info.get("spec"):
        found: GridSpec = build(GridSpec, info["spec"], "grid.json", "spec")
        return found
    if experiment in experiment_names():
        return paper_spec(experiment)
    return GridSpec(experiment, [], experiment)


def column_value(value: Value, columns: ColumnSpec) -> tuple[str, str]:
    """The label of a column and the value as `key=value` takes it: `1,500` and `1500`, `0.001` for `1e-3`.

    Raises:
        DiffaugError: it is not finite, or below the minimum.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        plain = parse_yaml(text, f"the column {text!r:.80}") if text else text
        return text, text if isinstance(plain, bool) or plain is None else quoted(text)
    if not math.isfinite(number) or (columns.minimum is not None and number < columns.minimum):
        least = "a finite number" if columns.minimum is None else f"at least {columns.minimum:g}"
        raise DiffaugError(f"the column {text!r} does not fit: {columns.setting} must be {least}")
    if number.is_integer() and abs(number) < 1e15 and "e" not in text.lower() and "." not in text:
        return f"{int(number):,}", str(int(number))
    fixed = f"{number:.10f}".rstrip("0").rstrip(".")
    return (fixed, fixed) if math.isclose(float(fixed), number) else (text, text)


def quoted(text: str) -> str:
    """Text such that YAML reads it as that text."""
    with suppress(DiffaugError):
        if parse_yaml(text, "") == text:
            return text
    return json.dumps(text)


def _check(spec: GridSpec, path: Path) -> None:
    names = [row.name for row in spec.rows]
    if not names:
        raise DiffaugError(f"{path}: a grid needs at least one row under rows")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DiffaugError(f"{path}: two rows are called {twice[0]!r}; give them different names")
    columns = spec.columns
    if columns is not None and (columns.setting is None) == (columns.labels is None):
        raise DiffaugError(f"{path}: columns needs either setting and values, or labels")
    if spec.seeds < 1 or spec.draws < 1:
        raise DiffaugError(f"{path}: seeds and draws must be at least 1, got {spec.seeds} and {spec.draws}")
    for measure in spec.measure:
        if measure not in (TIME, DROPOUT) and ":" not in measure:
            raise DiffaugError(f"{path}: measure must be {TIME}, {DROPOUT} or module:function, got {measure!r}")
    for row in spec.rows:
        for change in row.changes:
            if "=" not in change:
                raise DiffaugError(f"{path}: the change {change!r} of {row.name!r} must be key=value")
