"""Writing files and folders so that a reader sees the old content or the new, and never a half."""

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
from typing import IO

from diffaug.errors import DiffaugError

# How the name of what a new folder replaces ends, until the new one is in its place.
_RETIRED = ".old"
# Names that `_fresh` makes, and those of what is replaced.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.[^.]+)?")


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; when the block ends well, it is flushed to disk and becomes ``target``.

    Of several processes that replace the same folder at the same time, the last one's stays.

    Raises:
        DiffaugError: ``target`` exists and may not be overwritten, or cannot be written.
    """
    exists = f"{target} exists already; choose another path or allow it to be overwritten"
    if target.exists() and not overwrite:
        raise DiffaugError(exists)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _fresh(target.parent, f".{target.name}.", "", Path.mkdir)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    retired = temporary.with_name(temporary.name + _RETIRED)
    mode = stat.S_IMODE(temporary.stat().st_mode)  # that of any new folder here
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            path.chmod(mode if path.is_dir() else mode & 0o666)
            flush(path)
        if overwrite:
            _replace(target, temporary, retired)
        elif target.exists():  # since the block began
            raise DiffaugError(exists)
        else:
            temporary.rename(target)
        flush(target.parent)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        if retired.exists() and not target.exists():
            retired.rename(target)
        _remove(temporary)
        _remove(retired)


def restore(target: Path) -> None:
    """Put a folder back that `atomic_folder` was about to replace when its process died.

    Between two renames there is only the old folder, under another name. Nobody may be writing there now.
    """
    if target.exists() or not target.parent.is_dir():
        return
    for path in target.parent.iterdir():
        if path.name.startswith(f".{target.name}.") and path.name.endswith(_RETIRED):
            path.rename(target)
            return


def sweep(folder: Path) -> None:
    """Remove what writes into a folder that were cut off have left, and nothing else.

    Nobody may be writing there now.
    """
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            _remove(path)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; when the block ends well, it is flushed and takes its place."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays, since some writers choose their format by it.
        temporary = _fresh(target.parent, f".{target.stem}.", target.suffix, lambda path: path.touch(exist_ok=False))
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    mode = stat.S_IMODE(temporary.stat().st_mode)  # that of any new file here
    try:
        yield temporary
        flush(temporary)
        temporary.chmod(mode)
        temporary.replace(target)
        flush(target.parent)
    except OSError as error:
        raise DiffaugError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a file for the time of the block, so that no other process does; before and after it is not there.

    A process that dies lets go of it. Where there are no such locks, as on Windows, nothing keeps processes apart.

    Args:
        path: the file, in a folder that exists.
        otherwise: what to say if another process holds it.

    Raises:
        DiffaugError: another process does, or the file cannot be made.
    """
    while True:
        try:
            file = path.open("a")
        except OSError as error:
            raise DiffaugError(f"{path} cannot be written: {error.strerror or error}") from error
        if not lock(file, shared=False):
            file.close()
            raise DiffaugError(otherwise)
        if _is_at(file, path):
            break
        file.close()  # who held it before has removed it since it was opened
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who has opened it by now will see that it is gone
        file.close()


def lock(file: IO[str], *, shared: bool, wait: bool = False) -> bool:
    """Lock a file for as long as it is open, or change its lock; False if another process is in the way.

    Where files cannot be locked, nobody ever is.

    Args:
        file: open.
        shared: others may lock it so, too.
        wait: until nobody is in the way.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix system
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _fresh(folder: Path, before: str, after: str, make: Callable[[Path], None]) -> Path:
    """Make something whose name nothing has yet.

    Not by `tempfile`, which makes it private. What it would be otherwise depends on the process's umask, and that can
    be read only by changing it, for all threads.
    """
    while True:
        path = folder / f"{before}{secrets.token_hex(4)}{after}"
        with suppress(FileExistsError):
            make(path)
            return path


def _replace(target: Path, new: Path, retired: Path) -> None:
    """Put ``new`` in the place of whatever is at ``target``, whoever else does the same meanwhile."""
    while True:
        _remove(retired)
        with suppress(FileNotFoundError):
            target.rename(retired)
        try:
            new.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another's is there by now
                raise


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove what may be a folder, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have a file or folder on disk, even if the power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
