from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import pytest
from datasets import Dataset
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import spearmanr
from st_models import EVERYTHING, build

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
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
