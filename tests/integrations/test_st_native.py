from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from st_models import EVERYTHING, KINDS, build

from diffaug.cli.export import export
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.hub.card import model_card
from diffaug.integrations.st_native import export_native, export_sentence_transformers, why_not_native
from diffaug.models.config import DenseConfig, ModelConfig, Provenance

pytestmark = pytest.mark.filterwarnings("ignore:.*sentences were truncated")

HEAD = (
    DenseConfig(32, 16),
    DenseConfig(16, 24, False, "gelu"),
    DenseConfig(24, 12, True, "relu"),
    DenseConfig(12, 8, True, "identity"),
)
NATIVE: dict[str, tuple[str, ModelConfig]] = {
    "cls": ("bert", ModelConfig("cls")),
    "mean": ("bert", ModelConfig("mean")),
    "heads, normalisation": ("bert", ModelConfig("mean", head=HEAD, normalize=True)),
    "prompt": ("bert", ModelConfig("mean", prompt="Query: ")),
    "limit": ("bert", ModelConfig("cls", max_length=5)),
    "RoBERTa, head": ("roberta", ModelConfig("cls", head=HEAD[:1])),
    "RoBERTa, lower case, prompt, limit": (
        "roberta",
        ModelConfig("mean", lowercase=True, prompt="query: ", max_length=9, normalize=True),
    ),
    "ModernBERT": ("modernbert", ModelConfig("mean")),
}
# What a machine without diffaug does: load every folder with no flag, and embed.
ELSEWHERE = """
import sys
sys.modules["diffaug"] = None  # an import of it fails
import json, pathlib
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
home, texts = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
for folder in sorted(path for path in home.iterdir() if path.is_dir()):
    model = SentenceTransformer(str(folder), device="cpu")
    query = model.encode_query(texts) if hasattr(model, "encode_query") else model.encode(texts)
    np.savez(home / f"{folder.name}.npz", plain=model.encode(texts), query=query, limit=model.max_seq_length)
"""


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    """With one that is cut, at every limit."""
    return [*sentences, "the old cat sleeps " * 40]


@pytest.fixture(scope="module")
def models(tiny: Callable[[str], Path]) -> dict[str, Embedder]:
    return {kind: build(tiny(family), config) for kind, (family, config) in NATIVE.items()}


@pytest.fixture(scope="module")
def exported(models: dict[str, Embedder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a native folder for each kind of model."""
    home = tmp_path_factory.mktemp("native")
    for kind, embedder in models.items():
        export_native(embedder, home / kind)
    return home


@pytest.fixture(scope="module")
def elsewhere(exported: Path, texts: list[str]) -> str:
    """What was said where diffaug cannot be imported; the vectors lie beside each folder."""
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    command = [sys.executable, "-c", ELSEWHERE, str(exported), json.dumps(texts)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", NATIVE)
def test_sentence_transformers_gives_the_same_vectors_without_diffaug(
    kind: str, models: dict[str, Embedder], exported: Path, elsewhere: str, texts: list[str]
) -> None:
    embedder, found = models[kind], np.load(exported / f"{kind}.npz")
    lengths = np.linalg.norm(found["plain"], axis=1, keepdims=True)
    assert np.abs(found["plain"] / lengths - embedder.encode(texts)).max() <= 1e-6
    np.testing.assert_allclose(found["plain"], embedder.encode(texts, normalize=False), atol=1e-5)
    assert np.array_equal(found["query"], found["plain"])
    assert found["limit"] == embedder.collator.max_length + 2


def test_nothing_is_missing_in_the_folders(elsewhere: str, exported: Path) -> None:
    assert "MISSING" not in elsewhere
    assert "UNEXPECTED" not in elsewhere
    pooler = load_file(exported / "cls" / "model.safetensors")["pooler.dense.weight"]
    assert not pooler.any()  # not made up at random


@pytest.mark.parametrize("kind", NATIVE)
def test_the_way_back_gives_the_same_vectors(
    kind: str, models: dict[str, Embedder], exported: Path, texts: list[str]
) -> None:
    embedder, back = models[kind], Embedder.from_pretrained(exported / kind, device="cpu")
    assert np.abs(back.encode(texts, normalize=False) - embedder.encode(texts, normalize=False)).max() <= 1e-6
    assert back.collator.max_length == embedder.collator.max_length
    # A limit that the backbone sets is written as one of the model.
    expected = replace(embedder.encoder.config, max_length=embedder.collator.max_length)
    assert back.encoder.config == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_without_a_module_of_theirs_is_named(kind: str, tiny: Callable[[str], Path]) -> None:
    family, config = KINDS[kind]
    expected = {
        **dict.fromkeys(("cls", "mean", "head", "normalisation", "lower case, prompt, limit")),
        "first_last": "'first_last' pooling",
        "static_last": "'static_last' pooling",
        "last2": "'last2' pooling",
        "template": "template",
        "template, final stop": "template, final stop",
        "template with spaces": "template, final stop",
        "template, denoised": "template, denoising",
        "PromptBERT, supervised": "template, final stop, denoising, norm in the head",
        "prefix": "prefix",
        "prefix, RoBERTa": "prefix",
        "prefix, ModernBERT": "prefix",
        "adapters": "adapters",
        "LoRA": "LoRA",
        "flow": "flow, 'first_last' pooling",
        "everything": "template, final stop, prefix",
    }
    assert why_not_native(build(tiny(family), config).encoder) == expected[kind]


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (ModelConfig(final_stop=True), "final stop"),
        (ModelConfig(head=(DenseConfig(32, 32, layer_norm=1e-5),)), "norm in the head"),
        (ModelConfig(lowercase=True, prompt="Ask: "), "prompt with capitals before lowercased text"),
    ],
)
def test_small_print_is_not_dropped_either(config: ModelConfig, part: str, tiny_bert: Path, tmp_path: Path) -> None:
    embedder = build(tiny_bert, config)
    assert why_not_native(embedder.encoder) == part
    with pytest.raises(DiffaugError, match=f"no module for this model's {part}"):
        export_native(embedder, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_tokenizer_that_pads_on_the_left_does_not_move_the_sentence(
    tiny_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    shutil.copytree(tiny_bert, tmp_path / "left")
    settings = tmp_path / "left" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "padding_side": "left"}))
    embedder = build(tmp_path / "left", ModelConfig("mean"))
    assert embedder.tokenizer.padding_side == "left"
    export_native(embedder, tmp_path / "out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert np.abs(model.encode(texts, normalize_embeddings=True) - embedder.encode(texts)).max() <= 1e-6


def test_a_model_of_no_limit_has_none_in_its_folder(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = build(tiny_bert, ModelConfig("mean"))
    monkeypatch.setattr(embedder.collator, "max_length", None)
    export_native(embedder, tmp_path / "out")
    assert Embedder.from_pretrained(tmp_path / "out").encoder.config.max_length is None


def test_the_model_is_not_changed_by_its_export(models: dict[str, Embedder], tmp_path: Path) -> None:
    embedder = models["RoBERTa, lower case, prompt, limit"]
    before, weights = embedder.tokenizer.backend_tokenizer.to_str(), dict(embedder.encoder.state_dict())
    export_native(embedder, tmp_path / "out")
    assert embedder.tokenizer.backend_tokenizer.to_str() == before
    assert all(torch.equal(weights[name], tensor) for name, tensor in embedder.encoder.state_dict().items())
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


# The command.


def test_the_command_writes_a_native_folder_and_says_so(
    models: dict[str, Embedder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models["heads, normalisation"].save(tmp_path / "model")
    export(str(tmp_path / "model"), tmp_path / "out", "sentence-transformers")
    said = capsys.readouterr().out
    assert "native: diffaug is not needed" in said
    assert f"SentenceTransformer({str(tmp_path / 'out')!r})\n" in said
    kinds = [entry["type"].rpartition(".")[2] for entry in json.loads((tmp_path / "out" / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Dense", "Dense", "Dense", "Dense", "Normalize"]
    assert "diffaug" not in (tmp_path / "out" / "config_sentence_transformers.json").read_text()
    with pytest.raises(DiffaugError, match="exists already"):
        export_sentence_transformers(models["mean"], tmp_path / "out")


def test_the_command_keeps_what_they_cannot_express_and_says_why(
    tiny_bert: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    embedder = build(tiny_bert, EVERYTHING)
    embedder.save(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("My model.\n")
    export(str(tmp_path / "model"), tmp_path / "out", "sentence-transformers")
    said = capsys.readouterr().out
    assert "diffaug's, which must be installed; sentence-transformers has none for template, final stop, prefix" in said
    assert f"SentenceTransformer({str(tmp_path / 'out')!r}, trust_remote_code=True)\n" in said
    model = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    assert np.abs(model.encode(texts) - embedder.encode(texts)).max() <= 1e-6
    assert (tmp_path / "out" / "README.md").read_text() == "My model.\n"


def test_the_card_says_how_the_native_folder_is_used(models: dict[str, Embedder], tmp_path: Path) -> None:
    embedder = Embedder(
        models["mean"].encoder, models["mean"].tokenizer, Provenance("simcse", {}, {"dev": 80.5}), device="cpu"
    )
    embedder.save(tmp_path / "model")
    original = model_card(embedder.encoder, embedder.provenance).replace(
        "## Licence", "## Thanks\n\nTo all.\n\n## Licence"
    )
    (tmp_path / "model" / "README.md").write_text(original)
    export(str(tmp_path / "model"), tmp_path / "out", "sentence-transformers")
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'SentenceTransformer("path/to/this/folder")' in card
    assert "trust_remote_code" in original
    assert "trust_remote_code" not in card
    assert "library_name: sentence-transformers\n" in card
    # All the rest is as it was, what its author added included.
    before, _, rest = original.partition("## Usage\n")
    assert card.startswith(before.replace("library_name: diffaug", "library_name: sentence-transformers"))
    assert card.endswith(rest[rest.index("## Scores\n") :])
    # Of a model without a card, one is written; a card of theirs is kept as it is.
    export_native(embedder, tmp_path / "written")
    assert (tmp_path / "written" / "README.md").read_text() == card.replace("## Thanks\n\nTo all.\n\n", "")
    (tmp_path / "out" / "README.md").write_text(
        "---\nlibrary_name: sentence-transformers\n---\n\n## Usage\n\nAsk me.\n"
    )
    export(str(tmp_path / "out"), tmp_path / "again", "sentence-transformers")
    assert "Ask me." in (tmp_path / "again" / "README.md").read_text()


def test_without_sentence_transformers_the_error_says_what_to_install(
    models: dict[str, Embedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sentence_transformers.sentence_transformer.modules", "sentence_transformers.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DiffaugError, match=r"pip install 'diffaug\[sentence-transformers\]'"):
        export_native(models["mean"], tmp_path / "out")


def test_no_space_for_an_export_is_a_clear_error(models: dict[str, Embedder], tmp_path: Path) -> None:
    """The system refuses a file of the weights' size; the errors of safetensors and tokenizers are their own."""
    for limit in (50, 5_000, 50_000):
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                export_native(models["mean"], tmp_path / "out")
            except DiffaugError as error:
                os._exit(3 if "out cannot be written" in str(error) else 4)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert list(tmp_path.iterdir()) == []
