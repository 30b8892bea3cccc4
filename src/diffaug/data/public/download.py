"""Downloading a file, resuming an interrupted download, and verifying its checksum.

Files on the Hugging Face hub come through huggingface_hub, all others over HTTP. Unfinished data is in ``NAME.part``
beside the target; only a complete file with the right checksum becomes ``NAME``.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.provenance import checksum
from diffaug.version import __version__

Advance = Callable[[int, int | None], None]
"""Called with the number of bytes so far, and the size of the file if it is known."""

HUB_SCHEME = "hf://datasets/"
_CHUNK = 1 << 20
_TIMEOUT = 30.0
# An interrupted transfer is resumed this often, as long as each attempt makes progress.
_ATTEMPTS = 5


class DownloadError(DiffaugError):
    """No URL gave the file; the message has the reason for each."""


class _TransferError(Exception):
    """A transfer failed; the text says why."""


class _InterruptedTransferError(_TransferError):
    """The connection closed early."""


@dataclass
class Downloaded:
    """A downloaded file, its checksum, and the URL that it came from."""

    path: Path
    sha256: str
    url: str


def download(
    urls: Sequence[str],
    target: Path,
    sha256: str | None = None,
    advance: Advance = lambda done, total: None,
    check: Callable[[Path], str | None] = lambda path: None,
) -> Downloaded:
    """Download a file from the first URL that has it, resuming an earlier attempt if there is one.

    Args:
        urls: of the same file, in order of preference; ``hf://datasets/OWNER/NAME@REVISION/FILE`` is on the hub.
        target: the path of the file.
        sha256: the expected checksum; left out, the checksum that the hub announces is verified instead.
        advance: for a progress bar; huggingface_hub shows its own.
        check: says what is wrong with a downloaded file, or None; ``target`` is not replaced by a wrong one.

    Raises:
        DownloadError: no URL gave the file, or what came is wrong.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target)
    failures = []
    for url in urls:
        try:
            path, announced = _from_hub(url, part) if url.startswith(HUB_SCHEME) else _over_http(url, part, advance)
        except (OSError, http.client.HTTPException, _TransferError) as error:
            failures.append(f"{url}: {_reason(error)}")
            continue
        found = checksum(path)
        expected = sha256 or announced
        if expected is not None and found != expected:
            _remove(part)
            failures.append(f"{url}: expected a file with the SHA-256 {expected[:12]}..., got {found[:12]}...")
            continue
        if wrong := check(path):
            _remove(part)
            failures.append(f"{url}: {wrong}")
            continue
        path.replace(target)
        _remove(part)
        return Downloaded(target, found, url)
    raise DownloadError("; ".join(failures))


def part_path(target: Path) -> Path:
    """Where unfinished data of a file is: a file, or the working folder of huggingface_hub."""
    return target.with_name(target.name + ".part")


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _from_hub(url: str, part: Path) -> tuple[Path, str | None]:
    """Download from the hub into the folder ``part``; returns the file, and its SHA-256 if the hub knows it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    match = re.fullmatch(rf"{HUB_SCHEME}([^/]+/[^/@]+)@([^/]+)/(.+)", url)
    assert match, url
    repository, revision, name = match.groups()
    if part.is_file():
        part.unlink()
    try:
        path = hf_hub_download(repository, name, repo_type="dataset", revision=revision, local_dir=part)
        address = hf_hub_url(repository, name, repo_type="dataset", revision=revision)
        etag = get_hf_file_metadata(address).etag or ""
    except Exception as error:  # the library raises its own errors, those of the HTTP client and of the system
        cause = error.__cause__ or error  # its own text speaks of a local cache, whatever happened
        raise _TransferError(" ".join(str(cause).split())[:300]) from error
    return Path(path), etag if re.fullmatch("[0-9a-f]{64}", etag) else None


def _over_http(url: str, part: Path, advance: Advance) -> tuple[Path, None]:
    """Download into the file ``part``, resuming after interruptions."""
    if part.is_dir():
        shutil.rmtree(part)
    attempts = _ATTEMPTS
    while True:
        before = _size(part)
        try:
            _transfer(url, part, advance)
            return part, None
        except (_InterruptedTransferError, TimeoutError, ConnectionError, http.client.HTTPException):
            attempts -= 1
            if attempts == 0 or _size(part) <= before:
                raise


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _transfer(url: str, part: Path, advance: Advance) -> None:
    headers = {"User-Agent": f"diffaug/{__version__}", "Accept-Encoding": "identity"}
    version = _stored_version(part, url)
    # Without a version to compare, parts of two different files could be joined: start again.
    done = 0 if version is None else _size(part)
    if done and version is not None:
        headers |= {"Range": f"bytes={done}-", "If-Range": version}
    try:
        response = _opener().open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        if error.headers.get("Content-Range") != f"bytes */{done}":
            part.unlink()  # longer than the file
            _transfer(url, part, advance)
        return
    with response:
        resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {done}-")
        done = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        _store_version(part, url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
        advance(done, total)
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(done, total)
    if total is not None and done != total:
        raise _InterruptedTransferError(f"the connection closed after {done:,} of {total:,} bytes")


class _StayEncrypted(urllib.request.HTTPRedirectHandler):
    """Refuses a redirection from HTTPS to anything else, which would let others change the file on its way."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise _TransferError(f"redirected to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_StayEncrypted)


def _version_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _store_version(part: Path, url: str, version: str | None) -> None:
    # Files with the same weak ETag may differ in some bytes, so it cannot be used to resume.
    version = None if version is None or version.startswith("W/") else version
    _version_file(part).write_text(json.dumps({"url": url, "version": version}), "utf-8")


def _stored_version(part: Path, url: str) -> str | None:
    try:
        stored = json.loads(_version_file(part).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return stored.get("version") if isinstance(stored, dict) and stored.get("url") == url else None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    return str(error) or type(error).__name__
