"""A tiny model, and a real server in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from diffaug.embedder import Embedder
    from diffaug.serve.web import Limits


@pytest.fixture(scope="session")
def embedder(tiny_bert: Path) -> Embedder:
    from diffaug.embedder import Embedder

    return Embedder.from_pretrained(tiny_bert, device="cpu")


@contextmanager
def running(app: Any, limits: Limits) -> Iterator[str]:
    """A real server; yields its address without the last slash."""
    import uvicorn

    from diffaug.serve import web

    servers: list[uvicorn.Server] = []
    original = uvicorn.Server
    sock = web.listen("127.0.0.1", 0)
    url = web.address(sock).rstrip("/")

    def remember(config: uvicorn.Config) -> uvicorn.Server:
        servers.append(original(config))
        return servers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web.uvicorn, "Server", remember)
        thread = threading.Thread(target=web.run, args=(app, sock, limits))
        thread.start()
        while not (servers and servers[0].started):
            time.sleep(0.01)
    yield url
    servers[0].should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    return running
