"""Writing files and folders so that a reader sees the old content or the new, and never a half."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffaug.errors import DiffaugError


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; when the block ends well, it is flushed to disk and becomes ``target``.

    Raises:
        DiffaugError: ``target`` exists and may not be overwritten, or cannot be written.
    """
    if target.exists() and not overwrite:
        raise DiffaugError(f"{target} exists already; choose another path or allow it to be overwritten")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    retired = temporary.with_name(temporary.name + ".old")
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())
            _flush(path)
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        _flush(target.parent)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        if retired.exists() and not target.exists():
            retired.rename(target)
        _remove(temporary)
        _remove(retired)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; when the block ends well, it is flushed and takes its place."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays, since some writers choose their format by it.
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}.", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
        _flush(target.parent)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove what may be a folder, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
