"""The report's HTML file, rendered from the Jinja template ``assets/page.html``."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import DEV
from diffaug.experiments.tables import notes as table_notes
from diffaug.experiments.tables import parts as table_parts
from diffaug.report.grids import GridRuns
from diffaug.report.runs import Run
from diffaug.report.settings import NOT_SET, SettingsTable
from diffaug.report.verdict import Verdict, judge_grid
from diffaug.version import __version__

ASSETS = Path(__file__).parent / "assets"
# Concatenated in this order; the last one starts the page.
_SCRIPTS = ("tools.js", "chart.js", "curves.js", "pairs.js", "map.js", "page.js")
_MANY = 12  # longer lists start collapsed, or scroll in their own box
_MAX_FIGURE_BYTES = 400_000  # a larger figure would make the page slow to open
_DATA_ROLES = {"nli": "labelled", "unlabelled": "unlabelled", "dev": "dev", "test": "test"}
# Descriptive scores: alignment and uniformity have no best value each on its own.
_DESCRIPTIVE = ("alignment", "uniformity")
_STATES = ("finished", "unfinished", "failed", "waiting")


@dataclass
class Page:
    """The content of the report.

    Attributes:
        folder: the folder that the report is about.
        grids: the experiment grids in it.
        runs: all runs; those of the grids come first.
        settings: the runs' settings, compared.
        notes: what could not be shown, and why.
        verdict: on the runs that belong to no grid; None if none of them is finished.
    """

    folder: Path
    grids: list[GridRuns]
    runs: list[Run]
    settings: SettingsTable
    notes: list[str]
    verdict: Verdict | None

    def html(self, data: dict[str, Any]) -> str:
        """Render the file; ``data`` is what the page's scripts read."""
        style, script = (ASSETS / "page.css").read_text("utf-8"), _script()
        grids = [_grid_context(grid) for grid in self.grids]
        verdicts = [(grid["title"], grid["verdict"]) for grid in grids] + [("Other runs", self.verdict)]
        return (
            _environment()
            .get_template("page.html")
            .render(
                # Allow this style and this script only, and no requests.
                policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
                style=style,
                script=script,
                data=_finite(data),
                title=self.title,
                kicker=self._kicker,
                facts=_facts(self.runs),
                failed=[run for run in self.runs if run.state == "failed"],
                verdicts=[(name, verdict) for name, verdict in verdicts if verdict is not None],
                grids=grids,
                table=_run_table(self.runs),
                settings=self.settings,
                started=[(place, run) for place, run in enumerate(self.runs) if run.recipe],
                notes=self.notes,
                many=_MANY,
                version=__version__,
            )
        )

    @property
    def title(self) -> str:
        if len(self.grids) == 1 and len(self.grids[0].runs) == len(self.runs):
            return self.grids[0].title
        if len(self.runs) == 1:
            return self.runs[0].name
        return self.folder.absolute().name or str(self.folder)

    @property
    def _kicker(self) -> str:
        """The line above the title: what kind of report this is."""
        if self.grids:
            return "diffaug report: a reproduced experiment" if len(self.grids) == 1 else "diffaug report: experiments"
        return "diffaug report: a run" if len(self.runs) == 1 else f"diffaug report: {len(self.runs):,} runs"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"duration": _duration, "checkpoint": _checkpoint}
    return environment


def _script() -> str:
    parts = [(ASSETS / name).read_text("utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _hash(text: str) -> str:
    """The name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _facts(runs: Sequence[Run]) -> list[tuple[str, str | list[tuple[str, str]]]]:
    """The list below the title: states of the runs, encoder, methods, data, seeds and machine."""
    recipes = [run.recipe for run in runs if run.recipe]
    encoders = _distinct(_short_name(recipe.get("model", {}).get("backbone")) for recipe in recipes)
    methods = _distinct(recipe.get("method") for recipe in recipes)
    data = [
        (role, _listed(found))
        for key, role in _DATA_ROLES.items()
        if (found := _distinct(_short_name((recipe.get("data") or {}).get(key)) for recipe in recipes))
    ]
    seeds = _distinct(recipe.get("seed") for recipe in recipes)
    machines = _distinct(_machine(run.result.machine) for run in runs if run.result is not None)
    rows: list[tuple[str, str | list[tuple[str, str]]]] = [
        ("Runs", _states(runs)),
        ("Encoder", _listed(encoders)),
        ("Methods" if len(methods) > 1 else "Method", _listed(methods)),
        ("Data", data),
        ("Seeds" if len(seeds) > 1 else "Seed", _listed(seeds, 12)),
        ("Machine", "; ".join(machines)),
    ]
    return [(name, value) for name, value in rows if value]


def _run_table(runs: Sequence[Run]) -> dict[str, Any]:
    """The table of all runs: their states and scores, with the best value of each score marked.

    The scores of the models before training have rows of their own at the top.
    """
    names = sorted(dict.fromkeys(name for run in runs for name in run.scores), key=lambda name: name in _DESCRIPTIVE)
    best = {}
    for name in names:
        values = [value for run in runs if math.isfinite(value := run.scores.get(name, math.nan))]
        if name not in _DESCRIPTIVE and len(values) > 1:  # one entry alone is not the best of anything
            best[name] = max(values)
    # If all runs are finished, the line below the title says so, and the column is left out. So are empty columns.
    with_state = any(run.state != "finished" for run in runs)
    with_best = any(run.best_at is not None for run in runs)
    with_time = any(run.seconds is not None for run in runs)
    head = [
        ("Run", "text", ""),
        *([("State", "text", "")] if with_state else []),
        *((name, "number", "") for name in names),
        *([("Best at", "text", "stage and step of the best checkpoint")] if with_best else []),
        *([("Time", "number", "training time")] if with_time else []),
    ]
    return {
        "head": [{"name": name, "kind": kind, "about": about} for name, kind, about in head],
        "before": [
            (name, [_score(before.get(score), None, score) for score in names])
            for name, before in _before(runs)
            if before.keys() & set(names)
        ],
        "rows": [(run, [_run_score(run, name, best.get(name)) for name in names]) for run in runs],
        "with_state": with_state,
        "with_best": with_best,
        "with_time": with_time,
        "tall": len(runs) > _MANY,
    }


def _before(runs: Sequence[Run]) -> list[tuple[str, dict[str, float]]]:
    """The distinct scores before training, with a name; runs differ in them if backbone or data differ."""
    found: dict[tuple[tuple[str, float], ...], str | None] = {}
    for run in runs:
        if run.before:
            found.setdefault(tuple(run.before.items()), _short_name((run.recipe.get("model") or {}).get("backbone")))
    several = len(set(found.values())) > 1
    return [
        (f"Before training{f' ({name})' if several and name else ''}", dict(scores)) for scores, name in found.items()
    ]


def _run_score(run: Run, name: str, best: float | None) -> dict[str, Any]:
    if run.state == "unfinished" and name in ("dev", DEV) and name not in run.scores:
        cell = _score(run.dev_so_far, None, name)
        return {**cell, "below": "so far"} if cell["value"] is not None else cell
    return {
        **_score(run.scores.get(name), run.before.get(name), name),
        "best": best is not None and run.scores.get(name) == best,
    }


def _score(value: float | None, before: float | None, name: str) -> dict[str, Any]:
    """A cell of the run table: the score, and its change in training below it."""
    digits = 3 if name in _DESCRIPTIVE else 2
    if value is None or not math.isfinite(value):
        return {"value": None, "text": NOT_SET, "best": False, "below": None}
    change = None if before is None or not math.isfinite(before) else value - before
    return {
        "value": value,
        "text": f"{value:.{digits}f}".replace("-", "−"),
        "best": False,
        "below": None if change is None else f"{change:+.{digits}f}".replace("-", "−"),
    }


def _grid_context(grid: GridRuns) -> dict[str, Any]:
    """The tables and figures of a grid, as `diffaug reproduce` writes them; or why there are no tables yet."""
    from diffaug.experiments.summary import summarise

    context: dict[str, Any] = {"title": grid.title, "figures": _figures(grid.grid), "parts": [], "notes": []}
    try:
        summary = summarise(grid.grid)
        tables = {"parts": list(table_parts(summary)), "notes": list(table_notes(summary))}
        return {**context, **tables, "verdict": judge_grid(summary, grid.runs), "missing": None}
    except DiffaugError as error:
        return {**context, "verdict": None, "missing": str(error)}


def _figures(grid: Grid) -> list[dict[str, str]]:
    return [
        {
            "name": path.stem.replace("-", " "),
            "source": "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode(),
        }
        for path in sorted((grid.folder / "figures").glob("*.svg"))
        if path.stat().st_size <= _MAX_FIGURE_BYTES
    ]


def _states(runs: Sequence[Run]) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in _STATES}
    if counts["finished"] == len(runs):
        return f"{len(runs):,}, all finished" if len(runs) > 1 else "1, finished"
    return f"{len(runs):,}: " + ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)


def _checkpoint(best_at: dict[str, int] | None) -> str:
    if best_at is None:
        return NOT_SET
    return f"stage {best_at['stage']}, step {best_at['step']:,}" if best_at["stage"] else "no training"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NOT_SET
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _machine(machine: dict[str, Any]) -> str:
    return ", ".join(str(value) if key == "device" else f"{key} {value}" for key, value in machine.items())


def _short_name(source: object) -> str | None:
    """A file without its folder; other sources unchanged; several sources joined."""
    if isinstance(source, list):
        return " + ".join(filter(None, map(_short_name, source)))
    if not isinstance(source, str):
        return None
    return Path(source).name if "/" in source and not source.startswith("hub:") else source


def _distinct(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _listed(values: list[str], most: int = 6) -> str:
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


def _finite(values: Any) -> Any:
    """Values that JSON can represent: NaN and infinity become null, keys become strings."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, dict):
        return {str(key): _finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return values
