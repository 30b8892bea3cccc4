"""A file a method: its stages, its step, and what inference needs."""

from __future__ import annotations

from diffaug.errors import DiffaugError
from diffaug.methods.base import Method
from diffaug.methods.consert import ConSERT
from diffaug.methods.diffaug import DiffAug
from diffaug.methods.diffcse import DiffCSE
from diffaug.methods.flow import BertFlow
from diffaug.methods.promptbert import PromptBERT
from diffaug.methods.sbert import SBERT
from diffaug.methods.simcse import SimCSE
from diffaug.methods.untrained import Untrained

METHODS: dict[str, type[Method]] = {
    "consert": ConSERT,
    "diffaug": DiffAug,
    "diffcse": DiffCSE,
    "flow": BertFlow,
    "promptbert": PromptBERT,
    "sbert": SBERT,
    "simcse": SimCSE,
    "untrained": Untrained,
}


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise DiffaugError(f"there is no method {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]
