"""Publish finished grids: the results of each as a JSON file in results/, the figure, and the tables of pages.

    diffaug reproduce main --encoder small --data d --budget small --out grids/main
    python benchmarks/keep_grid.py grids/main --name small --figures --docs

Several grids are published together, or none of them. A file is `results/reproduce-EXPERIMENT-NAME.json`. Encoder, data
and other grids are in it by their bare names; as long as a path of this machine is left anywhere, nothing is written.
Neither is a grid with gaps, unless --incomplete says so: then the file and every table made of it say so too.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import short_lines
from kept_grids import incomplete, pack, unpack
from page_tables import ROOT, refresh

from diffaug.config import source_list
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.reproduce.grid import Grid
from diffaug.reproduce.summary import summarise

# How a path of some machine begins, at the beginning of a word: `/home`, `~/x`, `C:\\x`, `file:/`. What has a slash
# further inside is a hub name, a relative path or an address.
_MACHINE_PATH = re.compile(r"""(?:^|(?<=[\s=:,;'"(\[<>]))(?:/[^\s/]|~[\w.-]*/|[A-Za-z]:[\\/]|file:/)""")


def publish(
    folders: Sequence[Path],
    name: str | None = None,
    *,
    about: str = "",
    gaps: bool = False,
    figures: bool = False,
    docs: bool = False,
    root: Path = ROOT,
) -> list[Path]:
    """Keep grids, all of them or none; returns what was written.

    Args:
        folders: of the grids.
        name: tells grids of one experiment apart; left out, the encoder's.
        about: what the grids cannot know: what the encoder is, and what the files hold.
        gaps: they need not be complete.
        figures: draw theirs for the pages.
        docs: write the tables of the pages anew.
        root: the repository.

    Raises:
        DiffaugError: see `checked`; two grids would be one file; a figure or table cannot be made.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        values = checked(folder, about, gaps=gaps)
        stem = f"reproduce-{values['experiment']}-{bare_name(name or values['encoder'])}"
        if stem in found:
            raise DiffaugError(f"{found[stem][0]} and {folder} would both be {stem}; keep them with different --name")
        found[stem] = folder, values
    written = []
    for stem, (folder, values) in found.items():
        written.append(keep(values, root / "benchmarks" / "results" / f"{stem}.json"))
        if figures:
            written.append(keep_figure(folder, root / "docs" / "assets" / f"{stem}.png"))
    return written + (refresh(root) if docs else [])


def checked(folder: Path, about: str = "", *, gaps: bool = False) -> dict[str, Any]:
    """What a grid found, as it may be published.

    Args:
        folder: of the grid, which is read as `diffaug reproduce` reads it to make its tables.
        about: what it cannot know.
        gaps: it need not be complete.

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
    packed = {"about": about, **pack(grid, summary)}
    values: dict[str, Any] = without_paths(packed, _known_paths(grid, [*summary.taken_over]))
    for place, text in machine_paths(values):
        raise DiffaugError(f"{folder}: {place} would publish a path of this machine, in {text!r}; nothing was written")
    unpack(values)  # a file that cannot be read again is none
    return values


def keep(values: dict[str, Any], target: Path) -> Path:
    """Write what `checked` gave; returns the file."""
    with atomic_file(target) as temporary:
        temporary.write_text(short_lines(values) + "\n", "utf-8")
    return target


def keep_figure(folder: Path, target: Path) -> Path:
    """Draw the grid's figure, from the results as they are now, for a page; returns the file.

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
    files = (source_list(value) for value in (request.get("data") or {}).values())
    named = [request.get("encoder"), request.get("generator"), *(file for several in files for file in several)]
    named += [change.partition("=")[2].strip('"') for cell in grid.cells for change in cell.changes]
    named += [str(grid.folder), str(grid.folder.resolve()), *sources]
    paths = {text: Path(text) for text in named if isinstance(text, str) and re.search(r"[\\/]", text)}
    return {text: path.name for text, path in paths.items() if path.is_absolute() or path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=Path, nargs="+", metavar="GRID", help="a folder that diffaug reproduce finished")
    parser.add_argument("--name", help="tells grids of one experiment apart; left out, the encoder's")
    parser.add_argument("--about", default="", help="what the grids cannot know: what encoder and files are")
    parser.add_argument("--incomplete", action="store_true", help="also if runs failed or are missing")
    parser.add_argument("--figures", action="store_true", help="draw the figures, into docs/assets")
    parser.add_argument("--docs", action="store_true", help="write the tables of all pages anew")
    options = parser.parse_args()
    try:
        written = publish(
            options.grids,
            options.name,
            about=options.about,
            gaps=options.incomplete,
            figures=options.figures,
            docs=options.docs,
        )
    except DiffaugError as error:
        sys.exit(str(error))
    for path in written:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
