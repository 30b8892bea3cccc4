"""Fetching a file over HTTP so that an interrupted download goes on where it stopped, and nothing damaged gets a name.

Bytes arrive in ``NAME.part`` beside the target; only a complete file with the right checksum becomes ``NAME``.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diffaug.errors import DiffaugError
from diffaug.version import __version__

_CHUNK = 1 << 20
_TIMEOUT = 30.0
# An interrupted transfer is taken up again this often, as long as each attempt brings something.
_ATTEMPTS = 5


class DownloadError(DiffaugError):
    """A file could not be fetched from any of its addresses; the message has the reason for each."""


class _BrokenOffError(Exception):
    """The connection ended before the file did."""


@dataclass
class Fetched:
    """A file that arrived: its checksum, and the address that gave it."""

    path: Path
    sha256: str
    url: str


def download(
    urls: Sequence[str],
    target: Path,
    sha256: str | None = None,
    advance: Callable[[int, int | None], None] = lambda done, total: None,
) -> Fetched:
    """Fetch a file from the first address that has it, going on with an earlier part of it if there is one.

    Args:
        urls: addresses of the same file, in order of preference.
        target: where it goes.
        sha256: what it must be; left out, a checksum that the server announces is checked instead.
        advance: called with the bytes that are there, and how many there will be if the server says so.

    Raises:
        DownloadError: no address gave the file, or what it gave has another checksum.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures = []
    for url in urls:
        try:
            announced = _fetch(url, part, advance)
        except (OSError, http.client.HTTPException, _BrokenOffError) as error:
            failures.append(f"{url}: {_reason(error)}")
            continue
        found = checksum(part)
        expected = sha256 or announced
        if expected is not None and found != expected:
            part.unlink()
            _origin(part).unlink(missing_ok=True)
            failures.append(f"{url}: gave a file with the SHA-256 {found[:12]}... instead of {expected[:12]}...")
            continue
        part.replace(target)
        _origin(part).unlink(missing_ok=True)
        return Fetched(target, found, url)
    raise DownloadError("; ".join(failures))


def checksum(path: Path) -> str:
    """A file's SHA-256, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch(url: str, part: Path, advance: Callable[[int, int | None], None]) -> str | None:
    """Bring ``part`` to its full length; returns the SHA-256 the server announced, if it did."""
    attempts = _ATTEMPTS
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return _transfer(url, part, advance)
        except (_BrokenOffError, TimeoutError, ConnectionError, http.client.HTTPException):
            attempts -= 1
            if attempts == 0 or not part.exists() or part.stat().st_size <= before:
                raise


def _transfer(url: str, part: Path, advance: Callable[[int, int | None], None]) -> str | None:
    headers = {"User-Agent": f"diffaug/{__version__}", "Accept-Encoding": "identity"}
    have = part.stat().st_size if part.exists() else 0
    version = _known_version(part, url)
    if have and version is None:
        # Without a name for the version the first part came from, two versions could be glued together.
        have = 0
    if have and version is not None:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    redirects = _Redirects()
    try:
        response = urllib.request.build_opener(redirects).open(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and have and _total(error.headers.get("Content-Range")) == have:
            return redirects.announced  # all of it is there already
        if error.code == 416:
            part.unlink()
            return _transfer(url, part, advance)
        raise
    with response:
        resumed = response.status == 206 and _start(response.headers.get("Content-Range")) == have
        done = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        _remember(part, url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
        with part.open("ab" if resumed else "wb") as file:
            done = _copy(response, file, done, total, advance)
    if total is not None and done != total:
        raise _BrokenOffError(f"ended after {done:,} of {total:,} bytes")
    return redirects.announced


def _copy(
    response: http.client.HTTPResponse,
    file: IO[bytes],
    done: int,
    total: int | None,
    advance: Callable[[int, int | None], None],
) -> int:
    advance(done, total)
    while chunk := response.read1(_CHUNK):
        file.write(chunk)
        done += len(chunk)
        advance(done, total)
    return done


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and notes the checksum that the hub announces with one."""

    announced: str | None = None

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        etag = (headers.get("X-Linked-ETag") or "").strip('"')
        if re.fullmatch("[0-9a-f]{64}", etag):
            self.announced = etag
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _origin(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _remember(part: Path, url: str, version: str | None) -> None:
    """Weak ETags name contents that need not be equal byte by byte, so they are of no use for going on."""
    version = None if version is None or version.startswith("W/") else version
    _origin(part).write_text(json.dumps({"url": url, "version": version}), "utf-8")


def _known_version(part: Path, url: str) -> str | None:
    try:
        origin = json.loads(_origin(part).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return origin.get("version") if isinstance(origin, dict) and origin.get("url") == url else None


def _start(content_range: str | None) -> int | None:
    match = re.match(r"bytes (\d+)-", content_range or "")
    return int(match[1]) if match else None


def _total(content_range: str | None) -> int | None:
    match = re.match(r"bytes \*/(\d+)", content_range or "")
    return int(match[1]) if match else None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    return str(error) or type(error).__name__
