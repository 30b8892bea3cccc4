"""What the figures show: the same values as the tables, and the curves that runs recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from diffaug.errors import DiffaugError
from diffaug.reproduce.findings import SEVEN, Entry, Spread
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.score import AVERAGE
from diffaug.reproduce.summary import summarise
from diffaug.reproduce.words import listed

# Places that the small print of a figure has room for; the table names all of them.
_NAMED = 4
_NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e-?\d+)?")


def entries_of(grid: Grid) -> list[Entry]:
    """Every row at every column, in the order of the grid, those without a finished run too.

    Raises:
        DiffaugError: none has a finished run.
    """
    entries = list(summarise(grid, resamples=0).entries)
    if not any(entry.runs for entry in entries):
        raise DiffaugError("the grid has no row whose runs are finished yet: there is nothing to draw")
    return entries


def with_value(entries: Iterable[Entry], name: str) -> list[Entry]:
    """The entries that have a score.

    Raises:
        DiffaugError: none has it.
    """
    found = [entry for entry in entries if name in entry.values]
    if not found:
        raise DiffaugError(f"no finished run of the grid has a score called {name!r}: there is nothing to draw")
    return found


def recipe_of(entry: Entry) -> str:
    """The recipe of an entry that has runs."""
    return entry.runs[0].cell.recipe


def deviation(value: Spread) -> float:
    """As the length of a bar: a single run has none."""
    return value.deviation or 0.0


def runs_note(found: Sequence[Entry]) -> str:
    """How many runs stand behind a value, in words."""
    # A model without training runs once by plan: that says nothing about the others.
    several = [entry for entry in found if entry.asked > 1] or found
    counts = {len(entry.runs) for entry in several if entry.runs}
    if counts == {1}:
        return "One run each"
    many = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"Mean and standard deviation of {many} runs"


def gaps_note(entries: Sequence[Entry], name: str | None = None, mark: str = "Incomplete") -> str | None:
    """What is not there, of runs or of a score, in words; None if all is.

    Args:
        entries: of the grid.
        name: of the score; left out, the runs are counted.
        mark: how the figure shows places with fewer runs than asked for.
    """
    counts = [len(entry.runs) if name is None else _count(entry, name) for entry in entries]
    none = [entry.place for entry, count in zip(entries, counts, strict=True) if count == 0]
    some = [
        f"{entry.place} ({count} of {entry.asked} runs)"
        for entry, count in zip(entries, counts, strict=True)
        if 0 < count < entry.asked
    ]
    texts = [f"Without a result: {listed(none)}"] if none else []
    texts += [f"{mark}: {_fewer(some)}"] if some else []
    return ". ".join(texts) or None


def _fewer(places: Sequence[str]) -> str:
    """Places by their names, or of too many for a note, how many there are."""
    return listed(places) if len(places) <= _NAMED else f"{len(places)} places have fewer runs than asked for"


def _count(entry: Entry, name: str) -> int:
    return entry.values[name].count if name in entry.values else 0


def score_title(score: str, found: Sequence[Entry]) -> str:
    """What a score is, for an axis."""
    if score != AVERAGE:
        return f"{score}, Spearman × 100"
    tasks = _tasks(found)
    return f"Mean of {len(tasks)} STS tasks, Spearman × 100" if len(tasks) > 1 else "Test score, Spearman × 100"


def tasks_note(found: Sequence[Entry]) -> str | None:
    """Which tasks an average is over, where they are not the seven that papers average over."""
    tasks = _tasks(found)
    return None if tasks == set(SEVEN) else f"Tasks: {', '.join(sorted(tasks, key=_place))}"


def _place(task: str) -> tuple[int, str]:
    """In the order of papers."""
    return SEVEN.index(task) if task in SEVEN else len(SEVEN), task


def _tasks(found: Sequence[Entry]) -> set[str]:
    return {task for entry in found for run in entry.runs for task in run.result.scores} - {AVERAGE, DEV}


def number(column: str) -> float | None:
    """The number a column stands for, such as 27,560 or 0.001 or 10 %; None if it is a word."""
    found = _NUMBER.match(column)
    return float(found[0].replace(",", "")) if found else None


def curve(run: Path, name: str, stage: int) -> dict[int, float]:
    """What a run recorded under a name in a stage, by step; empty if it recorded no such thing.

    Raises:
        DiffaugError: its record is damaged.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        return {}
    recorded = {}
    for line_number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise DiffaugError(
                f"{path}, line {line_number}: not JSON, the run's record is damaged; remove the run's folder and "
                "continue the grid"
            ) from error
        if entry["stage"] == stage and name in entry:
            recorded[int(entry["step"])] = float(entry[name])
    return recorded
