"""The two files in a saved model that let sentence-transformers load it completely.

`modules.json` lists `DiffaugModule` as the only module, with the folder itself as its path, so that no weight is stored
twice. `config_sentence_transformers.json` requires this package, so that users without it are told to install it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
MODULE_CLASS = "diffaug.integrations.sentence_transformers.DiffaugModule"
REQUIREMENTS = {
    "diffaug": {"specifier": "", "reason": "Without it the model's template, prefix and head would be lost."}
}
_OURS = [{"idx": 0, "name": "0", "path": "", "type": MODULE_CLASS}]


def write_st_files(folder: Path, prompts: dict[str, str] | None = None) -> None:
    """Write both files into ``folder``; ``prompts`` are those that sentence-transformers may use by name."""
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": prompts or {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
        "requirements": REQUIREMENTS,
    }
    _write(folder / MODULES, _OURS)
    _write(folder / SETTINGS, settings)


def add_requirements(folder: Path) -> None:
    """Add this package as a requirement to the settings that sentence-transformers wrote, if there are any."""
    if (folder / SETTINGS).exists():
        _write(folder / SETTINGS, {**_read(folder / SETTINGS, dict), "requirements": REQUIREMENTS})


def check_nothing_added(folder: Path) -> None:
    """Check that sentence-transformers, if it saved the model, added nothing to it.

    Raises:
        DiffaugError: there are more modules, a default prompt or truncated vectors, which would be ignored here.
    """
    if (folder / MODULES).exists():
        others = [str(entry.get("type", "nothing")) for entry in _read(folder / MODULES, list)]
        if MODULE_CLASS in others:
            others.remove(MODULE_CLASS)
        if others:
            raise _refusal(folder / MODULES, f"adds {', '.join(others)} to the model")
    if (folder / SETTINGS).exists():
        settings = _read(folder / SETTINGS, dict)
        name = settings.get("default_prompt_name")
        if name is not None and (settings.get("prompts") or {}).get(name):
            raise _refusal(folder / SETTINGS, f"adds the prompt {name!r} to every sentence")
        if settings.get("truncate_dim") is not None:
            raise _refusal(folder / SETTINGS, f"truncates vectors to {settings['truncate_dim']} dimensions")


def _refusal(path: Path, what: str) -> DiffaugError:
    return DiffaugError(f"{path} {what}, which would be ignored here; load the folder with sentence-transformers")


def _read(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON ({error})") from error
    entries = content if isinstance(content, list) else []
    if not isinstance(content, kind) or not all(isinstance(entry, dict) for entry in entries):
        raise DiffaugError(f"{path} is not a file of sentence-transformers: {content!r:.80}")
    return content


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
