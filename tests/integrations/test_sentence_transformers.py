from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer, util
from st_models import EVERYTHING, KINDS, build

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.integrations.sentence_transformers import DiffaugModule
from diffaug.models.config import ModelConfig, Provenance

PROVENANCE = Provenance("diffaug", {"name": "a recipe"}, {"dev": 80.5})


def load(folder: Path, **options: object) -> SentenceTransformer:
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", **options)


@pytest.fixture(scope="module")
def everything(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with template, prefix, head and normalisation; not to be changed."""
    folder = tmp_path_factory.mktemp("st") / "model"
    build(tiny_bert, EVERYTHING, PROVENANCE).save(folder)
    return folder


@pytest.fixture
def model(everything: Path) -> SentenceTransformer:
    return load(everything)


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    """With an empty sentence, one that is cut, and one that comes twice."""
    return [*sentences, "", "the old cat sleeps " * 40, sentences[0]]


def ours(folder: Path, texts: list[str]) -> np.ndarray:
    return Embedder.from_pretrained(folder, device="cpu").encode(texts, normalize=False)


# The same vectors.


@pytest.mark.filterwarnings("ignore:.*sentences were truncated")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_gives_the_vectors_of_the_embedder(
    kind: str, tiny: Callable[[str], Path], texts: list[str], tmp_path: Path
) -> None:
    family, config = KINDS[kind]
    embedder = build(tiny(family), config)
    embedder.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    # Of the same batch, the very same numbers; of other batches, which are padded and summed otherwise, nearly so.
    assert np.array_equal(
        loaded.encode(texts, batch_size=len(texts)), embedder.encode(texts, len(texts), normalize=False)
    )
    for size in (1, 5, 32):
        vectors = loaded.encode(texts, batch_size=size, normalize_embeddings=True)
        assert np.abs(vectors - embedder.encode(texts)).max() <= 1e-6
    encoder = loaded[0].encoder
    if (learned := encoder.views or encoder.flow or encoder.denoise) is not None:
        # It has a say in the vectors compared above.
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.zero_()
        assert np.abs(loaded.encode(texts) - embedder.encode(texts, normalize=False)).max() > 1e-3


def test_one_folder_without_a_second_copy_of_the_weights(everything: Path) -> None:
    names = {path.name for path in everything.iterdir()}
    assert {"diffaug.json", "modules.json", "config_sentence_transformers.json"} <= names
    assert [path.name for path in everything.rglob("*.safetensors")] == ["diffaug.safetensors"]
    assert "config.json" not in names


def test_a_module_handed_over_needs_no_trust(everything: Path, texts: list[str]) -> None:
    model = SentenceTransformer(modules=[DiffaugModule.load(everything)], device="cpu")
    assert np.array_equal(model.encode(texts), load(everything).encode(texts))


def test_an_embedder_is_shared_and_not_copied(tiny_bert: Path) -> None:
    embedder = build(tiny_bert, ModelConfig())
    model = SentenceTransformer(modules=[DiffaugModule(embedder)], device="cpu")
    assert next(model.parameters()) is next(embedder.encoder.parameters())


# What users of sentence-transformers do with a model.


def test_encode_has_all_its_forms(model: SentenceTransformer, texts: list[str]) -> None:
    vectors = model.encode(texts)
    assert vectors.shape == (len(texts), 8)
    assert vectors.dtype == np.float32
    assert model.encode(texts[0]).shape == (8,)
    assert len(model.encode([])) == 0
    assert isinstance(model.encode(texts, convert_to_tensor=True), torch.Tensor)
    np.testing.assert_allclose(model.encode(texts[0]), vectors[0], atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(model.encode(texts, normalize_embeddings=True), axis=1), 1, atol=1e-5)
    assert model.encode(texts, truncate_dim=3).shape == (len(texts), 3)
    whole = model.encode(texts[:2], output_value=None)
    np.testing.assert_allclose(whole[1]["sentence_embedding"], vectors[1], atol=2e-6)


def test_a_prompt_is_text_before_the_sentence(everything: Path, texts: list[str]) -> None:
    model = load(everything, prompts={"ask": "Is it true: "})
    expected = ours(everything, ["Is it true: " + text for text in texts[:4]])
    for options in ({"prompt": "Is it true: "}, {"prompt_name": "ask"}):
        np.testing.assert_allclose(model.encode(texts[:4], **options), expected, atol=1e-6)
    assert np.abs(model.encode(texts[:4]) - expected).max() > 1e-3


def test_similarity_and_search_agree_with_the_embedder(
    everything: Path, model: SentenceTransformer, sentences: list[str]
) -> None:
    embedder, queries = Embedder.from_pretrained(everything, device="cpu"), ["A cat sleeps", "Prices fell"]
    found, corpus = model.encode(queries), model.encode(sentences)
    np.testing.assert_allclose(model.similarity(found, corpus), embedder.similarity(queries, sentences), atol=1e-5)
    for theirs, mine in zip(util.semantic_search(found, corpus), embedder.search(sentences, queries), strict=True):
        assert [hit["corpus_id"] for hit in theirs] == [hit.index for hit in mine]
        np.testing.assert_allclose([hit["score"] for hit in theirs], [hit.score for hit in mine], atol=1e-5)


def test_its_evaluator_computes_our_spearman(everything: Path, model: SentenceTransformer, texts: list[str]) -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    first, second, scores = texts[:6], texts[6:12], [0.1, 0.9, 0.4, 0.6, 0.2, 0.8]
    found = EmbeddingSimilarityEvaluator(first, second, scores, main_similarity="cosine")(model)["spearman_cosine"]
    embedder = Embedder.from_pretrained(everything, device="cpu")
    cosines = (embedder.encode(first) * embedder.encode(second)).sum(1)
    assert found == pytest.approx(spearmanr(cosines, scores).statistic)


def test_another_process_gives_the_same_vectors(
    model: SentenceTransformer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    expected = model.encode(texts)
    pool = model.start_multi_process_pool(["cpu"])
    try:
        np.testing.assert_allclose(model.encode(texts, pool=pool, chunk_size=4), expected, atol=2e-6)
    finally:
        model.stop_multi_process_pool(pool)


@pytest.mark.filterwarnings("ignore:.*sentences were truncated")
def test_saved_again_it_loads_in_both_libraries(
    everything: Path, model: SentenceTransformer, texts: list[str], tmp_path: Path
) -> None:
    model.save_pretrained(str(tmp_path / "again"))
    expected = model.encode(texts)
    assert np.array_equal(load(tmp_path / "again").encode(texts), expected)
    np.testing.assert_allclose(ours(tmp_path / "again", texts), expected, atol=1e-6)
    assert Embedder.from_pretrained(tmp_path / "again").provenance == PROVENANCE
    settings = json.loads((tmp_path / "again" / "config_sentence_transformers.json").read_text())
    assert "diffaug" in settings["requirements"]
    assert {path.name for path in everything.iterdir()} <= {path.name for path in (tmp_path / "again").iterdir()}


# Lengths, devices, precisions.


def test_max_seq_length_counts_all_tokens_and_is_saved(
    model: SentenceTransformer, everything: Path, tmp_path: Path
) -> None:
    around = len(model[0].collator.template)
    assert model.max_seq_length == 128 - 6  # the prefix takes six of the backbone's positions
    model.max_seq_length = around + 5
    assert model.preprocess(["the old cat sleeps under the table"])["input_ids"].shape == (1, around + 5)
    model.save_pretrained(str(tmp_path / "short"))
    assert load(tmp_path / "short").max_seq_length == around + 5
    assert Embedder.from_pretrained(tmp_path / "short").collator.max_length == 5
    for beyond in (None, 10_000):
        model.max_seq_length = beyond
        assert model.max_seq_length == 128 - 6
    with pytest.raises(DiffaugError, match=rf"must be greater than {around}"):
        model.max_seq_length = around


def test_a_model_of_no_limit_has_no_max_seq_length(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = DiffaugModule(build(tiny_bert, ModelConfig()))
    monkeypatch.setattr(module.collator, "max_length", None)
    assert module.max_seq_length is None


def test_tokenizer_width_and_device_are_the_model_s(model: SentenceTransformer) -> None:
    assert model.tokenizer is model[0].collator.tokenizer
    another = type(model.tokenizer).from_pretrained(model[0].collator.tokenizer.name_or_path)
    model.tokenizer = another
    assert model[0].collator.tokenizer is another
    assert model.get_embedding_dimension() == 8
    assert model.device == torch.device("cpu")
    assert "'pooling': 'mask'" in repr(model)
    assert {tensor.device.type for tensor in model.to("meta").state_dict().values()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(everything: Path, texts: list[str], dtype: torch.dtype) -> None:
    expected = load(everything).encode(texts)
    for model in (load(everything).to(dtype), load(everything, model_kwargs={"dtype": str(dtype)[6:]})):
        vectors = model.encode(texts, convert_to_tensor=True)
        assert vectors.dtype == dtype
        cosines = torch.nn.functional.cosine_similarity(vectors.float(), torch.from_numpy(expected))
        assert cosines.min() > 0.99


# Training goes on.


def test_a_plain_loop_trains_all_parts(everything: Path, sentences: list[str], tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(0)
    model = load(everything)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    vectors = model.encode(sentences)
    loss_of = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(3):
        loss = loss_of([model.preprocess(sentences[:6]), model.preprocess(sentences[6:12])], labels=None)
        optimizer.zero_grad()
        loss.backward()
        gradient = model[0].encoder.views.blocks.grad
        # (layers, 2, views, ...): keys and values of every layer and both views learn, apart from the last layer's
        assert gradient.flatten(3).abs().sum(-1).min() > 0
        optimizer.step()
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    for part in ("0.encoder.backbone", "0.encoder.views", "0.encoder.head"):
        assert any(name.startswith(part) for name in changed)

    model.save_pretrained(str(tmp_path / "trained"))
    trained = model.encode(sentences)
    assert np.abs(trained - vectors).max() > 1e-2
    np.testing.assert_allclose(load(tmp_path / "trained").encode(sentences), trained, atol=1e-6)
    np.testing.assert_allclose(ours(tmp_path / "trained", sentences), trained, atol=1e-6)
    # The scores were those of the model before.
    assert Embedder.from_pretrained(tmp_path / "trained").provenance == replace(PROVENANCE, scores={})


@pytest.mark.parametrize("trusted", [True, False])
def test_its_trainer_trains_saves_and_loads_the_best(
    everything: Path, sentences: list[str], trusted: bool, tmp_path: Path
) -> None:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    made = SentenceTransformer(modules=[DiffaugModule.load(everything)], device="cpu")
    model = load(everything) if trusted else made
    before = model.encode(sentences)
    data = Dataset.from_dict({"anchor": sentences[:6], "positive": sentences[6:12]})
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "run"),
        max_steps=4,
        per_device_train_batch_size=3,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,  # so that the best model is not the last one
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    loss = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, eval_dataset=data, loss=loss)
    trainer.train()
    after = model.encode(sentences)
    assert np.abs(after - before).max() > 1e-2
    best = Path(trainer.state.best_model_checkpoint)
    assert best == tmp_path / "run" / "checkpoint-2"
    assert (tmp_path / "run" / "checkpoint-4").exists()
    np.testing.assert_allclose(load(best).encode(sentences), after, atol=1e-6)
    np.testing.assert_allclose(ours(best, sentences), after, atol=1e-6)


# Nothing is dropped without a word.


def test_without_this_package_loading_says_what_to_install(everything: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "diffaug" not in path.name:
            (packages / path.name).symlink_to(path)
    script = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('diffaug') is None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "for trust in (False, True):\n"
        "    try:\n"
        "        SentenceTransformer(sys.argv[1], trust_remote_code=trust)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    # -S leaves out the site-packages in which an editable install can be found.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", script, str(everything)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=True,
    )
    from sentence_transformers import __version__

    if __version__.startswith("5."):
        assert ended.stdout.count("No module named 'diffaug'") == 2
    else:
        assert ended.stdout.count("diffaug, but it is not installed") == 2
        assert ended.stdout.count('pip install -U "diffaug"') == 2


def test_what_sentence_transformers_added_is_not_lost_in_ours(
    everything: Path, model: SentenceTransformer, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense

    longer = SentenceTransformer(modules=[model[0], Dense(8, 4)], device="cpu")
    prompted = load(everything, prompts={"ask": "Is it true: "}, default_prompt_name="ask")
    shortened = load(everything, truncate_dim=3)
    for name, changed, complaint in (
        ("longer", longer, "modules.json adds .*Dense to the model"),
        ("prompted", prompted, "adds the prompt 'ask' to every sentence"),
        ("shortened", shortened, "truncates vectors to 3 dimensions"),
    ):
        changed.save_pretrained(str(tmp_path / name))
        np.testing.assert_allclose(load(tmp_path / name).encode(texts), changed.encode(texts), atol=1e-6)
        with pytest.raises(DiffaugError, match=complaint):
            Embedder.from_pretrained(tmp_path / name)


def test_options_without_a_meaning_are_refused(everything: Path, model: SentenceTransformer) -> None:
    for options, named in (
        ({"model_kwargs": {"attn_implementation": "eager"}}, "attn_implementation"),
        ({"config_kwargs": {"hidden_size": 3}}, "config_kwargs"),
        ({"backend": "onnx"}, "the backend 'onnx'"),
        ({"model_kwargs": {"dtype": "float17"}}, "dtype must be .* got 'float17'"),
    ):
        with pytest.raises(DiffaugError, match=named):
            load(everything, **options)
    with pytest.raises(DiffaugError, match="leave out processing_kwargs"):
        model.encode(["a"], processing_kwargs={"text": {"max_length": 3}})
    with pytest.raises(DiffaugError, match="sentence 1 must be a string"):
        model[0].preprocess(["a", 7])


def test_a_damaged_folder_is_refused(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything, tmp_path / "copy")
    (tmp_path / "copy" / "diffaug.safetensors").unlink()
    with pytest.raises(DiffaugError, match=r"diffaug\.safetensors does not exist"):
        load(tmp_path / "copy")
    with pytest.raises(DiffaugError, match="does not exist"):
        DiffaugModule.load(tmp_path, "nowhere")
