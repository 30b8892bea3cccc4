"""A grid's folder: what was asked for, its cells, and what became of each of them.

Everything is read from the files, so that a table can be made of a grid that another process is still working on. What
is in the folder is described in `diffaug.reproduce.cell`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, lock
from diffaug.reproduce.cell import Cell, Result
from diffaug.version import __version__

DEV = "STS-B dev"
"""The score that chooses a row's setting, as `Result.scores` names it."""

GRID, RESULT, SIMILARITIES, FAILURE = "grid.json", "result.json", "similarities.npz", "failure.txt"
TAKEN_OVER = "taken-over.txt"
"""In the folder of a cell that was taken over from another grid: where it ran."""
MADE = "data"
"""The folder for data that a plan had to bring into another form, in the grid's."""
SHARED = ".shared"
"""The folder for what workers share while they run."""
_LOCK = ".lock"
_FORMAT_VERSION = 1

Place = tuple[str, str]
"""A row and a column."""


class Grid:
    """The folder of a grid. Make one with `Grid.open`, or `Grid.begin` to start or continue it.

    Attributes:
        folder: where it is.
        request: what was asked for: `experiment`, `encoder`, `data`, `seeds`, `draws`, `changes`, `budget` ...
        about: what the plan says of itself: `title`, `columns_are`, `notes`.
        first: the cells of the first round: every setting, with the first seed and draw.
        more: the cells of the second: the other seeds and draws of the settings chosen so far.
    """

    def __init__(
        self,
        folder: Path,
        request: Mapping[str, Any],
        about: Mapping[str, Any],
        first: Iterable[Cell],
        more: Iterable[Cell] = (),
    ) -> None:
        self.folder = folder
        self.request = dict(request)
        self.about = dict(about)
        self.first = list(first)
        self.more = list(more)

    @classmethod
    def open(cls, folder: Path) -> Grid:
        """The grid in ``folder``.

        Raises:
            DiffaugError: there is none, or it cannot be read.
        """
        path = folder / GRID
        if not path.is_file():
            raise DiffaugError(f"{folder} holds no grid ({GRID} is missing); diffaug reproduce makes one")
        try:
            values = json.loads(path.read_text("utf-8"))
            version = values["format_version"]
            if version != _FORMAT_VERSION:
                raise DiffaugError(f"{path} has format version {version}; this diffaug reads {_FORMAT_VERSION}")
            rounds = [[_cell(cell, folder) for cell in values[name]] for name in ("first", "more")]
            return cls(folder, values["request"], values["about"], *rounds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); start the grid in another folder") from error

    @classmethod
    def begin(cls, folder: Path, request: Mapping[str, Any], about: Mapping[str, Any], first: Iterable[Cell]) -> Grid:
        """The grid in ``folder`` if it is the one asked for, or a new one there.

        Raises:
            DiffaugError: the folder holds something else, or another grid; the message says how they differ.
        """
        wanted = cls(folder, _plain(request), _plain(about), first)
        _check_names(wanted.first)
        if (folder / GRID).is_file():
            found = cls.open(folder)
            found._check_same(wanted)
            return found
        if folder.exists() and not folder.is_dir():
            raise DiffaugError(f"{folder} is a file; a grid needs a folder")
        if folder.is_dir() and any(path.name not in (_LOCK, MADE) for path in folder.iterdir()):
            raise DiffaugError(f"{folder} holds something that is no grid; choose another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiffaugError(f"{folder} cannot be written: {error.strerror or error}") from error
        with _locked(folder):
            if not (folder / GRID).is_file():
                wanted._write()
                return wanted
        return cls.begin(folder, request, about, wanted.first)  # another process was quicker: is it the same?

    @property
    def plan_info(self) -> dict[str, Any]:
        """What was asked for, and what the plan says of itself: `request` and `about` in one."""
        return {**self.request, **self.about}

    @property
    def cells(self) -> list[Cell]:
        """Every cell known so far: those of the second round join when their row's setting is chosen."""
        return [*self.first, *self.more]

    def add(self, cells: Iterable[Cell]) -> list[Cell]:
        """Take up cells of the second round; returns those that were not there yet."""
        known = {cell.name for cell in self.cells}
        new = [cell for cell in cells if cell.name not in known]
        if new:
            self.more += new
            _check_names(self.cells)
            self._write()
        return new

    def folder_of(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / "cells" / cell.name

    def result(self, cell: Cell) -> Result | None:
        """What a cell left, or None if it is not finished.

        Raises:
            DiffaugError: its file is damaged.
        """
        path = self.folder_of(cell) / RESULT
        try:
            return Result(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); remove it, and the cell is scored again") from error

    def results(self) -> list[tuple[Cell, Result]]:
        """The finished cells, of all settings; those of the `chosen` ones are the measurements."""
        found = ((cell, self.result(cell)) for cell in self.cells)
        return [(cell, result) for cell, result in found if result is not None]

    def failures(self) -> list[tuple[Cell, str]]:
        """The failed cells, and why: a sentence, then as a rule a traceback."""
        found = ((cell, self._failure(cell)) for cell in self.cells)
        return [(cell, text) for cell, text in found if text is not None]

    def source_of(self, cell: Cell) -> str | None:
        """The folder of the grid that a cell was taken over from; None: it ran in this one."""
        try:
            run = (self.folder_of(cell) / TAKEN_OVER).read_text("utf-8").strip()
        except OSError:
            return None
        return str(Path(run).parent.parent)

    def chosen(self) -> dict[Place, int]:
        """For each row and column whose settings have all been tried, the one with the best score on the dev pairs.

        Of equal ones it is the first. A setting that failed is out of the running; where all did, none is chosen.
        """
        places = dict.fromkeys((cell.row, cell.column) for cell in self.first)
        found = {place: self.best(place) for place in places}
        return {place: best.setting for place, best in found.items() if best is not None}

    def best(self, place: Place) -> Cell | None:
        """The cell of the first round that won its row and column, or None as yet: see `chosen`."""
        scores: dict[Cell, float] = {}
        for cell in self.first:
            if (cell.row, cell.column) != place:
                continue
            if (result := self.result(cell)) is not None:
                scores[cell] = result.scores[DEV]
            elif self._failure(cell) is None:
                return None
        return max(scores, key=scores.__getitem__, default=None)

    def fail(self, cell: Cell, text: str) -> None:
        """Keep why a cell failed."""
        with atomic_file(self.folder_of(cell) / FAILURE) as temporary:
            temporary.write_text(text.rstrip() + "\n", "utf-8")

    def forget_failure(self, cell: Cell) -> None:
        """A cell is tried again."""
        (self.folder_of(cell) / FAILURE).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from working in this folder until the block ends, and every worker of it too.

        Raises:
            DiffaugError: somebody does.
        """
        with _locked(self.folder) as file:
            # Others may have worked on it, or even begun another one here, since this one was read.
            found = Grid.open(self.folder)
            found._check_same(self)
            self.more = found.more
            # Exclusive to come in, shared from then on: workers hold it as well, and may outlive a killed parent.
            if not lock(file, shared=True):
                raise DiffaugError(_at_work(self.folder))
            yield

    @staticmethod
    def join_lock(folder: Path) -> IO[str]:
        """A worker's share in the lock, held until the file is closed."""
        file = (folder / _LOCK).open("a")
        lock(file, shared=True)
        return file

    def _failure(self, cell: Cell) -> str | None:
        folder = self.folder_of(cell)
        try:
            return None if (folder / RESULT).exists() else (folder / FAILURE).read_text("utf-8")
        except FileNotFoundError:
            return None

    def _check_same(self, wanted: Grid) -> None:
        changed = [
            f"{key} was {_short(self.request.get(key))}, is {_short(wanted.request.get(key))}"
            for key in dict.fromkeys([*self.request, *wanted.request])
            if self.request.get(key) != wanted.request.get(key)
        ]
        if changed:
            raise DiffaugError(
                f"{self.folder} holds another grid: {'; '.join(changed)}. Ask for the same again to continue it, or "
                "choose another folder"
            )
        here, today = set(self.first), set(wanted.first)
        if here != today:
            odd = next(cell for cell in [*wanted.first, *self.first] if (cell in here) != (cell in today))
            raise DiffaugError(
                f"{self.folder} was begun with other cells than are planned today, by this version of diffaug and with "
                f"these files (the first that differs: {odd.name}{_difference(odd, self.first, wanted.first)}); start "
                "in another folder"
            )

    def _write(self) -> None:
        values = {
            "format_version": _FORMAT_VERSION,
            "diffaug_version": __version__,
            "request": self.request,
            "about": self.about,
            "first": [asdict(cell) for cell in self.first],
            "more": [asdict(cell) for cell in self.more],
        }
        write_json(self.folder / GRID, values)


def write_result(folder: Path, result: Result) -> None:
    """Finish the cell in ``folder``: what is written last, and makes it count."""
    write_json(folder / RESULT, asdict(result))


def write_json(path: Path, values: Any) -> None:
    """Write plain values, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def _cell(values: dict[str, Any], folder: Path) -> Cell:
    return Cell(**{**values, "changes": tuple(_here(change, folder) for change in values["changes"])})


def _here(change: str, folder: Path) -> str:
    """A setting that names a file the grid has made: where that is now, however the grid was moved since."""
    key, _, value = change.partition("=")
    own = folder / MADE / Path(value).name
    return f"{key}={own}" if Path(value).parent.name == MADE and own.is_file() else change


def _difference(odd: Cell, here: Iterable[Cell], today: Iterable[Cell]) -> str:
    """How a cell differs, if it is there then and now: `, stage2.steps=600 then, stage2.steps=300 now`."""
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
            raise DiffaugError(f"two cells of this grid have the same folder, {cell.name}; rows need names that differ")
        seen.add(cell.name)


@contextmanager
def _locked(folder: Path) -> Iterator[IO[str]]:
    """Keep others from working in a folder for as long as the file that is yielded is locked."""
    with (folder / _LOCK).open("a") as file:
        if not lock(file, shared=False):
            raise DiffaugError(_at_work(folder))
        yield file


def _at_work(folder: Path) -> str:
    return f"another process is at work in {folder}; wait for it to end, or choose another folder"
