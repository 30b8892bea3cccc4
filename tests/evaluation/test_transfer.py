"""Reading SentEval's transfer files, and the classifier on frozen vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import embed, few_folds, transfer_spec, write_transfer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from diffaug.errors import DiffaugError
from diffaug.evaluation import classifier
from diffaug.evaluation.folder import DataFolder
from diffaug.evaluation.protocol import TRANSFER
from diffaug.evaluation.tasks import Embeddings
from diffaug.evaluation.transfer import Examples, TransferTask, load_transfer

NAMES = [spec.name for spec in TRANSFER]


def load(name: str, folder: Path) -> TransferTask | None:
    return load_transfer(transfer_spec(name), DataFolder([folder]), seed=0)


def quiet(n: int) -> None:
    pass


@pytest.mark.parametrize("name", NAMES)
def test_every_task_is_read_with_its_classes(name: str, tmp_path: Path) -> None:
    spec = transfer_spec(name)
    write_transfer(tmp_path, spec)
    task = load(name, tmp_path)
    assert task is not None
    sets = [examples for examples in (task.train, task.dev, task.test) if examples is not None]
    assert sum(len(examples.labels) for examples in sets) == spec.rows
    assert len(sets) == {"classes": 1, "sst": 3, "trec": 2, "mrpc": 2}[spec.layout]
    for examples in sets:
        for first, second, label in zip(
            examples.first, examples.second or examples.first, examples.labels, strict=True
        ):
            if spec.layout == "mrpc":
                assert (second.startswith("class0"), '"' in first) == (label == 1, True)
            elif spec.layout == "classes":
                assert first.startswith(f"class{1 - label} ")  # the first file is the positive one
            else:
                assert first.startswith(f"class{label} ")
            assert first == " ".join(first.split())
    if spec.layout in ("classes", "trec"):
        assert "café" in task.train.first[0], "these files are Latin-1"


def test_the_sizes_are_the_published_ones() -> None:
    assert {spec.name: spec.rows for spec in TRANSFER} == {
        "MR": 10662,
        "CR": 3775,
        "SUBJ": 10000,
        "MPQA": 10606,
        "SST2": 70042,
        "TREC": 5952,
        "MRPC": 5801,
    }


@pytest.mark.parametrize("name", ["MR", "CR", "SUBJ", "TREC", "MRPC"])
def test_a_cut_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    spec = transfer_spec(name)
    write_transfer(tmp_path, spec)
    path = next(tmp_path.rglob(spec.files[1].name))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:20]))
    with pytest.raises(DiffaugError, match=f"{spec.files[1].name}.*: found .* rows, but {name}.* has "):
        load(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("SST2", b"no tab 1\n"),
        ("SST2", b"text\t2\n"),
        ("TREC", b"WHAT:x y\n"),
        ("TREC", b"NUM:x\n"),
        ("MRPC", b"1\tx\n"),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(name: str, line: bytes, tmp_path: Path) -> None:
    spec = transfer_spec(name)
    write_transfer(tmp_path, spec)
    path = next(tmp_path.rglob(spec.files[0].name))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = line
    path.write_bytes(b"".join(lines))
    with pytest.raises(DiffaugError, match=f"{spec.files[0].name}, line 7: "):
        load(name, tmp_path)


def test_a_missing_task_is_none_and_half_a_task_is_an_error(tmp_path: Path) -> None:
    assert load("MR", tmp_path) is None
    write_transfer(tmp_path, transfer_spec("MR"))
    (tmp_path / "MR" / "rt-polarity.neg").unlink()
    with pytest.raises(DiffaugError, match=r"MR is incomplete: .* lacks rt-polarity\.neg"):
        load("MR", tmp_path)


def test_fine_grained_sst_is_not_taken_for_sst2(tmp_path: Path) -> None:
    write_transfer(tmp_path, transfer_spec("SST2"))
    (tmp_path / "SST" / "binary").rename(tmp_path / "SST" / "fine")
    assert load("SST2", tmp_path) is None


def noisy(rows: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors from which the class can be guessed, far from zero and of no particular length."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    centres = rng.normal(size=(classes, 12))
    return (7 + 3 * (centres[labels] + 1.5 * rng.normal(size=(rows, 12)))).astype(np.float32), labels


def reference(vectors: np.ndarray, rows: np.ndarray, strength: float, labels: np.ndarray) -> Callable[..., Any]:
    """Cold-started logistic regression to high precision, on vectors whose mean squared length is one."""
    mean = vectors[rows].mean(0)
    length = np.sqrt(((vectors[rows] - mean) ** 2).sum(1).mean())
    model = LogisticRegression(C=strength, tol=1e-9, max_iter=10_000)
    model.fit(((vectors[rows] - mean) / length).astype(float), labels[rows])
    return lambda x: model.predict(((x - mean) / length).astype(float))


@pytest.mark.parametrize("classes", [2, 3])
def test_cross_validation_against_a_plain_reference(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_folds(monkeypatch)
    vectors, labels = noisy(200, classes, seed=classes)
    expected = np.empty_like(labels)
    for train, test in StratifiedKFold(4, shuffle=True, random_state=5).split(vectors, labels):
        scores = np.zeros(len(classifier.STRENGTHS))
        inner = StratifiedKFold(3, shuffle=True, random_state=5).split(vectors[train], labels[train])
        for fit_on, held_out in inner:
            for i, strength in enumerate(classifier.STRENGTHS):
                predict = reference(vectors, train[fit_on], strength, labels)
                scores[i] += (predict(vectors[train[held_out]]) == labels[train[held_out]]).mean()
        best = classifier.STRENGTHS[int(scores.argmax())]
        expected[test] = reference(vectors, train, best, labels)(vectors[test])
    found = classifier.predict_on_folds(vectors, labels, 5, quiet)
    assert 0.4 < (found == labels).mean() < 0.95, "too easy or too hard to tell anything"
    assert (found == expected).mean() >= 0.985  # a penalty may be chosen otherwise where two are equally good


def test_test_split_against_a_plain_reference() -> None:
    vectors, labels = noisy(300, 2, seed=9)
    train, dev, test = np.split(np.arange(300), [150, 200])
    accuracies = [
        (reference(vectors, train, strength, labels)(vectors[dev]) == labels[dev]).mean()
        for strength in classifier.STRENGTHS
    ]
    best = classifier.STRENGTHS[int(np.argmax(accuracies))]
    found = classifier.predict_on_test(
        (vectors[train], labels[train]), (vectors[dev], labels[dev]), vectors[test], 0, quiet
    )
    assert np.array_equal(found, reference(vectors, train, best, labels)(vectors[test]))


def test_predictions_do_not_depend_on_the_length_or_the_place_of_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    few_folds(monkeypatch)
    vectors, labels = noisy(200, 2, seed=4)
    found = classifier.predict_on_folds(vectors, labels, 0, quiet)
    assert np.array_equal(found, classifier.predict_on_folds(vectors, labels, 0, quiet))
    moved = classifier.predict_on_folds((vectors * 40 - 100).astype(np.float32), labels, 0, quiet)
    assert (found == moved).mean() >= 0.99


def test_random_labels_cannot_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything that leaks a row's own label into its prediction shows here."""
    few_folds(monkeypatch)
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(1_000, 8)).astype(np.float32), rng.integers(0, 2, 1_000)
    assert 0.44 < (classifier.predict_on_folds(vectors, labels, 0, quiet) == labels).mean() < 0.56


def test_a_pair_becomes_its_difference_and_its_product() -> None:
    examples = Examples(["a x", "b"], ["b", "a x"], [0, 1])
    embeddings = Embeddings(["a x", "b"], embed(["a x", "b"]).astype(np.float32))
    u, v = embeddings(["a x", "b"])
    features = examples.features(embeddings)
    assert np.array_equal(features[0], np.concatenate([np.abs(u - v), u * v]))
    assert np.array_equal(features[0], features[1])


def test_mrpc_has_accuracy_and_f1() -> None:
    rng = np.random.default_rng(2)
    words = [f"w{i}" for i in range(40)]
    first, second, labels = [], [], []
    for _ in range(260):
        a, b = rng.choice(words, 2)
        label = int(rng.random() < 0.5)
        first.append(f"{a} x")
        second.append(f"{a if label and rng.random() < 0.8 else b} y")
        labels.append(label)
    train, test = (Examples(first[p], second[p], labels[p]) for p in (slice(200), slice(200, None)))
    task = TransferTask("MRPC", "logreg_test", train, None, test)
    sentences = list(dict.fromkeys(task.sentences()))
    embeddings = Embeddings(sentences, embed(sentences).astype(np.float32))
    result = task.score(embeddings)
    predicted = classifier.predict_on_test(
        (train.features(embeddings), np.array(train.labels)), None, test.features(embeddings), 0, quiet
    )
    assert 60 < result.score < 100
    assert result.score == result.details["accuracy"] == pytest.approx(100 * np.mean(predicted == test.labels))
    assert result.details["f1"] == pytest.approx(100 * f1_score(test.labels, predicted))
    assert result.rows == 60


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(classifier, "import_module", without)
    with pytest.raises(DiffaugError, match=r"pip install 'diffaug\[eval\]'"):
        classifier.predict_on_folds(*noisy(50, 2, seed=0), 0, quiet)
