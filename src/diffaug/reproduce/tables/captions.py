"""What a reader must know to read a table: sentences without their full stop."""

from __future__ import annotations

from collections.abc import Sequence

from diffaug.reproduce.findings import SEVEN, Entry, Summary
from diffaug.reproduce.grid import DEV
from diffaug.reproduce.score import AVERAGE


def scores(summary: Summary, names: Sequence[str]) -> list[str]:
    """Below a table of means of these scores."""
    found = [f"Spearman x 100: {_means(summary, capital=False)}" if names else _means(summary)]
    if any(set(names) & entry.best for entry in summary.entries):
        found.append(f"Bold: the highest mean of its {_where(summary)}")
    if AVERAGE in names and not summary.all_seven:
        few = f"{len(summary.tasks)} of the {len(SEVEN)} tasks that papers average over"
        found.append(f"The average is over {', '.join(summary.tasks)}: {few}")
    return [*found, *_paper(summary, names), *_dagger(summary)]


def cost(summary: Summary) -> list[str]:
    """Below a table of time and memory."""
    found = [f"{_means(summary)} of the minutes that training took, and of the memory at its peak"]
    if any(entry.published for entry in summary.entries):
        found.append("paper: the figures of the paper, which are of another machine")
    return [*found, *_dagger(summary)]


def tests(summary: Summary) -> list[str]:
    """Below the comparisons with the strongest baseline."""
    percent = f"{100 * summary.confidence:g} %"
    fewest = 2 / (summary.resamples + 1)
    return [
        f"The strongest baseline of a {_where(summary)} has the highest mean on {DEV}; it is never chosen on a test "
        "task",
        "difference: of the averages",
        f"{percent} and p: interval and two-sided p-value of a paired bootstrap over the sentence pairs "
        f"({summary.resamples:,} resamples, the same for both rows, scores averaged over runs): what other pairs would "
        f"change; not corrected for the number of rows; {fewest:.3f} is the smallest p that so many resamples can give",
        "runs: the sample standard deviation (n - 1) of the difference between runs of the same seed and draw, and in "
        "how many of them the row is ahead: what other seeds would change",
        *_dagger(summary),
    ]


def leads(summary: Summary) -> list[str]:
    """Below the leads."""
    percent = f"{100 * summary.confidence:g} %"
    return [
        "Differences of the averages with equally many labels; in the last column the row has its fewest labels, the "
        "baseline its most",
        f"*: the {percent} interval of the paired bootstrap leaves zero out",
        *(["†: one of the two has fewer runs than asked for"] if _dagger(summary) else []),
    ]


def tuning(summary: Summary, tuned: bool) -> list[str]:
    """Below the settings."""
    if not tuned:
        return [f"{DEV}: {_means(summary, capital=False)}; every row has one setting", *_dagger(summary)]
    counts = {len(entry.settings) for entry in summary.entries if len(entry.settings) > 1}
    many = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    who = "Each row" if all(len(entry.settings) > 1 for entry in summary.entries) else "Each row that has a choice"
    return [
        f"{who} tries {many} settings with the first seed and draw and keeps the best on {DEV}; that run is one of "
        "its runs, and the others have the same setting",
        f"{DEV}: {_means(summary, capital=False)}",
        *_dagger(summary),
    ]


def _where(summary: Summary) -> str:
    """Within what rows are compared. Where a row is alone in its group, its columns are."""
    alone = len({entry.row for entry in summary.entries}) == 1
    return "group" if summary.columns == ("",) else "row" if alone else "group and column"


def _means(summary: Summary, *, capital: bool = True) -> str:
    if not any(len(entry.runs) > 1 for entry in summary.entries):
        text = "values of single runs"
    else:
        text = f"mean ± sample standard deviation (n - 1) over {_runs(summary.entries)}"
    return text[0].upper() + text[1:] if capital else text


def _runs(entries: Sequence[Entry]) -> str:
    """`3 seeds`, `up to 3 seeds and 5 draws of the labels`."""
    seeds, draws = ({len(getattr(entry, what)) for entry in entries} for what in ("seeds", "draws"))
    words = f"{max(seeds)} seeds" if max(seeds) > 1 else "1 seed"
    if max(draws) > 1:
        words += f" and {max(draws)} draws of the labels"
    return ("up to " if len(seeds) > 1 or len(draws) > 1 else "") + words


def _paper(summary: Summary, names: Sequence[str]) -> list[str]:
    shown = [entry for entry in summary.entries if set(entry.published) & set(names)]
    if not shown:
        return []
    found = ["paper: its figures for the same encoder"]
    if AVERAGE in names and not summary.all_seven:
        if any(set(summary.tasks) <= set(entry.published) for entry in shown):
            found.append("Its averages are over the same tasks as ours")
        if any(AVERAGE in entry.published and not set(summary.tasks) <= set(entry.published) for entry in shown):
            found.append(f"‡: over all {len(SEVEN)} tasks")
    return found


def _dagger(summary: Summary) -> list[str]:
    return ["†: fewer runs than asked for"] if any(entry.short for entry in summary.entries) else []
