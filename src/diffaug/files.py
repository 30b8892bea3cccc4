"""Atomic files and folders: a reader sees the old content or the new content, never a part of it. And file locks."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from diffaug.errors import DiffaugError

# Suffix of a folder that is being replaced, until the new folder has its name.
_RETIRED = ".old"
# Part of the names of all temporary files, so that a file of a user is never taken for one.
_MARK = "diffaug-"
# Names made by `_create_unique`, and those of replaced folders.
_TEMPORARY = re.compile(rf"\..+\.{_MARK}[0-9a-f]{{8}}(\.[^.]+)?")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Files with the weights of a model.
_WEIGHTS = {".safetensors", ".bin", ".onnx"}
# Errors of file systems that have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder; when the block succeeds, flush it to disk and rename it to ``target``.

    If several processes replace the same folder at the same time, the last one wins. Links are followed.

    Raises:
        DiffaugError: ``target`` exists and ``overwrite`` is off, or it cannot be written.
    """
    target = _resolved(target)
    restore(target)
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

    Another process may be between these renames now; it then replaces what was restored.
    """
    target = _resolved(target)
    # Older versions made names without the mark.
    retired = re.compile(rf"\.{re.escape(target.name)}\.({_MARK})?[0-9a-f]{{8}}{re.escape(_RETIRED)}")
    with suppress(OSError):  # no such folder, or one that must not be changed
        if not target.exists():
            found = [path for path in target.parent.iterdir() if retired.fullmatch(path.name)]
            if found:
                max(found, key=lambda path: path.stat().st_mtime_ns).rename(target)


def sweep(folder: Path) -> None:
    """Remove the temporary files of interrupted writes from a folder, and nothing else.

    No other process may be writing to the folder.
    """
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            _remove(path)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block succeeds, flush the file to disk and rename it to ``target``.

    Links are followed: the link stays, and the file that it names is replaced.

    Raises:
        DiffaugError: ``target`` cannot be written, or is a device, a pipe or a folder.
    """
    target = _resolved(target)
    if target.exists() and not target.is_file():
        raise DiffaugError(f"{target} is a {_kind(target)}, not a file; choose another path")
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


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(target) as temporary:
        temporary.write_text(text, "utf-8")


def check_output(target: Path, inputs: Iterable[str | Path | None] = ()) -> None:
    """Check that a command may write a file or folder. Every command that writes calls this before it computes.

    Args:
        target: what is to be written; it may exist.
        inputs: files and folders that the command reads; names that are no paths, and None, are ignored.

    Raises:
        DiffaugError: ``target`` is one of the inputs (also through a link), contains one, or is a file in one; it is a
            device; it is in the folder of a model; or it cannot be written.
    """
    with write_errors(target):
        _check_output(target, inputs)


def _check_output(target: Path, inputs: Iterable[str | Path | None]) -> None:
    resolved = _resolved(target)
    for read in inputs:
        if read is None or not (source := _resolved(Path(read))).exists():
            continue
        # A hard link is the same file under another name.
        same = resolved.exists() and resolved.samefile(source)
        if same or resolved in source.parents or (source in resolved.parents and resolved.is_file()):
            raise DiffaugError(f"{target} would overwrite {read}, which the command reads; choose another path")
    if resolved.exists() and not (resolved.is_file() or resolved.is_dir()):
        raise DiffaugError(f"{target} is a {_kind(resolved)}, not a file; choose another path")
    if (model := next((folder for folder in resolved.parents if _is_model(folder)), None)) is not None:
        raise DiffaugError(f"{target} is in {model}, the folder of a model; choose a path outside of it")
    existing = next(path for path in (resolved, *resolved.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise DiffaugError(f"{target} cannot be written: there is no permission to write to {existing}")


def _is_model(folder: Path) -> bool:
    if (folder / "diffaug.json").is_file():
        return True
    described = any((folder / name).is_file() for name in ("config.json", "modules.json"))
    return described and any(path.suffix in _WEIGHTS for path in folder.iterdir())


def _resolved(path: Path) -> Path:
    """The absolute path without links. ``Path.resolve`` raises for a link that leads to itself."""
    with suppress(RuntimeError):  # ~ of a user who does not exist
        path = path.expanduser()
    return Path(os.path.realpath(path))


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "pipe" if path.is_fifo() else "device"


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
    """Turn errors of writing ``target`` into a `DiffaugError`; those of libraries in Rust are recognised by their text.

    Raises:
        DiffaugError: the system refused to write.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DiffaugError) or not (isinstance(error, OSError) or "(os error " in str(error)):
            raise
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        advice = "; free some space and run the command again, diffaug train with --resume" if full else ""
        reason = "no space left on the disk" if full else reason
        raise DiffaugError(f"{target} cannot be written: {reason}{advice}") from error


def _create_unique(folder: Path, before: str, after: str, create: Callable[[Path], None]) -> Path:
    """Create a file or folder with a new random name.

    `tempfile` would create it with private permissions. The usual ones depend on the umask, which can only be read by
    changing it for all threads.
    """
    while True:
        path = folder / f"{before}{_MARK}{secrets.token_hex(4)}{after}"
        with suppress(FileExistsError):
            create(path)
            return path


def _replace(target: Path, new: Path, retired: Path) -> None:
    """Rename ``new`` to ``target`` and move what was there to ``retired``, even if other processes do the same."""
    if target.is_dir() and not target.is_symlink() and _exchange(new, target):
        return  # the old folder has the temporary name now, and the caller removes it
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


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once, so that no moment is without either; False if the system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0


@cache
def _renameat2() -> Callable[..., int] | None:
    """A function of Linux; None elsewhere."""
    try:
        return ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return None


def _remove(path: Path) -> None:
    """Remove a folder, file or link if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
