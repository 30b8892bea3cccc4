"""Training from labels of every kind, and what is wrong with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diffaug import DiffaugError, load_recipe, train
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.read import read_classes, read_labelled
from diffaug.data.records import Classes, LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.data.sampling import Batch, ClassBatchSampler, Examples, MixedBatchSampler, Mixture, batch_sampler
from diffaug.methods import method_class
from diffaug.models.backbone import load_backbone

ANIMALS = ["dog", "cat", "horse", "bird", "cow", "fox"]
PLACES = ["park", "house", "garden", "street"]


def rows(kind: str) -> list[dict[str, Any]]:
    """24 examples of a kind of labels."""
    found: list[dict[str, Any]] = []
    for i, animal in enumerate(ANIMALS):
        for j, place in enumerate(PLACES):
            first, second = f"A {animal} is in the {place}", f"The {place} has a {animal}"
            found.append(
                {
                    "triplets": {"anchor": first, "positive": second, "negative": f"No {animal} is here"},
                    "positive": {"anchor": first, "positive": second},
                    "same": {"sentence1": first, "sentence2": second, "label": ("same", "different")[(i + j) % 2]},
                    "nli": {
                        "premise": f"One {animal}",
                        "hypothesis": second,
                        "label": ("entailment", "contradiction")[j % 2],
                    },
                    "scored": {"sentence1": first, "sentence2": second, "score": (i * j) % 5},
                    "classes": {"text": first, "intent": animal},
                }[kind]
            )
    return found


KINDS = {
    "triplets": (Triplets, None),
    "positive": (PositivePairs, None),
    "same": (LabelledPairs, "relation"),
    "nli": (LabelledPairs, None),
    "scored": (ScoredPairs, "score"),
    "classes": (Classes, "class"),
}


@pytest.fixture
def corpus(tiny_bert: Path) -> Callable[..., Corpus]:
    _, tokenizer = load_backbone(str(tiny_bert))

    def make(data: list[Any], **settings: Any) -> Corpus:
        from diffaug.config import DataSettings
        from diffaug.data.table import InMemoryRows
        from diffaug.models.config import ModelConfig

        given = InMemoryRows.collect("the data", data)
        return Corpus(DataSettings(nli="my labels", **settings), Collator(tokenizer, ModelConfig()), {"nli": given})

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_recognised_and_no_row_is_lost(kind: str, corpus: Callable[..., Corpus]) -> None:
    record, target = KINDS[kind]
    assert type(read_labelled(rows(kind))) is record
    data = corpus(rows(kind))
    examples = data.labels()
    assert isinstance(examples, Examples)
    assert len(examples) == (12 if kind == "nli" else 24), "two NLI pairs are one triplet"
    assert (None if examples.labels is None else examples.target) == target
    assert len(data.related()) == 24
    assert data.positives(5)
    if target == "score":
        assert (min(examples.labels), max(examples.labels)) == (0.0, 1.0)


@pytest.mark.parametrize("recipe", ["adapt-diffaug", "adapt-simcse"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_both_stages(kind: str, recipe: str, tiny_bert: Path, tmp_path: Path) -> None:
    short = ["stage2.steps=2", "stage2.batch_size=8", *(["stage1.steps=2"] if recipe == "adapt-diffaug" else [])]
    settings = load_recipe(recipe, [f"model.backbone={tiny_bert}", "loop.precision=fp32", *short])
    result = train(settings, tmp_path / "run", nli=rows(kind), quiet=True)
    assert (result.model / "diffaug.safetensors").is_file()


def test_the_loss_of_a_step_is_that_of_its_kind(corpus: Callable[..., Corpus], tiny_bert: Path) -> None:
    from diffaug.losses.contrastive import supervised_contrastive
    from diffaug.losses.pairs import angle, cosent

    for kind, loss, function in (("scored", "auto", cosent), ("same", "angle", angle), ("classes", "auto", None)):
        changes = [f"model.backbone={tiny_bert}", "stage2.batch_size=8", f"stage2.label_loss={loss}"]
        recipe = load_recipe("adapt-simcse", changes)
        method = method_class("simcse").build(recipe, *load_backbone(str(tiny_bert))).eval()
        (stage,) = method.stages(corpus(rows(kind)))
        batch = batch_sampler(*stage.streams["contrastive"], seed=0).batch(0)
        first, second = (method.encoder(method.collator.rows([row[i] for row in batch.examples])) for i in (0, -1))
        labels = torch.tensor(batch.labels)
        expected = (function or supervised_contrastive)(first, second, labels, 0.05)
        found = method.losses(stage, method.collate(stage, {"contrastive": batch}), method.represent)["loss"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_stage_1_asks_whether_two_belong_together(corpus: Callable[..., Corpus], tiny_bert: Path) -> None:
    recipe = load_recipe("adapt-diffaug", [f"model.backbone={tiny_bert}", "stage1.batch_size=8", "stage2.batch_size=8"])
    for kind in ("positive", "classes", "scored"):
        method = method_class("diffaug").build(recipe, *load_backbone(str(tiny_bert)))
        stage = method.stages(corpus(rows(kind)))[0]
        batch = batch_sampler(*stage.streams["nli"], seed=0).batch(0)
        step = method.collate(stage, {"nli": batch})
        premises = step.tokens.input_ids[step.pairs.premises]
        hypotheses = step.tokens.input_ids[step.pairs.hypotheses]
        assert step.tokens.view_ids[step.pairs.premises].unique().tolist() == [0]
        assert step.tokens.view_ids[step.pairs.hypotheses].unique().tolist() == [1]
        if kind == "scored":
            assert step.pairs.labels.tolist() == pytest.approx(batch.labels)
            continue
        assert step.pairs.labels.tolist() == [1] * 8 + [0] * 8
        positives, negatives = hypotheses.chunk(2)
        assert not any(torch.equal(a, b) for a, b in zip(positives, negatives, strict=True))
        if kind == "classes":  # the animal is the second word
            words = [rows_[:, 2] for rows_ in (premises, positives, negatives)]
            assert torch.equal(words[0], words[1])
            assert not (words[0] == words[2]).any()
            assert not (premises == positives).all(-1).any(), "a sentence is not its own partner"


def test_a_batch_holds_as_many_sentences_of_each_class(corpus: Callable[..., Corpus]) -> None:
    names = ["a"] * 12 + ["b"] * 3 + ["c"] * 2 + ["d"] * 5
    data = [{"text": f"Sentence {i} says", "label": name} for i, name in enumerate(names)]
    examples = corpus(data, per_class=3).labels()
    assert isinstance(examples, Examples)
    for index in range(20):
        batch = ClassBatchSampler(examples, 9, seed=1).batch(index)
        assert sorted(Counter(batch.labels).values()) == [3, 3, 3]
    shares = [ClassBatchSampler(examples, 12, 1, rank, 2).batch(4) for rank in (0, 1)]
    whole = ClassBatchSampler(examples, 12, 1).batch(4)
    assert [*shares[0].examples, *shares[1].examples] == whole.examples
    assert len(set(whole.labels)) == 4
    assert ClassBatchSampler(examples, 100, 1).batch(0).labels, "a batch larger than the data"


def test_files_take_turns_in_their_proportions(tmp_path: Path, tiny_bert: Path) -> None:
    files = []
    for kind in ("scored", "classes"):
        data = rows(kind)
        path = tmp_path / f"{kind}.tsv"
        lines = ["\t".join(data[0]), *("\t".join(map(str, row.values())) for row in data)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        files.append(str(path))
    changes = [f"model.backbone={tiny_bert}", f"data.nli={files}", "stage2.batch_size=8", "stage1.batch_size=8"]
    recipe = load_recipe("adapt-diffaug", [*changes, "data.proportions=[3, 1]"])
    method = method_class("diffaug").build(recipe, *load_backbone(str(tiny_bert)))
    for stage in method.stages(Corpus(recipe.data, method.collator)):
        (examples, size), *_ = stage.streams.values()
        assert isinstance(examples, Mixture)
        mixed = batch_sampler(examples, size, seed=0)
        targets = [mixed.batch(i).target for i in range(40)]
        assert Counter(targets) == {"score": 30, "class": 10}
        assert batch_sampler(examples, size, seed=0).batch(33) == mixed.batch(33), "the order depends on the step alone"
        assert isinstance(mixed, MixedBatchSampler)
        assert isinstance(mixed.batch(0), Batch)
    with pytest.raises(DiffaugError, match="a number above 0 for each of the 2 files"):
        load_recipe("adapt-diffaug", [*changes, "data.proportions=[1]"])
    train(load_recipe("adapt-simcse", [*changes[:-1], "stage2.steps=3"]), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "every sentence has the class 'x'"),
        ([("one", "x"), ("two", "x"), ("six", "x"), ("odd", "y")], "1 of 2 classes have only one sentence .* 'y'"),
        (
            [("a b", "x"), ("a b", "y"), ("c", "x"), ("d", "y")],
            "1 sentences with a class have labels .*'a b' has x and y",
        ),
        ([{"sentence1": s, "sentence2": "b", "score": 3} for s in "acd"], "every score is 3"),
        ([{"sentence1": s, "sentence2": "b", "label": "same"} for s in "acd"], "have the label entailment"),
        (
            [{"sentence1": "a", "sentence2": "b", "label": label} for label in ("same", "different")],
            r"1 labelled pairs have labels that contradict each other \(\('a', 'b'\) has entailment and not_entailment",
        ),
    ],
)
def test_bad_labels_are_one_sentence(data: list[Any], message: str, corpus: Callable[..., Corpus]) -> None:
    with pytest.raises(DiffaugError, match=message):
        corpus(
            [dict(zip(("text", "label"), row, strict=True)) if isinstance(row, tuple) else row for row in data]
        ).labels()


def test_skipping_leaves_out_only_what_is_wrong(corpus: Callable[..., Corpus]) -> None:
    names = [("one", "x"), ("two", "x"), ("six", "y"), ("ten", "y"), ("odd", "z"), ("both", "x"), ("both", "y")]
    data = [{"text": text, "label": name} for text, name in names]
    examples = corpus(data, on_bad="skip").labels()
    assert isinstance(examples, Examples)
    assert examples.labels == (0, 0, 1, 1)


@pytest.mark.parametrize(("kind", "loss"), [("classes", "cosent"), ("scored", "contrastive"), ("positive", "angle")])
def test_a_loss_that_does_not_fit_the_labels_is_refused(
    kind: str, loss: str, corpus: Callable[..., Corpus], tiny_bert: Path
) -> None:
    recipe = load_recipe("adapt-simcse", [f"model.backbone={tiny_bert}", f"stage2.label_loss={loss}"])
    method = method_class("simcse").build(recipe, *load_backbone(str(tiny_bert)))
    with pytest.raises(DiffaugError, match=f"stage2.label_loss={loss} cannot learn from"):
        method.stages(corpus(rows(kind)))


def test_classes_of_a_file_without_header(tmp_path: Path) -> None:
    path = tmp_path / "intents.tsv"
    path.write_text(
        "".join(f"card_lost\tI lost my card {i}\ntop_up\tHow do I top up {i}?\n" for i in range(5)), "utf-8"
    )
    assert read_classes(path).classes[:2] == ["card_lost", "top_up"]
    assert read_labelled(path) == read_classes(path)
