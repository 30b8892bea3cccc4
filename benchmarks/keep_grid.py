"""Publish a finished grid: its results as one JSON file in results/, its figure, and the tables of pages made of them.

    diffaug reproduce main --encoder small --data d --budget small --out grids/main
    python benchmarks/keep_grid.py grids/main --name small --figures --docs

The file is `results/reproduce-EXPERIMENT-NAME.json`. Encoder, data and other grids are in it by their bare names; as
long as a path of this machine is left anywhere, nothing is written. Neither is a grid with gaps, unless --incomplete
says so: then the file and every table made of it say so too.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import RESULTS, short_lines
from kept_grids import incomplete, pack, unpack
from page_tables import ROOT, refresh

from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.reproduce.grid import Grid
from diffaug.reproduce.summary import summarise

ASSETS = ROOT / "docs" / "assets"

# How a path of some machine begins, at the beginning of a word: `/home`, `~/x`, `C:\\x`, `file:/`. What has a slash
# further inside is a hub name, a relative path or an address.
_MACHINE_PATH = re.compile(r"""(?:^|(?<=[\s=:,;'"(\[<>]))(?:/[^\s/]|~[\w.-]*/|[A-Za-z]:[\\/]|file:/)""")


def keep(folder: Path, name: str | None = None, *, gaps: bool = False, results: Path = RESULTS) -> Path:
    """Write down what a grid found; returns the file.

    Args:
        folder: of the grid, which is read as `diffaug reproduce` reads it to make its tables.
        name: tells grids of one experiment apart; left out, the encoder's.
        gaps: a grid that is not complete may be kept too.
        results: where the file goes.

    Raises:
        DiffaugError: there is no grid, it is not complete, or a path of this machine would be published.
    """
    grid = Grid.open(folder)
    summary = summarise(grid)
    lacking = incomplete(summary)
    if lacking and not gaps:
        raise DiffaugError(
            f"{folder} is not complete. {'. '.join(lacking)}. Go on with the command that began it, or keep it as it "
            "is with --incomplete"
        )
    values = without_paths(pack(grid, summary), _known_paths(grid, [*summary.taken_over]))
    for place, text in machine_paths(values):
        raise DiffaugError(f"{folder}: {place} would publish a path of this machine, in {text!r}; nothing was written")
    unpack(values)  # a file that cannot be read again is none
    target = results / f"reproduce-{summary.experiment}-{bare_name(name or values['encoder'])}.json"
    with atomic_file(target) as temporary:
        temporary.write_text(short_lines(values) + "\n", "utf-8")
    return target


def keep_figure(folder: Path, name: str, assets: Path = ASSETS) -> Path:
    """Draw the grid's figure, from the results as they are now, and put it among those of the pages as ``name``.png.

    Raises:
        DiffaugError: it cannot be drawn, or would show a path of this machine.
    """
    from diffaug.reproduce.figures import draw

    grid = Grid.open(folder)
    with tempfile.TemporaryDirectory() as made:
        files = {path.suffix: path for path in draw(grid, Path(made))}
        # The two show the same; the one that can be read is looked at.
        for _, text in machine_paths(re.findall(r">([^<>]+)<", files[".svg"].read_text("utf-8"))):
            raise DiffaugError(f"{folder}: the figure would publish a path of this machine, in {text!r}")
        target = assets / f"{name}.png"
        with atomic_file(target) as temporary:
            temporary.write_bytes(files[".png"].read_bytes())
    return target


def bare_name(path: str) -> str:
    """The last part of a path or hub name, as a part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", Path(path).name.lower()).strip("-") or "grid"


def without_paths(values: Any, known: dict[str, str]) -> Any:
    """Plain values in which paths that are ``known`` have become the names that stand for them."""
    if isinstance(values, dict):
        return {without_paths(key, known): without_paths(value, known) for key, value in values.items()}
    if isinstance(values, list):
        return [without_paths(value, known) for value in values]
    if not isinstance(values, str):
        return values
    for path in sorted(known, key=len, reverse=True):  # what lies in a folder goes before the folder
        # Not within a longer path or word, whose name would be another.
        values = known[path].join(re.split(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])", values))
    return values


def machine_paths(values: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Texts that hold a path of a machine, each with where it stands: `entries.3.changes.0`."""
    if isinstance(values, str):
        if _MACHINE_PATH.search(values):
            yield place, values
        return
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        where = f"{place}.{key}" if place else str(key)
        yield from machine_paths(str(key), where)
        yield from machine_paths(value, where)


def _known_paths(grid: Grid, sources: list[str]) -> dict[str, str]:
    """Every path that the grid was asked for or made, with its bare name. A hub name is no path."""
    request = grid.request
    named = [request.get("encoder"), request.get("generator"), *(request.get("data") or {}).values()]
    named += [change.partition("=")[2].strip('"') for cell in grid.cells for change in cell.changes]
    named += [str(grid.folder), str(grid.folder.resolve()), *sources]
    paths = {text: Path(text) for text in named if isinstance(text, str) and re.search(r"[\\/]", text)}
    return {text: path.name for text, path in paths.items() if path.is_absolute() or path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path, help="the folder of a grid that diffaug reproduce has finished")
    parser.add_argument("--name", help="what tells it from other grids of the experiment; left out, the encoder's name")
    parser.add_argument("--incomplete", action="store_true", help="keep it though runs failed or are missing")
    parser.add_argument("--figures", action="store_true", help="put its figure into docs/assets")
    parser.add_argument("--docs", action="store_true", help="write the tables of all pages anew")
    options = parser.parse_args()
    try:
        file = keep(options.grid, options.name, gaps=options.incomplete)
        written = [file]
        written += [keep_figure(options.grid, file.stem)] if options.figures else []
        written += refresh() if options.docs else []
    except DiffaugError as error:
        sys.exit(str(error))
    for path in written:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
