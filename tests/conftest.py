"""Tiny models of every family, built at random from their configurations: nothing is downloaded.

`tiny` gives the folder of a model by the name of its family; `tiny_bert` and its like are the ones used most. The
folders are shared by the whole session: copy one before changing it. What tests import is in `tiny_models`: there are
several conftest.py, and Python knows only one of them by that name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything imports the hub's client, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from tiny_models import build_tiny

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _freeze_and_enable() -> None:
    gc.freeze()
    gc.enable()


# A forked process has none of its parent's threads. Collecting an ONNX session there would wait for them forever, so a
# child never collects what it has inherited. A collection in the parent instead would take most of a second per fork.
os.register_at_fork(before=gc.disable, after_in_parent=gc.enable, after_in_child=_freeze_and_enable)

pytest_plugins = ["browser_fixtures", "training_fixtures", "wordnet_fixtures"]

SENTENCES = [
    "A dog runs through the park.",
    "The market fell sharply on Monday, and nobody knew why.",
    "Is this seat taken?",
    "Two children are playing football in the rain!",
    'She said "no" and left the room',
    "He doesn't like tea",
    "The quick brown fox jumps over the lazy dog while the old cat sleeps under the table.",
    "Prices rose by 12.5 % in 2023.",
    "Yes.",
    "A man is slicing a tomato with a very sharp knife in a small kitchen",
    "Überraschung! Das Café ist schon wieder geschlossen.",
    "這是一個句子。",
    "It works 🎉🎉",
    "This sentence means something else : the sentence of the day",
]

_BYTE_LEVEL = {"roberta", "xlm-roberta", "mpnet"}


# The garbage collector took a tenth of the time of imports and of exports to ONNX.
gc.disable()
gc.set_threshold(20_000, 10, 10)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the libraries: a million objects that stay until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices are slower on two threads than on one, and sums come out the same on every machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers is forgotten after it."""
    from diffaug.config import registry

    for kind in (registry.METHODS, registry.VIEWS, registry.LOSSES, registry.TASKS):
        monkeypatch.setattr(kind, "_plugins", dict(kind._plugins))
        monkeypatch.setattr(kind, "_loaded", dict(kind._loaded))


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Sentences of different lengths, scripts and endings."""
    return list(SENTENCES)


@pytest.fixture(scope="session")
def wordpiece() -> PreTrainedTokenizerBase:
    """A tokenizer like BERT's: lower case, word pieces, [CLS] and [SEP] around a text."""
    from tokenizers import normalizers, pre_tokenizers
    from transformers import BertTokenizer

    # Short words whole, long ones in pieces. The library's trainer gives another vocabulary on every run.
    text = normalizers.BertNormalizer(lowercase=True).normalize_str(" ".join(SENTENCES))
    words = {word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)}
    characters = sorted(set("".join(words)))
    pieces = [*characters, *(f"##{c}" for c in characters), "##er", "##ing", "##tion", "##ll", "sent", "##ence"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = dict.fromkeys([*special, *pieces, *sorted(word for word in words if len(word) <= 6)])
    return BertTokenizer(vocab={entry: i for i, entry in enumerate(entries)}, model_max_length=128)


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerBase:
    """A tokenizer like RoBERTa's: bytes, a space belongs to the word behind it, <s> and </s> around a text."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import RobertaTokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(SENTENCES * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return RobertaTokenizer(vocab=model["vocab"], merges=merges, model_max_length=128)


@pytest.fixture(scope="session")
def tiny(
    tmp_path_factory: pytest.TempPathFactory,
    wordpiece: PreTrainedTokenizerBase,
    byte_level: PreTrainedTokenizerBase,
) -> Callable[[str], Path]:
    """The folder of a tiny model of a family (a key of `tiny_models.FAMILIES`), with its tokenizer; made once."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            tokenizer = byte_level if family in _BYTE_LEVEL else wordpiece
            folders[family] = tmp_path_factory.mktemp("tiny") / family
            build_tiny(family, tokenizer).save_pretrained(folders[family])
            tokenizer.save_pretrained(folders[family])
        return folders[family]

    return folder


@pytest.fixture(scope="session")
def tiny_bert(tiny: Callable[[str], Path]) -> Path:
    """The folder of a tiny BERT."""
    return tiny("bert")


@pytest.fixture(scope="session")
def tiny_roberta(tiny: Callable[[str], Path]) -> Path:
    """The folder of a tiny RoBERTa."""
    return tiny("roberta")


@pytest.fixture(scope="session")
def tiny_modernbert(tiny: Callable[[str], Path]) -> Path:
    """The folder of a tiny ModernBERT."""
    return tiny("modernbert")


@pytest.fixture(scope="session")
def tiny_masked_lm(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny masked language model of a family, with the tokenizer of `tiny`; made once."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("masked") / family
            shutil.copytree(tiny(family), folders[family])
            torch.manual_seed(0)
            AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folders[family])).save_pretrained(
                folders[family]
            )
        return folders[family]

    return folder
