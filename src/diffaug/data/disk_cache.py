"""A cache on disk: folders that are made once per machine and found by a key that says what they contain.

It is in ``$DIFFAUG_CACHE``, by default ``~/.cache/diffaug``. Each entry has a manifest with the SHA-256 of its files.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder, exclusive_lock, sweep
from diffaug.provenance import checksum

log = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_CONTENT = "content"

Build = Callable[[Path], Mapping[str, Any]]
"""Writes the files of an entry to an empty folder, and returns what else to store in the manifest."""


@dataclass(frozen=True)
class CacheEntry:
    """An entry of the cache.

    Attributes:
        folder: its files.
        details: what `Build` returned.
    """

    folder: Path
    details: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class DiskCache:
    """Entries that several processes share: the first one makes an entry, others wait for it.

    An entry that is damaged or incomplete is made again. If the cache cannot be written, entries are made in a
    temporary folder, which is removed when this object is.
    """

    def __init__(self) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._refused = False

    def entry(self, name: str | None, build: Build) -> CacheEntry:
        """The entry with this name; it is made if there is none.

        Args:
            name: contains a hash of everything that decides the content; None for content that cannot be identified,
                which is made in a temporary folder.
            build: makes it.

        Raises:
            DiffaugError: there is no space left, or ``build`` raised it.
        """
        if name is None:
            return _make(Path(tempfile.mkdtemp(dir=self._temporary_folder())) / _CONTENT, build)
        root = corpus_cache()
        target = root / name / _CONTENT
        if (found := _verified(target)) is not None:  # even if the cache cannot be written
            return found
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_space(root) from error
            target = self._temporary_folder() / name / _CONTENT
            if not self._refused:
                self._refused = True
                log.warning(
                    "%s cannot be written (%s); text and tokens are stored in %s until this process ends "
                    "(DIFFAUG_CACHE names another folder)",
                    root,
                    error.strerror,
                    target.parent.parent,
                )
            return _verified(target) or _make(target, build)
        # Beside the folder, which is removed with the entry.
        with exclusive_lock(root / f"{name}.lock"):
            if (found := _verified(target)) is not None:
                return found
            if target.exists():
                log.warning("%s is damaged or incomplete and is made again", target)
            sweep(target.parent)  # after a process that was killed
            return _make(target, build)

    def _temporary_folder(self) -> Path:
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="diffaug-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)


def corpus_cache() -> Path:
    """The folder of the cache."""
    named = os.environ.get("DIFFAUG_CACHE")
    return (Path(named).expanduser() if named else Path.home() / ".cache" / "diffaug") / "corpus"


def entries() -> list[CacheEntry]:
    """The complete entries of the cache, by name; their files are not verified."""
    found = []
    for folder in sorted(corpus_cache().glob(f"*/{_CONTENT}")):
        try:
            found.append(CacheEntry(folder, json.loads((folder / _MANIFEST).read_text("utf-8"))["details"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def clear() -> None:
    """Remove all entries, also incomplete ones. A run that has opened one goes on.

    Raises:
        DiffaugError: another process is making one.
    """
    root = corpus_cache()
    for folder in [path for path in root.glob("*") if path.is_dir()]:
        busy = f"{folder} is being written; run the command again when that process has finished"
        with exclusive_lock(root / f"{folder.name}.lock", busy):
            shutil.rmtree(folder, ignore_errors=True)


def _make(target: Path, build: Build) -> CacheEntry:
    try:
        with atomic_folder(target, overwrite=True) as temporary:
            details = dict(build(temporary))
            files = {path.name: checksum(path) for path in sorted(temporary.iterdir())}
            manifest = json.dumps({"details": details, "files": files}, indent=2, ensure_ascii=False)
            (temporary / _MANIFEST).write_text(manifest + "\n", "utf-8")
    except DiffaugError as error:
        if getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(target) from error
        raise
    return CacheEntry(target, details)


def _no_space(path: Path) -> DiffaugError:
    return DiffaugError(
        f"{path} cannot be written: no space left on the disk; free some space (diffaug data cache --clear removes the "
        "tokens of earlier runs), or set DIFFAUG_CACHE to a folder on another disk, and run the command again"
    )


def _verified(folder: Path) -> CacheEntry | None:
    """The entry in a folder; None if it is missing, incomplete or damaged."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        if any(checksum(folder / name) != sha256 for name, sha256 in manifest["files"].items()):
            return None
        return CacheEntry(folder, manifest["details"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
