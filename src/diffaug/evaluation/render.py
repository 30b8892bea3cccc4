"""An evaluation result as tables, for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diffaug import tabular
from diffaug.evaluation.geometry import Geometry
from diffaug.evaluation.result import Average, EvaluationResult
from diffaug.evaluation.tasks import TaskResult
from diffaug.tabular import Section, whole_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

_UNDEFINED = "undefined"


def head(result: EvaluationResult) -> list[str]:
    """The lines above the tables: the models and their fingerprints."""
    lines = [f"model: {result.model.name}", f"fingerprint: {result.model.fingerprint or 'none (a callable)'}"]
    if result.versus is not None:
        lines += [
            f"compared with: {result.versus.model.name}",
            f"its fingerprint: {result.versus.model.fingerprint or 'none (a callable)'}",
        ]
    return lines


def sections(result: EvaluationResult) -> Iterator[Section]:
    """The tables of a result."""
    percent = f"{100 * result.settings.confidence:g} %"
    sts, transfer, own = ([t for t in result.tasks if t.group == group] for group in ("sts", "transfer", "own"))
    averages = {average.group: average for average in result.averages}
    if sts:
        rows = [[task.name, _number(task.score), _interval(task), *_sts_others(task), f"{task.rows:,}"] for task in sts]
        columns = ["task", "all", percent, "mean", "wmean", "Pearson", "pairs"]
        yield _with_average("STS: sts_all_spearman", columns, rows, averages.get("sts"))
    if transfer:
        rows = [
            [t.name, _number(t.score), _interval(t), _number(t.details.get("f1")), f"{t.rows:,}", t.protocol]
            for t in transfer
        ]
        columns = ["task", "accuracy", percent, "F1", "examples", "protocol"]
        yield _with_average("Transfer: logistic regression on frozen vectors", columns, rows, averages.get("transfer"))
    if own:
        rows = [[t.name, t.protocol, _number(t.score), _interval(t), f"{t.rows:,}", _others(t)] for t in own]
        yield Section("Own data", ["task", "protocol", "score", percent, "rows", "also"], rows)
    if result.geometry is not None:
        yield _geometry(result, result.geometry)
    if result.versus is not None:
        names = result.labels
        rows = [
            [
                c.name,
                _number(c.first),
                _number(c.second),
                f"{c.difference:+.2f}",
                f"{c.low:+.2f} to {c.high:+.2f}",
                f"{c.p_value:.3f}",
            ]
            for c in result.comparisons
        ]
        columns = ["task", names[0], names[1], "difference", percent, "p"]
        averages_at = {i for i, c in enumerate(result.comparisons) if " average " in c.name}
        title = f"{names[0]} against {names[1]}: paired bootstrap"
        yield Section(title, columns, rows, whole_rows(rows, averages_at))


def notes(result: EvaluationResult) -> list[str]:
    """The lines below the tables: comparisons, missing tasks, warnings."""
    found = []
    if result.versus is not None:
        found += [c.words(*result.labels) for c in result.comparisons]
    found += [f"not evaluated: {name}: {why}" for name, why in result.missing.items()]
    found += [
        f"{task.name} is undefined: all pairs have the same cosine; the model has collapsed"
        for task in result.tasks
        if math.isnan(task.score)
    ]
    return found + [f"warning: {warning}" for warning in result.warnings]


def markdown(result: EvaluationResult) -> str:
    """The result as Markdown."""
    lines = [f"- {line}" for line in head(result)]
    for section in sections(result):
        lines += ["", *tabular.markdown(section)]
    if said := notes(result):
        lines += ["", *(f"- {note}" for note in said)]
    return "\n".join(lines) + "\n"


def rich_result(result: EvaluationResult) -> RenderableType:
    """The result for a terminal."""
    from rich.console import Group
    from rich.markup import escape

    parts: list[RenderableType] = [escape(line) for line in head(result)]
    for section in sections(result):
        parts += ["", tabular.rich_table(section)]
    return Group(*parts, *(escape(note) for note in notes(result)))


def needed_width(result: EvaluationResult) -> int:
    """The minimum line width; in a narrower console rich would cut off numbers."""
    return max([60, *map(tabular.needed_width, sections(result))])


def _with_average(title: str, columns: list[str], rows: list[list[str]], average: Average | None) -> Section:
    if average is None:
        return Section(title, columns, rows)
    score = [_number(average.score), _interval(average)]
    row = [average.name, *score]
    rows = [*rows, row + [""] * (len(columns) - len(row))]
    return Section(title, columns, rows, whole_rows(rows, {len(rows) - 1}))


def _geometry(result: EvaluationResult, found: Geometry) -> Section:
    columns = ["model", "alignment", "uniformity", "anisotropy", "delta"]
    rows = []
    for label, scores in zip(result.labels, (result, result.versus), strict=True):
        if scores is not None and (g := scores.geometry) is not None:
            measures = [f"{value:.4f}" for value in (g.alignment, g.uniformity, g.anisotropy)]
            apart = "" if g.delta is None else f"{g.delta:.4f}"
            rows.append([label, *measures, apart])
    title = f"Geometry on {found.data}: {found.sentences:,} sentences, {found.positives:,} positive pairs"
    return Section(title, columns, rows)


def _sts_others(task: TaskResult) -> list[str]:
    details = task.details
    return [
        *(_number(details[name]["spearman"]) if name in details else "" for name in ("mean", "wmean")),
        _number(details["all"]["pearson"]),
    ]


def _others(task: TaskResult) -> str:
    """The other numbers of a task on own data; the first detail is the score."""
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.2f}"
        for name, value in list(task.details.items())[1:]
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return _UNDEFINED if math.isnan(value) else f"{value:.2f}"


def _interval(scored: TaskResult | Average) -> str:
    return "" if math.isnan(scored.low) else f"{scored.low:.2f} – {scored.high:.2f}"
