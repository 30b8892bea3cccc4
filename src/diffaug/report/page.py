"""The page: its parts, style, script and data in one HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from diffaug.report import sections
from diffaug.report.grids import GridRuns
from diffaug.report.markup import Html, embedded_json, join, tag
from diffaug.report.runs import Run
from diffaug.report.settings import Comparison
from diffaug.report.tables import grid_results
from diffaug.version import __version__

ASSETS = Path(__file__).parent / "assets"
# In the order in which they are run; the last one starts everything.
_SCRIPTS = ("tools.js", "chart.js", "curves.js", "pairs.js", "map.js", "page.js")


@dataclass
class Page:
    """All that the page says.

    Attributes:
        folder: that is reported on.
        grids: the reproduced experiments in it.
        runs: all runs, those of the grids first.
        settings: theirs, compared.
        notes: on what could not be shown.
    """

    folder: Path
    grids: list[GridRuns]
    runs: list[Run]
    settings: Comparison
    notes: list[str]

    def html(self, data: dict[str, Any]) -> str:
        """The whole file."""
        style, script = _style(), _script()
        return Template((ASSETS / "page.html").read_text("utf-8")).substitute(
            # Nothing but this style and this script has any effect, and nothing is ever fetched.
            policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
            title=tag("title", f"{self.title} – diffaug report"),
            style=style,
            heading=join(tag("p", self._kicker, class_="kicker"), tag("h1", self.title)),
            facts=sections.facts(self.runs),
            problems=sections.problems(self.runs),
            scores=join(*self._scores()),
            settings=sections.settings(self.runs, self.settings),
            notes=join(*(tag("p", note, class_="note") for note in self.notes)),
            footer=tag("p", f"Made by diffaug {__version__}. Everything on this page is in this one file."),
            data=embedded_json(data),
            script=script,
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
        """What the title is the name of."""
        if self.grids:
            return "diffaug report: a reproduced experiment" if len(self.grids) == 1 else "diffaug report: experiments"
        return "diffaug report: a run" if len(self.runs) == 1 else f"diffaug report: {len(self.runs):,} runs"

    def _scores(self) -> Iterator[Html]:
        for grid in self.grids:
            if self.title != grid.title:
                yield tag("h3", grid.title)
            yield grid_results(grid.grid)
        table = sections.run_table(self.runs)
        if self.grids:
            summary = tag("summary", "All runs", tag("span", f"{len(self.runs):,}", class_="quiet"))
            yield tag("details", summary, table, open=len(self.runs) <= sections.MANY, class_="all-runs")
        else:
            yield table


def _style() -> Html:
    return Html((ASSETS / "page.css").read_text("utf-8"))


def _script() -> Html:
    parts = [(ASSETS / name).read_text("utf-8") for name in _SCRIPTS]
    return Html('"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n")


def _hash(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
