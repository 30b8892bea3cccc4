"""Public data: where it is published, what it must look like, and getting it into a folder here.

Fetched data lies in ``$DIFFAUG_DATA``, by default ``~/.cache/diffaug/data``, in a folder for each source, where
``diffaug eval`` finds it. Nothing needs the network: a file that was brought by other means is put in place with
``diffaug data get NAME --from FILE``.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from diffaug.data.catalogue import SOURCES, RemoteFile, Source
from diffaug.data.download import DownloadError, Fetched, checksum, download
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, atomic_folder, exclusive_lock

RECEIPT = "source.json"
Advance = Callable[[str, int, int | None], None]


def data_folder() -> Path:
    """Where fetched data lies."""
    named = os.environ.get("DIFFAUG_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "diffaug" / "data"


def find_source(name: str) -> Source:
    """The source of that name.

    Raises:
        DiffaugError: there is none.
    """
    for source in SOURCES:
        if source.name == name:
            return source
    raise DiffaugError(f"there is no source {name!r}; there are {', '.join(source.name for source in SOURCES)}")


@dataclass(frozen=True)
class Status:
    """How a source stands in the data folder: ``ready``, ``missing``, ``partial`` or ``damaged``, and the detail."""

    state: str
    detail: str = ""


def status(source: Source, folder: Path) -> Status:
    """Look at what is there, down to checksums and row counts."""
    home = folder / source.name
    parts = _sizes(home.glob("*.part"))
    received = _received(home)
    states = []
    for file in source.files:
        if file.unpack:
            there = (home / RECEIPT).is_file() and (home / file.unpack).is_file()
            states.append(Status("ready") if there else Status("missing"))
        elif not (home / file.name).is_file():
            states.append(Status("missing", file.name))
        else:
            wrong = _wrong(file, home / file.name, received.get(file.name))
            states.append(Status("damaged", wrong) if wrong else Status("ready"))
    if damaged := [state for state in states if state.state == "damaged"]:
        return damaged[0]
    if all(state.state == "ready" for state in states):
        return Status("ready")
    if parts:
        return Status("partial", ", ".join(f"{size:,} bytes of {part.stem}" for part, size in sorted(parts.items())))
    return Status("missing")


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """The sizes of files, less those that go while one looks: a part that is whole gets its own name."""
    sizes = {}
    for path in paths:
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sizes


def get(
    source: Source,
    folder: Path,
    *,
    given: Path | None = None,
    again: bool = False,
    advance: Advance = lambda name, done, total: None,
) -> Path:
    """Put a source in place, from the network or from a file brought by other means, and check it.

    Args:
        source: one of `SOURCES`.
        folder: the data folder.
        given: the file (for a source of several, the folder with the files) if it is here already.
        again: even if it is in place.
        advance: called with a file's name, its bytes so far, and its size if known.

    Returns:
        the source's own folder.

    Raises:
        DiffaugError: it cannot be fetched, with what to do by hand; or what came is not what it should be.
    """
    home = folder / source.name
    if not again and given is None and status(source, folder).state == "ready":
        return home
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiffaugError(f"{folder} cannot be written: {error.strerror or error}") from error
    busy = f"another process is fetching {source.name} into {folder}; wait for it to end"
    with exclusive_lock(folder / f".{source.name}.lock", busy):
        # Another process may have put it there since.
        if again or given is not None or status(source, folder).state != "ready":
            _put(source, home, given, advance)
    return home


def _put(source: Source, home: Path, given: Path | None, advance: Advance) -> None:
    """Put all files of a source in place."""
    receipts = []
    for file in source.files:
        arrived = _take(source, file, home, given) if given is not None else _load(source, file, home, advance)
        wrong = None if file.unpack else _wrong(file, arrived.path)
        if wrong:
            raise DiffaugError(f"{wrong}; it came from {arrived.url}. {by_hand(source, file)}")
        receipts.append({"file": file.name, "from": arrived.url, "sha256": arrived.sha256})
        if file.unpack:
            _unpack(arrived.path, home)
            if not (home / file.unpack).is_file():
                raise DiffaugError(f"{file.name} from {arrived.url} holds no {file.unpack}. {by_hand(source, file)}")
    with atomic_file(home / RECEIPT) as temporary:
        temporary.write_text(json.dumps({"source": source.name, "files": receipts}, indent=2) + "\n", "utf-8")


def by_hand(source: Source, file: RemoteFile) -> str:
    """What somebody without a working link can do."""
    what = "the folder with them" if len(source.files) > 1 else "FILE"
    return (
        f"By hand: look for {file.name} at {source.page} or with someone who has it, and put it in place with: "
        f"diffaug data get {source.name} --from {what}"
    )


def _load(source: Source, file: RemoteFile, home: Path, advance: Advance) -> Fetched:
    # An archive is unpacked into its source's folder as a whole, so it arrives beside it.
    target = home.with_name(file.name) if file.unpack else home / file.name
    try:
        return download(file.urls, target, file.sha256, lambda done, total: advance(file.name, done, total))
    except DownloadError as error:
        raise DiffaugError(f"{source.name} could not be fetched: {error}. {by_hand(source, file)}") from error


def _take(source: Source, file: RemoteFile, home: Path, given: Path) -> Fetched:
    found = given / file.name if given.is_dir() else given
    if not found.is_file() or (len(source.files) > 1 and not given.is_dir()):
        wanted = ", ".join(f.name for f in source.files)
        raise DiffaugError(f"{given} does not hold {file.name}; {source.name} is made of {wanted}")
    if file.sha256 is not None and checksum(found) != file.sha256:
        raise DiffaugError(f"{found} is not the published {file.name}: its SHA-256 is {checksum(found)[:12]}...")
    target = home.with_name(file.name) if file.unpack else home / file.name
    with atomic_file(target) as temporary:
        shutil.copyfile(found, temporary)
    return Fetched(target, checksum(target), str(found))


def _received(home: Path) -> dict[str, str]:
    """The checksums that files had when they came."""
    try:
        receipt = json.loads((home / RECEIPT).read_text("utf-8"))
        return {entry["file"]: entry["sha256"] for entry in receipt["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _wrong(file: RemoteFile, path: Path, received: str | None = None) -> str | None:
    """What is wrong with a file, or None; ``received`` is the checksum it had when it came."""
    expected = file.sha256 or received
    if expected is not None and (found := checksum(path)) != expected:
        return f"{path} has the SHA-256 {found[:12]}... instead of {expected[:12]}..."
    if file.rows is not None and (rows := count_rows(path, header=file.header)) != file.rows:
        return f"{path} has {rows:,} rows instead of {file.rows:,}"
    return None


def count_rows(path: Path, *, header: bool) -> int:
    """The rows of a text file: records of a .csv file, whose cells may hold line ends, else lines."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = sum(1 for _ in csv.reader(file))
    else:
        rows, last = 0, b"\n"
        with path.open("rb") as raw:
            while chunk := raw.read(1 << 20):
                rows += chunk.count(b"\n")
                last = chunk[-1:]
        rows += last != b"\n"
    return rows - header


def _unpack(archive: Path, home: Path) -> None:
    """Unpack plain files, whatever else the archive holds: no links, and nothing outside the folder."""
    try:
        with atomic_folder(home, overwrite=True) as temporary:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as zipped:
                    for info in zipped.infolist():
                        if not info.is_dir():
                            with zipped.open(info) as member:
                                _write(member, temporary, info.filename)
            else:
                with tarfile.open(archive) as tarred:
                    for entry in tarred:
                        if entry.isfile() and (opened := tarred.extractfile(entry)) is not None:
                            _write(opened, temporary, entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DiffaugError(f"{archive} cannot be unpacked ({error}); remove it and fetch it again") from error
    archive.unlink()


def _write(member: IO[bytes], folder: Path, name: str) -> None:
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise DiffaugError(f"the archive holds {name!r}, which would land outside its folder")
    if inside.name.startswith("._") or "__MACOSX" in inside.parts:
        return  # what a Mac adds to archives
    target = folder.joinpath(*inside.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(member, file)
