"""The style of all figures: palette, a colour and marker per family of methods, labels beside panels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator

from diffaug.files import atomic_file

# Inches. At this width, ten points are readable on a page (about 700 pixels wide) and on a phone (360).
WIDTH = 5.6
_DPI = 200
_NOTE_CHARACTERS, _LABEL_CHARACTERS = 92, 13
_LINE_POINTS = 11.5  # height of a line of a label

INK, FAINT, LINE = "#222222", "#666666", "#dddddd"  # as in figures.mplstyle
_STYLE = Path(__file__).with_name("figures.mplstyle")
# Behind text that may cover a grid line.
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}

# The marker of a point that was measured, not asked for.
RING: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1.5}


class Look(NamedTuple):
    """Colour and marker of a family of methods."""

    colour: str
    marker: str

    @property
    def text(self) -> str:
        """The colour, darker, for small text on white."""
        return shade(self.colour, 0.8)

    def size(self, of: float = 6.0) -> float:
        """Size of the marker in points; crosses are enlarged to look as large as the others."""
        return of * 1.35 if self.marker in "PX" else of


# The palette of Okabe and Ito, safe for common kinds of colour blindness; the last colours are darker than theirs,
# which are too light for thin lines on white.
_FAMILIES = {
    "diffaug": Look("#d55e00", "o"),
    "promptbert": Look("#009e73", "s"),
    "simcse": Look("#0072b2", "^"),
    "diffcse": Look("#56b4e9", "v"),
    "consert": Look("#cc79a7", "D"),
    "sbert": Look("#c98a00", "P"),
    "flow": Look("#7a5c2e", "X"),
    "untrained": Look("#808080", "h"),
}


def look_of(recipe: str) -> Look:
    """The look of the family of a recipe."""
    if "flow" in recipe:
        return _FAMILIES["flow"]
    return next((look for name, look in _FAMILIES.items() if recipe.startswith(name)), Look("#404040", "p"))


def shade(colour: str, factor: float) -> str:
    """A colour made darker, by a factor below 1."""
    return "#" + "".join(f"{round(255 * part * factor):02x}" for part in to_rgb(colour))


@contextmanager
def styled() -> Iterator[None]:
    """Use this style within the block, independent of the user's matplotlib settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        yield


def stacked(heights: Sequence[float], *, sharex: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with panels one below the other, with these heights in inches."""
    figure = Figure(figsize=(WIDTH, sum(heights)))
    axes = figure.subplots(len(heights), 1, sharex=sharex, squeeze=False, height_ratios=list(heights))
    return figure, list(axes[:, 0])


def add_heading(figure: Figure, text: str) -> None:
    """A heading above all panels."""
    figure.suptitle(text, x=0.015, ha="left", fontsize=9, color=FAINT)


def add_notes(figure: Figure, *notes: str | None) -> None:
    """Notes in small print below a figure; None is skipped."""
    text = ". ".join(note.rstrip(".") for note in notes if note)
    if text:
        lines = textwrap.wrap(text + ".", _NOTE_CHARACTERS, break_on_hyphens=False)
        figure.supxlabel("\n".join(lines), x=0.015, ha="left", fontsize=7.8, color=FAINT, linespacing=1.4)


def even_ticks(axis: Axis) -> None:
    """A few ticks at round numbers."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))


def label(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any) -> Annotation:
    """Text beside a point, with an offset in points."""
    options = {"fontsize": 9, **options}
    return axes.annotate(text, at, xytext=offset, textcoords="offset points", **options)


def beside_panel(axes: Axes, y: float, text: str, colour: str) -> Annotation:
    """A label at the right edge of a panel, on several short lines."""
    options = {"va": "center", "color": colour, "linespacing": 1.05, "annotation_clip": False}
    at = ("axes fraction", "data")
    return label(axes, broken(text, _LABEL_CHARACTERS), (1.0, y), (3, 0), xycoords=at, **options)


def broken(text: str, width: int) -> str:
    """A label on several lines if it is longer than a width, broken first behind its comma."""
    if len(text) <= width:
        return text
    method, comma, rest = text.partition(", ")
    return "\n".join([method + ",", *textwrap.wrap(rest, width)]) if comma else textwrap.fill(text, width)


def mark_step(axes: Axes, x: float, text: str | None, *, top: bool) -> None:
    """A vertical dotted line with a label at its top or bottom, on the side with more room."""
    axes.axvline(x, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    low, high = axes.get_xlim()
    late = x > low + 0.6 * (high - low)
    if text:
        side = {"ha": "right" if late else "left", "va": "top" if top else "bottom"}
        at, offset = ("data", "axes fraction"), (-6 if late else 6, -3 if top else 4)
        label(axes, text, (x, float(top)), offset, xycoords=at, bbox=BACKGROUND, **side)


def keep_apart(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Move the labels beside a panel until they do not overlap."""
    figure.draw_without_rendering()  # computes the positions
    scale = 72 / figure.dpi  # pixels to points
    ordered = sorted(labels, key=_height)
    wanted = [_height(text) * scale for text in ordered]
    lines = [text.get_text().count("\n") + 1 for text in ordered]
    places = list(wanted)
    # Two labels that are too close both move by half; this converges within a few rounds.
    for _ in range(50):
        for lower in range(len(places) - 1):
            room = _LINE_POINTS * (lines[lower] + lines[lower + 1]) / 2 + (lines[lower] + lines[lower + 1] > 2)
            short = room - (places[lower + 1] - places[lower])
            if short > 1e-3:
                places[lower] -= short / 2
                places[lower + 1] += short / 2
    for text, place, origin in zip(ordered, places, wanted, strict=True):
        text.set_position((text.get_position()[0], place - origin))


def _height(text: Annotation) -> float:
    """Height of the point it belongs to, in pixels."""
    axes = text.axes
    assert axes is not None
    return float(axes.transData.transform((1.0, text.xy[1]))[1])


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG, without dates and versions, so that the same results give the same files."""
    files = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        path = stem.with_name(stem.name + suffix)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, dpi=_DPI, metadata=metadata)
        files.append(path)
    return files
