"""Atomic files and folders: a reader sees the old content or the new content, never a part of it. And file locks."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diffaug.errors import DiffaugError

# Suffix of a folder that is being replaced, until the new folder has its name.
_RETIRED = ".old"
# Names made by `_create_unique`, and those of replaced folders.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.[^.]+)?")
# Errors of file systems that have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder; when the block succeeds, flush it to disk and rename it to ``target``.

    If several processes replace the same folder at the same time, the last one wins.

    Raises:
        DiffaugError: ``target`` exists and ``overwrite`` is off, or it cannot be written.
    """
    exists = f"{target} exists already; choose another path or allow it to be overwritten"
    if target.exists() and not overwrite:
        raise DiffaugError(exists)
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _create_unique(target.parent, f".{target.name}.", "", Path.mkdir)
    retired = temporary.with_name(temporary.name + _RETIRED)
    mode = stat.S_IMODE(temporary.stat().st_mode)  # the mode of any new folder here
    try:
        with write_errors(target):
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                path.chmod(mode if path.is_dir() else mode & 0o666)
                flush(path)
            if overwrite:
                _replace(target, temporary, retired)
            elif target.exists():  # created since the block started
                raise DiffaugError(exists)
            else:
                temporary.rename(target)
            flush(target.parent)
    finally:
        if retired.exists() and not target.exists():
            retired.rename(target)
        _remove(temporary)
        _remove(retired)


def restore(target: Path) -> None:
    """Restore a folder whose replacement by `atomic_folder` was interrupted between two renames.

    No other process may be writing to the parent folder.
    """
    if target.exists() or not target.parent.is_dir():
        return
    for path in target.parent.iterdir():
        if path.name.startswith(f".{target.name}.") and path.name.endswith(_RETIRED):
            path.rename(target)
            return


def sweep(folder: Path) -> None:
    """Remove the temporary files of interrupted writes from a folder, and nothing else.

    No other process may be writing to the folder.
    """
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            _remove(path)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block succeeds, flush the file to disk and rename it to ``target``."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Keep the suffix: some writers choose the format by it.
        temporary = _create_unique(
            target.parent, f".{target.stem}.", target.suffix, lambda path: path.touch(exist_ok=False)
        )
    mode = stat.S_IMODE(temporary.stat().st_mode)  # the mode of any new file here
    try:
        with write_errors(target):
            yield temporary
            flush(temporary)
            temporary.chmod(mode)
            temporary.replace(target)
            flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block runs, and delete it afterwards.

    The operating system releases the lock of a process that dies. On file systems without locks nothing is locked.

    Args:
        path: the lock file.
        busy: error message if another process holds the lock; None waits for it.

    Raises:
        DiffaugError: another process holds the lock, or the file cannot be created.
    """
    from filelock import FileLock, Timeout  # not needed by commands that only write files

    # A short timeout instead of none: the first attempt fails if the previous holder deletes the file meanwhile.
    lock = FileLock(path, timeout=-1 if busy is None else 0.1, poll_interval=0.02)
    try:
        lock.acquire()
    except Timeout:
        raise DiffaugError(str(busy)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise DiffaugError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the release: a waiting process then notices that its open file is gone
        lock.release()


def flush(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Raise a `DiffaugError` for every error of the system while ``target`` is written."""
    try:
        yield
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error


def _create_unique(folder: Path, before: str, after: str, create: Callable[[Path], None]) -> Path:
    """Create a file or folder with a new random name.

    `tempfile` would create it with private permissions. The usual ones depend on the umask, which can only be read by
    changing it for all threads.
    """
    while True:
        path = folder / f"{before}{secrets.token_hex(4)}{after}"
        with suppress(FileExistsError):
            create(path)
            return path


def _replace(target: Path, new: Path, retired: Path) -> None:
    """Rename ``new`` to ``target`` and move what was there to ``retired``, even if other processes do the same."""
    while True:
        _remove(retired)
        with suppress(FileNotFoundError):
            target.rename(retired)
        try:
            new.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # otherwise another process was faster: try again
                raise


def _remove(path: Path) -> None:
    """Remove a folder, file or link if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
