"""A tiny model, and a real server in a thread."""

from __future__ import annotations

import json
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


# In the place of `diffaug adapt`: it ends when a file named go appears.
WORK = """
import json, os, signal, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
os.makedirs(out, exist_ok=True)
try:
    print("begun with", sys.argv[1:], flush=True)
    while not os.path.exists(out + "/../go"): time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted; the same command continues in", out, flush=True)
    sys.exit(130)
if os.path.exists(out + "/../fail"): sys.exit("Error: it went wrong")
os.rename(out + "/../adapt.json", out + "/adapt.json")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the jobs of labels.csv, which run the program above."""
    from diffaug.serve.label.jobs import AdaptJobs

    program = tmp_path / "program" / "diffaug"
    program.mkdir(parents=True)
    (program / "__init__.py").touch()
    (program / "__main__.py").write_text(WORK)
    monkeypatch.setenv("PYTHONPATH", str(program.parent))
    yield tmp_path / "labels-adapt"
    AdaptJobs(tmp_path / "labels-adapt", "").cancel()  # what a failed test has left running


@pytest.fixture
def finish() -> Callable[[Path], None]:
    """Lets a job end with a result."""
    from diffaug.adaptation.candidates import UNTOUCHED
    from diffaug.adaptation.result import AdaptResult, Row

    def go(job: Path) -> None:
        rows = [Row(UNTOUCHED, 70.0, None, 1.0)]
        model = job / "result" / "model"
        result = AdaptResult("30 pairs", "Spearman", "3 folds", rows, UNTOUCHED, "Do not train: no.", model, None, 3.0)
        (job / "adapt.json").write_text(json.dumps(result.to_dict()))
        (job / "go").touch()

    return go
