"""Classes of sentences: the classifier against scikit-learn's, saved with the model, and on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diffaug import DiffaugError, Embedder, load_recipe, train
from diffaug.cli import app
from diffaug.models.classifier import CLASSIFIER, Classifier

TEXTS = {
    "card": ["My card is lost.", "I lost my card yesterday.", "Where is my new card?", "The card was stolen."],
    "rate": ["What is the exchange rate?", "Is the rate good today?", "The rate is too low.", "Which rate do I get?"],
    "cash": ["I need some cash.", "Where can I get cash?", "The machine kept my cash.", "No cash came out."],
}
SENTENCES = [text for texts in TEXTS.values() for text in texts]
CLASSES = [name for name, texts in TEXTS.items() for _ in texts]


@pytest.mark.parametrize("c", [0.5, 16.0])
def test_logistic_regression_is_that_of_scikit_learn(c: float) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    classes = [str(int(i)) for i in rng.integers(0, 3, 40)]
    expected = linear.LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(vectors.astype(np.float64), classes)
    found = Classifier.fit(vectors, classes, c=c, tolerance=1e-7)
    assert found.names == list(expected.classes_)
    np.testing.assert_allclose(found.probabilities(vectors), expected.predict_proba(vectors), atol=1e-4)


def test_weights_are_pulled_to_the_class_means() -> None:
    """Logistic regression on the logits of the prototypes, with a penalty on what is added to them."""
    optimize = pytest.importorskip("scipy.optimize")
    special = pytest.importorskip("scipy.special")
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(30, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    targets = rng.integers(0, 3, 30)
    means = np.stack([vectors[targets == i].sum(0) for i in range(3)])
    means = 30 * means / np.linalg.norm(means, axis=1, keepdims=True)

    def loss(flat: np.ndarray) -> float:
        change, bias = flat[:12].reshape(3, 4), flat[12:]
        logits = vectors @ (means + change).T + bias
        errors = special.logsumexp(logits, axis=1) - logits[np.arange(30), targets]
        return float(errors.sum() + (flat**2).sum() / (2 * 0.7))

    solution = optimize.minimize(loss, np.zeros(15), tol=1e-10).x
    found = Classifier.fit(vectors, [str(i) for i in targets], c=0.7, mean_scale=30, tolerance=1e-7)
    np.testing.assert_allclose(found.weight, means + solution[:12].reshape(3, 4), atol=1e-3)
    np.testing.assert_allclose(found.bias, solution[12:], atol=1e-3)


def test_the_penalty_is_chosen_on_held_out_sentences() -> None:
    """On a ring whose classes have the same mean, weights that are pulled to the means are bad at held-out points."""
    rng = np.random.default_rng(2)
    angle = rng.uniform(0, 2 * np.pi, 200)
    points = np.stack([np.cos(angle), np.sin(angle), 0.2 * np.cos(angle) ** 2], 1)
    vectors = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    classes = [str(bool(each)) for each in np.abs(np.cos(angle)) > np.sqrt(0.5)]

    def right(classifier: Classifier) -> int:
        return int((np.array(classifier.names)[classifier.probabilities(vectors).argmax(1)] == classes).sum())

    assert right(Classifier.fit(vectors, classes, c=0.1, mean_scale=30)) < 150 < right(Classifier.fit(vectors, classes))


def test_prototypes_are_the_nearest_class_means() -> None:
    embedder = Embedder.from_pretrained(device="cpu")
    embedder.fit_classifier(SENTENCES, CLASSES, "prototypes")
    vectors = embedder.encode(SENTENCES)
    means = np.stack([vectors[[c == name for c in CLASSES]].mean(0) for name in sorted(TEXTS)])
    cosines = vectors @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    assert embedder.predict(SENTENCES) == [sorted(TEXTS)[i] for i in cosines.argmax(1)]


def test_a_classifier_is_saved_with_the_model(tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(device="cpu")
    with pytest.raises(DiffaugError, match="this model has no classifier"):
        embedder.predict("My card is gone.")
    with pytest.raises(DiffaugError, match=r"4 sentences with 4 labels of 1 class\(es\)"):
        embedder.fit_classifier(SENTENCES[:4], CLASSES[:4])
    embedder.fit_classifier(SENTENCES, CLASSES)
    assert embedder.predict(SENTENCES) == CLASSES
    embedder.save(tmp_path / "model")
    again = Embedder.from_pretrained(tmp_path / "model", device="cpu")
    assert again.predict("I lost my card yesterday.") == "card"
    expected = embedder.predict_probabilities(SENTENCES)
    np.testing.assert_allclose(again.predict_probabilities(SENTENCES), expected, atol=1e-6)
    (tmp_path / "model" / CLASSIFIER).write_bytes(b"nothing")
    with pytest.raises(DiffaugError, match=r"classifier\.safetensors is damaged"):
        Embedder.from_pretrained(tmp_path / "model")


def test_training_on_classes_saves_one(tiny_bert: Path, tmp_path: Path) -> None:
    changes = [f"model.backbone={tiny_bert}", "stage2.steps=1", "stage2.batch_size=6", "loop.precision=fp32"]
    rows = [{"text": text, "label": name} for text, name in zip(SENTENCES, CLASSES, strict=True)]
    result = train(load_recipe("adapt-simcse", changes), tmp_path / "run", nli=rows, quiet=True)
    classifier = Embedder.from_pretrained(result.model).classifier
    assert classifier is not None
    assert classifier.names == sorted(TEXTS)


def test_the_command(tmp_path: Path) -> None:
    lines = ["text\tlabel", *(f"{text}\t{name}" for text, name in zip(SENTENCES, CLASSES, strict=True))]
    (tmp_path / "labels.tsv").write_text("\n".join(lines), "utf-8")
    (tmp_path / "new.txt").write_text("I lost my card yesterday.\n\nWhere can I get cash?\n", "utf-8")
    command = ["predict", str(tmp_path / "new.txt")]
    learn = ["--labels", str(tmp_path / "labels.tsv"), "--save", str(tmp_path / "model")]
    first = CliRunner().invoke(app, [*command, *learn])
    assert first.exit_code == 0, first.output
    assert [line.split("\t")[0] for line in first.stdout.splitlines()] == ["card", "cash"]
    saved = CliRunner().invoke(app, [*command, "--model", str(tmp_path / "model")])
    assert saved.stdout == first.stdout
    json_lines = CliRunner().invoke(app, [*command, "--model", str(tmp_path / "model"), "--json"])
    assert '"class": "card"' in json_lines.stdout


def test_one_row_per_sentence_and_bad_rows_are_skipped(tmp_path: Path) -> None:
    lines = ["text\tlabel", *(f"{text}\t{name}" for text, name in zip(SENTENCES, CLASSES, strict=True)), "No class\t"]
    (tmp_path / "labels.tsv").write_text("\n".join(lines), "utf-8")
    (tmp_path / "new.csv").write_text('text,id\n"I lost\nmy\tcard.",1\n"",2\n"Where can I get cash?",3\n', "utf-8")
    command = ["predict", str(tmp_path / "new.csv"), "--labels", str(tmp_path / "labels.tsv")]
    for line in ("new.csv, line 4: column 'text' is empty", "labels.tsv, line [0-9]+: the class is empty"):
        with pytest.raises(DiffaugError, match=f"{line}; fix the line, or skip such lines with --on-bad skip"):
            CliRunner().invoke(app, command, catch_exceptions=False)
        (tmp_path / "new.csv").write_text('text,id\n"I lost\nmy\tcard.",1\n"Where can I get cash?",3\n', "utf-8")
    result = CliRunner().invoke(app, [*command, "--on-bad", "skip"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert [line.split("\t")[::2] for line in result.stdout.splitlines()] == [
        ["card", "I lost my card."],
        ["cash", "Where can I get cash?"],
    ]


def test_the_labels_have_other_columns(tmp_path: Path) -> None:
    lines = [
        "Nr,Betreff,Gruppe",
        *(f'{i},"{text}",{name}' for i, (text, name) in enumerate(zip(SENTENCES, CLASSES, strict=True))),
    ]
    (tmp_path / "labels.csv").write_text("\n".join(lines), "utf-8")
    (tmp_path / "new.csv").write_text("text\nI lost my card yesterday.\n", "utf-8")
    command = ["predict", str(tmp_path / "new.csv")]
    columns = ["--label-column", "sentence=Betreff", "--label-column", "class=Gruppe"]
    result = CliRunner().invoke(app, [*command, "--labels", str(tmp_path / "labels.csv"), *columns])
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert result.stdout.startswith("card\t")
    with pytest.raises(DiffaugError, match="--label-column needs --labels"):
        CliRunner().invoke(app, [*command, *columns], catch_exceptions=False)
