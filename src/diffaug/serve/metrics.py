"""Counters in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from threading import Lock

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What a server has done since it started. Called from several threads."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths  # other paths are counted together: a client must not create names
        self._lock = Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        path = path if path in self._paths else "other"
        with self._lock:
            self._requests[path, status] += 1
            self._buckets[path, bisect_left(_SECONDS, seconds)] += 1
            self._seconds[path] += seconds  # type: ignore[assignment]  # a counter of floats

    def add(self, name: str, model: str, count: int = 1) -> None:
        """Increase a counter of a model."""
        with self._lock:
            self._counts[name, model] += count

    def text(self, waiting: dict[str, int]) -> str:
        """All counters; ``waiting`` is the number of queued sentences per model."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(waiting))

    def _lines(self, waiting: dict[str, int]) -> Iterator[str]:
        yield "# HELP diffaug_requests_total Requests by path and status."
        yield "# TYPE diffaug_requests_total counter"
        for (path, status), count in sorted(self._requests.items()):
            yield f'diffaug_requests_total{{path="{path}",status="{status}"}} {count}'
        yield "# HELP diffaug_request_seconds Time until the response starts."
        yield "# TYPE diffaug_request_seconds histogram"
        for path in sorted(self._seconds):
            total = 0
            for i, edge in enumerate((*_SECONDS, "+Inf")):
                total += self._buckets[path, i]
                yield f'diffaug_request_seconds_bucket{{path="{path}",le="{edge}"}} {total}'
            yield f'diffaug_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}'
            yield f'diffaug_request_seconds_count{{path="{path}"}} {total}'
        yield "# HELP diffaug_queue_sentences Sentences that wait for the model or are being encoded."
        yield "# TYPE diffaug_queue_sentences gauge"
        for model, count in waiting.items():
            yield f'diffaug_queue_sentences{{model="{_label(model)}"}} {count}'
        for name in sorted({name for name, _ in self._counts}):
            yield f"# TYPE diffaug_{name}_total counter"
            for (_, model), count in sorted(item for item in self._counts.items() if item[0][0] == name):
                yield f'diffaug_{name}_total{{model="{_label(model)}"}} {count}'


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
