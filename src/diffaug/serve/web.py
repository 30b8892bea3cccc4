"""What both applications share: limits and checks of requests, errors, static files, and the server itself."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import mimetypes
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffaug.data.documents import finite
from diffaug.errors import DiffaugError

ASSETS = Path(__file__).parent / "assets"
# Scripts and styles come from this server only, nothing is embedded in another page, no form is sent anywhere.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_MAX_CONNECTIONS = 2_048
_MAX_INTEGER = 1 << 63  # of SQLite and numpy
_MAX_NUMBER_DIGITS = 400  # Python takes quadratic time to parse longer integers


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Attributes:
        bytes: size of a body.
        seconds: time in which the headers and then the body of a request must have arrived.
        token: bearer token that requests must have; None: none.
        hosts: names under which a reverse proxy on this machine passes on requests.
    """

    bytes: int = 8 << 20
    seconds: float = 20.0
    token: str | None = None
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise DiffaugError("the token must be ASCII characters without spaces, since it is sent in a header")


class ApiError(Exception):
    """An error that is sent to the client, in the format of OpenAI's API. The message never contains a path."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The response with the error."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return reply({"error": error}, self.status, self.headers)


def reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response. It is ASCII: half a surrogate pair, which Python strings may contain, is not UTF-8."""
    text = json.dumps(finite(data), default=str, separators=(",", ":"))
    return Response(text, status, headers, media_type="application/json")


async def read_json(request: Request) -> dict[str, Any]:
    """The body of a request, which must be a JSON object.

    Raises:
        ApiError: it is something else.
    """
    # A form of another site can send other content types without asking the server first.
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON, with the header Content-Type: application/json")
    try:
        data = json.loads(await request.body(), parse_int=_integer, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is not valid JSON") from error
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object")
    return data


def _integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_DIGITS:
        raise ValueError
    return int(text)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def field(data: Mapping[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """A value of the body.

    Raises:
        ApiError: it is missing or has another type.
    """
    value = data.get(name)
    if value is None and default is not ...:
        return default
    if value is None:
        raise ApiError(400, f"{name} is missing", param=name)
    wrong = not isinstance(value, kind)
    if wrong or (kind is int and (isinstance(value, bool) or abs(value) >= _MAX_INTEGER)):
        words = {str: "a string", int: "an integer", bool: "true or false", dict: "an object", list: "a list"}
        raise ApiError(400, f"{name} must be {words[kind]}", param=name)
    return value


class Guard:
    """Checks every request before the application sees it, and adds headers to every response.

    The whole body is read here, so that its size and the time it takes are limited in one place.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, public: frozenset[str], observe: Observe | None = None) -> None:
        self._app, self._limits, self._public, self._observe = app, limits, public, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = asyncio.get_running_loop().time()

        async def send_checked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
                if self._observe is not None:
                    elapsed = asyncio.get_running_loop().time() - started
                    self._observe(scope["path"], message["status"], elapsed)
            await send(message)

        try:
            self._check(scope)
            body = await self._body(Headers(scope=scope), receive)
        except ApiError as error:
            await error.response()(scope, receive, send_checked)
            return
        if body is None:  # the client has gone
            return
        sent = False

        async def receive_body() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_body, send_checked)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        server = scope.get("server") or ("", 0)
        # A name of another site that resolves to this machine would make its page "same origin" (DNS rebinding).
        if _is_loopback(str(server[0])) and _name(host) not in {*_LOOPBACK, *self._limits.hosts}:
            raise ApiError(403, "this server answers requests to localhost only")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise ApiError(403, "requests from pages of other sites are not allowed")
        if origin is None and headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["method"] != "GET":
            raise ApiError(403, "requests from pages of other sites are not allowed")
        path = scope["path"]
        if self._limits.token is not None and path not in self._public and not path.startswith("/assets/"):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self._limits.token.encode())
            if scheme.lower() != "bearer" or not same:
                raise ApiError(
                    401,
                    "a valid token is needed: Authorization: Bearer TOKEN",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        too_large = ApiError(413, f"the body is larger than the limit of {self._limits.bytes:,} bytes")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:18]) > self._limits.bytes:
            raise too_large

        async def read() -> bytes | None:
            parts, size, more = [], 0, True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > self._limits.bytes:
                    raise too_large
                more = message.get("more_body", False)
            return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), self._limits.seconds)
        except asyncio.TimeoutError:
            # The connection is closed: the rest of the body would be taken for the next request.
            raise ApiError(408, "the body did not arrive in time", headers={"connection": "close"}) from None


Observe = Callable[[str, int, float], None]
"""Called after each request with its path, status and duration."""


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def application(
    routes: list[BaseRoute],
    limits: Limits,
    *,
    page: str,
    public: frozenset[str] = frozenset(),
    observe: Observe | None = None,
    lifespan: Any = None,
) -> Starlette:
    """A Starlette application behind the guard, with ``page`` (a file in assets/) as its front page."""

    async def front(_: Request) -> Response:
        return Response((ASSETS / page).read_bytes(), media_type="text/html")

    return Starlette(
        routes=[Route("/", front), Route("/assets/{name}", _asset), *routes],
        middleware=[Middleware(Guard, limits=limits, public=public | {"/"}, observe=observe)],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_failure},
        lifespan=lifespan,
    )


# Read once: no part of a request is ever used as a path.
_FILES = {path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in {".js", ".css", ".svg"}}


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        raise ApiError(404, "not found")
    return Response(_FILES[name], media_type=mimetypes.guess_type(name)[0])


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, error.detail.lower(), headers=error.headers).response()


async def _on_failure(_: Request, error: Exception) -> Response:
    return ApiError(500, "internal error; see the log of the server").response()  # uvicorn logs the traceback


class _TimedProtocol(H11Protocol):
    """Closes a connection whose request headers do not arrive in time; uvicorn waits for them forever."""

    seconds = Limits.seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._busy():
            self._wait()
        super().data_received(data)
        if self._busy():
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def listen(host: str, port: int) -> socket.socket:
    """A socket on which the server will answer; bound before the model is loaded, so that errors come early.

    Raises:
        DiffaugError: the address cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DiffaugError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from error
    # Connections inherit this. asyncio would set it only if the socket had been made with the protocol TCP by name, and
    # without it an answer waits 40 ms for the client's acknowledgement of its headers.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def address(sock: socket.socket, token: str | None = None) -> str:
    """The URL of the front page; a token is in the fragment, which browsers do not send."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + ("" if token is None else f"#token={token}")


def is_public(sock: socket.socket) -> bool:
    """Whether other machines can reach the socket."""
    return not _is_loopback(str(sock.getsockname()[0]))


def run(app: Callable[[Scope, Receive, Send], Awaitable[None]], sock: socket.socket, limits: Limits) -> None:
    """Serve until SIGINT or SIGTERM; then finish the requests that have arrived."""
    protocol = type("_Protocol", (_TimedProtocol,), {"seconds": limits.seconds})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(2 * limits.seconds)),
    )
    with sock, suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has shut down
        uvicorn.Server(config).run(sockets=[sock])
