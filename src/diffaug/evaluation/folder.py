"""Finding the files of the tasks in a folder, and reading them without guessing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffaug.data.lines import read_lines
from diffaug.data.public.download import checksum
from diffaug.errors import DiffaugError
from diffaug.evaluation.protocol import CHECKSUMS

# SentEval/data/downstream/STS/STS12-en-test/ is the deepest known layout when its parent is named.
_DEPTH = 6


Folders = Path | Sequence[Path]
"""A folder with data, or several that are searched in their order."""


def folder_list(folders: Folders) -> list[Path]:
    """One folder or several, as a list."""
    return [folders] if isinstance(folders, Path) else list(folders)


@dataclass
class DataFolder:
    """One or more folders with evaluation data, in whichever layout, and a record of every file read from them.

    Attributes:
        roots: where to look; a file that lies in several is taken from the first.
        files: for each file read, its SHA-256.
        warnings: files with the right rows but another checksum than the published ones.
    """

    roots: Sequence[Path]
    files: dict[Path, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Path by name, nearest first: a task's files lie in few folders, but at different depths.
        self._by_name: dict[str, list[Path]] = {}
        for root in self.roots:
            if not root.is_dir():
                raise DiffaugError(f"there is no folder {root} with evaluation data")
            found = []
            for folder, inside, names in os.walk(root):
                depth = len(Path(folder).relative_to(root).parts)
                inside[:] = sorted(name for name in inside if depth < _DEPTH and not name.startswith("."))
                found += [(depth, folder, name) for name in names]
            for _, folder, name in sorted(found):
                self._by_name.setdefault(name, []).append(Path(folder, name))

    def find(self, name: str, folders: Sequence[str] = ()) -> Path | None:
        """The file of that name, if ``folders`` are given in a folder of one of those names."""
        for path in self._by_name.get(name, ()):
            if not folders or path.parent.name in folders:
                return path
        return None

    def lines(self, path: Path, encoding: str = "utf-8") -> list[str]:
        """The lines of a file, whose checksum is recorded."""
        lines = [text for _, text in read_lines(path, encoding=encoding)]
        if path not in self.files:
            self.files[path] = found = checksum(path)
            known = CHECKSUMS.get(path.name)
            if known is not None and known != found:
                self.warnings.append(
                    f"{path} is not the published file (SHA-256 {found[:12]}... instead of {known[:12]}...), "
                    "though its rows are of the right number; its scores may not compare"
                )
        return lines


def check_rows(where: str, found: int, expected: int, task: str) -> None:
    """Raise unless a file holds what it must: a cut file gives wonderful scores (20 rows of SUBJ gave 99.65)."""
    if found != expected:
        raise DiffaugError(
            f"{where} holds {found:,} rows, but {task} has {expected:,}: the file is incomplete or another edition; "
            "fetch it again (diffaug data get) and do not score this one"
        )


def one_spaced(text: str) -> str:
    """Text as SentEval hands it to a model: its words with one space between, none around."""
    return " ".join(text.split())
