"""The folder of downloaded public data: ``$DIFFAUG_DATA``, by default ``~/.cache/diffaug/data``.

Each data set has a folder of its own, where ``diffaug eval`` finds it. Without a network, get the file elsewhere and
run ``diffaug data get NAME --from FILE``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from diffaug.data.lines import csv_records, read_lines
from diffaug.data.problems import raise_problem
from diffaug.data.public.catalogue import DATASETS, PublicDataset, RemoteFile
from diffaug.data.public.download import Downloaded, DownloadError, download, part_path
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, atomic_folder, exclusive_lock, write_text
from diffaug.provenance import checksum

RECEIPT = "source.json"
# What an archive may contain: more than any in the catalogue, less than what fills a disk.
_MAX_UNPACKED = 8 << 30
_MAX_FILES = 10_000
# Folders above a file in which its receipt is searched.
_DEPTH = 6
_ENCRYPTED = 0x1  # a flag of an entry in a zip file
Advance = Callable[[str, int, int | None], None]
"""Called with a file's name, the number of bytes so far, and its size if known."""


def data_folder() -> Path:
    """The default data folder."""
    named = os.environ.get("DIFFAUG_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "diffaug" / "data"


def find_dataset(name: str) -> PublicDataset:
    """The data set of that name.

    Raises:
        DiffaugError: there is none.
    """
    for dataset in DATASETS:
        if dataset.name == name:
            return dataset
    raise DiffaugError(f"there is no data set {name!r}; choose one of {', '.join(one.name for one in DATASETS)}")


@dataclass(frozen=True)
class Status:
    """The state of a data set: ``ready``, ``missing``, ``partial`` or ``damaged``, and details."""

    state: str
    detail: str = ""


def status(dataset: PublicDataset, folder: Path) -> Status:
    """Check the files of a data set, including checksums and row counts."""
    home = folder / dataset.name
    received = _received(home)
    missing, partial = False, []
    for file in dataset.files:
        if not (home / (file.unpack or file.name)).is_file() or (file.unpack and not (home / RECEIPT).is_file()):
            missing = True
        elif wrong := _damage(file, home, received):
            return Status("damaged", wrong)
        if size := _size(part_path(_target(file, home))):
            partial.append(f"{size:,} bytes of {file.name}")
    if not missing:
        return Status("ready")
    return Status("partial", ", ".join(partial)) if partial else Status("missing")


def _size(path: Path) -> int:
    """The bytes of an unfinished download, also in the working folder of huggingface_hub."""
    total = 0
    for file in path.rglob("*.incomplete") if path.is_dir() else (path,):
        with suppress(FileNotFoundError):  # another process may have just finished it
            total += file.stat().st_size
    return total


def get(
    dataset: PublicDataset,
    folder: Path,
    *,
    local: Path | None = None,
    again: bool = False,
    advance: Advance = lambda name, done, total: None,
) -> Path:
    """Download a data set, or copy it from a local file, and check it.

    Args:
        dataset: one of `DATASETS`.
        folder: the data folder.
        local: the file, or the folder with the files, if it was obtained by other means.
        again: even if it is there and complete.
        advance: for a progress bar.

    Returns:
        the folder of the data set.

    Raises:
        DiffaugError: it cannot be downloaded (the message says what to do by hand), or it is not what it should be.
    """
    home = folder / dataset.name
    if not again and local is None and status(dataset, folder).state == "ready":
        return home
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiffaugError(f"{folder} cannot be written: {error.strerror or error}") from error
    busy = f"another process is downloading {dataset.name} into {folder}; wait for it to finish"
    with exclusive_lock(folder / f".{dataset.name}.lock", busy):
        # Another process may have finished it before this one got the lock.
        if again or local is not None or status(dataset, folder).state != "ready":
            _install(dataset, home, local, advance)
    return home


def _install(dataset: PublicDataset, home: Path, local: Path | None, advance: Advance) -> None:
    """Everything is checked before anything of the data that is there is replaced."""
    if local is not None:
        arrived = [_local(dataset, file, local) for file in dataset.files]
    else:
        arrived = [_load(dataset, file, home, advance) for file in dataset.files]
    received = []
    for file, found in zip(dataset.files, arrived, strict=True):
        entry: dict[str, object] = {"file": file.name, "from": found.url, "sha256": found.sha256}
        if file.unpack:
            entry["unpacked"] = _unpack(dataset, file, found, home)
            if local is None:
                found.path.unlink()
        elif local is not None:
            with atomic_file(_target(file, home)) as temporary:
                shutil.copyfile(found.path, temporary)
        received.append(entry)
    write_text(home / RECEIPT, json.dumps({"source": dataset.name, "files": received}, indent=2) + "\n")


def by_hand(dataset: PublicDataset, file: RemoteFile) -> str:
    """What to do if no link works."""
    what = "FOLDER" if len(dataset.files) > 1 else "FILE"
    return (
        f"By hand: get {file.name} from {dataset.page} or from someone who has it, then run: diffaug data get "
        f"{dataset.name} --from {what}"
    )


def _target(file: RemoteFile, home: Path) -> Path:
    # Unpacking an archive replaces the whole folder of the data set, so the archive is stored beside it.
    return home.with_name(file.name) if file.unpack else home / file.name


def _load(dataset: PublicDataset, file: RemoteFile, home: Path, advance: Advance) -> Downloaded:
    try:
        return download(
            file.urls,
            _target(file, home),
            file.sha256,
            lambda done, total: advance(file.name, done, total),
            check=lambda path: _wrong_rows(file, path),
        )
    except DownloadError as error:
        raise DiffaugError(f"{dataset.name} could not be downloaded: {error}. {by_hand(dataset, file)}") from error


def _local(dataset: PublicDataset, file: RemoteFile, local: Path) -> Downloaded:
    """A file that the user has, checked; it is not copied yet."""
    found = local / file.name if local.is_dir() else local
    if not found.is_file() or (len(dataset.files) > 1 and not local.is_dir()):
        files = ", ".join(f.name for f in dataset.files)
        raise DiffaugError(f"{local} does not contain {file.name}; {dataset.name} consists of {files}")
    sha256 = checksum(found)
    if file.sha256 is not None and sha256 != file.sha256:
        raise DiffaugError(f"{found} is not the published {file.name}: its SHA-256 is {sha256[:12]}...")
    if wrong := _wrong_rows(file, found):
        raise DiffaugError(f"{wrong}. {by_hand(dataset, file)}")
    return Downloaded(found, sha256, str(found))


def recorded_checksum(path: Path) -> str | None:
    """The SHA-256 of a file when it was downloaded or unpacked, if a receipt beside or above it has it."""
    for folder in list(path.parents)[:_DEPTH]:
        if (folder / RECEIPT).is_file():
            return _received(folder).get(path.relative_to(folder).as_posix())
    return None


def _received(home: Path) -> dict[str, str]:
    """The checksums of the files of a data set when they arrived, of an archive those of the files in it."""
    try:
        receipt = json.loads((home / RECEIPT).read_text("utf-8"))
        parts = [entry.get("unpacked", {entry["file"]: entry["sha256"]}) for entry in receipt["files"]]
        return {name: sha256 for part in parts for name, sha256 in part.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _damage(file: RemoteFile, home: Path, received: dict[str, str]) -> str | None:
    """What is wrong with a file, or with those of an archive, or None; ``received`` has the checksums on arrival."""
    if file.unpack:
        checksums = {name: sha256 for name, sha256 in received.items() if name != file.name}
    elif (known := file.sha256 or received.get(file.name)) is not None:
        checksums = {file.name: known}
    else:
        return _wrong_rows(file, home / file.name)
    for name, expected in checksums.items():
        path = home / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := checksum(path)) != expected:
            return f"{path}: expected the SHA-256 {expected[:12]}..., got {found[:12]}..."
    return None


def _wrong_rows(file: RemoteFile, path: Path) -> str | None:
    """A file without a known checksum is recognised by its number of rows."""
    if file.sha256 is not None or file.rows is None:
        return None
    rows = count_rows(path, header=file.header, csv=file.name.endswith(".csv"))
    return None if rows == file.rows else f"{path}: expected {file.rows:,} rows, got {rows:,}"


def count_rows(path: Path, *, header: bool, csv: bool) -> int:
    """The rows of a text file: records of a CSV file, otherwise lines."""
    lines = read_lines(path, encoding="latin-1")  # any bytes are valid
    rows = csv_records(lines, str(path), raise_problem) if csv else lines
    return sum(1 for _ in rows) - header


def _unpack(dataset: PublicDataset, file: RemoteFile, archive: Downloaded, home: Path) -> dict[str, str]:
    """Extract regular files only: no links, nothing outside the folder, and no more than the limits allow.

    The folder of the data set is replaced only if the archive contains what it should.

    Returns:
        the checksum of each file.
    """
    try:
        with atomic_folder(home, overwrite=True) as temporary:
            unpacked = _Unpacked(temporary)
            for name, member in _members(archive.path):
                unpacked.add(name, member)
            if file.unpack not in unpacked.checksums:
                raise DiffaugError(
                    f"{archive.url} is not {file.name}: it has no {file.unpack}. {by_hand(dataset, file)}"
                )
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise DiffaugError(f"{archive.path} cannot be unpacked ({error}); remove it and download it again") from error
    return unpacked.checksums


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the regular files of an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if info.flag_bits & _ENCRYPTED:
                    raise DiffaugError(f"{archive} is encrypted; unpack it with its password and pack it again")
                if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                    with zipped.open(info) as member:
                        yield info.filename, member
    else:
        with tarfile.open(archive) as tarred:
            for entry in tarred:
                if entry.isfile() and (opened := tarred.extractfile(entry)) is not None:
                    yield entry.name, opened


class _Unpacked:
    """Files written into a folder, with their checksums; raises if there are too many or too large ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes = 0
        self.checksums: dict[str, str] = {}

    def add(self, name: str, member: IO[bytes]) -> None:
        # Windows reads a backslash as a separator, and `C:` as a drive.
        windows = PureWindowsPath(name)
        if windows.anchor or ".." in windows.parts:
            raise DiffaugError(f"the archive contains {name!r}, which would be written outside its folder")
        inside = PurePosixPath(name)
        if inside.name.startswith("._") or "__MACOSX" in inside.parts:
            return  # added by macOS
        target = self._folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with target.open("wb") as file:
            while chunk := member.read(1 << 20):
                # Counted while it is written: what the archive says about its sizes may be wrong.
                self._bytes += len(chunk)
                if self._bytes > _MAX_UNPACKED:
                    raise DiffaugError(f"the archive contains more than {_MAX_UNPACKED >> 30} GB; it is not unpacked")
                digest.update(chunk)
                file.write(chunk)
        self.checksums[inside.as_posix()] = digest.hexdigest()
        if len(self.checksums) > _MAX_FILES:
            raise DiffaugError(f"the archive contains more than {_MAX_FILES:,} files; it is not unpacked")
