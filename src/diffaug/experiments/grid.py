"""The folder of a grid.

It contains `grid.json` (what was asked for, and the cells), `cells/NAME/` (the run folder of each cell, with
`result.json` and `similarities.npz` when it is finished, or `failure.txt`), `tables/`, `figures/`, `data/` (converted
files), `workers.log`, and `.resamples.npz` (a cache of bootstrap samples, which may be deleted at any time). Everything
is read from these files, so that tables can be made while another process runs the grid.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.experiments.results import DEV, Cell, Place, Result
from diffaug.files import exclusive_lock, write_text
from diffaug.version import __version__

GRID, RESULT, SIMILARITIES, FAILURE = "grid.json", "result.json", "similarities.npz", "failure.txt"
METRICS = "metrics.jsonl"
TAKEN_OVER = "taken-over.txt"
"""In the folder of a cell that was copied from another grid: the folder it was copied from."""
MADE = "data"
"""Subfolder with converted data files."""
SHARED = ".shared"
"""Subfolder that workers share while they run."""
_LOCK, _WORKER_LOCK = ".lock", ".worker-{}.lock"
_FORMAT_VERSION = 1


@dataclass(eq=False)
class Grid:
    """The folder of a grid. Use `Grid.open`, or `Grid.begin` to start or continue one.

    Attributes:
        folder: its path.
        request: what was asked for: `experiment`, `encoder`, `data`, `seeds`, `draws`, `changes`, `budget` ...
        about: `title`, `columns_are` and `notes` of the plan, and `spec` where it is not an experiment of the paper.
        first: the cells of the first round: every setting, with the first seed and draw.
        more: the cells of the second round: other seeds and draws of the settings that were chosen.
    """

    folder: Path
    request: dict[str, Any]
    about: dict[str, Any]
    first: list[Cell]
    more: list[Cell] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path) -> Grid:
        """The grid in ``folder``.

        Raises:
            DiffaugError: there is none, or it cannot be read.
        """
        path = folder / GRID
        if not path.is_file():
            raise DiffaugError(f"{folder} holds no grid ({GRID} is missing); diffaug reproduce or grid makes one")
        try:
            values = json.loads(path.read_text("utf-8"))
            version = values["format_version"]
            if version != _FORMAT_VERSION:
                raise DiffaugError(f"{path} has format version {version}; this diffaug reads {_FORMAT_VERSION}")
            rounds = [[_cell(cell, folder) for cell in values[name]] for name in ("first", "more")]
            return cls(folder, values["request"], values["about"], *rounds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); start the grid in another folder") from error

    @classmethod
    def begin(
        cls,
        folder: Path,
        request: Mapping[str, Any],
        about: Mapping[str, Any],
        first: Iterable[Cell],
        *,
        write: bool = True,
    ) -> Grid:
        """The grid in ``folder`` if it is the one asked for, or a new one.

        Rows that the grid does not have yet are added to it; rows that are not asked for stay. With ``write=False``
        nothing is written.

        Raises:
            DiffaugError: the folder contains other files, or another grid; the message says how they differ.
        """
        wanted = cls(folder, _plain(request), _plain(about), list(first))
        _check_names(wanted.first)
        if (folder / GRID).is_file():
            found = cls.open(folder)
            found._check_same(wanted)
            rows = {cell.row for cell in found.first}
            new = [cell for cell in wanted.first if cell.row not in rows]
            found.first += new
            if new and write:
                with _locked(folder):
                    found._write()
            return found
        if not write:
            return wanted
        if folder.exists() and not folder.is_dir():
            raise DiffaugError(f"{folder} is a file; a grid needs a folder")
        if folder.is_dir() and any(path.name not in (_LOCK, MADE) for path in folder.iterdir()):
            raise DiffaugError(f"{folder} is not empty and holds no grid; choose another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiffaugError(f"{folder} cannot be written: {error.strerror or error}") from error
        with _locked(folder):
            if not (folder / GRID).is_file():
                wanted._write()
                return wanted
        return cls.begin(folder, request, about, wanted.first)  # another process was faster; compare with its grid

    @property
    def plan_info(self) -> dict[str, Any]:
        """`request` and `about` in one."""
        return {**self.request, **self.about}

    @property
    def cells(self) -> list[Cell]:
        """All cells known so far; those of the second round are added when a setting is chosen."""
        return [*self.first, *self.more]

    def add(self, cells: Iterable[Cell]) -> list[Cell]:
        """Add cells of the second round; returns the new ones."""
        known = {cell.name for cell in self.cells}
        new = [cell for cell in cells if cell.name not in known]
        if new:
            self.more += new
            _check_names(self.cells)
            self._write()
        return new

    def add_note(self, note: str) -> None:
        """Add a sentence, without its full stop, to those below the tables."""
        notes = self.about.setdefault("notes", [])
        if note not in notes:
            notes.append(note)
            self._write()

    def folder_of(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.folder / "cells" / cell.name

    def result(self, cell: Cell) -> Result | None:
        """The result of a cell, or None if it is not finished.

        Raises:
            DiffaugError: its file is damaged.
        """
        path = self.folder_of(cell) / RESULT
        try:
            result = Result.from_dict(json.loads(path.read_text("utf-8")))
            if DEV not in result.scores:
                raise ValueError(f"the score of {DEV} is missing")
            return result
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); remove it, and the cell is scored again") from error

    def results(self) -> list[tuple[Cell, Result]]:
        """The finished cells, of all settings."""
        found = ((cell, self.result(cell)) for cell in self.cells)
        return [(cell, result) for cell, result in found if result is not None]

    def failures(self) -> list[tuple[Cell, str]]:
        """The failed cells with their errors: a sentence, then usually a traceback."""
        found = ((cell, self._failure(cell)) for cell in self.cells)
        return [(cell, text) for cell, text in found if text is not None]

    def source_of(self, cell: Cell) -> str | None:
        """The folder of the grid that a cell was copied from; None: it ran in this one."""
        try:
            run = (self.folder_of(cell) / TAKEN_OVER).read_text("utf-8").strip()
        except OSError:
            return None
        return str(Path(run).parent.parent)

    def chosen(self) -> dict[Place, int]:
        """For each row and column whose settings have all run, the setting with the best score on the dev pairs.

        Of equal ones the first is chosen. A failed setting is ignored; where all failed, none is chosen.
        """
        places = dict.fromkeys(cell.place for cell in self.first)
        found = {place: self.best(place) for place in places}
        return {place: best.setting for place, best in found.items() if best is not None}

    def best(self, place: Place) -> Cell | None:
        """The cell of the first round with the chosen setting, or None: see `chosen`."""
        scores: dict[Cell, float] = {}
        for cell in self.first:
            if cell.place != place:
                continue
            if (result := self.result(cell)) is not None:
                scores[cell] = result.scores[DEV]
            elif self._failure(cell) is None:
                return None
        return max(scores, key=scores.__getitem__, default=None)

    def fail(self, cell: Cell, text: str) -> None:
        """Record why a cell failed."""
        write_text(self.folder_of(cell) / FAILURE, text.rstrip() + "\n")

    def forget_failure(self, cell: Cell) -> None:
        """Remove the record of a failure, to try the cell again."""
        (self.folder_of(cell) / FAILURE).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process and its workers.

        Raises:
            DiffaugError: another process has locked it.
        """
        with _locked(self.folder):
            # Workers have their own locks, and may outlive a killed parent.
            for path in self.folder.glob(_WORKER_LOCK.format("*")):
                with exclusive_lock(path, _in_use(self.folder)):
                    pass
            # Another process may have continued the grid, or replaced it, since it was read.
            found = Grid.open(self.folder)
            found._check_same(self)
            self.about, self.first, self.more = found.about, found.first, found.more
            yield

    @staticmethod
    def worker_lock(folder: Path) -> AbstractContextManager[None]:
        """Lock the folder for a worker: no other process can lock it while the worker runs."""
        name = f"{platform.node()}-{os.getpid()}"  # workers may be on several machines
        return exclusive_lock(folder / _WORKER_LOCK.format(name), _in_use(folder))

    def _failure(self, cell: Cell) -> str | None:
        folder = self.folder_of(cell)
        try:
            return None if (folder / RESULT).exists() else (folder / FAILURE).read_text("utf-8")
        except FileNotFoundError:
            return None

    def _check_same(self, wanted: Grid) -> None:
        ours, theirs = _compared(self.request), _compared(wanted.request)
        changed = [
            f"{key} was {_short(ours.get(key))}, is {_short(theirs.get(key))}"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key) != theirs.get(key)
        ]
        if changed:
            raise DiffaugError(
                f"{self.folder} holds another grid: {'; '.join(changed)}. Repeat the first command to continue it, or "
                "choose another folder"
            )
        rows = {cell.row for cell in self.first} & {cell.row for cell in wanted.first}
        here, today = ({cell for cell in cells if cell.row in rows} for cells in (self.first, wanted.first))
        if here != today:
            odd = next(cell for cell in [*wanted.first, *self.first] if cell in here ^ today)
            raise DiffaugError(
                f"{self.folder} was started with other cells than this version of diffaug plans with these files "
                f"(the first that differs: {odd.name}{_difference(odd, self.first, wanted.first)}); use another folder"
            )

    def _write(self) -> None:
        values = {
            "format_version": _FORMAT_VERSION,
            "diffaug_version": __version__,
            "request": self.request,
            "about": self.about,
            "first": [cell.to_dict() for cell in self.first],
            "more": [cell.to_dict() for cell in self.more],
        }
        write_json(self.folder / GRID, values)


def write_result(folder: Path, result: Result) -> None:
    """Finish the cell in ``folder``: the file that is written last."""
    write_json(folder / RESULT, result.to_dict())


def write_json(path: Path, values: Any) -> None:
    """Write plain values atomically."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_metrics(run: Path, *, unfinished: bool = False) -> Iterator[dict[str, Any]]:
    """The lines of `metrics.jsonl` of a run, if there is one; while a run continues, the last may be incomplete.

    Raises:
        DiffaugError: a line is damaged.
    """
    path = run / METRICS
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            yield {**values, "stage": int(values["stage"]), "step": int(values["step"])}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if number < len(lines) or not unfinished:
                raise DiffaugError(
                    f"{path}, line {number}: not a JSON object with stage and step: {line[:80]!r}"
                ) from error


def _cell(values: dict[str, Any], folder: Path) -> Cell:
    cell = Cell(**{**values, "changes": tuple(_here(change, folder) for change in values["changes"])})
    if not all(isinstance(text, str) for text in (cell.row, cell.column, cell.recipe, cell.group)):
        raise TypeError("a cell has no valid row, column or recipe")
    return cell


def _here(change: str, folder: Path) -> str:
    """A change that names a converted file of the grid: its path now, in case the grid was moved."""
    key, _, value = change.partition("=")
    own = folder / MADE / Path(value).name
    return f"{key}={own}" if Path(value).parent.name == MADE and own.is_file() else change


def _compared(request: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal to continue a grid. The settings of its budget are compared with its cells."""
    budget = request.get("budget")
    return {**request, "budget": budget.get("name")} if isinstance(budget, Mapping) else dict(request)


def _difference(odd: Cell, here: Iterable[Cell], today: Iterable[Cell]) -> str:
    """How a cell that is in both differs: `, stage2.steps=600 then, stage2.steps=300 now`."""
    then, now = ([cell for cell in cells if cell.name == odd.name] for cells in (here, today))
    if not then or not now:
        return ""
    one, other = (set(cell.changes) for cell in (then[0], now[0]))
    sides = [(sorted(one - other), "then"), (sorted(other - one), "now")]
    return "".join(f", {' '.join(changes)} {when}" for changes, when in sides if changes)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they will be when they are read again: tuples as lists, keys as text."""
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _check_names(cells: list[Cell]) -> None:
    seen: set[str] = set()
    for cell in cells:
        if cell.name in seen:
            raise DiffaugError(f"two cells of this grid have the same folder, {cell.name}; give rows different names")
        seen.add(cell.name)


def _locked(folder: Path) -> AbstractContextManager[None]:
    return exclusive_lock(folder / _LOCK, _in_use(folder))


def _in_use(folder: Path) -> str:
    return f"another process is working in {folder}; wait for it to end, or choose another folder"
