from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from st_models import EVERYTHING, PREFIX, build
from tiny_models import FAMILIES, build_tiny
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from diffaug import evaluate
from diffaug.cli import main
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.inference.onnx_runner import DESCRIPTION, GRAPH, OnnxRunner
from diffaug.integrations import onnx
from diffaug.integrations.onnx import export_onnx
from diffaug.models.config import (
    AdapterConfig,
    DenoiseConfig,
    DenseConfig,
    FlowConfig,
    LoraConfig,
    ModelConfig,
    Provenance,
)

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# An export takes seconds: few models, each with several things to get right.
KINDS: dict[str, tuple[str, ModelConfig]] = {
    "mean": ("bert", ModelConfig("mean")),
    "cls, adapters, head": (
        "bert",
        ModelConfig("cls", adapter=AdapterConfig(), head=(DenseConfig(32, 8),), normalize=True),
    ),
    "static_last, LoRA, DistilBERT": ("distilbert", ModelConfig("static_last", lora=LoraConfig())),
    "last2, flow": ("bert", ModelConfig("last2", flow=FlowConfig(hidden=8))),
    # Template, final stop, prefix, head with a norm, normalisation, and what the template says taken off.
    "everything": (
        "bert",
        replace(
            EVERYTHING,
            head=(DenseConfig(32, 16, activation="gelu", layer_norm=1e-12), DenseConfig(16, 8, False)),
            denoise=DenoiseConfig(112, 11, behind_head=True),
        ),
    ),
    # The mask token is counted from the row's start.
    "mask in front, prefix, RoBERTa": (
        "roberta",
        ModelConfig(
            "mask", "[MASK] means {} .", final_stop=True, prefix=PREFIX, lowercase=True, sentence_ends="!", max_length=9
        ),
    ),
    "first_last, prefix, ModernBERT": ("modernbert", ModelConfig("first_last", prefix=PREFIX)),
}
LAYERS = {"mean": 1, "cls, adapters, head": 1}  # the others differ from layer to layer, or pool several
PROVENANCE = Provenance("diffaug", {"seed": 1}, {"dev": 80.0})

Make = Callable[[str], tuple[Embedder, Path]]
Tiny = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shallow(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The folder of a tiny model of few layers: tracing a layer takes a second."""

    def folder(family: str, layers: int = 1) -> Path:
        path = tmp_path_factory.mktemp("shallow") / family
        tokenizer = AutoTokenizer.from_pretrained(tiny(family))
        key = "n_layers" if family == "distilbert" else "num_hidden_layers"
        with mock.patch.dict(FAMILIES[family], {key: layers}):
            build_tiny(family, tokenizer).save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="module")
def exported(shallow: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A model of a kind and the folder of its export, made once and not to be changed."""
    made: dict[str, tuple[Embedder, Path]] = {}

    def make(kind: str) -> tuple[Embedder, Path]:
        if kind not in made:
            family, config = KINDS[kind]
            embedder = build(shallow(family, LAYERS.get(kind, 2)), config, PROVENANCE)
            folder = tmp_path_factory.mktemp("onnx") / "model"
            assert export_onnx(embedder, folder).difference <= 1e-5
            made[kind] = embedder, folder
        return made[kind]

    return make


@pytest.fixture
def copy(exported: Make, tmp_path: Path) -> Path:
    """A copy of an export, to be damaged."""
    return shutil.copytree(exported("mean")[1], tmp_path / "copy")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: exit status, standard output, standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["diffaug", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_export_is_served(exported: Make) -> None:
    from starlette.testclient import TestClient

    from diffaug.serve.api import Served, create_app
    from diffaug.serve.web import Limits

    embedder = Embedder.from_pretrained(exported("mean")[1])
    with TestClient(create_app([Served("m", embedder)], Limits()), "http://127.0.0.1") as client:
        response = client.post("/v1/embeddings", json={"model": "m", "input": ["A dog.", "Tea, please."]})
    found = [row["embedding"] for row in response.json()["data"]]
    np.testing.assert_allclose(found, embedder.encode(["A dog.", "Tea, please."]), atol=1e-5)


# The same vectors.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*word pieces")
def test_both_runtimes_give_the_same_vectors(exported: Make, sentences: list[str], kind: str) -> None:
    embedder, folder = exported(kind)
    loaded = Embedder.from_pretrained(folder)
    expected = embedder.encode(sentences, normalize=False)
    assert np.ptp(expected, axis=0).max() > 1e-2, "the sentences must not be all alike"
    for batch_size in (None, 1, 5):  # of equal lengths, alone, and padded
        found = loaded.encode(sentences, batch_size, normalize=False)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # As long as a row can be, and longer than that.
    for text in ("", "dog " * 200):
        np.testing.assert_allclose(loaded.encode(text), embedder.encode(text), rtol=0, atol=1e-4)
    assert loaded.width == embedder.width
    assert loaded.collator.max_length == embedder.collator.max_length
    assert loaded.provenance == PROVENANCE


def test_ids_as_the_description_says_give_the_vectors(exported: Make) -> None:
    """What somebody without this library does: the tokenizer's file, the description and the graph."""
    from tokenizers import Tokenizer

    for kind in ("everything", "mask in front, prefix, RoBERTa"):
        embedder, folder = exported(kind)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        recipe = json.loads((folder / DESCRIPTION).read_text("utf-8"))["input"]
        session = runtime.InferenceSession(folder / GRAPH, providers=["CPUExecutionProvider"])
        # A mask token in the sentence is not taken for the template's.
        texts = ["A Dog runs", "Is this [MASK] <mask> taken?", "She said no, and left the room and the house!"]
        rows = []
        for text in texts:
            text = text.lower() if recipe["lowercase"] else text
            if recipe["final_stop"] and text[-1] not in recipe["sentence_ends"]:
                text += "."
            ids = tokenizer.encode(recipe["text_before"] + text, add_special_tokens=False).ids[: recipe["max_length"]]
            rows.append([*recipe["ids_before"], *ids, *recipe["ids_after"]])
        width = max(map(len, rows))
        feed = {
            "input_ids": np.array([row + [recipe["pad_id"]] * (width - len(row)) for row in rows]),
            "attention_mask": np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        }
        (found,) = session.run(["sentence_embedding"], feed)
        np.testing.assert_allclose(found, embedder.encode(texts, normalize=False), rtol=0, atol=1e-4)


def test_batch_and_length_are_open(exported: Make) -> None:
    session = runtime.InferenceSession(exported("everything")[1] / GRAPH, providers=["CPUExecutionProvider"])
    assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [
        ("input_ids", ["batch", "length"]),
        ("attention_mask", ["batch", "length"]),
    ]
    assert [(entry.name, entry.shape) for entry in session.get_outputs()] == [("sentence_embedding", ["batch", 8])]
    one = np.arange(5, 25)[None]  # a row of twenty ids
    alone = session.run(None, {"input_ids": one, "attention_mask": np.ones_like(one)})[0]
    for rows, length in ((1, 33), (7, 20), (2, 122)):
        ids, mask = np.full((rows, length), 9), np.ones((rows, length), dtype=np.int64)
        ids[0], mask[0] = 0, 0
        ids[0, :20], mask[0, :20] = one, 1
        found = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        assert found.shape == (rows, 8)
        np.testing.assert_allclose(found[0], alone[0], rtol=0, atol=1e-5)


def test_pytorch_computes_nothing(exported: Make, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.from_pretrained(exported("everything")[1], backend="onnx")
    monkeypatch.setattr(nn.Module, "__call__", mock.Mock(side_effect=AssertionError("a module was called")))
    for operation in ("matmul", "cat", "normalize"):
        monkeypatch.setattr(torch, operation, mock.Mock(side_effect=AssertionError(operation)), raising=False)
    vectors = embedder.encode(sentences)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert embedder.similarity("A dog.", "A dog.") == pytest.approx(1)
    assert embedder.search(sentences, sentences[3], k=1)[0].index == 3


def test_an_export_can_be_evaluated(exported: Make, tmp_path: Path) -> None:
    embedder, folder = exported("everything")
    triplets = tmp_path / "t.csv"
    triplets.write_text("anchor,positive,negative\nA dog runs.,A dog walks.,Yes.\nIt rains.,It rains a lot.,No.\n")
    first, second = (
        evaluate(model, tasks="geometry", triplets={"own": triplets}, resamples=0) for model in (embedder, folder)
    )
    assert second.scores == first.scores
    assert second.model.fingerprint == Embedder.from_pretrained(folder).fingerprint() != first.model.fingerprint
    assert first.geometry is not None
    assert first.geometry.delta is not None
    assert second.geometry is not None
    assert second.geometry.uniformity == pytest.approx(first.geometry.uniformity, abs=1e-4)
    assert second.geometry.delta is None, "the views are folded together"


def test_the_model_is_left_as_it_was(exported: Make, shallow: Tiny) -> None:
    embedder, _ = exported("last2, flow")
    fresh = build(shallow("bert", 2), KINDS["last2, flow"][1])
    assert embedder.fingerprint() == fresh.fingerprint()
    assert embedder.encoder.state_dict().keys() == fresh.encoder.state_dict().keys()


# Quantisation, and the command.


@pytest.fixture(scope="module")
def original(shallow: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with every part."""
    folder = tmp_path_factory.mktemp("original") / "model"
    build(shallow("bert", 2), EVERYTHING, PROVENANCE).save(folder)
    return folder


def test_export_in_int8(run: Run, original: Path, tmp_path: Path, sentences: list[str]) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\tA dog runs.\t{i % 4}\n" for i, text in enumerate(sentences)))
    out = tmp_path / "out"
    code, said, told = run(
        "export", "--to", "onnx", "--quantize", "int8", "--score", tmp_path / "pairs.tsv", original, out
    )
    assert (code, told) == (0, f"{original} -> {out}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pairs.tsv"]
    assert sorted(path.name for path in out.iterdir()) == [
        DESCRIPTION,
        GRAPH,
        "tokenizer.json",
        "tokenizer_config.json",
    ]

    full, small = Embedder.from_pretrained(original, device="cpu"), Embedder.from_pretrained(out)
    first, second = full.encode(sentences), small.encode(sentences)
    assert np.einsum("ij,ij->i", first, second).min() > 0.99
    assert np.abs(first - second).max() > 1e-4, "it is not quantised"
    assert json.loads((out / DESCRIPTION).read_text("utf-8"))["precision"] == "int8"

    import onnx as format

    weights = format.load(out / GRAPH).graph.initializer
    large = [
        tensor for tensor in weights if tensor.data_type == format.TensorProto.FLOAT and np.prod(tensor.dims) > 800
    ]
    assert [tuple(tensor.dims) for tensor in large] in ([], [(2, 2, 1, 4, 6, 8)]), "only the prefix is left in float32"

    lines = said.splitlines()
    assert [line.split()[0] for line in lines] == ["vectors", "size", "spearman"]
    before, after, difference = lines[2].split()[1], lines[2].split()[3], lines[2].split()[4]
    assert float(difference.strip("()")) == pytest.approx(float(after) - float(before), abs=0.011)
    assert f"on {len(sentences)} pairs, {tmp_path / 'pairs.tsv'}" in lines[2]
    assert abs(float(after) - float(before)) < 5


def test_command_with_an_export(run: Run, exported: Make, tmp_path: Path) -> None:
    embedder, folder = exported("everything")
    (tmp_path / "t.txt").write_text("A dog runs.\nYes\n")
    assert run("encode", "--model", folder, tmp_path / "t.txt", "--out", tmp_path / "v.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), embedder.encode(["A dog runs.", "Yes"]), rtol=0, atol=1e-4)
    code, said, _ = run("similarity", "--model", folder, "Yes", "No")
    assert code == 0
    assert float(said) == pytest.approx(embedder.similarity("Yes", "No"), abs=2e-4)


def test_mistakes_on_the_command_line(run: Run, original: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, message in (
        (["--to", "onnx", "--quantize", "int3"], "quantize must be int8, got 'int3'"),
        (["--to", "sentence-transformers", "--quantize", "int8"], "--quantize needs --to onnx"),
        (["--to", "onnx", "--score", "sample:test"], "--score needs --quantize"),
        (["--to", "onnx", "--quantize", "int8", "--score", str(tmp_path / "none.tsv")], "none.tsv"),
    ):
        code, said, told = run("export", *arguments, original, out)
        assert (code, said) == (2, "")
        assert message in told
        assert told.count("\n") == 1
        assert not out.exists()


def test_weights_of_a_large_model_lie_beside_the_graph(
    shallow: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = build(shallow("bert"), ModelConfig("mean"))
    monkeypatch.setattr(onnx, "_LARGEST_FILE", 1000)
    result = export_onnx(embedder, tmp_path / "m", quantize="int8")
    files = {path.name: path.stat().st_size for path in (tmp_path / "m").glob(f"{GRAPH}*")}
    assert len(files) == 2
    assert sum(files.values()) == result.size < (result.unquantized_size or 0)
    monkeypatch.chdir("/")
    shutil.move(tmp_path / "m", tmp_path / "moved")
    loaded = Embedder.from_pretrained(tmp_path / "moved")
    assert loaded.similarity("A dog.", "A dog.") == pytest.approx(1)
    known = loaded.fingerprint()
    beside = next(path for path in (tmp_path / "moved").glob(f"{GRAPH}*") if path.name != GRAPH)
    beside.write_bytes(beside.read_bytes()[::-1])
    assert loaded.fingerprint() != known


# What is refused.


def test_backend(exported: Make, tiny_bert: Path) -> None:
    folder = exported("mean")[1]
    assert isinstance(Embedder.from_pretrained(folder, backend="onnx").runner, OnnxRunner)
    assert Embedder.from_pretrained(tiny_bert, backend="torch").encoder is not None
    for model, backend, message in (
        (folder, "torch", "is an ONNX export, which PyTorch cannot run"),
        (tiny_bert, "onnx", f"is not an ONNX export; create one: diffaug export --to onnx {tiny_bert} FOLDER"),
        (folder, "tensorrt", "backend must be one of torch, onnx, got 'tensorrt'"),
    ):
        with pytest.raises(DiffaugError, match=message):
            Embedder.from_pretrained(model, backend=backend)  # type: ignore[arg-type]
    with pytest.raises(DiffaugError, match="has its own pooling"):
        Embedder.from_pretrained(folder, pooling="cls")


def test_a_disk_that_takes_no_more_is_not_the_models_fault(shallow: Tiny, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    embedder = build(shallow("bert"), ModelConfig("mean"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # in bytes: what is written behind them is an error
    try:
        with pytest.raises(DiffaugError, match=r"m cannot be written: File too large$"):
            export_onnx(embedder, tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_what_needs_pytorch_says_so(exported: Make, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(exported("mean")[1])
    for attempt in (
        lambda: embedder.encoder,
        lambda: embedder.save(tmp_path / "m"),
        lambda: export_onnx(embedder, tmp_path / "m"),
    ):
        with pytest.raises(DiffaugError, match="runs in ONNX Runtime and has no PyTorch module"):
            attempt()
    assert not (tmp_path / "m").exists()


def test_devices(exported: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.from_pretrained(exported("mean")[1], device="cpu")
    assert embedder.device == torch.device("cpu")
    texts = ["A dog.", "A cat, and a dog.", "Yes."] * 4
    np.testing.assert_allclose(embedder.encode(texts, devices=["cpu", "cpu"]), embedder.encode(texts), atol=1e-6)
    with pytest.raises(DiffaugError, match="does not support the device 'mps'"):
        embedder.encode("A dog.", device="mps")
    with pytest.raises(DiffaugError, match="cannot run on the device 'nonsense'"):
        embedder.encode("A dog.", device="nonsense")
    monkeypatch.setattr(runtime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DiffaugError, match=r"'cuda:1' .*install onnxruntime-gpu"):
        embedder.encode("A dog.", device="cuda:1")
    assert embedder.encode("A dog.").shape == (32,)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_packages(exported: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    embedder, folder = exported("mean")
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"need the package {package}: pip install 'diffaug\[onnx\]'"
    with pytest.raises(DiffaugError, match=message):
        export_onnx(embedder, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    if package == "onnxruntime":
        with pytest.raises(DiffaugError, match=message):
            Embedder.from_pretrained(folder)
    else:
        assert Embedder.from_pretrained(folder).encode("A dog.").shape == (32,)


def test_an_existing_folder_is_kept_unless_asked(exported: Make, copy: Path) -> None:
    with pytest.raises(DiffaugError, match="exists already"):
        export_onnx(exported("mean")[0], copy)


def test_a_model_that_cannot_be_traced(shallow: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Undecided(nn.Module):
        def forward(self, vectors: Tensor) -> Tensor:
            return vectors if vectors.sum() > 0 else -vectors

    embedder = build(shallow("bert"), ModelConfig("mean"))
    embedder.encoder.head = Undecided()  # type: ignore[assignment]
    capfd.readouterr()
    with pytest.raises(DiffaugError, match="this model, with a 'bert' backbone, cannot be exported to ONNX with torch"):
        export_onnx(embedder, tmp_path / "m")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_an_export_with_other_vectors_is_not_kept(
    exported: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of a model whose weights are a little different."""
    embedder, folder = exported("mean")
    monkeypatch.setattr(onnx, "_write_graph", lambda _, path: shutil.copyfile(folder / GRAPH, path))
    assert export_onnx(embedder, tmp_path / "same").difference < 1e-6
    weight = next(embedder.encoder.parameters())
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(1.01)
        with pytest.raises(DiffaugError, match=r"its vectors in ONNX Runtime differ from PyTorch's by \d"):
            export_onnx(embedder, tmp_path / "other")
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert not (tmp_path / "other").exists()


def change(folder: Path, **values: Any) -> None:
    description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    (folder / DESCRIPTION).write_text(json.dumps({**description, **values}), "utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / GRAPH).unlink(), f"{GRAPH} does not exist"),
        (lambda folder: (folder / GRAPH).write_bytes((folder / GRAPH).read_bytes()[:999]), "loaded by ONNX Run"),
        (lambda folder: (folder / DESCRIPTION).write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / DESCRIPTION).write_text("[]"), "has no format_version"),
        (lambda folder: change(folder, format_version=2), "has format version 2, written by a newer diffaug"),
        (lambda folder: change(folder, speed=2), "has the unknown keys speed"),
        (lambda folder: change(folder, model={"pooling": "mean"}), f"{DESCRIPTION}: missing model settings"),
        (lambda folder: change(folder, width=31), "has vectors of width 32, but .* says 31"),
        (lambda folder: change(folder, input={}), "the tokenizer in .* is not that of the exported model"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "has no tokenizer_config.json"),
    ],
)
def test_damaged_folders(copy: Path, damage: Callable[[Path], Any], message: str) -> None:
    assert Embedder.from_pretrained(copy).width == 32
    damage(copy)
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(copy)


def test_a_graph_of_another_library_is_no_export(copy: Path) -> None:
    import onnx as format

    graph = format.load(copy / GRAPH)
    graph.graph.output[0].name = graph.graph.node[-1].output[0] = "vector"
    format.save(graph, copy / GRAPH)
    with pytest.raises(DiffaugError, match="must have the inputs input_ids and attention_mask and the output"):
        Embedder.from_pretrained(copy)


def test_no_other_library_takes_the_folder_for_a_model(exported: Make) -> None:
    folder = exported("mean")[1]
    with pytest.raises((OSError, ValueError)):
        AutoModel.from_pretrained(folder)
    st = pytest.importorskip("sentence_transformers")
    with pytest.raises((OSError, ValueError)):
        st.SentenceTransformer(str(folder), device="cpu")
