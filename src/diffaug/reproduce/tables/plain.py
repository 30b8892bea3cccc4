"""Everything a grid found as plain values, for programs: the keys stay, whatever the experiment."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from diffaug.evaluation.statistics import Comparison
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.findings import GIB, MINUTES, Entry, Lead, Spread, Summary
from diffaug.reproduce.paired import PairedTest, Run
from diffaug.reproduce.tables.notes import notes
from diffaug.version import __version__

FORMAT_VERSION = 1


def to_dict(summary: Summary) -> dict[str, Any]:
    """As JSON takes it; numbers to six places, None where one is undefined."""
    from diffaug.evaluation.statistics import clean_numbers

    everything = {
        "format_version": FORMAT_VERSION,
        "diffaug_version": __version__,
        "experiment": summary.experiment,
        "title": summary.title,
        "plan": summary.info,
        "tasks": summary.tasks,
        "average_over_all_seven": summary.all_seven,
        "columns": summary.columns,
        "columns_are": summary.columns_are,
        "deviation": "of the sample (n - 1)",
        "bootstrap": {"resamples": summary.resamples, "seed": summary.seed, "confidence": summary.confidence},
        "entries": [_entry(entry) for entry in summary.entries],
        "leads": [_lead(lead) for lead in summary.leads],
        "failures": [{**_cell(cell), "why": why} for cell, why in summary.failures],
        "unfinished": [_cell(cell) for cell in summary.unfinished],
        "untested": summary.untested,
        "taken_over": summary.taken_over,
        "machines": summary.machines,
        "notes": notes(summary),
    }
    cleaned: dict[str, Any] = clean_numbers(everything)
    return cleaned


def command(cell: Cell) -> str:
    """What a user types to make the run of a cell again, without its grid."""
    changes = [part for change in cell.changes for part in ("--set", change)]
    return shlex.join(["diffaug", "train", "--recipe", cell.recipe, *changes, "--out", cell.name])


def _entry(entry: Entry) -> dict[str, Any]:
    measured = {name: _value(entry, name) for name in dict.fromkeys([*entry.values, *entry.published])}
    return {
        "group": entry.group,
        "row": entry.row,
        "column": entry.column,
        "baseline": entry.baseline,
        "strongest_baseline": entry.strongest,
        "settings": {
            "planned": entry.settings,
            "tried": entry.tried,
            "chosen": entry.chosen,
            "chosen_number": entry.setting,
        },
        "seeds": entry.seeds,
        "draws": entry.draws,
        "runs_asked": entry.asked,
        "complete": not entry.short,
        "scores": {name: value for name, value in measured.items() if name not in (MINUTES, GIB)},
        "cost": {name: value for name, value in measured.items() if name in (MINUTES, GIB)},
        "test": None if entry.test is None else _test(entry.test),
        "runs": [_run(run) for run in entry.runs],
    }


def _value(entry: Entry, name: str) -> dict[str, Any]:
    figure = entry.published.get(name)
    own = asdict(entry.values[name]) if name in entry.values else {"mean": None, "deviation": None, "count": 0}
    return {
        **own,
        "best": name in entry.best,
        "paper": None if figure is None else {"mean": figure.mean, "deviation": figure.deviation},
    }


def _test(test: PairedTest) -> dict[str, Any]:
    return {
        "against": {"row": test.row, "column": test.column},
        "scores": {name: _comparison(comparison) for name, comparison in test.comparisons.items()},
        "by_run": {
            "differences": test.by_run,
            "ahead": test.runs_ahead,
            **(asdict(Spread.of(test.by_run)) if test.by_run else {"mean": None, "deviation": None, "count": 0}),
        },
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "difference": comparison.difference,
        "interval": [comparison.low, comparison.high],
        "p_value": comparison.p_value,
        "shown": comparison.shown,
    }


def _lead(lead: Lead) -> dict[str, Any]:
    return {
        "group": lead.group,
        "row": lead.row,
        "baseline": lead.baseline,
        "columns": {column: _test(test) for column, test in lead.tests.items()},
        "fewest": lead.fewest,
        "most": lead.most,
        "fewest_against_most": None if lead.across is None else _test(lead.across),
    }


def _run(run: Run) -> dict[str, Any]:
    return {**_cell(run.cell), **asdict(run.result)}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "row": cell.row,
        "column": cell.column,
        "recipe": cell.recipe,
        "changes": cell.changes,
        "setting": cell.setting,
        "seed": cell.seed,
        "draw": cell.draw,
        "command": command(cell),
    }
