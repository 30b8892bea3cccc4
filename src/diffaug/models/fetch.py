"""The folder of a model that was named by its path or by its name on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diffaug.errors import DiffaugError

# Pickles stay behind. An export to ONNX lies at the top; variants in folders below would be fetched for nothing.
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py", "model.onnx*")


def find_folder(source: str, revision: str | None = None, files: Sequence[str] = FILES) -> Path:
    """A folder here, or else one fetched from the hub, or found in the hub's cache.

    Args:
        source: a path, or a name on the hub.
        revision: the version on the hub.
        files: what is fetched, as patterns of names.

    Raises:
        DiffaugError: there is neither.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise DiffaugError(f"{source} is a file; a model is a folder")
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise DiffaugError(f"there is no folder {source}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        reason = " ".join(str(error).split())[:300]
        raise DiffaugError(
            f"{source} is neither a folder here nor a model that could be fetched from the hub: {reason}"
        ) from error
