"""The API of `diffaug serve`: what OpenAI's own client makes of it, similarity, search, and the queue."""

from __future__ import annotations

import base64
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_gate import Gate
from starlette.testclient import TestClient
from typer.testing import CliRunner

from diffaug.cli import app as command_line
from diffaug.data.documents import Documents
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.serve.api import MAX_INPUTS, Served, create_app, served_name
from diffaug.serve.batching import Batcher
from diffaug.serve.corpus import MemoryCorpus, open_corpus
from diffaug.serve.metrics import Metrics
from diffaug.serve.web import ApiError, Limits

LIMITS = Limits()
LONG = "A dog runs through the park. " * 30


@pytest.fixture(scope="module")
def client(embedder: Embedder, sentences: list[str]) -> Iterator[TestClient]:
    numbers = [str(i % 2) for i in range(len(sentences))]
    corpus = MemoryCorpus("notes.txt", Documents(sentences, {"odd": numbers}), embedder.encode(sentences))
    with TestClient(create_app([Served("tiny", embedder, corpus)], LIMITS), "http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def openai(embedder: Embedder, serve: Callable[..., Any]) -> Iterator[Any]:
    from openai import OpenAI

    limits = Limits(token="secret")
    with (
        serve(create_app([Served("tiny", embedder)], limits), limits) as url,
        OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openai_client_gets_the_vectors_of_encode(
    openai: Any, embedder: Embedder, sentences: list[str], encoding: str | None
) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    response = openai.embeddings.create(model="tiny", input=sentences, **options)
    found = [item.embedding for item in response.data]
    if encoding == "base64":  # the client decodes only what it asked for itself
        found = [np.frombuffer(base64.b64decode(text), "<f4") for text in found]
    np.testing.assert_allclose(np.array(found), embedder.encode(sentences), atol=1e-5)
    assert [item.index for item in response.data] == list(range(len(sentences)))
    ids, _ = embedder.collator.ids(sentences)
    tokens = sum(len(row) + len(embedder.collator.template) for row in ids)
    assert response.usage.prompt_tokens == response.usage.total_tokens == tokens
    assert response.model == "tiny"


def test_openai_client_gets_fewer_dimensions_of_length_1(openai: Any, embedder: Embedder) -> None:
    response = openai.embeddings.create(model="tiny", input="A dog.", dimensions=5)
    found = np.array(response.data[0].embedding)
    expected = embedder.encode("A dog.")[:5]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)


def test_openai_client_lists_models(openai: Any) -> None:
    assert [model.id for model in openai.models.list()] == ["tiny"]
    assert openai.models.retrieve("tiny").id == "tiny"


def test_openai_client_gets_its_own_errors(openai: Any) -> None:
    from openai import AuthenticationError, BadRequestError, NotFoundError

    with pytest.raises(NotFoundError, match="the models are: tiny") as missing:
        openai.embeddings.create(model="text-embedding-3-small", input="A dog.")
    assert missing.value.code == "model_not_found"
    with pytest.raises(BadRequestError, match="token ids of another tokenizer") as tokens:
        openai.embeddings.create(model="tiny", input=[[1, 2], [3]])
    assert tokens.value.param == "input"
    with pytest.raises(AuthenticationError):
        openai.with_options(api_key="wrong").embeddings.create(model="tiny", input="A dog.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": []}, "input must be a string or a list of strings that is not empty"),
        ({"input": None}, "input must be a string"),
        ({"input": {"a": 1}}, "input must be a string"),
        ({"input": [1, 2]}, "input must be text"),
        ({"input": ["a", 1]}, "input must be a string or a list of strings"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "send at most 2,048 at a time"),
        ({"encoding_format": "int8"}, "encoding_format must be float or base64"),
        ({"dimensions": 0}, "dimensions must be between 1 and 32"),
        ({"dimensions": 33}, "dimensions must be between 1 and 32"),
        ({"dimensions": True}, "dimensions must be an integer"),
        ({"model": None}, "model is missing"),
    ],
)
def test_invalid_request_is_said(client: TestClient, changes: dict[str, Any], message: str) -> None:
    response = client.post("/v1/embeddings", json={"model": "tiny", "input": "A dog."} | changes)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_odd_texts_are_encoded(client: TestClient) -> None:
    response = client.post("/v1/embeddings", content=b'{"model":"tiny","input":["", "\\ud800", "\\u0000", " "]}',
                           headers={"content-type": "application/json"})  # fmt: skip
    assert len(response.json()["data"]) == 4


def test_truncation_is_said(client: TestClient, embedder: Embedder) -> None:
    limit = embedder.collator.max_length
    exact = next(text for n in range(limit, 0, -1) if len(embedder.collator.ids([text := "dog " * n])[0][0]) == limit)
    response = client.post("/v1/embeddings", json={"model": "tiny", "input": ["A dog.", LONG, exact]})
    assert response.json()["truncated"] == [1]
    assert response.json()["max_tokens"] == limit


def test_similarity_has_the_shape_of_its_arguments(client: TestClient, embedder: Embedder) -> None:
    for a in ("A dog.", ["A dog.", "A cat."]):
        for b in ("Tea", ["Tea", "Yes.", "No."]):
            found = client.post("/similarity", json={"a": a, "b": b}).json()["similarity"]
            np.testing.assert_allclose(found, embedder.similarity(a, b), atol=1e-5)


def test_search_finds_what_the_embedder_finds(client: TestClient, embedder: Embedder, sentences: list[str]) -> None:
    found = client.post("/search", json={"query": "tea", "k": 4}).json()["hits"]
    expected = embedder.search(sentences, "tea", 4)
    assert [hit["index"] for hit in found] == [hit.index for hit in expected]
    np.testing.assert_allclose([hit["score"] for hit in found], [hit.score for hit in expected], atol=1e-5)
    assert found[0]["sentence"] == sentences[found[0]["index"]]
    odd = client.post("/search", json={"query": "tea", "k": 4, "columns": {"odd": 1}}).json()["hits"]
    assert [hit["index"] for hit in odd] == [h.index for h in embedder.search(sentences, "tea", 14) if h.index % 2][:4]
    like = client.post("/search", json={"query": sentences[3], "k": 2, "exclude": 3}).json()["hits"]
    assert [hit["index"] for hit in like] == [hit.index for hit in embedder.search(sentences, sentences[3], 3)][1:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k must be between 1 and 1,000"),
        ({"query": None}, "query is missing"),
        ({"columns": {"year": 1}}, "there is no column 'year'; the columns are: odd"),
        ({"filter": "odd = 1"}, "filter and hybrid need an index"),
    ],
)
def test_invalid_search_is_said(client: TestClient, changes: dict[str, Any], message: str) -> None:
    response = client.post("/search", json={"query": "tea"} | changes)
    assert (response.status_code, response.json()["error"]["message"][: len(message)]) == (400, message)


def test_search_in_an_index_with_filters(embedder: Embedder, tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    from diffaug.inference.index import Index

    rows = [("A dog runs.", 2020, "it's"), ("A dog runs.", 2021, "b"), ("A cat sleeps.", 2022, "b")]
    (tmp_path / "d.csv").write_text("sentence,year,kind\n" + "".join(f"{s},{y},{k}\n" for s, y, k in rows))
    embedder.encode_files(tmp_path / "d.csv", tmp_path / "vectors")
    Index.build(tmp_path / "index", tmp_path / "vectors")
    for source in ("index", "vectors", "d.csv"):
        corpus = open_corpus(tmp_path / source, embedder)
        with TestClient(create_app([Served("tiny", embedder, corpus)], LIMITS), "http://127.0.0.1") as client:

            def search(client: TestClient = client, **options: Any) -> Any:
                return client.post("/search", json={"query": "A dog runs.", **options}).json()

            assert [hit["index"] for hit in search()["hits"]] == [0, 1, 2]
            assert [hit["index"] for hit in search(columns={"year": 2021})["hits"]] == [1]
            assert [hit["index"] for hit in search(columns={"kind": "it's"})["hits"]] == [0]
            assert [hit["sentence"] for hit in search(unique=True)["hits"]] == ["A dog runs.", "A cat sleeps."]
            assert search(columns={"kind": "' OR '1' = '1"})["hits"] == []
            assert client.get("/info").json()["corpus"]["name"] == source
            if source == "index":
                assert [hit["index"] for hit in search(filter="year > '2020'")["hits"]] == [1, 2]
                assert [hit["index"] for hit in search(hybrid=True, k=1)["hits"]] == [0]
                error = search(filter="no_such_column > 1")["error"]["message"]
                assert "filter cannot be used" in error
                assert str(tmp_path) not in error


def test_corpus_of_another_model_is_refused(embedder: Embedder, tiny_roberta: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "d.txt").write_text("A dog.\n")
    Embedder.from_pretrained(tiny_roberta, device="cpu").encode_files(tmp_path / "d.txt", tmp_path / "vectors")
    with pytest.raises(DiffaugError, match="model"):
        open_corpus(tmp_path / "vectors", embedder)


def test_names_of_models(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "run" / "best").mkdir(parents=True)
    assert served_name(str(tmp_path / "run" / "best")) == "run"
    assert served_name(str(tmp_path / "run")) == "run"
    assert served_name("owner/name") == "owner/name"
    with pytest.raises(DiffaugError, match="--name"):
        create_app([Served("a", embedder), Served("a", embedder)], LIMITS)
    with pytest.raises(DiffaugError, match="queue limit must be at least 2,048"):
        create_app([Served("a", embedder)], LIMITS, 10)


def test_command_serves_with_a_small_cache_of_shapes(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a server that has seen many batches is measured by benchmarks/serve.py --requests."""
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    seen = []

    def look(app: Any, sock: Any, limits: Any) -> None:
        sock.close()
        with TestClient(app, "http://127.0.0.1") as client:
            seen.append((os.environ[name], client.get("/v1/models").json()["data"][0]["id"]))

    monkeypatch.setattr("diffaug.serve.web.run", look)
    result = CliRunner().invoke(command_line, ["serve", str(tiny_bert), "--device", "cpu", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert seen == [("64", tiny_bert.name)]


def test_health_and_metrics(client: TestClient) -> None:
    prometheus = pytest.importorskip("prometheus_client.parser")
    assert client.get("/health").json() == {"status": "ok"}
    client.post("/v1/embeddings", json={"model": "tiny", "input": ["A dog.", "A cat."]})
    client.get("/no/such/path")
    text = client.get("/metrics").text
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in prometheus.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["diffaug_requests_total", "/health", "200"] >= 1
    assert samples["diffaug_requests_total", "404", "other"] >= 1
    assert samples["diffaug_sentences_total", "tiny"] >= 2
    assert samples["diffaug_tokens_total", "tiny"] > samples["diffaug_sentences_total", "tiny"]
    assert samples["diffaug_queue_sentences", "tiny"] == 0
    bucket = samples["diffaug_request_seconds_bucket", "+Inf", "/health"]
    assert bucket == samples["diffaug_requests_total", "/health", "200"]
    assert "/no/such/path" not in text


def _batcher(gate: Any, limit: int = 10) -> Batcher:
    batcher = Batcher("m", gate, limit, Metrics(frozenset()))
    batcher.start()
    return batcher


def test_waiting_requests_are_encoded_together(embedder: Embedder) -> None:
    gate = Gate(embedder)
    batcher = _batcher(gate)
    first = batcher.submit(["A dog."])
    gate.entered.wait()
    texts = ["A dog.", "A cat.", "The dog", "A park"]
    others = [batcher.submit([text]) for text in texts]
    gate.open.set()
    found = [future.result().vectors for future in (first, *others)]
    batcher.close()
    assert gate.sizes == [1, 4]
    np.testing.assert_allclose(np.concatenate(found), embedder.encode(["A dog.", *texts]), atol=1e-5)


def test_full_queue_is_refused_until_there_is_room(embedder: Embedder) -> None:
    gate = Gate(embedder)
    batcher = _batcher(gate, limit=4)
    first = batcher.submit(["A dog."] * 9)  # longer than the queue, but nothing waits
    with pytest.raises(ApiError) as refused:
        batcher.submit(["A cat."])
    assert refused.value.status == 429
    assert 1 <= int(refused.value.headers["retry-after"]) <= 60
    gate.open.set()
    assert len(first.result().vectors) == 9
    assert len(batcher.submit(["A cat."]).result().vectors) == 1
    batcher.close()


def test_long_request_does_not_hold_up_a_short_one(embedder: Embedder) -> None:
    gate = Gate(embedder)
    batcher = _batcher(gate, limit=10_000)
    long = batcher.submit([f"{LONG} {i}" for i in range(60)])
    gate.entered.wait()
    short = batcher.submit(["A dog."])
    gate.open.set()
    short.result()
    assert not long.done()
    np.testing.assert_allclose(long.result().vectors[7], embedder.encode(f"{LONG} 7"), atol=1e-5)
    batcher.close()


def test_close_finishes_the_queue_and_refuses_more(embedder: Embedder) -> None:
    gate = Gate(embedder)
    batcher = _batcher(gate, limit=10_000)
    futures = [batcher.submit([f"Dog {i}"]) for i in range(50)]
    gate.entered.wait()
    closer = threading.Thread(target=batcher.close)
    closer.start()
    gate.open.set()
    closer.join()
    assert all(len(future.result(timeout=0).vectors) == 1 for future in futures)
    with pytest.raises(ApiError) as refused:
        batcher.submit(["A dog."])
    assert refused.value.status == 503


def test_failure_of_the_model_fails_its_requests_only_and_shows_no_path(embedder: Embedder) -> None:
    gate = Gate(embedder)
    gate.open.set()
    gate.failing = True
    app = create_app([Served("tiny", gate)], LIMITS)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        response = client.post("/v1/embeddings", json={"model": "tiny", "input": "A dog."})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "internal error; see the log of the server"
        gate.failing = False
        assert client.post("/v1/embeddings", json={"model": "tiny", "input": "A dog."}).status_code == 200


def test_many_clients_get_their_own_vectors(openai: Any, embedder: Embedder) -> None:
    texts = [f"Dog number {i} {'runs ' * (i % 20)}" for i in range(60)]

    def ask(text: str) -> Any:
        return openai.embeddings.create(model="tiny", input=text).data[0].embedding

    with ThreadPoolExecutor(12) as pool:
        np.testing.assert_allclose(np.array(list(pool.map(ask, texts))), embedder.encode(texts), atol=1e-5)


def test_metrics_escape_names() -> None:
    metrics = Metrics(frozenset())
    metrics.add("tokens", 'a"b\\c\nd')
    assert re.search(r'model="a\\"b\\\\c\\nd"} 1', metrics.text({}))
