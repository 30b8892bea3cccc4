"""Matryoshka dimensions: the loss against sentence-transformers, every method, and truncated vectors everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from diffaug import Embedder, evaluate, train
from diffaug.cli import app
from diffaug.config import Recipe, load_recipe
from diffaug.errors import DiffaugError
from diffaug.inference.stored import StoredVectors
from diffaug.methods.base import ContrastiveRows, StepBatch
from diffaug.models.config import ModelConfig
from diffaug.training.execution.executor import plain_executor
from diffaug.training.precision import Precision

DIMENSIONS, WEIGHTS = [32, 6, 20], [1.0, 0.5, 2.0]
SENTENCES = [
    "A dog runs through the park.",
    "Is this seat taken?",
    "He doesn't like tea",
    "Prices rose by 12.5 % in 2023.",
    "Yes.",
    "The old cat sleeps under the table.",
    "Two children are playing football in the rain!",
    "The market fell sharply on Monday, and nobody knew why.",
]
MATRYOSHKA = [f"stage2.matryoshka={DIMENSIONS}", f"stage2.matryoshka_weights={WEIGHTS}"]


class _Given(nn.Module):
    """A model of sentence-transformers, as its losses see it, whose input is the vectors themselves."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        return 32


@pytest.mark.parametrize("kind", ["info_nce", "cosent"])
@pytest.mark.parametrize("changes", [MATRYOSHKA, MATRYOSHKA[:1]])
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(
    kind: str, changes: list[str], recipe_run: Callable[..., Any]
) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    method, _, _ = recipe_run("simcse-sup", "model.head=none", "stage2.objective=labels", *changes)
    states = torch.randn(3 * 8, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = None if kind == "info_nce" else torch.linspace(0, 1, 12)[torch.randperm(12)]
    rows = ContrastiveRows(slice(0, 24), 3 if labels is None else 2, labels, "relation" if labels is None else "score")
    ours = method.contrast(states, StepBatch(None, rows))["contrastive"]  # type: ignore[arg-type]
    (our_gradient,) = torch.autograd.grad(ours, states)

    given = _Given()
    inner = losses.MultipleNegativesRankingLoss(given) if labels is None else losses.CoSENTLoss(given)
    theirs_of = losses.MatryoshkaLoss(given, inner, DIMENSIONS, WEIGHTS if len(changes) == 2 else None)
    theirs = theirs_of([{"vectors": column} for column in rows.split(states)], labels)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    torch.testing.assert_close(our_gradient, torch.autograd.grad(theirs, states)[0], rtol=1e-4, atol=1e-6)
    plain, _, _ = recipe_run("simcse-sup", "model.head=none", "stage2.objective=labels")
    assert plain.contrast(states, StepBatch(None, rows))["contrastive"].item() != pytest.approx(theirs.item(), rel=0.05)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["diffaug-semi", "diffaug-sup", "simcse-unsup", "promptbert-unsup", "consert-unsup", "diffcse"]
)
def test_every_method_learns_in_the_first_components_alone(
    name: str, recipe_run: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """Also with a projection, which is dropped after training: what counts are the components of the saved vectors."""
    changes = ["stage2.matryoshka=[6]"]
    if name == "diffcse":
        changes.append(f"replaced.generator={request.getfixturevalue('tiny_masked_lm')('bert')}")
    method, inputs, _ = recipe_run(name, *changes)
    stage, batch = inputs(2)
    leaf: list[torch.Tensor] = []

    def encode(tokens: Any) -> torch.Tensor:
        leaf.append(method.represent(tokens).detach().requires_grad_())
        return leaf[0]

    method.losses(stage, batch, encode)["contrastive"].backward()
    gradient = leaf[0].grad
    assert gradient is not None
    assert gradient[:, :6].abs().max() > 0
    assert gradient[:, 6:].abs().max() == 0


def test_a_kept_head_is_truncated_behind_it(recipe_run: Callable[..., Any]) -> None:
    method, inputs, _ = recipe_run("promptbert-sup", "stage2.matryoshka=[6]", "model.head_kind=tanh")
    stage, batch = inputs(2)
    method.losses(stage, batch, method.represent)["contrastive"].backward()
    gradient = method.encoder.head[0][0].weight.grad  # (outputs, inputs)
    assert gradient[:6].abs().max() > 0
    assert gradient[6:].abs().max() == 0


@pytest.fixture(scope="module")
def trained(make_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = make_recipe("sup", stage2={"matryoshka": [8, 32, 16]})
    return train(recipe, tmp_path_factory.mktemp("matryoshka") / "run", quiet=True).model


def test_the_gradient_cache_changes_nothing(recipe_run: Callable[..., Any]) -> None:
    gradients = []
    for cache in ("null", "3"):
        method, inputs, _ = recipe_run("diffaug-sup", *MATRYOSHKA, f"stage2.gradient_cache={cache}")
        stage, batch = inputs(2)
        executor = plain_executor(method, stage, Precision("fp32", torch.device("cpu")))
        method.losses(stage, batch, executor)["loss"].backward()
        executor.backward()
        gradients.append({name: p.grad for name, p in method.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)


def test_a_saved_model_knows_its_dimensions(trained: Path, make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(trained)
    assert embedder.encoder.config.matryoshka == (32, 16, 8)
    assert "| matryoshka | 32; 16; 8 |" in (trained / "README.md").read_text("utf-8")
    # Trained further without them, it has lost them.
    again = make_recipe("sup", model={"backbone": str(trained)}, stage2={"steps": 1})
    further = Embedder.from_pretrained(train(again, tmp_path / "run", quiet=True).model)
    assert further.encoder.config.matryoshka == ()


def test_older_models_have_no_dimensions() -> None:
    assert "matryoshka" not in ModelConfig().to_dict()
    assert ModelConfig.from_dict(ModelConfig().to_dict()).matryoshka == ()
    for wrong in ([8, "a"], 8, [True]):
        with pytest.raises(DiffaugError, match="the model setting matryoshka cannot be"):
            ModelConfig.from_dict({**ModelConfig().to_dict(), "matryoshka": wrong})


def test_truncated_vectors(trained: Path) -> None:
    whole, short = Embedder.from_pretrained(trained), Embedder.from_pretrained(trained, truncate_dim=8)
    expected = whole.encode(SENTENCES, normalize=False)[:, :8]
    np.testing.assert_array_equal(short.encode(SENTENCES, normalize=False), expected)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(whole.encode(SENTENCES, truncate_dim=8), unit, atol=1e-6)
    np.testing.assert_allclose(short.encode(SENTENCES[0]), unit[0], atol=1e-6)
    assert (whole.width, short.width, short.encode(SENTENCES, truncate_dim=16).shape[1]) == (32, 8, 16)
    assert short.similarity(SENTENCES[0], SENTENCES[1]) == pytest.approx(float(unit[0] @ unit[1]), abs=1e-6)
    best = np.argsort(-(unit @ unit[0]), kind="stable")[:3].tolist()
    assert [hit.index for hit in short.search(SENTENCES, SENTENCES[0], k=3)] == best
    assert [hit.index for hit in short.search(unit, SENTENCES[0], k=3)] == best


@pytest.mark.parametrize("wrong", [0, -1, 33])
def test_a_dimension_that_the_model_does_not_have(wrong: int, trained: Path) -> None:
    with pytest.raises(DiffaugError, match=f"truncate_dim must be between 1 and 32, .* got {wrong}"):
        Embedder.from_pretrained(trained, truncate_dim=wrong)
    with pytest.raises(DiffaugError, match="truncate_dim must be between 1 and 32"):
        Embedder.from_pretrained(trained).encode("a", truncate_dim=wrong)


def test_encoded_files_and_search(trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES), "utf-8")
    for dim in (8, 16):
        result = CliRunner().invoke(
            app, ["encode", str(text), "-m", str(trained), "-o", str(tmp_path / f"v{dim}"), "--truncate-dim", str(dim)]
        )
        assert result.exit_code == 0, result.output
    stored = StoredVectors.open(tmp_path / "v8")
    assert stored is not None
    assert stored.vectors.width == 8
    embedder = Embedder.from_pretrained(trained)
    ((_, vectors),) = stored.blocks()
    np.testing.assert_allclose(vectors, embedder.encode(SENTENCES, truncate_dim=8), atol=1e-6)
    # The queries are truncated as the vectors were, whatever the Embedder is set to.
    short = embedder.encode(SENTENCES, truncate_dim=8)
    for same in (embedder, Embedder.from_pretrained(trained, truncate_dim=16)):
        hits = same.search(stored, SENTENCES[0], k=2)
        assert hits[1].score == pytest.approx(float(np.sort(short @ short[0])[-2]), abs=1e-5)
    found = CliRunner().invoke(app, ["search", str(tmp_path / "v8"), SENTENCES[0], "-k", "1", "--json"])
    assert json.loads(found.output)["sentence"] == SENTENCES[0]
    with pytest.raises(DiffaugError, match="differ in width"):
        StoredVectors.open([tmp_path / "v8", tmp_path / "v16"])
    with pytest.raises(DiffaugError, match="started with width 8, now it is 32"):
        embedder.encode_files(text, tmp_path / "v8")
    pytest.importorskip("starlette")
    from diffaug.serve.corpus import Query, open_corpus

    (hit,) = open_corpus(str(tmp_path / "v8"), embedder).search(
        Query(SENTENCES[3], 1, {}), embedder.encode(SENTENCES[3])
    )
    assert (hit.index, hit.score) == (3, pytest.approx(1, abs=1e-5))
    refused = CliRunner().invoke(app, ["search", str(tmp_path / "v8"), "a query", "--truncate-dim", "16"])
    assert isinstance(refused.exception, DiffaugError)


def test_an_index_of_truncated_vectors(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    from diffaug.inference.index import Index

    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES), "utf-8")
    folder = tmp_path / "index"
    run = CliRunner().invoke(
        app, ["index", "build", str(text), "-m", str(trained), "-o", str(folder), "--truncate-dim", "8"]
    )
    assert run.exit_code == 0, run.output
    assert CliRunner().invoke(app, ["index", "add", str(folder), str(text)]).exit_code == 0
    index = Index.open(folder)
    assert (index.rows, index.vectors.width) == (2 * len(SENTENCES), 8)
    embedder = Embedder.from_pretrained(trained)
    assert embedder.search(index, SENTENCES[3], k=1)[0].sentence == SENTENCES[3]
    embedder.encode_files(text, tmp_path / "whole")
    with pytest.raises(DiffaugError, match="encode it with --truncate-dim 8"):
        index.add(tmp_path / "whole")


def test_a_classifier_on_truncated_vectors(trained: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(trained, truncate_dim=8)
    classes = ["odd" if i % 2 else "even" for i in range(len(SENTENCES))]
    embedder.fit_classifier(SENTENCES, classes)
    embedder.save(tmp_path / "model")
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert loaded.width == 32  # the model is whole
    np.testing.assert_allclose(
        loaded.predict_probabilities(SENTENCES), embedder.predict_probabilities(SENTENCES), atol=1e-6
    )


def test_sentence_transformers_truncates_our_models(trained: Path, tiny_bert: Path, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from diffaug.integrations.st_native import export_native

    native = Embedder.from_pretrained(tiny_bert, device="cpu")
    native.encoder.config = replace(native.encoder.config, matryoshka=(32, 8), normalize=True)
    export_native(native, tmp_path / "native")
    for folder, embedder in ((trained, Embedder.from_pretrained(trained)), (tmp_path / "native", native)):
        model = st.SentenceTransformer(str(folder), truncate_dim=8, trust_remote_code=True, device="cpu")
        theirs = model.encode(SENTENCES, normalize_embeddings=True)
        np.testing.assert_allclose(embedder.encode(SENTENCES, truncate_dim=8), theirs, atol=1e-5)


def test_evaluating_the_first_components(trained: Path, data_files: dict[str, str]) -> None:
    whole = evaluate(trained, pairs={"pairs": data_files["dev"]}, resamples=0)
    short = evaluate(trained, pairs={"pairs": data_files["dev"]}, resamples=0, truncate_dim=8)
    own = evaluate(
        lambda texts: Embedder.from_pretrained(trained).encode(texts)[:, :8],
        pairs={"pairs": data_files["dev"]},
        resamples=0,
    )
    assert short.scores["pairs"] == pytest.approx(own.scores["pairs"], abs=1e-6)
    assert short.scores["pairs"] != whole.scores["pairs"]
    # Scores of truncated vectors are not mistaken for those of the model.
    assert short.model.fingerprint != whole.model.fingerprint
    assert "first 8 components" in short.model.name
    with pytest.raises(DiffaugError, match="truncate the vectors yourself"):
        evaluate(len, pairs={"pairs": data_files["dev"]}, truncate_dim=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("simcse-unsup", ["matryoshka=[64]"], "has the dimension 64, but the vectors of .* have 32"),
        ("bert-flow-nli", ["matryoshka=[8]"], r"stage2.matryoshka=\[\]"),
        ("adapt-simcse", ["matryoshka=[8, 7]", "label_loss=angle"], "even numbers"),
        ("promptbert-unsup", ["matryoshka=[8]", "head_kind=mlm"], "set model.head=kept"),
    ],
)
def test_dimensions_that_do_not_fit(
    name: str, changes: list[str], message: str, recipe_run: Callable[..., Any], tiny_masked_lm: Callable[[str], Path]
) -> None:
    changes = [f"{'model' if change.startswith('head') else 'stage2'}.{change}" for change in changes]
    with pytest.raises(DiffaugError, match=message):
        recipe_run(name, *changes, backbone=tiny_masked_lm("bert"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["matryoshka=[8, 0]"], "different numbers of at least 1"),
        (["matryoshka=[8, 8]"], "different numbers of at least 1"),
        (["matryoshka=[8]", "matryoshka_weights=[1, 1]"], "for each of the 1 dimensions"),
        (["matryoshka=[8]", "matryoshka_weights=[0]"], "a number above 0"),
        (["matryoshka=[8.5]"], "matryoshka"),
    ],
)
def test_settings_that_do_not_fit(changes: list[str], message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        load_recipe("simcse-unsup", [f"stage2.{change}" for change in changes])
