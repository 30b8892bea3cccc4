"""Hostile requests to either application: other sites, paths, bodies, tokens, slow clients; and shutting down."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serve_gate import Gate
from starlette.testclient import TestClient

from diffaug.data.documents import Documents
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.serve import web
from diffaug.serve.api import Served, create_app
from diffaug.serve.corpus import MemoryCorpus
from diffaug.serve.web import Limits

LIMITS = Limits(bytes=10_000, seconds=0.5)
BODY = {"model": "tiny", "input": "A dog."}


@pytest.fixture(scope="module")
def url(embedder: Embedder, serve: Callable[..., Any]) -> Iterator[str]:
    with serve(create_app([Served("tiny", embedder)], LIMITS), LIMITS) as url:
        yield url


def _post(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json=BODY, headers=headers)


def test_requests_of_other_sites_are_refused(url: str) -> None:
    assert _post(url).status_code == 200
    assert _post(url, origin=url).status_code == 200
    for origin in ("https://evil.example", "null", url.replace("http:", "https:") + "1", f"{url}.evil.example"):
        response = _post(url, origin=origin)
        assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
        assert "access-control-allow-origin" not in response.headers
    assert _post(url, **{"sec-fetch-site": "cross-site"}).status_code == 403
    preflight = httpx.options(f"{url}/v1/embeddings", headers={"origin": "https://evil.example"})
    assert preflight.status_code == 403


def test_form_of_another_site_cannot_post(url: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        response = httpx.post(f"{url}/v1/embeddings", content=json.dumps(BODY), headers={"content-type": kind})
        assert response.status_code == 415


def test_name_that_was_rebound_to_this_machine_is_refused(url: str) -> None:
    for host in ("evil.example", f"evil.example:{urlsplit(url).port}", "127.0.0.1.evil.example", ""):
        assert _post(url, host=host).status_code == 403
    assert _post(url, host=f"localhost:{urlsplit(url).port}").status_code == 200


def test_name_at_a_proxy_is_allowed(embedder: Embedder, serve: Callable[..., Any]) -> None:
    limits = Limits(hosts=("search.example.org",))
    with serve(create_app([Served("tiny", embedder)], limits), limits) as url:
        assert _post(url, host="search.example.org", origin="https://search.example.org").status_code == 200
        assert _post(url, host="search.example.org", origin="https://evil.example").status_code == 403
        assert _post(url, host="evil.example").status_code == 403


def test_pages_allow_no_foreign_content_and_are_not_framed(url: str) -> None:
    for path in ("/", "/assets/common.js", "/info", "/no-such-page"):
        headers = httpx.get(url + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    for page in web.ASSETS.glob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(r"https?://|\son\w+=|<script>|style=", text), page.name
    for script in web.ASSETS.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://", script.read_text())


@pytest.mark.parametrize(
    "path",
    ["/assets/../web.py", "/assets/%2e%2e/web.py", "/assets/..%2fweb.py", "/assets/%2fetc%2fpasswd",
     "/../../etc/passwd",
     "/assets/search.html", "/assets/", "/v1/models/../../etc/passwd", "//etc/passwd", "/assets/common.js%00.css"],
)  # fmt: skip
def test_path_traversal_finds_nothing(url: str, path: str) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as raw:  # clients would tidy the path
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode())
        answer = _read(raw)
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"import" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 9_000,
        b'{"input": ' + b"9" * 5_000 + b"}",
        b'"x"',
    ],
)
def test_malformed_body_is_a_bad_request(url: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/embeddings", "/search", "/similarity"):
        response = httpx.post(url + path, content=content, headers=headers)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_huge_body_is_refused_before_it_is_read(url: str) -> None:
    big = {"model": "tiny", "input": "x" * 20_000}
    assert httpx.post(f"{url}/v1/embeddings", json=big).status_code == 413

    def chunks() -> Iterator[bytes]:
        yield from (b" " * 1_000 for _ in range(20))

    # Without a length, it is counted; the server may close the connection while the client still writes.
    try:
        response = httpx.post(f"{url}/v1/embeddings", content=chunks(), headers={"content-type": "application/json"})
        assert response.status_code == 413
    except httpx.WriteError:
        pass
    headers = {"content-length": "-1"}
    assert _raw(url, "POST /search", "", **headers)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413")
    assert _raw(url, "GET /", "", x="y" * 1_000_000)[:12] in (b"", b"HTTP/1.1 400")


def test_slow_clients_are_disconnected(url: str) -> None:
    parts = urlsplit(url)
    started = time.monotonic()
    with (
        socket.create_connection((parts.hostname, parts.port)) as silent,
        socket.create_connection((parts.hostname, parts.port)) as headers,
        socket.create_connection((parts.hostname, parts.port)) as body,
        socket.create_connection((parts.hostname, parts.port)) as second,
    ):
        headers.sendall(b"GET / HTTP/1.1\r\n")
        body.sendall(f"POST /search HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: 99\r\n\r\n{{".encode())
        second.sendall(f"GET /health HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode())
        while not second.recv(4_096).endswith(b'{"status":"ok"}'):
            pass
        second.sendall(b"GET /health HTTP/1.1\r\n")  # the next request on a connection that worked
        assert _read(silent) == _read(headers) == b""
        assert _read(body).startswith(b"HTTP/1.1 408")
        assert _read(second) == b""
    assert time.monotonic() - started < 10
    assert _post(url).status_code == 200


def test_token_is_needed_for_everything_but_the_page(embedder: Embedder) -> None:
    app = create_app([Served("tiny", embedder)], Limits(token="secret"))
    with TestClient(app, "http://127.0.0.1") as client:
        for path in ("/", "/health", "/assets/common.js"):
            assert client.get(path).status_code == 200
        for path in ("/info", "/metrics", "/v1/models", "/v1/models/tiny", "/nothing"):
            assert client.get(path).status_code == 401
        for value in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "Bearer s\u00e9cret"):
            headers = {"authorization": value.encode("latin-1")}
            response = client.post("/v1/embeddings", json=BODY, headers=headers)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        headers = {"authorization": "Bearer secret"}
        assert client.post("/v1/embeddings", json=BODY, headers=headers).status_code == 200


def test_token_that_cannot_be_a_header_is_refused() -> None:
    for token in ("", "two words", "s\u00e9cret", "a\n"):
        with pytest.raises(DiffaugError, match="the token must be"):
            Limits(token=token)


def test_names_of_files_reach_the_page_without_their_path(embedder: Embedder) -> None:
    corpus = MemoryCorpus("<img src=x onerror=alert(1)>.txt", Documents(["</script><b>"]), embedder.encode(["a"]))
    with TestClient(create_app([Served("tiny", embedder, corpus)], LIMITS), "http://127.0.0.1") as client:
        assert client.get("/info").headers["content-type"] == "application/json"
        hits = client.post("/search", json={"query": "a"})
        assert hits.headers["content-type"] == "application/json"
        assert hits.json()["hits"][0]["sentence"] == "</script><b>"
        assert "onerror" not in client.get("/").text


def test_answers_are_sent_without_delay() -> None:
    with (
        web.listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_address_that_cannot_be_used_is_an_error() -> None:
    with web.listen("127.0.0.1", 0) as taken:
        with pytest.raises(DiffaugError, match="choose another --host or --port"):
            web.listen("127.0.0.1", taken.getsockname()[1])
        assert not web.is_public(taken)
    with pytest.raises(DiffaugError, match="cannot listen on"):
        web.listen("no.such.host.invalid", 0)
    with web.listen("0.0.0.0", 0) as everywhere:
        assert web.is_public(everywhere)
        assert web.address(everywhere, "t").startswith("http://127.0.0.1:")
        assert web.address(everywhere, "t").endswith("/#token=t")


def test_shutdown_finishes_what_has_arrived(embedder: Embedder, serve: Callable[..., Any]) -> None:
    gate = Gate(embedder)
    server = serve(create_app([Served("tiny", gate)], Limits()), Limits())  # type: ignore[arg-type]
    url = server.__enter__()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(httpx.post, f"{url}/v1/embeddings", json=BODY, timeout=60) for _ in range(3)]
        while not re.search(r"queue_sentences\S+ 3", httpx.get(f"{url}/metrics").text):
            time.sleep(0.01)
        ended = pool.submit(server.__exit__, None, None, None)
        while _answers(url):  # until no new requests are taken
            time.sleep(0.01)
        assert not ended.done()
        gate.open.set()
        assert [future.result().status_code for future in asked] == [200] * 3
        ended.result()


def _answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return False
    except httpx.HTTPError:  # closed while it was asked
        pass
    return True


def _raw(url: str, line: str, body: str, **headers: str) -> bytes:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as raw:
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        raw.sendall(f"{line} HTTP/1.1\r\nhost: {parts.netloc}\r\n{head}\r\n{body}".encode())
        return _read(raw)


def _read(raw: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    raw.settimeout(10)
    parts = []
    try:
        while part := raw.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
