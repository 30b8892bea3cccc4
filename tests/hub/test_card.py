from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from diffaug.config import recipe_from_dict
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation import evaluate
from diffaug.hub.card import model_card, public_recipe
from diffaug.hub.citations import PAPERS
from diffaug.models.config import Provenance

SCORES = {"dev": 80.256, "test": 73.98, "alignment": 0.21, "uniformity": -2.345}


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


def recipe(**data: Any) -> dict[str, Any]:
    sources = {"nli": "/home/me/nli.csv", "dev": "hub:mteb/stsbenchmark-sts//validation", "test": "hub:mteb/sts//test"}
    values = {
        "name": "diffaug-sup",
        "method": "diffaug",
        "model": {"backbone": "bert-base-uncased"},
        "data": {**sources, **data},
    }
    return recipe_from_dict(values).to_dict()


def card_of(embedder: Embedder, recipe: dict[str, Any], scores: dict[str, float], **options: Any) -> ModelCard:
    text = model_card(embedder.encoder, Provenance(recipe.get("name"), recipe, scores), **options)
    assert text.startswith("---\n")
    return ModelCard(text)


def test_front_matter(embedder: Embedder) -> None:
    card = card_of(embedder, recipe(), SCORES, name="me/model", license="apache-2.0")
    front = card.data.to_dict()
    assert front["library_name"] == "diffaug"
    assert front["pipeline_tag"] == "sentence-similarity"
    assert front["base_model"] == "bert-base-uncased"
    assert front["datasets"] == ["mteb/stsbenchmark-sts", "mteb/sts"]
    assert front["license"] == "apache-2.0"
    assert {"diffaug", "sentence-transformers", "sentence-similarity"} <= set(front["tags"])
    (index,) = front["model-index"]
    assert index["name"] == "model"
    dev, test = index["results"]
    assert dev["dataset"] == {
        "name": "mteb/stsbenchmark-sts//validation",
        "type": "mteb/stsbenchmark-sts//validation",
        "split": "dev",
    }
    assert dev["metrics"] == [{"type": "spearmanr", "value": 80.26, "name": "Spearman x 100"}]
    assert test["metrics"][0]["value"] == 73.98


def test_scores_data_settings_usage_and_citation_are_in_the_text(embedder: Embedder) -> None:
    text = card_of(embedder, recipe(labels=0.01, label_draw=3), SCORES, name="me/model").text
    assert "| Spearman of the cosine x 100 | 80.26 |" in text
    assert "| training pairs | uniformity | -2.345 |" in text
    assert "- labelled (NLI): `nli.csv`" in text
    assert "https://huggingface.co/datasets/mteb/stsbenchmark-sts" in text
    assert "- used: 0.01 of the labelled examples, draw 3" in text
    assert 'Embedder.from_pretrained("me/model")' in text
    assert 'SentenceTransformer("me/model", trust_remote_code=True)' in text
    assert "Wang, Tianduo and Lu, Wei" in text
    assert "| pooling | `mean` |" in text


def test_joined_sources_are_all_named(embedder: Embedder) -> None:
    card = card_of(embedder, public_recipe(recipe(nli=["/home/me/snli.jsonl", "hub:nyu-mll/multi_nli"])), SCORES)
    link = "[nyu-mll/multi_nli](https://huggingface.co/datasets/nyu-mll/multi_nli)"
    assert f"- labelled (NLI): `snli.jsonl` and {link}" in card.text
    assert "nyu-mll/multi_nli" in card.data.to_dict()["datasets"]
    assert "/home/me" not in card.content


def test_the_recipe_in_it_can_be_run_again(embedder: Embedder) -> None:
    given = recipe(labels=500)
    text = card_of(embedder, given, {}).text
    shown = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert recipe_from_dict(shown).to_dict() == public_recipe(given)
    assert "- used: 500 labelled examples, draw 0" in text


def test_paths_are_shortened_and_hub_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    for given, shown in (
        ("/home/me/models/mine", "mine"),
        ("runs/a", "a"),  # it is there: a folder, not a name on the hub
        ("google/bert", "google/bert"),
        ("embedded", "embedded"),
    ):
        values = recipe(unlabelled="data/raw.txt", nli="sample:triplets")
        values["model"]["backbone"] = given
        public = public_recipe(values)
        assert public["model"]["backbone"] == shown
        assert public["data"]["unlabelled"] == "raw.txt"
        assert public["data"]["nli"] == "sample:triplets"
        assert public["data"]["test"] == "hub:mteb/sts//test"
        assert values["data"]["unlabelled"] == "data/raw.txt"


@pytest.mark.parametrize("backbone", ["embedded", "/home/me/google", "./google"])
def test_a_folder_is_no_base_model(embedder: Embedder, backbone: str) -> None:
    values = recipe()
    values["model"]["backbone"] = backbone
    assert card_of(embedder, values, {}).data.base_model is None


def test_a_model_without_a_recipe_has_a_card_too(embedder: Embedder) -> None:
    card = card_of(embedder, {}, {})
    front = card.data.to_dict()
    assert "model-index" not in front
    assert "license" not in front
    assert "Training" not in card.text
    assert "Scores" not in card.text
    assert "Licence\n\nNot stated." in card.text


def test_a_converted_model_is_cited_by_its_method(embedder: Embedder) -> None:
    text = model_card(embedder.encoder, Provenance("simcse"))
    assert "Gao, Tianyu" in text
    assert "trained with SimCSE" in text


def test_every_method_can_be_cited() -> None:
    from diffaug.config.registry import METHODS

    for method in set(METHODS.names()) - {"untrained"}:
        paper = PAPERS[method]
        assert f"title     = {{{paper.title}}}" in paper.bibtex()
        assert paper.bibtex().count("{") == paper.bibtex().count("}")


def test_scores_of_an_evaluation(embedder: Embedder) -> None:
    triplets = [("a dog runs", "a dog is running", "the market fell"), ("a cat", "the cat", "a tomato")]
    pairs = [("a dog", "the dog", 5.0), ("a dog", "a park", 1.0), ("tea", "rain", 0.0), ("left", "right", 2.0)]
    report = evaluate(embedder, pairs=pairs, triplets=triplets, resamples=0).to_dict()
    card = card_of(embedder, {}, {}, report=report)
    spearman, accuracy = card.data.eval_results
    assert (spearman.metric_type, accuracy.metric_type) == ("spearmanr", "accuracy")
    assert accuracy.metric_value == round(report["tasks"]["triplets"]["score"], 2)
    assert f"| pairs (4 rows) | pairs_spearman | {report['tasks']['pairs']['score']:.2f} |" in card.text


def test_averages_say_of_how_many(embedder: Embedder) -> None:
    from diffaug.models.io.fingerprint import fingerprint

    task = {"protocol": "sts_all_spearman", "score": 70.0, "rows": 3108}
    average = {"protocol": "sts_all_spearman", "score": 70.0, "over": 2, "of": 7}
    report = {
        "model": {"name": "m", "fingerprint": fingerprint(embedder.encoder)},
        "tasks": {"STS12": task, "STS13": {**task, "score": None}},
        "averages": {"sts": average},
    }
    card = card_of(embedder, {}, {}, report=report)
    assert "| STS12 (3,108 rows) | sts_all_spearman | 70.00 |" in card.text
    assert "| STS13 (3,108 rows) | sts_all_spearman | undefined |" in card.text
    assert "| **sts, average of 2 of 7** | sts_all_spearman | **70.00** |" in card.text
    assert [result.dataset_name for result in card.data.eval_results] == ["STS12"]


def test_scores_of_another_model_are_refused(embedder: Embedder, tiny_roberta: Path) -> None:
    other = Embedder.from_pretrained(tiny_roberta, device="cpu")
    report = evaluate(other, triplets=[("a dog", "the dog", "tea")], resamples=0).to_dict()
    with pytest.raises(DiffaugError, match="belong to another model"):
        card_of(embedder, {}, {}, report=report)
    for broken in ({}, {"model": {}, "tasks": {}}, {"model": {"fingerprint": "x"}, "tasks": {"a": {}}}):
        with pytest.raises(DiffaugError, match="must be the output of diffaug eval --json"):
            card_of(embedder, {}, {}, report=broken)


def test_text_of_others_is_not_html_and_stays_in_its_place(embedder: Embedder) -> None:
    script = "<script>alert(1)</script>"
    values = recipe(nli="hub:<script>alert(1)<b>/x/y/z", dev=f"{script}`{script}")
    values["name"] = f"{script}\n```\n{script}"
    values["method"] = "own"
    values["model"]["backbone"] = f"a`{script}"
    text = card_of(embedder, values, {"dev": 1.0, script: 2.0}, name="me/model", license=f"`{script}").text
    outside = re.sub(r"^(`{3,})yaml\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)  # fenced
    outside = re.sub(r"`[^`\n]*`", "", outside)  # code on a line
    assert "<script" not in outside
    assert "&lt;script&gt;" in outside
    assert script in text, "code is shown as it is"
