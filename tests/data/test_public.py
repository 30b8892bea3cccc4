"""Fetching public data, against a server on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from diffaug.data.public import store
from diffaug.data.public.catalogue import DATASETS, PublicDataset, RemoteFile
from diffaug.data.public.download import DownloadError, _opener, _StayEncrypted, _TransferError, download
from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import DataFolder
from diffaug.evaluation.protocol import STS, TRANSFER

CONTENT = b"".join(b"sentence number %d\n" % i for i in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """What the server holds and how it behaves, and what it was asked."""

    def __init__(self) -> None:
        self.files = {"/file.txt": CONTENT}
        self.etag: str | None = '"v1"'
        self.ranges = True
        # How many bytes of an answer to send before the connection breaks off, for each request to come.
        self.break_after: list[int] = []
        self.requests: list[tuple[str, str | None]] = []
        self.url = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            state.requests.append((self.path, self.headers.get("Range")))
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = 0
            wanted = self.headers.get("Range")
            if wanted and state.ranges and self.headers.get("If-Range") == state.etag:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            if state.etag is not None:
                self.send_header("ETag", state.etag)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if self.command == "HEAD":
                return
            end = start + state.break_after.pop(0) if state.break_after else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, *args: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_address[1]}"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


def test_download_of_one_file(server: Server, tmp_path: Path) -> None:
    seen = []
    url = f"{server.url}/file.txt"
    fetched = download([url], tmp_path / "a" / "b.txt", SHA256, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "a" / "b.txt").read_bytes() == CONTENT
    assert (fetched.sha256, fetched.url) == (SHA256, url)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"], "nothing else stays behind"


def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_000, 50_000]
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert (tmp_path / "b.txt").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-", "bytes=51000-"]


def interrupted(server: Server, target: Path) -> None:
    """A download that failed for good after 70,000 bytes."""
    server.break_after = [70_000, 0]
    with pytest.raises(DownloadError, match="closed after 70,000 of"):
        download([f"{server.url}/file.txt"], target)
    assert not target.exists()
    assert target.with_name(target.name + ".part").stat().st_size == 70_000
    server.break_after = []
    server.requests.clear()


def test_a_later_download_resumes_an_earlier_one(server: Server, tmp_path: Path) -> None:
    interrupted(server, tmp_path / "b.txt")
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert (tmp_path / "b.txt").read_bytes() == CONTENT
    assert server.requests == [("/file.txt", "bytes=70000-")]


def test_a_part_of_another_version_is_not_resumed(server: Server, tmp_path: Path) -> None:
    interrupted(server, tmp_path / "b.txt")
    server.files["/file.txt"] = CONTENT.upper()
    server.etag = '"v2"'
    download([f"{server.url}/file.txt"], tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == CONTENT.upper()


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_etag_the_download_starts_again(server: Server, tmp_path: Path, etag: str | None) -> None:
    server.etag = etag
    server.break_after = [70_000, 0]
    with pytest.raises(DownloadError, match="closed after"):
        download([f"{server.url}/file.txt"], tmp_path / "b.txt")
    (tmp_path / "b.txt.part").write_bytes(CONTENT[:70_000])
    server.requests.clear()
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert server.requests == [("/file.txt", None)]


def test_a_server_without_range_requests_sends_the_whole_file(server: Server, tmp_path: Path) -> None:
    interrupted(server, tmp_path / "b.txt")
    server.ranges = False
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert (tmp_path / "b.txt").read_bytes() == CONTENT


def test_a_part_that_is_already_complete(server: Server, tmp_path: Path) -> None:
    interrupted(server, tmp_path / "b.txt")
    (tmp_path / "b.txt.part").write_bytes(CONTENT)
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert (tmp_path / "b.txt").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    interrupted(server, tmp_path / "b.txt")
    (tmp_path / "b.txt.part").write_bytes(CONTENT + b"more")
    download([f"{server.url}/file.txt"], tmp_path / "b.txt", SHA256)
    assert (tmp_path / "b.txt").read_bytes() == CONTENT


def test_a_wrong_checksum_gives_no_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"expected a file with the SHA-256 000000000000.*, got {SHA256[:12]}"):
        download([f"{server.url}/file.txt"], tmp_path / "b.txt", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_files_on_the_hub(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client of the hub against this server, which answers as the hub does."""
    path = "/datasets/owner/data/resolve/main/file.txt"
    server.files[path] = CONTENT
    server.etag = f'"{SHA256}"'  # as the hub has it for large files
    for name in ("hf_hub_download", "hf_hub_url", "get_hf_file_metadata"):
        monkeypatch.setattr(huggingface_hub, name, partial(getattr(huggingface_hub, name), endpoint=server.url))
    url, target = "hf://datasets/owner/data@main/file.txt", tmp_path / "file.txt"
    target.with_name("file.txt.part").write_text("a part that was downloaded over HTTP")
    with pytest.raises(DownloadError, match=r"file\.txt: .*offline mode is enabled"):
        download([url], target)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    found = download([url], target)
    assert (found.path, found.sha256, found.url) == (target, SHA256, url)
    assert target.read_bytes() == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]
    # Without a checksum of our own, the one that the hub announces is verified.
    server.etag = f'"{"1" * 64}"'
    with pytest.raises(DownloadError, match=f"expected a file with the SHA-256 111111111111.*, got {SHA256[:12]}"):
        download([url], tmp_path / "other.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]
    dead = "hf://datasets/owner/data@main/missing.txt"
    with pytest.raises(DownloadError, match=r"missing\.txt: .*404"):
        download([dead], tmp_path / "missing.txt")
    assert download([dead, f"{server.url}{path}"], tmp_path / "missing.txt").sha256 == SHA256


def test_the_next_url_is_tried(server: Server, tmp_path: Path) -> None:
    server.files["/wrong.txt"] = b"an error page"
    urls = [f"{server.url}/gone.txt", f"{server.url}/wrong.txt", f"{server.url}/file.txt"]
    assert download(urls, tmp_path / "b.txt", SHA256).url == urls[2]


def one_file(server: Server, path: str = "/file.txt", **more: object) -> PublicDataset:
    file = RemoteFile("file.txt", (f"{server.url}{path}",), rows=20_000)
    return PublicDataset("some", "some data", "free", "https://example.org/page", (replace(file, **more),))  # type: ignore[arg-type]


def test_a_data_set_is_downloaded_and_checked(server: Server, tmp_path: Path) -> None:
    source = one_file(server, sha256=SHA256)
    assert store.status(source, tmp_path).state == "missing"
    home = store.get(source, tmp_path)
    assert (home / "file.txt").read_bytes() == CONTENT
    assert store.status(source, tmp_path).state == "ready"
    receipt = json.loads((home / store.RECEIPT).read_text())
    assert receipt["files"] == [{"file": "file.txt", "from": f"{server.url}/file.txt", "sha256": SHA256}]
    store.get(source, tmp_path)
    assert len(server.requests) == 1, "complete data is not downloaded again"
    store.get(source, tmp_path, again=True)
    assert len(server.requests) == 2


@pytest.mark.parametrize("archive", [False, True], ids=["a file", "an archive"])
def test_a_second_process_is_told_to_wait(archive: bool, server: Server, tmp_path: Path) -> None:
    """Both would write into the same part, and one would unpack what the other has removed."""
    source = one_file(server)
    if archive:
        server.files["/file.txt"] = zip_of({"STS/a": b"1\n" * 100_000})
        source = one_file(server, unpack="STS/a", rows=None)
    said: list[str] = []

    def advance(name: str, done: int, total: int | None) -> None:
        if not said:
            with pytest.raises(DiffaugError) as refused:
                store.get(source, tmp_path)
            said.append(str(refused.value))

    store.get(source, tmp_path, advance=advance)
    assert said == [f"another process is downloading some into {tmp_path}; wait for it to finish"]
    assert store.status(source, tmp_path).state == "ready"
    assert len(server.requests) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_data_that_another_process_has_just_downloaded_is_not_downloaded_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, exclusive_lock = one_file(server), store.exclusive_lock

    def late(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(store, "exclusive_lock", exclusive_lock)
            store.get(source, tmp_path)
        return exclusive_lock(*arguments)

    monkeypatch.setattr(store, "exclusive_lock", late)
    store.get(source, tmp_path)
    assert len(server.requests) == 1


def test_status_of_damaged_and_partial_data(server: Server, tmp_path: Path) -> None:
    source = one_file(server)
    server.break_after = [70_000, 0]
    with pytest.raises(DiffaugError, match="closed after"):
        store.get(source, tmp_path)
    assert store.status(source, tmp_path) == store.Status("partial", "70,000 bytes of file.txt")
    server.break_after = []
    store.get(source, tmp_path)
    path = tmp_path / "some" / "file.txt"
    path.write_bytes(CONTENT[:-22])
    assert store.status(source, tmp_path).state == "damaged"
    assert f"expected the SHA-256 {SHA256[:12]}" in store.status(source, tmp_path).detail, "the receipt knows what came"
    (tmp_path / "some" / store.RECEIPT).unlink()
    assert "expected 20,000 rows, got 19,999" in store.status(source, tmp_path).detail
    assert f"expected the SHA-256 {SHA256[:12]}" in store.status(one_file(server, sha256=SHA256), tmp_path).detail


def test_a_dead_link_is_an_error_with_advice(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError) as caught:
        store.get(one_file(server, "/gone.txt"), tmp_path)
    message = str(caught.value)
    assert "gone.txt: 404 Not Found" in message
    assert "https://example.org/page" in message
    assert "diffaug data get some --from FILE" in message


def test_a_host_that_does_not_answer(server: Server, tmp_path: Path) -> None:
    dead = PublicDataset("x", "", "", "https://example.org", (RemoteFile("f", ("http://127.0.0.1:9/f",)),))
    with pytest.raises(DiffaugError, match=r"cannot be reached .*By hand"):
        store.get(dead, tmp_path)


def test_the_wrong_number_of_rows_is_an_error(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="expected 7 rows, got 20,000"):
        store.get(one_file(server, rows=7), tmp_path)


def test_a_local_file_instead_of_a_download(server: Server, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_bytes(CONTENT)
    home = store.get(one_file(server, sha256=SHA256), tmp_path / "data", local=mine)
    assert (home / "file.txt").read_bytes() == CONTENT
    assert server.requests == []
    mine.write_bytes(CONTENT + b"x\n")
    with pytest.raises(DiffaugError, match=r"mine\.txt is not the published file\.txt"):
        store.get(one_file(server, sha256=SHA256), tmp_path / "data", local=mine)
    two = replace(one_file(server), files=(RemoteFile("a", ()), RemoteFile("b", ())))
    with pytest.raises(DiffaugError, match=r"does not contain a; some consists of a, b"):
        store.get(two, tmp_path / "data", local=mine)
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    assert (store.get(two, tmp_path / "data", local=tmp_path) / "b").read_text() == "2"


Archive = Callable[[dict[str, bytes]], bytes]


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return buffer.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_archives_are_unpacked(make: Archive, server: Server, tmp_path: Path) -> None:
    server.files["/file.txt"] = make({"STS/a": b"1\n", "__MACOSX/a": b"x", "b": b"2"})
    source = one_file(server, unpack="STS/a", rows=None)
    home = store.get(source, tmp_path)
    assert (home / "STS" / "a").read_bytes() == b"1\n"
    assert not (home / "link").exists()
    assert store.status(source, tmp_path).state == "ready"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some"]


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_an_archive_with_paths_outside_its_folder_is_refused(make: Archive, server: Server, tmp_path: Path) -> None:
    server.files["/file.txt"] = make({"../evil": b"1"})
    with pytest.raises(DiffaugError, match="outside its folder"):
        store.get(one_file(server, unpack="STS/a", rows=None), tmp_path / "data")
    assert not (tmp_path / "data" / "evil").exists()
    assert not (tmp_path / "evil").exists()


def test_an_archive_without_the_expected_file(server: Server, tmp_path: Path) -> None:
    server.files["/file.txt"] = zip_of({"b": b"2"})
    with pytest.raises(DiffaugError, match="has no STS/a"):
        store.get(one_file(server, unpack="STS/a", rows=None), tmp_path)
    server.files["/file.txt"] = b"<html>moved</html>"
    with pytest.raises(DiffaugError, match="cannot be unpacked"):
        store.get(one_file(server, unpack="STS/a", rows=None), tmp_path)


def good_and_bad(server: Server, folder: Path, **more: object) -> PublicDataset:
    """A data set that is there, of which the server now has something else."""
    server.files["/file.txt"] = zip_of({"STS/a": b"good\n"})
    source = one_file(server, **{"unpack": "STS/a", "rows": None, **more})
    store.get(source, folder)
    return source


def encrypted_zip() -> bytes:
    """`zipfile` cannot encrypt; the flag in both headers is what a reader sees first."""
    content = bytearray(zip_of({"STS/a": b"secret"}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def zip_with_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("STS/a")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (zip_of({"b": b"2"}), r"has no STS/a"),
        (tar_of({"b": b"2"}), r"has no STS/a"),
        (b"<html>moved</html>", "cannot be unpacked"),
        (encrypted_zip(), r"is encrypted; unpack it with its password"),
        (zip_with_link(), r"has no STS/a"),
        (zip_of({"STS/a": b"1", "..\\evil": b"1"}), "outside its folder"),
        (zip_of({"STS/a": b"1", "C:\\evil": b"1"}), "outside its folder"),
        (zip_of({"STS/a": bytes(3 << 20)}), "more than 0 GB"),
        (tar_of({"STS/a": bytes(3 << 20)}), "more than 0 GB"),
        (zip_of({f"STS/{i}": b"1" for i in range(40)}), "more than 20 files"),
    ],
)
@pytest.mark.parametrize("way", ["local", "download"])
def test_a_wrong_archive_replaces_nothing(
    content: bytes, error: str, way: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = good_and_bad(server, tmp_path / "data")
    monkeypatch.setattr(store, "_MAX_UNPACKED", 2 << 20)
    monkeypatch.setattr(store, "_MAX_FILES", 20)
    wrong = tmp_path / "wrong.zip"
    wrong.write_bytes(content)
    server.files["/file.txt"] = content
    with pytest.raises(DiffaugError, match=error):
        store.get(source, tmp_path / "data", local=wrong if way == "local" else None, again=True)
    assert (tmp_path / "data" / "some" / "STS" / "a").read_bytes() == b"good\n"
    assert store.status(source, tmp_path / "data").state == "ready"
    assert wrong.read_bytes() == content


@pytest.mark.parametrize("way", ["local", "download"])
def test_a_wrong_file_replaces_nothing(way: str, server: Server, tmp_path: Path) -> None:
    source = one_file(server)
    store.get(source, tmp_path / "data")
    wrong = tmp_path / "wrong.txt"
    wrong.write_bytes(CONTENT[:-22])
    server.files["/file.txt"] = wrong.read_bytes()
    with pytest.raises(DiffaugError, match="expected 20,000 rows, got 19,999"):
        store.get(source, tmp_path / "data", local=wrong if way == "local" else None, again=True)
    assert (tmp_path / "data" / "some" / "file.txt").read_bytes() == CONTENT
    assert store.status(source, tmp_path / "data").state == "ready"


def test_unpacked_files_are_checked_again(server: Server, tmp_path: Path) -> None:
    source = good_and_bad(server, tmp_path)
    path = tmp_path / "some" / "STS" / "a"
    assert DataFolder([tmp_path]).lines(path) == ["good"]
    path.write_bytes(b"changed\n")
    assert store.status(source, tmp_path).state == "damaged"
    with pytest.raises(DiffaugError, match="has changed since it was downloaded"):
        DataFolder([tmp_path]).lines(path)
    store.get(source, tmp_path)
    assert path.read_bytes() == b"good\n", "damaged data is downloaded again"
    # A receipt of an earlier version has the checksum of the archive alone.
    receipt = json.loads((tmp_path / "some" / store.RECEIPT).read_text())
    del receipt["files"][0]["unpacked"]
    (tmp_path / "some" / store.RECEIPT).write_text(json.dumps(receipt))
    assert store.status(source, tmp_path).state == "ready"
    assert DataFolder([tmp_path]).lines(path) == ["good"]


@pytest.mark.parametrize(("start", "end", "allowed"), [("https", "http", False), ("https", "https", True)])
def test_a_redirection_stays_encrypted(start: str, end: str, allowed: bool) -> None:
    request = urllib.request.Request(f"{start}://example.org/a")
    handler = next(handler for handler in _opener().handlers if isinstance(handler, _StayEncrypted))
    arguments = request, None, 302, "Found", {}, f"{end}://example.org/b"
    if allowed:
        assert handler.redirect_request(*arguments).full_url == f"{end}://example.org/b"
    else:
        with pytest.raises(_TransferError, match="not encrypted"):
            handler.redirect_request(*arguments)


def test_rows_of_csv_are_records(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('a,b\n"one\ntwo",3\n4,5')
    assert store.count_rows(path, header=True, csv=True) == 2
    assert store.count_rows(path, header=False, csv=False) == 4


def test_the_catalogue_is_consistent() -> None:
    assert len({source.name for source in DATASETS}) == len(DATASETS)
    for source in DATASETS:
        assert source.page.startswith("https://")
        for file in source.files:
            assert file.urls
            assert all(url.startswith(("https://", "hf://datasets/")) for url in file.urls)
            assert file.sha256 is None or len(file.sha256) == 64
            assert not (file.unpack and file.rows)
    rows = {file.name: file.rows for source in DATASETS for file in source.files}
    assert rows["wiki1m_for_simcse.txt"] == 1_000_000
    assert rows["nli_for_simcse.csv"] == 275_601
    for spec in TRANSFER:
        for file in spec.files:
            assert rows.get(file.name, file.rows) == file.rows
    assert {f"sts{spec.name[3:]}" for spec in STS if spec.folders} <= {source.name for source in DATASETS}
    for source in DATASETS:
        if source.name.startswith("sts1"):
            spec = next(spec for spec in STS if spec.name == source.name.upper())
            assert source.files[0].unpack.split("/")[0] in spec.folders
    with pytest.raises(DiffaugError, match="there is no data set 'wiki'; choose one of wiki1m, nli, senteval"):
        store.find_dataset("wiki")
