"""The parts of the page that need no script: what was run, the scores of every run, the settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffaug.report.markup import Html, join, tag
from diffaug.report.runs import Run
from diffaug.report.settings import NOT_SET, Comparison

_DATA = {"nli": "labelled", "unlabelled": "unlabelled", "dev": "dev", "test": "test"}
# Of these scores the highest is the best; alignment and uniformity only mean something together.
_DESCRIBE = ("alignment", "uniformity")
MANY = 12  # runs from which on a list is closed at first, or in a box of its own
_FAILED = 6  # failures that are named at once
_LONG = 20  # characters of a setting that needs a wider column
_STATES = {"finished": "finished", "unfinished": "unfinished", "failed": "failed", "waiting": "waiting"}


def facts(runs: Sequence[Run]) -> Html:
    """How many runs are in which state, then encoder, data, seeds and machine."""
    recipes = [run.recipe for run in runs if run.recipe]
    rows: list[tuple[str, object]] = [("Runs", _states(runs))]
    if encoders := _distinct(_short_name(recipe.get("model", {}).get("backbone")) for recipe in recipes):
        rows.append(("Encoder", _listed(encoders)))
    if methods := _distinct(recipe.get("method") for recipe in recipes):
        rows.append(("Methods" if len(methods) > 1 else "Method", _listed(methods)))
    data = [
        join(tag("span", what, class_="quiet"), " ", _listed(found))
        for key, what in _DATA.items()
        if (found := _distinct(_short_names((recipe.get("data") or {}).get(key)) for recipe in recipes))
    ]
    if data:
        rows.append(("Data", tag("ul", *(tag("li", line) for line in data))))
    if seeds := _distinct(recipe.get("seed") for recipe in recipes):
        rows.append(("Seeds" if len(seeds) > 1 else "Seed", _listed(seeds, 12)))
    if machines := _distinct(_machine(run.result.machine) for run in runs if run.result is not None):
        rows.append(("Machine", "; ".join(machines)))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_="facts")


def run_table(runs: Sequence[Run]) -> Html:
    """Every run with its state and its scores; the best of each score in bold."""
    scores = list(dict.fromkeys(name for run in runs for name in run.scores))
    scores.sort(key=lambda name: name in _DESCRIBE)
    best = {
        name: max((v for run in runs if math.isfinite(v := run.scores.get(name, math.nan))), default=None)
        for name in scores
        if name not in _DESCRIBE
    }
    several = len(runs) > 1
    # Where all are finished, the heading says so, and the room is better used.
    with_state = any(run.state != "finished" for run in runs)
    head = [
        ("Run", "text", None),
        *([("State", "text", None)] if with_state else []),
        *((name, "number", None) for name in scores),
        ("Best at", "text", "stage and step of the checkpoint that was kept"),
        ("Time", "number", "of the training"),
    ]
    columns = [
        tag("th", tag("button", name, type="button"), scope="col", class_=kind, title=about)
        for name, kind, about in head
    ]
    rows = []
    for place, run in enumerate(runs):
        cells = [tag("th", _links(place, run), scope="row", data_v=run.name)]
        if with_state:
            cells.append(tag("td", _state(run), data_v=run.state))
        for name in scores:
            value = run.scores.get(name)
            top = several and value is not None and value == best.get(name)
            cells.append(_number(value, 3 if name in _DESCRIBE else 2, top, run.before.get(name)))
        cells.append(tag("td", _kept(run)))
        cells.append(tag("td", _duration(run.seconds), class_="number", data_v=run.seconds))
        rows.append(tag("tr", *cells, class_=run.state))
    return scrolling(
        tag("table", tag("thead", tag("tr", *columns)), tag("tbody", *rows), class_="sortable runs"),
        "Scores of all runs",
        len(runs),
    )


def problems(runs: Sequence[Run]) -> Html:
    """Failed runs, and why; nothing if there are none."""
    failed = [run for run in runs if run.state == "failed"]
    if not failed:
        return Html("")
    rows = [tag("li", tag("b", run.name), ": ", run.detail) for run in failed]
    title = "1 run has failed" if len(failed) == 1 else f"{len(failed)} runs have failed"
    found = tag("ul", *rows[:_FAILED])
    if len(rows) > _FAILED:
        found = join(found, tag("details", tag("summary", f"{len(rows) - _FAILED} more"), tag("ul", *rows[_FAILED:])))
    return tag("div", tag("h3", title), found, class_="problem", role="note")


def settings(runs: Sequence[Run], compared: Comparison) -> Html:
    """Where runs differ, what they share, and below that every run's recipe, which the script fills in."""
    begun = [(place, run) for place, run in enumerate(runs) if run.recipe]
    if not begun:
        return tag("p", "No run has begun.", class_="quiet")
    parts: list[Html] = []
    if len(begun) > 1:
        parts += _differences(begun, compared)
    if len(begun) > 1 and compared.shared:
        lines = [tag("span", tag("b", name), f": {value}\n") for name, value in compared.shared.items()]
        summary = tag("summary", "What all runs share", tag("span", f"{len(lines)} settings", class_="quiet"))
        parts.append(tag("details", summary, tag("pre", *lines, tabindex="0"), class_="recipe"))
    recipes = [_recipe(place, run) for place, run in begun]
    if len(begun) > MANY:
        summary = tag("summary", "Recipes in full", tag("span", f"{len(begun):,}", class_="quiet"))
        parts.append(tag("details", summary, *recipes, class_="recipe all"))
    else:
        parts += [tag("h3", "Recipes in full" if len(begun) > 1 else "Recipe in full"), *recipes]
    return join(*parts)


def _recipe(place: int, run: Run) -> Html:
    summary = tag("summary", run.name, tag("span", str(run.recipe.get("name", "")), class_="quiet"))
    return tag("details", summary, id=f"run-{place}", class_="recipe", data_run=place)


def _differences(begun: list[tuple[int, Run]], compared: Comparison) -> list[Html]:
    if not compared.columns:
        return [tag("p", "All runs have the same settings.", class_="quiet")]
    head = [tag("th", "Run", scope="col"), *(tag("th", _key(name), scope="col") for name in compared.columns)]
    rows = [
        tag(
            "tr",
            tag("th", tag("a", run.name, href=f"#run-{place}", data_run=place), scope="row"),
            *(tag("td", value, class_="long" if len(value) > _LONG else None) for value in compared.rows[place]),
        )
        for place, run in begun
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="settings")
    return [tag("h3", "Where the runs differ"), scrolling(table, "Settings that differ", len(rows))]


def scrolling(table: Html, label: str, rows: int = 0) -> Html:
    """A table in a box that scrolls by itself, by keyboard too; with many rows also up and down."""
    class_ = "scroll tall" if rows > MANY else "scroll"
    return tag("div", table, class_=class_, tabindex="0", role="region", aria_label=label)


def _links(place: int, run: Run) -> Html:
    """A run's name, and where else on the page it is."""
    links = [("curves", "curves", bool(run.metrics)), ("pairs", "pairs", True), ("map", "map", True)]
    places = [tag("a", text, href=f"#{to}", data_run=place, data_to=to) for to, text, there in links if there]
    name = tag("a", run.name, href=f"#run-{place}", data_run=place) if run.recipe else tag("span", run.name)
    return join(
        tag("span", tag("i", class_="key", data_key=place), name, class_="named"), tag("span", *places, class_="places")
    )


def _state(run: Run) -> Html:
    return tag("span", tag("span", _STATES[run.state], class_=f"state {run.state}"), tag("small", run.detail or None))


def _states(runs: Sequence[Run]) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in _STATES}
    if counts["finished"] == len(runs):
        return f"{len(runs):,}, all finished" if len(runs) > 1 else "1, finished"
    return f"{len(runs):,}: " + ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)


def _number(value: float | None, digits: int, best: bool = False, before: float | None = None) -> Html:
    """A score, and below it what it was before training."""
    if value is None or not math.isfinite(value):
        return tag("td", NOT_SET, class_="number")
    text = f"{value:.{digits}f}".replace("-", "−")
    was = None if before is None else tag("small", f"before {before:.{digits}f}")
    return tag("td", tag("b", text) if best else text, was, class_="number", data_v=value)


def _kept(run: Run) -> str:
    if run.best_at is None:
        return NOT_SET
    stage, step = run.best_at["stage"], run.best_at["step"]
    return f"stage {stage}, step {step:,}" if stage else "no training"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NOT_SET
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _key(name: str) -> Html:
    """A dotted name that may break after its dots."""
    first, *others = name.split(".")
    return join(first, *(join(Html(".<wbr>"), part) for part in others))


def _machine(machine: dict[str, Any]) -> str:
    return ", ".join(str(value) if key == "device" else f"{key} {value}" for key, value in machine.items())


def _short_names(sources: object) -> str | None:
    """The name of a source, or of several that are joined."""
    if isinstance(sources, list):
        return " + ".join(filter(None, map(_short_name, sources)))
    return _short_name(sources)


def _short_name(source: object) -> str | None:
    """A file by its name; other sources as they are."""
    if not isinstance(source, str):
        return None
    return Path(source).name if "/" in source and not source.startswith("hub:") else source


def _distinct(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _listed(values: list[str], most: int = 6) -> str:
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
