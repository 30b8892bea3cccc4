"""What to know about a grid beside its tables: what is missing above all."""

from __future__ import annotations

from diffaug.reproduce.cell import Cell
from diffaug.reproduce.findings import Summary


def notes(summary: Summary) -> list[str]:
    """In sentences without their full stop: the plan's own, few runs, failed and unfinished cells, the machine."""
    found = [*_plan(summary), *_few_runs(summary), *_untuned(summary)]
    found += [f"Failed: {_words(cell)}: {why} (cells/{cell.name})" for cell, why in summary.failures]
    places: dict[tuple[str, str], list[Cell]] = {}
    for cell in summary.unfinished:
        places.setdefault((cell.row, cell.column), []).append(cell)
    for (row, column), cells in places.items():
        which = "; ".join(_run_words(cell) for cell in cells)
        found.append(f"Not finished: {f'{row} at {column}' if column else row}: {which}")
    found += [f"Not compared: {why}" for why in summary.untested]
    return found + [f"Measured on {', '.join(f'{k} {v}' for k, v in sorted(m.items()))}" for m in summary.machines if m]


def _plan(summary: Summary) -> list[str]:
    found = [str(note) for note in summary.info.get("notes") or ()]
    if encoder := summary.info.get("encoder"):
        found.insert(0, f"Encoder: {encoder}")
    return found


def _few_runs(summary: Summary) -> list[str]:
    return [
        f"†{entry.place}: {len(entry.runs)} of {entry.asked} runs"
        for entry in summary.entries
        if entry.short and entry.runs
    ]


def _untuned(summary: Summary) -> list[str]:
    """Places without any measurement."""
    return [
        f"No measurement: {entry.place}: {entry.tried} of {len(entry.settings)} settings have run, none is chosen"
        for entry in summary.entries
        if not entry.runs
    ]


def _words(cell: Cell) -> str:
    return f"{f'{cell.row} at {cell.column}' if cell.column else cell.row}, {_run_words(cell)}"


def _run_words(cell: Cell) -> str:
    return f"setting {cell.setting}, draw {cell.draw}, seed {cell.seed}"
