"""The folder of downloaded public data: ``$DIFFAUG_DATA``, by default ``~/.cache/diffaug/data``.

Each data set has a folder of its own, where ``diffaug eval`` finds it. Without a network, get the file elsewhere and
run ``diffaug data get NAME --from FILE``.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from diffaug.data.lines import csv_records, read_lines
from diffaug.data.problems import raise_problem
from diffaug.data.public.catalogue import DATASETS, PublicDataset, RemoteFile
from diffaug.data.public.download import Downloaded, DownloadError, download, part_path
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, atomic_folder, exclusive_lock
from diffaug.provenance import checksum

RECEIPT = "source.json"
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
        if file.unpack:
            missing |= not ((home / RECEIPT).is_file() and (home / file.unpack).is_file())
        elif not (home / file.name).is_file():
            missing = True
        elif wrong := _damage(file, home / file.name, received.get(file.name)):
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
    received = []
    for file in dataset.files:
        arrived = _copy(dataset, file, home, local) if local is not None else _load(dataset, file, home, advance)
        if not file.unpack and (wrong := _damage(file, arrived.path)):
            raise DiffaugError(f"{wrong}; it came from {arrived.url}. {by_hand(dataset, file)}")
        received.append({"file": file.name, "from": arrived.url, "sha256": arrived.sha256})
        if file.unpack:
            _unpack(arrived.path, home)
            if not (home / file.unpack).is_file():
                raise DiffaugError(f"{file.name} from {arrived.url} has no {file.unpack}. {by_hand(dataset, file)}")
    with atomic_file(home / RECEIPT) as temporary:
        temporary.write_text(json.dumps({"source": dataset.name, "files": received}, indent=2) + "\n", "utf-8")


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
            file.urls, _target(file, home), file.sha256, lambda done, total: advance(file.name, done, total)
        )
    except DownloadError as error:
        raise DiffaugError(f"{dataset.name} could not be downloaded: {error}. {by_hand(dataset, file)}") from error


def _copy(dataset: PublicDataset, file: RemoteFile, home: Path, local: Path) -> Downloaded:
    found = local / file.name if local.is_dir() else local
    if not found.is_file() or (len(dataset.files) > 1 and not local.is_dir()):
        files = ", ".join(f.name for f in dataset.files)
        raise DiffaugError(f"{local} does not contain {file.name}; {dataset.name} consists of {files}")
    if file.sha256 is not None and (sha256 := checksum(found)) != file.sha256:
        raise DiffaugError(f"{found} is not the published {file.name}: its SHA-256 is {sha256[:12]}...")
    target = _target(file, home)
    with atomic_file(target) as temporary:
        shutil.copyfile(found, temporary)
    return Downloaded(target, checksum(target), str(found))


def _received(home: Path) -> dict[str, str]:
    """The checksums of files when they arrived."""
    try:
        receipt = json.loads((home / RECEIPT).read_text("utf-8"))
        return {entry["file"]: entry["sha256"] for entry in receipt["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _damage(file: RemoteFile, path: Path, received: str | None = None) -> str | None:
    """What is wrong with a file, or None; ``received`` is its checksum when it arrived."""
    expected = file.sha256 or received
    if expected is not None:
        found = checksum(path)
        return None if found == expected else f"{path}: expected the SHA-256 {expected[:12]}..., got {found[:12]}..."
    if file.rows is not None and (rows := count_rows(path, header=file.header)) != file.rows:
        return f"{path}: expected {file.rows:,} rows, got {rows:,}"
    return None


def count_rows(path: Path, *, header: bool) -> int:
    """The rows of a text file: records of a .csv file, otherwise lines."""
    lines = read_lines(path, encoding="latin-1")  # any bytes are valid
    rows = csv_records(lines, str(path), raise_problem) if path.suffix == ".csv" else lines
    return sum(1 for _ in rows) - header


def _unpack(archive: Path, home: Path) -> None:
    """Extract regular files only: no links, and nothing outside the folder."""
    try:
        with atomic_folder(home, overwrite=True) as temporary:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as zipped:
                    for info in zipped.infolist():
                        if not info.is_dir():
                            with zipped.open(info) as member:
                                _extract(member, temporary, info.filename)
            else:
                with tarfile.open(archive) as tarred:
                    for entry in tarred:
                        if entry.isfile() and (opened := tarred.extractfile(entry)) is not None:
                            _extract(opened, temporary, entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DiffaugError(f"{archive} cannot be unpacked ({error}); remove it and download it again") from error
    archive.unlink()


def _extract(member: IO[bytes], folder: Path, name: str) -> None:
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise DiffaugError(f"the archive contains {name!r}, which would be written outside its folder")
    if inside.name.startswith("._") or "__MACOSX" in inside.parts:
        return  # added by macOS
    target = folder.joinpath(*inside.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(member, file)
