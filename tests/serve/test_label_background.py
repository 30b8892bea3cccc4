"""Beside labelling: suggestions of a language model, the head that is refitted, and the job that adapts the model."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from diffaug.adaptation import linear
from diffaug.adaptation.candidates import LINEAR, UNTOUCHED, Candidate
from diffaug.adaptation.folds import split_folds
from diffaug.adaptation.forecasts import Forecast
from diffaug.adaptation.measure import held_out, statistic
from diffaug.adaptation.run import RESULT
from diffaug.cli import app as command_line
from diffaug.data.read import read_labelled
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.serve.label import jobs, refit, suggestions
from diffaug.serve.label.app import Background, create_label_app
from diffaug.serve.label.formats import csv_of, export, read_answers
from diffaug.serve.label.jobs import AdaptJobs
from diffaug.serve.label.kinds import NAMES, make_kind
from diffaug.serve.label.refit import Refit
from diffaug.serve.label.store import Store
from diffaug.serve.label.suggestions import ChatModel, Suggester, parse
from diffaug.serve.web import Limits


def make_store(path: Path, name: str = "same-different", count: int = 6) -> Store:
    kind = make_kind(name, ["billing", "login"] if name == "classes" else [])
    store = Store(path / "labels.db", kind)
    texts = [tuple(f"{field} {i}" for field in kind.fields) for i in range(count)]
    store.add_questions([(one, None, None) for one in texts], [1] * count)
    return store


def client_of(store: Store, path: Path, **parts: Any) -> TestClient:
    app = create_label_app(store, path / "labels.csv", "s.txt", Limits(), Background(**parts))
    return TestClient(app, "http://127.0.0.1")


def wait(until: Callable[[], Any]) -> Any:
    for _ in range(6000):
        if found := until():
            return found
        time.sleep(0.01)
    pytest.fail("it did not happen")


# Suggestions.


@contextmanager
def chat_server(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> Iterator[str]:
    """A server with OpenAI's chat completions; ``answer`` gets the body of a request with its headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, content = answer({**body, "path": self.path, "key": self.headers["authorization"]})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text: str) -> tuple[int, bytes]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@pytest.mark.parametrize(
    ("name", "reply", "expected"),
    [
        ("same-different", "same", "same"),
        ("same-different", ' "Different." ', "different"),
        ("same-different", "<think>same? no, different</think>Same", "same"),
        ("same-different", "They mean the same.", "same"),
        ("same-different", "same or different", None),
        ("same-different", "I cannot say", None),
        ("scores", "4", "4"),
        ("scores", "Score: 3", "3"),
        ("scores", "4.5", None),
        ("scores", "10", None),
        ("classes", "Login", "login"),
        ("triplets", "second", "second"),
    ],
)
def test_replies_of_a_model(name: str, reply: str, expected: str | None) -> None:
    assert parse(make_kind(name, ["billing", "login"] if name == "classes" else []), reply) == expected


def test_suggestions_are_shown_and_counted_and_exported_apart(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(request)
        number = int(json.loads(request["messages"][1]["content"])["sentence2"].split()[1])
        return completion("no idea" if number == 5 else "same")

    with chat_server(answer) as url:
        suggester = Suggester(store, ChatModel(url + "/", "tiny", "key"))
        with client_of(store, tmp_path, suggester=suggester) as client:
            wait(lambda: len(asked) == 6 and len(store.suggestions()) == 5)
            for value in ("same", "different", "both wrong"):
                question = client.post("/api/next", json={"annotator": "anna"}).json()["question"]
                assert question["suggestion"] == "same"
                client.post("/api/answer", json={"annotator": "anna", "question": question["id"], "value": value})
            status = client.get("/api/learning").json()["suggestions"]
    assert status == {"model": "tiny", "suggested": 5, "decided": 2, "agreed": 1, "problem": None}
    assert (asked[0]["path"], asked[0]["key"], asked[0]["model"]) == ("/v1/chat/completions", "Bearer key", "tiny")
    assert "same, different" in asked[0]["messages"][0]["content"]
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["sentence1", "sentence2", "label", "suggestion"]
    assert [row[2:] for row in rows[1:]] == [["same", "same"], ["different", "same"]]  # suggestions are no labels
    assert len(read_labelled(tmp_path / "labels.csv")) == 2
    again = Store(tmp_path / "labels.db", store.kind)
    assert again.unsuggested() is None  # what the model could not answer is not asked again


@pytest.mark.parametrize("name", NAMES)
def test_suggestions_in_files_of_every_kind(name: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, name, 2)
    first, second = [choice.value for choice in store.kind.choices][:2]
    for question in (1, 2):
        store.suggest(question, first)
    store.answer("anna", 1, first)
    store.answer("anna", 2, second)
    text, count = csv_of(store)
    assert count == 2
    expected = ["positive", "negative"] if name == "triplets" else [first, first]
    assert [row["suggestion"] for row in csv.DictReader(text.splitlines())] == expected
    (tmp_path / "labels.csv").write_text(text)
    assert len(read_labelled(tmp_path / "labels.csv")) == 2
    for format in ("label-studio", "argilla"):
        export(tmp_path / "out.json", store, format)  # type: ignore[arg-type]
        record = json.loads((tmp_path / "out.json").read_text())[0]
        if format == "label-studio":
            assert record["predictions"][0]["result"][0]["value"]["choices"] == [first]
        else:
            assert record["suggestions"]["label"]["value"] == first
        answers = [value for _, given in read_answers(tmp_path / "out.json", store.kind) for value in given.values()]
        assert sorted(answers) == sorted([first, second])


def test_failing_language_model_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "_PAUSE", 0.001)
    monkeypatch.setattr(suggestions, "_LONGEST_PAUSE", 0.001)
    store = make_store(tmp_path)
    works = threading.Event()
    failures = [(500, b""), (200, b"<html>"), (200, b"{}"), (200, b'{"choices": []}'), (429, b"[]")]
    count = 0

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal count
        if works.is_set():
            # One question is refused for its text; the others must not wait for it.
            refused = "sentence1 3" in request["messages"][1]["content"]
            return (400, b"{}") if refused else completion("different")
        count += 1
        return failures[count % len(failures)]

    with (
        chat_server(answer) as url,
        client_of(store, tmp_path, suggester=Suggester(store, ChatModel(url, "tiny"))) as client,
    ):
        wait(lambda: count > len(failures))
        assert "No suggestions" in client.get("/api/learning").json()["suggestions"]["problem"]
        question = client.post("/api/next", json={"annotator": "anna"}).json()["question"]
        assert question["suggestion"] is None
        given = {"annotator": "anna", "question": question["id"], "value": "same"}
        assert client.post("/api/answer", json=given).json()["question"]["id"] == 2
        works.set()
        wait(lambda: len(store.suggestions()) == 4)
    assert store.rows() == [("sentence1 0", "sentence2 0", "same")]
    unreachable = Suggester(store, ChatModel(url, "tiny"))  # nothing listens there any more
    unreachable.start()
    wait(lambda: unreachable.status()["problem"] == "No suggestions at the moment: the server cannot be reached.")
    unreachable.stop()


# The head.


TEXTS = [f"The {one} {does} near {other}." for one in ("dog", "cat", "train", "river") for does in ("runs", "waits")
         for other in ("a house", "the market", "a garden", "me", "them")]  # fmt: skip


def answered_store(path: Path, count: int) -> Store:
    """Every second pair is of equal sentences, up to a word, and people say so."""
    store = Store(path / "labels.db", make_kind("same-different"))
    pairs = [(TEXTS[i], TEXTS[i] + " Indeed." if i % 2 else TEXTS[-i - 1]) for i in range(count)]
    store.add_questions([(pair, None, None) for pair in pairs], [1] * count)
    for i in range(count):
        store.answer("anna", i + 1, "same" if i % 2 else "different")
    return store


def test_head_is_refitted_while_people_label(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "_LOOK", 0.01)
    monkeypatch.setattr(linear, "_STEPS", 3)
    go_on, fits = threading.Event(), 0
    original = refit.forecast_candidate

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal fits
        fits += 1
        assert go_on.wait(20)
        return original(*arguments, **options)

    monkeypatch.setattr(refit, "forecast_candidate", slow)
    store = answered_store(tmp_path, 19)
    thread = Refit(store, lambda: embedder)
    with client_of(store, tmp_path, refit=thread) as client:
        message = wait(lambda: client.get("/api/learning").json()["refit"]["message"])
        assert "at least 20 are needed" in message
        store.add_questions([((TEXTS[0], "One."), None, None), ((TEXTS[0], "Two."), None, None)], [1, 1])
        answer = {"annotator": "anna", "question": 20, "value": "same"}
        assert client.post("/api/answer", json=answer).status_code == 200
        wait(lambda: client.get("/api/learning").json()["refit"]["state"] == "fitting" and fits == 1)
        # Answering goes on while the head is fitted.
        following = client.post("/api/next", json={"annotator": "anna"}).json()
        assert following["question"]["id"] == 21
        go_on.set()
        found = wait(lambda: client.get("/api/learning").json()["refit"]["curve"])
        assert (found["labels"], found["candidate"], found["measure"]) == (20, LINEAR, "average precision")
        assert len(found["sizes"]) == len(found["scores"]) == 4
        assert "more labels would bring" in found["words"]
        client.post("/api/answer", json={"annotator": "anna", "question": 21, "value": "same"})
        time.sleep(0.1)
        assert fits == 1  # one more label is no reason
    labelled = read_labelled([dict(zip(store.kind.columns, row, strict=True)) for row in store.rows()[:20]])
    folds = split_folds(labelled, 3, 42)
    outcomes = [held_out(embedder.encode, labelled, labelled.take(rows.tolist())) for rows in folds]
    assert found["before"] == pytest.approx(statistic(labelled, outcomes).value(), abs=0.01)


def test_classes_with_one_sentence_are_left_out_of_the_fit(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def forecast(trials: Any, inputs: Any, splits: Any, candidate: Candidate, *_: Any, **__: Any) -> Forecast:
        given.extend([inputs.labelled, candidate.name])
        return Forecast(candidate.name, "accuracy", 32, 300, [8, 16], [50.0, 60.0], 1.0, 0.0, 2.0, 3.0)

    monkeypatch.setattr(refit, "forecast_candidate", forecast)
    store = Store(tmp_path / "labels.db", make_kind("classes", ["a", "b", "rare"]))
    store.add_questions([((text,), None, None) for text in TEXTS[:33]], [1] * 33)
    for i in range(33):
        store.answer("anna", i + 1, "rare" if i == 32 else "ab"[i % 2])
    thread = Refit(store, lambda: embedder)
    thread.start()
    found = wait(lambda: thread.status()["curve"])
    thread.stop()
    assert found["before"] is None  # without labels there are no classes
    assert (given[0].sentences, given[1]) == (TEXTS[:32], UNTOUCHED)


def test_refit_survives_any_error_and_ends_soon(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = answered_store(tmp_path, 24)

    def broken() -> Embedder:
        raise MemoryError

    thread = Refit(store, broken)
    thread.start()
    assert wait(lambda: thread.status()["message"]) == "it failed: MemoryError"
    thread.stop()
    begun = threading.Event()
    fits: list[str] = []

    def outcomes(self: Any, candidate: Candidate, *_: Any) -> Any:
        fits.append(candidate.name)
        begun.set()
        time.sleep(0.05)
        return {"found": np.arange(8.0), "gold": np.arange(8) % 2.0}, 0.0

    monkeypatch.setattr(refit.Trials, "outcomes", outcomes)
    thread = Refit(store, lambda: embedder)
    thread.start()
    assert begun.wait(20)
    thread.stop()
    assert len(fits) < 6  # of 24


# The job.


def test_job_survives_the_server(work: Path, finish: Callable[[Path], None], tmp_path: Path) -> None:
    first, labels = AdaptJobs(work, "my-model"), "text,label\n"
    assert first.status() == {"state": "none"}
    first.start(labels, 30)
    with pytest.raises(DiffaugError, match="running already"):
        first.start(labels, 30)
    del first
    second = AdaptJobs(work, "my-model")  # another server
    status = wait(lambda: (found := second.status())["lines"] and found)
    assert (status["state"], status["labels"]) == ("running", 30)
    assert 0 <= status["seconds"] < 60
    assert str(tmp_path) not in json.dumps(status)  # no path of this machine
    assert "'adapt', 'my-model', '--labels', 'labels-adapt/1/labels.csv'" in status["lines"][0]
    with pytest.raises(DiffaugError, match="running already"):
        second.start(labels, 30)
    second.cancel()
    wait(lambda: second.status()["state"] == "cancelled")
    assert "the same command continues" in second.status()["lines"][-1]
    second.start(labels, 30)  # goes on in its folder
    assert [path.name for path in work.iterdir()] == ["1"]
    finish(work / "1")
    wait(lambda: second.status()["state"] == "finished")
    result = AdaptJobs(work, "my-model").status()["result"]
    assert result["verdict"] == "Do not train: no."
    assert result["model"] == "labels-adapt/1/result/model"
    second.start(labels, 30)  # the labels may be the same, but that one has ended
    (work / "2" / "fail").touch()
    (work / "2" / "go").touch()
    wait(lambda: second.status()["state"] == "failed")
    assert second.status()["lines"][-1] == "Error: it went wrong"
    second.start("text,label\na,b\n", 31)  # other labels: another folder
    assert (work / "3" / "labels.csv").read_text() == "text,label\na,b\n"
    second.cancel()
    wait(lambda: second.status()["state"] == "cancelled")


def test_job_over_http(work: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path, "classes")
    store.answer("anna", 1, "billing")
    with client_of(store, tmp_path, jobs=AdaptJobs(work, "m", ["one\nline", "two"])) as client:
        assert client.post("/api/adapt", json={"action": "rm"}).status_code == 400
        assert client.post("/api/adapt", json={"action": "start"}).json()["adapt"]["state"] == "running"
        assert client.post("/api/adapt", json={"action": "start"}).status_code == 409
        assert (work / "1" / "text.txt").read_text() == "one line\ntwo\n"
        assert (work / "1" / "labels.csv").read_text() == "text,label\ntext 0,billing\n"
        assert client.post("/api/adapt", json={"action": "cancel"}).status_code == 200
        wait(lambda: client.get("/api/learning").json()["adapt"]["state"] == "cancelled")
    with client_of(store, tmp_path) as client:
        assert client.post("/api/adapt", json={"action": "start"}).status_code == 400


def test_job_is_a_valid_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def adapt(*arguments: Any, **options: Any) -> None:
        given.extend([*arguments, options["text"]])
        raise DiffaugError("seen")

    monkeypatch.setattr("diffaug.adaptation.adapt", adapt)
    (tmp_path / "text.txt").write_text("a\n")
    CliRunner().invoke(command_line, jobs.arguments("embedded", tmp_path))
    expected = ["embedded", str(tmp_path / "labels.csv"), tmp_path / "result", str(tmp_path / "text.txt")]
    assert given == expected
    assert jobs.RESULT == RESULT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--suggest-url", "http://localhost:1/v1"], "must be given together"),
        (["--suggest-url", "file:///etc", "--suggest-model", "m"], "must be like http"),
    ],
)
def test_options_of_suggestions(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("a\nb\n")
    result = CliRunner().invoke(
        command_line, ["label", str(tmp_path / "s.txt"), "--out", str(tmp_path / "l.csv"), *options]
    )
    assert message in str(result.exception)
