from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mteb
import pytest
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import spearmanr
from st_models import EVERYTHING, build

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation import evaluate
from diffaug.integrations.mteb import MTEBEncoder
from diffaug.models.config import Provenance

FIRST = ["A dog runs through the park.", "The market fell sharply.", "Is this seat taken?", "Yes.", "He likes tea"]
SECOND = ["An old dog runs.", "Prices rose.", "Nobody knew why", "No.", "She likes the rain"]
SCORES = [4.5, 1.0, 0.5, 2.0, 3.0]
UNSCALED = replace(EVERYTHING, normalize=False)


class LocalSTS(AbsTaskSTS):
    """Five pairs that come from nowhere."""

    metadata = TaskMetadata(
        name="LocalSTS",
        description="Five pairs.",
        reference=None,
        dataset={"path": "local", "revision": "1"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        date=("2026-01-01", "2026-01-02"),
        domains=["Written"],
        task_subtypes=[],
        license="mit",
        annotations_creators="derived",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, **kwargs: Any) -> None:
        pairs = Dataset.from_dict({"sentence1": FIRST, "sentence2": SECOND, "score": SCORES})
        self.dataset, self.data_loaded = {"test": pairs}, True


def local_retrieval(data: dict[str, Any], ignore_identical_ids: bool) -> AbsTaskRetrieval:
    """A task of mteb with this data."""

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = LocalSTS.metadata.model_copy(
            update={"name": "LocalRetrieval", "type": "Retrieval", "main_score": "ndcg_at_10"}
        )

        def load_data(self, **kwargs: Any) -> None:
            self.queries, self.corpus = {"test": data["queries"]}, {"test": data["corpus"]}
            self.relevant_docs, self.data_loaded = {"test": data["relevant"]}, True
            self.convert_v1_dataset_format_to_v2(num_proc=None)

    task = LocalRetrieval()
    task.ignore_identical_ids = ignore_identical_ids
    return task


@pytest.fixture
def beir(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A BEIR folder whose first queries are documents; with grades, titles and equal documents. And its content."""
    random = Random(0)
    words = ["dog", "cat", "market", "rain", "seat", "tea", "park", "room", "price", "child", "old", "sharp"]

    def text() -> str:
        return " ".join(random.sample(words, random.randint(2, 6)))

    corpus = {f"d{i}": {"title": text() if i % 3 else "", "text": text()} for i in range(60)}
    corpus["d7"] = corpus["d50"] = corpus["d20"]
    queries = {f"d{i}": corpus[f"d{i}"]["text"] for i in range(20)} | {f"q{i}": text() for i in range(10)}
    relevant = {query: {d: random.randint(0, 3) for d in random.sample(sorted(corpus), 8)} for query in queries}
    relevant["d3"] |= {"d3": 2}  # a query that is relevant to itself
    (tmp_path / "qrels").mkdir()
    for name, rows in (
        ("corpus", [{"_id": i, **document} for i, document in corpus.items()]),
        ("queries", [{"_id": i, "text": query} for i, query in queries.items()]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{query}\t{d}\t{grade}" for query, grades in relevant.items() for d, grade in grades.items()]
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    return tmp_path, {"queries": queries, "corpus": corpus, "relevant": relevant}


@pytest.mark.parametrize("ignore", [False, True])
def test_our_retrieval_scores_are_mtebs(ignore: bool, embedder: Embedder, beir: tuple[Path, dict[str, Any]]) -> None:
    folder, content = beir
    task = local_retrieval(content, ignore)
    [found] = mteb.evaluate(MTEBEncoder(embedder), task, show_progress_bar=False, cache=None).task_results
    theirs = found.scores["test"][0]
    [ours] = evaluate(embedder, retrieval=str(folder), resamples=0, ignore_identical_ids=ignore).tasks
    wanted = {"mrr": "mrr_at_1000", "ndcg@10": "ndcg_at_10", "recall@1": "recall_at_1", "recall@5": "recall_at_5"}
    for name, other in wanted.items():
        assert ours.details[name] == pytest.approx(100 * theirs[other], abs=1e-3), name  # mteb rounds to five digits
    assert 0 < ours.details["ndcg@10"] < 99


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (
            {"nli": "data/nli_for_simcse.csv", "dev": "data/stsbenchmark/sts-dev.csv"},
            {"nli_for_simcse", "STSBenchmark"},
        ),
        ({"nli": ["a/own.tsv.gz", "b.csv"], "unlabelled": "hub:me/texts/default/train"}, {"own", "b", "me/texts"}),
        ({"dev": "STS14.tsv", "test": "STSB.test.tsv"}, {"STS14"}),
    ],
)
def test_what_a_model_was_trained_on(data: dict[str, Any], names: set[str], tiny_bert: Path) -> None:
    model = build(tiny_bert, UNSCALED, Provenance("diffaug", {"data": data}))
    meta = MTEBEncoder(model).mteb_model_meta
    assert meta.training_datasets == names
    assert meta.is_zero_shot_on(["STSBenchmark"]) == ("STSBenchmark" not in names)
    assert MTEBEncoder(model, training_datasets={"STS12"}).mteb_model_meta.training_datasets == {"STS12"}


def test_what_an_unknown_model_was_trained_on_is_unknown(embedder: Embedder) -> None:
    assert MTEBEncoder(embedder).mteb_model_meta.training_datasets is None


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return build(tiny_bert, UNSCALED, Provenance("diffaug"))


def scores(model: Any, **options: Any) -> dict[str, float]:
    found = mteb.evaluate(model, LocalSTS(), show_progress_bar=False, **{"cache": None, **options})
    return found.task_results[0].scores["test"][0]


def test_its_spearman_is_that_of_our_vectors(embedder: Embedder) -> None:
    cosines = (embedder.encode(FIRST) * embedder.encode(SECOND)).sum(1)
    found = scores(MTEBEncoder(embedder))
    assert found["main_score"] == pytest.approx(spearmanr(cosines, SCORES).statistic)
    assert found["spearman"] == found["cosine_spearman"]


def test_a_folder_gives_the_scores_it_has_in_sentence_transformers(embedder: Embedder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    embedder.save(tmp_path / "model")
    theirs = scores(SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu"))
    mine = scores(MTEBEncoder(tmp_path / "model", device="cpu"))
    # Euclidean and Manhattan distances are among them: the lengths of the vectors agree as well.
    numbers = [name for name, value in mine.items() if isinstance(value, float)]
    assert len(numbers) >= 8
    assert [mine[name] for name in numbers] == pytest.approx([theirs[name] for name in numbers], abs=1e-5)


def test_kept_results_are_not_those_of_another_model(embedder: Embedder, tiny_bert: Path, tmp_path: Path) -> None:
    cache = mteb.ResultCache(tmp_path)
    another = build(tiny_bert, UNSCALED)
    another.encoder.views.blocks.data.neg_()
    first = scores(MTEBEncoder(embedder, name="me/one"), cache=cache)
    second = scores(MTEBEncoder(another, name="me/one"), cache=cache)
    assert second["pearson"] != pytest.approx(first["pearson"], abs=1e-3)
    kept = scores(MTEBEncoder(embedder, name="me/one"), cache=cache, overwrite_strategy="only-cache")
    assert kept["pearson"] == pytest.approx(first["pearson"], abs=1e-5)


def test_what_mteb_is_told_of_the_model(embedder: Embedder) -> None:
    meta = MTEBEncoder(embedder).mteb_model_meta
    assert meta.name == "diffaug/diffaug"
    assert MTEBEncoder(embedder, name="own").mteb_model_meta.name == "diffaug/own"
    assert meta.revision == MTEBEncoder(embedder).mteb_model_meta.revision
    assert meta.embed_dim == 8
    assert meta.max_tokens == 128 - 6
    assert meta.n_parameters == sum(parameter.numel() for parameter in embedder.encoder.parameters())
    assert meta.model_validate(meta.model_dump()) == meta  # every value is of the type mteb wants


def test_another_precision_is_refused(embedder: Embedder) -> None:
    with pytest.raises(DiffaugError, match="precision must be float32, got 'int8'"):
        scores(MTEBEncoder(embedder), encode_kwargs={"precision": "int8"})
