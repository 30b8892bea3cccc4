"""Find and read the files of evaluation tasks in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffaug.data.lines import read_lines
from diffaug.data.public.store import recorded_checksum
from diffaug.errors import DiffaugError
from diffaug.evaluation.protocol import CHECKSUMS
from diffaug.provenance import record_reads

# The deepest known layout, if the parent of SentEval is given: SentEval/data/downstream/STS/STS12-en-test/.
_DEPTH = 6


Folders = Path | Sequence[Path]
"""A folder with data, or several, which are searched in order."""


def folder_list(folders: Folders) -> list[Path]:
    """Return a list for one folder or several."""
    return [folders] if isinstance(folders, Path) else list(folders)


@dataclass
class DataFolder:
    """One or more folders with evaluation data, in any layout, and a record of all files that were read.

    Attributes:
        roots: the folders; a file that several of them have is read from the first.
        files: SHA-256 of each file that was read.
        warnings: files with the right number of rows whose checksum differs from the published file's.
    """

    roots: Sequence[Path]
    files: dict[Path, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Paths by file name, smallest depth first.
        self._by_name: dict[str, list[Path]] = {}
        for root in self.roots:
            if not root.is_dir():
                raise DiffaugError(f"the folder {root} with evaluation data does not exist")
            found = []
            for folder, inside, names in os.walk(root):
                depth = len(Path(folder).relative_to(root).parts)
                inside[:] = sorted(name for name in inside if depth < _DEPTH and not name.startswith("."))
                found += [(depth, folder, name) for name in names]
            for _, folder, name in sorted(found):
                self._by_name.setdefault(name, []).append(Path(folder, name))

    def find(self, name: str, folders: Sequence[str] = ()) -> Path | None:
        """The path of a file, or None; if ``folders`` is given, its parent must have one of these names."""
        for path in self._by_name.get(name, ()):
            if not folders or path.parent.name in folders:
                return path
        return None

    def lines(self, path: Path, encoding: str = "utf-8") -> list[str]:
        """The lines of a file, whose checksum is recorded."""
        with record_reads() as reads:
            lines = [text for _, text in read_lines(path, encoding=encoding)]
        if path not in self.files:
            self.files[path] = found = reads[str(path)]
            if (recorded := recorded_checksum(path)) not in (None, found):
                raise DiffaugError(
                    f"{path} has changed since it was downloaded (SHA-256 {found[:12]}... instead of "
                    f"{str(recorded)[:12]}...); download it again (diffaug data get NAME --again)"
                )
            known = CHECKSUMS.get(path.name)
            if known is not None and known != found:
                self.warnings.append(
                    f"{path} is not the published file (SHA-256 {found[:12]}... instead of {known[:12]}...), "
                    "though it has the right number of rows; its scores may not be comparable"
                )
        return lines


def check_rows(where: str, found: int, expected: int, task: str) -> None:
    """Raise if a file has the wrong number of rows: a truncated file gives wrong scores (20 rows of SUBJ: 99.65)."""
    if found != expected:
        raise DiffaugError(
            f"{where}: found {found:,} rows, but {task} has {expected:,}: the file is incomplete or another version; "
            "download it again (diffaug data get)"
        )


def one_spaced(text: str) -> str:
    """Collapse whitespace to single spaces, as SentEval does."""
    return " ".join(text.split())
