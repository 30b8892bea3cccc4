"""The application of `diffaug serve`: embeddings, similarity and search over HTTP, and the search page."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.inference.encode import unit
from diffaug.inference.runner import Vectors
from diffaug.inference.search import search_unique
from diffaug.serve.batching import Batcher, Encoded
from diffaug.serve.corpus import Corpus, Query
from diffaug.serve.metrics import Metrics
from diffaug.serve.web import ApiError, Limits, application, field, read_json, reply

MAX_INPUTS = 2_048  # sentences per request, as OpenAI's API
_MAX_HITS = 1_000
_FEW_NUMBERS = 1 << 14


@dataclass(frozen=True)
class Served:
    """A model, under the name that clients use, and what is searched with it."""

    name: str
    embedder: Embedder
    corpus: Corpus | None = None


def served_name(source: str) -> str:
    """The name of a model for clients: a hub name, or the name of its folder (of its run, for RUN/best)."""
    path = Path(source)
    if not path.exists():
        return source
    path = path.resolve()
    return path.parent.name if path.name == "best" else path.name


def create_app(models: Sequence[Served], limits: Limits, queue_limit: int = 4 * MAX_INPUTS) -> Starlette:
    """The application. The first model answers requests that name none.

    Raises:
        DiffaugError: two models have the same name, or the queue is shorter than the longest request.
    """
    if len({model.name for model in models}) < len(models):
        raise DiffaugError(f"two models have the name {models[0].name!r}; give the first another one with --name")
    if queue_limit < MAX_INPUTS:
        raise DiffaugError(f"the queue limit must be at least {MAX_INPUTS:,} sentences, one request, got {queue_limit}")
    return _Api(models, limits, queue_limit).app


class _Api:
    def __init__(self, models: Sequence[Served], limits: Limits, queue_limit: int) -> None:
        posts = {"/v1/embeddings": self.embeddings, "/similarity": self.similarity, "/search": self.search}
        gets = {
            "/v1/models": self.list_models,
            "/info": self.info,
            "/health": self.health,
            "/metrics": self.get_metrics,
        }
        self.metrics = Metrics(frozenset({"/", *posts, *gets}))
        self.models = {model.name: model for model in models}
        self.batchers = {model.name: Batcher(model.name, model.embedder, queue_limit, self.metrics) for model in models}
        self.app = application(
            [
                *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
                *(Route(path, handler) for path, handler in gets.items()),
                Route("/v1/models/{name:path}", self.one_model),
            ],
            limits,
            page="search.html",
            public=frozenset({"/health"}),
            observe=self.metrics.observe,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        for batcher in self.batchers.values():
            batcher.start()
        yield
        for batcher in self.batchers.values():
            await run_in_threadpool(batcher.close)

    def model(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            there = ", ".join(self.models)
            raise ApiError(
                404, f"there is no model {name!r:.100}; the models are: {there}", param="model", code="model_not_found"
            )
        return self.models[name]

    async def encode(self, model: Served, texts: Sequence[str]) -> Encoded:
        return await asyncio.wrap_future(self.batchers[model.name].submit(texts))

    async def embeddings(self, request: Request) -> Response:
        data = await read_json(request)
        model = self.model(field(data, "model", str))
        texts = _texts(data, "input")
        encoding = field(data, "encoding_format", str, "float")
        if encoding not in ("float", "base64"):
            raise ApiError(400, "encoding_format must be float or base64", param="encoding_format")
        width = model.embedder.width
        dimensions = field(data, "dimensions", int, width)
        if not 1 <= dimensions <= width:
            raise ApiError(400, f"dimensions must be between 1 and {width}, the width of the model", param="dimensions")
        encoded = await self.encode(model, texts)

        def render() -> Response:
            vectors = encoded.vectors if dimensions == width else unit(encoded.vectors[:, :dimensions])
            rows = [
                {"object": "embedding", "index": i, "embedding": _embedding(vector, encoding)}
                for i, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens}
            return reply(
                {"object": "list", "data": rows, "model": model.name, "usage": usage, **_truncation(model, encoded)}
            )

        # Millions of numbers take a second, in which other requests must not wait; for few, a thread takes longer.
        return render() if encoded.vectors.size < _FEW_NUMBERS else await run_in_threadpool(render)

    async def similarity(self, request: Request) -> Response:
        data = await read_json(request)
        model = self.model(field(data, "model", str, None))
        first, second = _texts(data, "a"), _texts(data, "b")
        if len(first) + len(second) > MAX_INPUTS:
            raise ApiError(400, f"a and b may have at most {MAX_INPUTS:,} sentences together", param="a")
        encoded = await self.encode(model, [*first, *second])
        cosines: Any = encoded.vectors[: len(first)] @ encoded.vectors[len(first) :].T
        # One sentence instead of a list is one row or one number instead of a matrix.
        cosines = cosines if isinstance(data["a"], list) else cosines[0]
        cosines = cosines if isinstance(data["b"], list) else cosines[..., 0]
        return reply({"similarity": cosines.tolist(), "model": model.name, **_truncation(model, encoded)})

    async def search(self, request: Request) -> Response:
        data = await read_json(request)
        model = self.model(field(data, "model", str, None))
        corpus = model.corpus
        if corpus is None:
            raise ApiError(404, "there is nothing to search; start the server with --index", code="no_index")
        query = _query(data, corpus)
        exclude, unique = field(data, "exclude", int, None), field(data, "unique", bool, False)
        encoded = await self.encode(model, [query.text])

        def find(count: int) -> list[Any]:
            return corpus.search(Query(query.text, count, query.filters, query.where, query.hybrid), encoded.vectors[0])

        def search() -> list[Any]:
            wanted = query.k + (exclude is not None)
            hits = search_unique(lambda count: [find(count)], wanted, corpus.rows)[0] if unique else find(wanted)
            return [hit for hit in hits if hit.index != exclude][: query.k]

        hits = [
            {"index": hit.index, "score": hit.score, "sentence": hit.sentence, "columns": dict(hit.columns)}
            for hit in await run_in_threadpool(search)
        ]
        return reply({"hits": hits, "model": model.name, **_truncation(model, encoded)})

    async def list_models(self, _: Request) -> Response:
        return reply({"object": "list", "data": [_model(name) for name in self.models]})

    async def one_model(self, request: Request) -> Response:
        return reply(_model(self.model(request.path_params["name"]).name))

    async def info(self, _: Request) -> Response:
        """What the page shows about the models and the corpus."""
        described = [
            {"name": model.name, "width": model.embedder.width, "max_tokens": model.embedder.collator.max_length}
            for model in self.models.values()
        ]
        corpus = self.model(None).corpus
        searched = None
        if corpus is not None:
            searched = {"name": corpus.name, "rows": corpus.rows, "columns": corpus.columns, "index": corpus.is_index}
        return reply({"models": described, "corpus": searched})

    async def health(self, _: Request) -> Response:
        return reply({"status": "ok"})

    async def get_metrics(self, _: Request) -> Response:
        text = self.metrics.text({name: batcher.waiting for name, batcher in self.batchers.items()})
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _texts(data: dict[str, Any], name: str) -> list[str]:
    """A sentence or a list of sentences."""
    value = data.get(name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"{name} must be a string or a list of strings that is not empty", param=name)
    first = value[0][0] if isinstance(value[0], list) and value[0] else value[0]
    if isinstance(first, int) and not isinstance(first, bool):
        raise ApiError(
            400,
            f"{name} must be text: token ids of another tokenizer mean nothing to this model "
            "(in LangChain set check_embedding_ctx_length=False)",
            param=name,
        )
    if not all(isinstance(text, str) for text in value):
        raise ApiError(400, f"{name} must be a string or a list of strings", param=name)
    if len(value) > MAX_INPUTS:
        raise ApiError(400, f"{name} has {len(value):,} sentences; send at most {MAX_INPUTS:,} at a time", param=name)
    return value


def _query(data: dict[str, Any], corpus: Corpus) -> Query:
    k = field(data, "k", int, 10)
    if not 1 <= k <= _MAX_HITS:
        raise ApiError(400, f"k must be between 1 and {_MAX_HITS:,}", param="k")
    filters = field(data, "columns", dict, {})
    for name in filters:
        if name not in corpus.columns:
            there = ", ".join(corpus.columns) or "none"
            raise ApiError(400, f"there is no column {name!r:.100}; the columns are: {there}", param="columns")
    return Query(
        field(data, "query", str),
        k,
        {name: str(value) for name, value in filters.items()},
        field(data, "filter", str, None),
        field(data, "hybrid", bool, False),
    )


def _embedding(vector: Vectors, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.astype(np.float64).tolist()
    return values


def _truncation(model: Served, encoded: Encoded) -> dict[str, Any]:
    """The indices of truncated sentences; not part of OpenAI's API, whose clients ignore it."""
    return {"truncated": encoded.truncated, "max_tokens": model.embedder.collator.max_length}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "diffaug"}
