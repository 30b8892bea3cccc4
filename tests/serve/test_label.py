"""Labelling without a browser: questions, answers on disk, agreement, files, and the API of the page."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from diffaug.cli import app as command_line
from diffaug.data import read_classes, read_labelled_pairs, read_scored_pairs, read_triplets
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.serve.label.agreement import cohen_kappa
from diffaug.serve.label.app import create_label_app
from diffaug.serve.label.design import choose
from diffaug.serve.label.formats import export, read_answers, write_csv
from diffaug.serve.label.kinds import NAMES, SKIP, UNUSABLE, make_kind
from diffaug.serve.label.sampling import BANDS, read_excluded, sample_questions
from diffaug.serve.label.store import Store, same_text, stored_kind
from diffaug.serve.web import Limits

NASTY = '<img src=x onerror="window.broken=1">, "quoted"\nand a line'
CLASSES = ("billing", "login")


def kind_of(name: str) -> Any:
    return make_kind(name, CLASSES if name == "classes" else ())


def make_store(path: Path, name: str = "same-different", count: int = 6, people: int = 1) -> Store:
    kind = kind_of(name)
    store = Store(path / "labels.db", kind)
    texts = [tuple(f"{field} {i}, {NASTY}" for field in kind.fields) for i in range(count)]
    store.add_questions([(one, 0.5, 2) for one in texts], [people] * count)
    return store


def client_of(store: Store, path: Path) -> TestClient:
    app = create_label_app(store, path / "labels.csv", "sentences.txt", Limits())
    return TestClient(app, "http://127.0.0.1")


# Questions.


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    rng = np.random.default_rng(0)
    words = ["dog", "cat", "market", "garden", "train", "letter", "river", "runs", "sleeps", "falls", "waits"]
    return [f"The {' '.join(rng.choice(words, size=rng.integers(2, 7)))}." for _ in range(150)]


@pytest.mark.parametrize("name", NAMES)
def test_questions_are_new_distinct_and_repeatable(name: str, corpus: list[str], embedder: Embedder) -> None:
    kind = kind_of(name)

    def sample(known: set[tuple[str, ...]]) -> Any:
        return sample_questions(corpus, embedder, kind, 40, known=known, excluded=set(), seed=3)

    found = sample(set())
    assert len(found) == 40
    assert [one.texts for one in sample(set())] == [one.texts for one in found]
    assert all(len(set(one.texts)) == len(kind.fields) for one in found)
    first = {frozenset(one.texts) for one in found}
    assert len(first) == 40
    assert not first & {frozenset(one.texts) for one in sample({one.texts for one in found})}


def test_pairs_cover_the_bands_of_similarity_evenly(corpus: list[str], embedder: Embedder) -> None:
    kind = kind_of("same-different")
    found = sample_questions(corpus, embedder, kind, 50, known=set(), excluded=set())
    assert Counter(one.band for one in found) == dict.fromkeys(range(BANDS), 10)
    for one in found:  # the stated similarity is that of the two sentences
        assert one.similarity == pytest.approx(embedder.similarity(*one.texts), abs=1e-5)
    by_band = [np.mean([one.similarity for one in found if one.band == band]) for band in range(BANDS)]
    assert by_band == sorted(by_band)
    uses = Counter(text for one in found for text in one.texts)
    assert max(uses.values()) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_sentences_of_dev_and_test_are_never_asked(
    name: str, corpus: list[str], embedder: Embedder, tmp_path: Path
) -> None:
    held_out = corpus[::2]
    rows = "".join(f"{i % 5}\t{text.upper()}\t{text} !\n" for i, text in enumerate(held_out))
    (tmp_path / "dev.tsv").write_text(rows)
    excluded = read_excluded([str(tmp_path / "dev.tsv")])
    found = sample_questions(corpus, embedder, kind_of(name), 100, known=set(), excluded=excluded)
    assert found
    assert not {same_text(text) for one in found for text in one.texts} & {same_text(text) for text in held_out}


@pytest.mark.parametrize("asked", [(), (3, 17)])
def test_design_reduces_the_variance_of_all_candidates_most(asked: tuple[int, ...]) -> None:
    """Against the posterior covariance of a Gaussian process, computed anew for every candidate."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(25, 4)).astype(np.float32)
    kernel = points @ points.T + 0.1 * np.eye(25, dtype=np.float32)
    noise = float(kernel.diagonal().mean())

    def variance(chosen: list[int]) -> float:
        part = kernel[:, chosen]
        inner = kernel[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen))
        return float(np.trace(kernel - part @ np.linalg.solve(inner, part.T)))

    expected = list(asked)
    for _ in range(8):
        expected.append(min(set(range(25)) - set(expected), key=lambda i: variance([*expected, i])))
    assert choose(kernel, 8, asked=asked) == expected[len(asked) :]
    assert sorted(choose(kernel, 100, asked=asked)) == sorted(set(range(25)) - set(asked))


def test_sentences_for_classes_represent_all_groups(embedder: Embedder) -> None:
    """Of many near copies of few sentences, all groups are asked before a second one of a group."""
    groups = ["The dog runs", "A train to the market", "Letters from them", "Rivers and gardens sleep"]
    texts = [f"{group}{mark}" for group in groups for mark in ["", *(f" , {'very ' * i}" for i in range(1, 5))]]
    texts += [f"{groups[0]} {'now ' * i}" for i in range(1, 20)]  # at random, most would be of this group
    vectors = embedder.encode(texts)
    found = [
        one.texts[0] for one in sample_questions(texts, embedder, kind_of("classes"), 4, known=set(), excluded=set())
    ]
    rest = [i for i, text in enumerate(texts) if text not in found]
    chosen = [texts.index(text) for text in found]
    nearest = (vectors[rest] @ vectors[chosen].T).max(1).mean()
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(len(texts)) for _ in range(50)]
    at_random = [(vectors[order[4:]] @ vectors[order[:4]].T).max(1).mean() for order in drawn]
    assert nearest > np.mean(at_random)


@pytest.mark.parametrize("texts", [[], ["One."], ["One.", "one"], ["One.", "Two."], ["A", "B", "C"]])
def test_tiny_corpora(texts: list[str], embedder: Embedder) -> None:
    for name in NAMES:
        found = sample_questions(texts, embedder, kind_of(name), 10, known=set(), excluded=set())
        assert len({frozenset(one.texts) for one in found}) == len(found)


# Answers.


def test_answers_are_on_disk_at_once_and_survive_a_kill(tmp_path: Path) -> None:
    """A process answers and is killed without closing anything."""
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
        "from diffaug.serve.label.store import Store; from diffaug.serve.label.kinds import make_kind\n"
        "store = Store(Path(sys.argv[1]), make_kind('same-different'))\n"
        "store.add_questions([(('a', str(i)), None, None) for i in range(9)], [1] * 9)\n"
        "for i in range(5): store.answer('anna', store.next('anna')[0], 'same')\n"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "l.db")], env=dict(os.environ))
    assert ended.returncode == -9
    store = Store(tmp_path / "l.db", kind_of("same-different"))
    assert len(store.rows()) == 5
    assert store.next("anna") == (6, ("a", "5"))


def test_two_people_get_different_questions_and_some_the_same(tmp_path: Path) -> None:
    store = make_store(tmp_path, count=3)
    store.add_questions([(("x", "y"), None, None)], [2])
    seen: dict[str, list[int]] = {"anna": [], "ben": []}
    for _ in range(4):
        for who in seen:
            if (found := store.next(who)) is not None:
                seen[who].append(found[0])
                store.answer(who, found[0], "same")
    assert sorted(seen["anna"] + seen["ben"]) == [1, 2, 3, 4, 4]


def test_skipped_question_is_left_for_others(tmp_path: Path) -> None:
    store = make_store(tmp_path, count=1)
    store.answer("anna", 1, SKIP)
    assert store.next("anna") is None
    assert store.next("ben") is not None
    assert store.rows() == []
    assert store.progress("anna")["answered"] == 0


def test_undo_takes_back_the_last_answer_of_that_person(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for who in ("anna", "anna", "ben"):
        store.answer(who, store.next(who)[0], "same")  # type: ignore[index]
    found = store.undo("anna")
    assert found is not None
    assert found[0] == 2
    assert [list(one.answers) for one in store.answered()] == [["anna"], ["ben"]]
    assert store.next("anna")[0] == 2  # type: ignore[index]
    assert store.undo("carl") is None


def test_excluding_later_also_removes_answers_from_the_export(tmp_path: Path) -> None:
    store = make_store(tmp_path, count=2)
    for question in (1, 2):
        store.answer("anna", question, "same")
    store.exclude({same_text(f"SENTENCE2 1, {NASTY}")})
    assert len(store.rows()) == 1
    store.exclude(set())
    assert len(store.rows()) == 2


def test_other_files_and_kinds_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    with pytest.raises(DiffaugError, match="use --kind same-different"):
        Store(tmp_path / "labels.db", kind_of("scores"))
    (tmp_path / "text.db").write_text("not a database" * 100)
    with pytest.raises(DiffaugError, match="choose another --out"):
        Store(tmp_path / "text.db", kind_of("scores"))
    with pytest.raises(DiffaugError, match="choose another --out"):
        stored_kind(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(DiffaugError, match="choose another --out"):
        Store(tmp_path / "other.db", kind_of("scores"))
    Store(tmp_path / "classes.db", kind_of("classes")).close()
    assert stored_kind(tmp_path / "classes.db") == kind_of("classes")
    Store(tmp_path / "classes.db", make_kind("classes", ["login", "billing", "other"])).close()  # one more
    with pytest.raises(DiffaugError, match="'other'"):
        Store(tmp_path / "classes.db", kind_of("classes"))


@pytest.mark.parametrize(("name", "classes"), [("classes", []), ("classes", ["a", "a"]), ("classes", ["a", SKIP]),
                                               ("scores", ["a", "b"]), ("no", [])])  # fmt: skip
def test_kinds_that_cannot_be_asked(name: str, classes: list[str]) -> None:
    with pytest.raises(DiffaugError):
        make_kind(name, classes)


def test_keys_are_distinct() -> None:
    many = make_kind("classes", [f"c{i}" for i in range(32)])
    for kind in (many, *map(kind_of, NAMES)):
        keys = [choice.key for choice in kind.choices] + ["s", "b", "u"]
        assert len(set(keys)) == len(keys)


# Agreement.


@pytest.mark.parametrize("ordered", [False, True])
def test_kappa_is_that_of_scikit_learn(ordered: bool) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    first = rng.integers(0, 6, 80)
    second = np.where(rng.random(80) < 0.6, first, rng.integers(0, 6, 80))
    expected = metrics.cohen_kappa_score(first, second, weights="quadratic" if ordered else None)
    assert cohen_kappa([*map(str, first)], [*map(str, second)], ordered=ordered) == pytest.approx(expected)


def test_kappa_of_one_answer_only_is_not_defined() -> None:
    assert cohen_kappa(["same"] * 3, ["same"] * 3) is None
    assert cohen_kappa(["same"], ["different"]) == 0.0


def test_disagreements_are_settled_and_not_exported_before(tmp_path: Path) -> None:
    store = make_store(tmp_path, count=3, people=2)
    for question, values in {1: ("same", "same"), 2: ("same", "different"), 3: ("same", UNUSABLE)}.items():
        for who, value in zip(("anna", "ben"), values, strict=True):
            store.answer(who, question, value)
    assert [one.id for one in store.disputes()] == [2, 3]
    assert len(store.rows()) == 1
    assert store.agreement()[0]["questions"] == 3
    assert store.settle("carl", 2, "different")
    assert not store.settle("carl", 1, "different")  # nobody disagrees
    assert store.settle("carl", 3, UNUSABLE)
    assert [row[2] for row in store.rows()] == ["same", "different"]
    assert store.disputes() == []


def test_close_scores_are_averaged_and_distant_ones_disputed(tmp_path: Path) -> None:
    store = make_store(tmp_path, "scores", count=2, people=2)
    for question, values in {1: "34", 2: "14"}.items():
        for who, value in zip(("anna", "ben"), values, strict=True):
            store.answer(who, question, value)
    assert [row[2] for row in store.rows()] == ["3.5"]
    assert [one.id for one in store.disputes()] == [2]


# Files.


def fill(store: Store) -> list[tuple[str, str]]:
    """Answer each question with one of its choices in turn, by two people in turn."""
    values = [choice.value for choice in store.kind.choices]
    given = []
    for i in range(6):
        who = ("anna", "ben")[i % 2]
        given.append((who, values[i % len(values)]))
        store.answer(who, i + 1, given[-1][1])
    return given


@pytest.mark.parametrize("name", NAMES)
def test_export_is_what_training_reads(name: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, name)
    values = [value for _, value in fill(store)]
    assert write_csv(tmp_path / "labels.csv", store) == 6
    path = tmp_path / "labels.csv"
    first = f"{store.kind.fields[0]} 0, {NASTY}"
    if name == "same-different":
        meaning = {"same": "entailment", "different": "not_entailment"}
        pairs = read_labelled_pairs(path)
        assert [label.value for label in pairs.labels] == [meaning[value] for value in values]
        assert pairs.premises[0] == first
    elif name == "scores":
        scored = read_scored_pairs(path)
        assert list(scored.scores) == [float(value) for value in values]
        assert scored.first[0] == first
    elif name == "triplets":
        triplets = read_triplets(path)
        assert triplets.positives[0] == f"first 0, {NASTY}"
        assert triplets.positives[1] == f"second 1, {NASTY}"
        assert triplets.negatives[1] == f"first 1, {NASTY}"
    else:
        classes = read_classes(path)
        assert classes.sentences[0] == first
        assert classes.classes == values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["label-studio", "argilla"])
def test_other_tools_formats_go_both_ways(name: str, format: Any, tmp_path: Path) -> None:
    store = make_store(tmp_path, name)
    store.add_questions([(tuple(f"open {field}" for field in store.kind.fields), None, None)], [1])
    fill(store)
    assert export(tmp_path / "out.json", store, format) == 7
    found = read_answers(tmp_path / "out.json", store.kind)
    expected = {one.texts: list(one.answers.values()) for one in store.answered()}
    assert {texts: list(answers.values()) for texts, answers in found if answers} == expected
    (tmp_path / "again").mkdir()
    again = Store(tmp_path / "again" / "l.db", store.kind)
    assert again.add_answered(found) == 6
    assert again.add_answered(found) == 0
    assert sorted(again.rows()) == sorted(store.rows())
    assert again.next("carl") is not None  # the open question
    if format == "label-studio":
        assert {who for _, answers in found for who in answers} == {"anna", "ben"}


def test_files_of_the_tools_themselves(tmp_path: Path) -> None:
    """As their documentation shows them: numbered people, ratings, cancelled annotations, other question names."""
    data = {"sentence1": "a", "sentence2": "b"}
    result = {"from_name": "stars", "to_name": "t", "type": "rating", "value": {"rating": 4}}
    choice = {"from_name": "c", "to_name": "t", "type": "choices", "value": {"choices": ["2"]}}
    annotations = [
        {"id": 1001, "completed_by": 10, "result": [result], "was_cancelled": False, "lead_time": 4.2},
        {"id": 1002, "completed_by": {"id": 7, "email": "ben@example.org"}, "result": [choice]},
        {"id": 1003, "completed_by": 11, "result": [], "was_cancelled": True},
    ]
    tasks = [{"id": 1, "project": 83, "data": data, "annotations": annotations, "predictions": []}]
    (tmp_path / "ls.json").write_text(json.dumps(tasks))
    answers = {"label-studio-10": "4", "ben@example.org": "2", "label-studio-11": SKIP}
    assert read_answers(tmp_path / "ls.json", kind_of("scores")) == [(("a", "b"), answers)]
    record = {"id": "r", "fields": data, "responses": {"rating": [{"value": 3, "user_id": "u1"}]}, "_server_id": "s"}
    (tmp_path / "argilla.json").write_text(json.dumps([record]))
    assert read_answers(tmp_path / "argilla.json", kind_of("scores")) == [(("a", "b"), {"u1": "3"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("{}", "must be a JSON list"),
        ("[1]", "must be a JSON list"),
        ('[{"data": {"text": "a"}}]', "entry 1 must have the texts sentence1, sentence2"),
        ('[{"fields": {"sentence1": "a", "sentence2": "b"}, "responses": {"label": 3}}]', "unknown form"),
        (
            '[{"fields": {"sentence1": "a", "sentence2": "b"}, "responses": {"q": [{"user_id": 1, "value": "x"}]}}]',
            "the answers of this kind are: same, different",
        ),
    ],
)
def test_files_that_cannot_be_imported(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(content)
    with pytest.raises(DiffaugError, match=message):
        read_answers(tmp_path / "in.json", kind_of("same-different"))


# The page's API.


def test_answer_undo_and_review_over_http(tmp_path: Path) -> None:
    store = make_store(tmp_path, people=2)
    with client_of(store, tmp_path) as client:
        assert client.get("/api/info").json()["title"] == "sentences.txt"
        for who, value in (("anna", "same"), ("ben", "different")):
            question = client.post("/api/next", json={"annotator": who}).json()["question"]
            body = {"annotator": who, "question": question["id"], "value": value, "seconds": 2.5}
            answer = client.post("/api/answer", json=body).json()
            assert answer["question"]["id"] == 2
            assert answer["progress"] | {"answered": 1} == {
                "questions": 6, "answered": 1, "mine": 1, "seconds_per_answer": 2.5,
            }  # fmt: skip
        review = client.get("/api/review").json()
        assert review["disputes"] == 1
        assert review["shown"][0]["answers"] == {"anna": "same", "ben": "different"}
        settle = {"annotator": "carl", "question": 1, "value": "same"}
        assert client.post("/api/settle", json=settle).json()["disputes"] == 0
        assert client.post("/api/settle", json=settle).status_code == 409
        undone = client.post("/api/undo", json={"annotator": "anna"}).json()
        assert undone["question"]["id"] == 1
        assert undone["progress"]["mine"] == 0
    assert (tmp_path / "labels.csv").read_text().startswith("sentence1,sentence2,label\n")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/next", {}, 400),
        ("/api/next", {"annotator": " "}, 400),
        ("/api/next", {"annotator": "a\u0000"}, 400),
        ("/api/next", {"annotator": "a" * 61}, 400),
        ("/api/answer", {"annotator": "a", "question": 99, "value": "same"}, 404),
        ("/api/answer", {"annotator": "a", "question": "1", "value": "same"}, 400),
        ("/api/answer", {"annotator": "a", "question": True, "value": "same"}, 400),
        ("/api/answer", {"annotator": "a", "question": 2**70, "value": "same"}, 400),
        ("/api/answer", {"annotator": "a", "question": 1, "value": "'; DROP TABLE answers; --"}, 400),
        ("/api/settle", {"annotator": "a", "question": 1, "value": SKIP}, 400),
    ],
)
def test_invalid_answers_change_nothing(path: str, body: dict[str, Any], status: int, tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with client_of(store, tmp_path) as client:
        assert client.post(path, json=body).status_code == status
        assert store.answered() == []


def test_other_sites_cannot_answer(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    body = json.dumps({"annotator": "a", "question": 1, "value": "same"})
    with client_of(store, tmp_path) as client:
        for headers in (
            {"content-type": "application/json", "origin": "https://evil.example"},
            {"content-type": "text/plain"},
            {"content-type": "application/json", "host": "evil.example"},
            {"content-type": "application/json", "sec-fetch-site": "cross-site"},
        ):
            assert client.post("/api/answer", content=body, headers=headers).status_code in (403, 415)
    assert store.answered() == []


# The command.


def run(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(command_line, ["label", *map(str, arguments)])


def test_command_samples_resumes_and_exports(
    tmp_path: Path, tiny_bert: Path, corpus: list[str], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.txt").write_text("\n".join(corpus))
    (tmp_path / "dev.txt").write_text("\n".join(corpus[:20]))
    out = tmp_path / "labels.csv"
    common = (tmp_path / "s.txt", "--out", out, "--model", tiny_bert, "--device", "cpu", "--port", 0)
    served: list[int] = []

    def answer_some(app: Any, sock: Any, limits: Any) -> None:
        sock.close()
        with TestClient(app, "http://127.0.0.1") as client:
            for _ in range(4):
                question = client.post("/api/next", json={"annotator": "anna"}).json()["question"]
                served.append(question["id"])
                client.post("/api/answer", json={"annotator": "anna", "question": question["id"], "value": "same"})

    monkeypatch.setattr("diffaug.serve.web.run", answer_some)
    for _ in range(2):
        result = run(*common, "--questions", 30, "--exclude", tmp_path / "dev.txt")
        assert result.exit_code == 0, result.output
    assert "30 questions" in result.output
    assert "8 labels" in result.output
    assert served == list(range(1, 9))  # the second time it went on
    for format in ("label-studio", "argilla"):
        done = run(*common, "--questions", 0, "--export", tmp_path / f"{format}.json", "--format", format)
        assert done.exit_code == 0, done.output
    imported = ("--import", tmp_path / "argilla.json", "--export", tmp_path / "o.json")
    other = run(tmp_path / "s.txt", "--out", tmp_path / "o.csv", "--questions", 0, *imported)
    assert "8 answers imported" in other.output
    assert (tmp_path / "o.csv").read_text().count("\n") == 9


def test_command_destroys_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("sentence\na\nb\n")
    (tmp_path / "mine.csv").write_text("sentence1,sentence2,label\n")
    for out, message in (("s.csv", "would overwrite"), ("mine.csv", "choose another --out"), ("x.txt", "end in .csv")):
        result = run(tmp_path / "s.csv", "--out", tmp_path / out)
        assert message in str(result.exception)
    assert (tmp_path / "mine.csv").read_text() == "sentence1,sentence2,label\n"
