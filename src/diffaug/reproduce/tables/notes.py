"""What to know about a grid beside its tables: what is missing above all."""

from __future__ import annotations

from diffaug.reproduce.findings import Summary
from diffaug.reproduce.words import cell_sentence, counted, listed


def notes(summary: Summary) -> list[str]:
    """In sentences without their full stop: the plan's own, what is missing or taken over, the machine."""
    return [
        *_plan(summary),
        *_few_runs(summary),
        *_unmeasured(summary),
        *(f"Failed: {cell_sentence(cell)}: {why} (cells/{cell.name})" for cell, why in summary.failures),
        *_unfinished(summary),
        *(f"Not compared: {why}" for why in summary.untested),
        *(f"{counted(count, 'run')} taken over from {source}" for source, count in summary.taken_over.items()),
        *(f"Measured on {', '.join(f'{k} {v}' for k, v in sorted(m.items()))}" for m in summary.machines if m),
    ]


def _plan(summary: Summary) -> list[str]:
    found = [str(note) for note in summary.info.get("notes") or ()]
    if encoder := summary.info.get("encoder"):
        found.insert(0, f"Encoder: {encoder}")
    return found


def _few_runs(summary: Summary) -> list[str]:
    short = [entry for entry in summary.entries if entry.short and entry.runs]
    named = [f"{entry.place} ({len(entry.runs)} of {entry.asked})" for entry in short]
    return [f"† Fewer runs than asked for: {listed(named)}"] if named else []


def _unmeasured(summary: Summary) -> list[str]:
    """Rows, at a column where they have columns, that stand empty in the table: those first whose tuning has begun."""
    without = sorted((entry for entry in summary.entries if not entry.runs), key=lambda entry: not entry.tried)
    if not without:
        return []
    named = [
        f"{entry.place} ({entry.tried} of {len(entry.settings)} settings tried)" if entry.tried else entry.place
        for entry in without
    ]
    what = "rows" if summary.columns == ("",) else "places in the table"
    return [f"No measurement yet for {len(without)} of {len(summary.entries)} {what}: {listed(named)}"]


def _unfinished(summary: Summary) -> list[str]:
    """Runs that are still to come. Those of a setting that is yet to be chosen are not planned, and not counted."""
    named = [cell_sentence(cell) for cell in summary.unfinished]
    return [f"Not finished: {len(named)} of the runs planned so far: {listed(named)}"] if named else []
