"""The folder of a model that was named by its path or by its name on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diffaug.errors import DiffaugError

# What a model of transformers is made of. Pickles stay behind.
BACKBONE_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py")
# An export to ONNX lies at the top; variants in folders below would be fetched for nothing.
FILES = (*BACKBONE_FILES, "model.onnx*")


EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "mini"


def model_source(name: str) -> str:
    """The path or hub name behind a model's name: `embedded` is the encoder that comes with the package."""
    return str(EMBEDDED_MODEL) if name == "embedded" else name


def find_folder(source: str, revision: str | None = None, files: Sequence[str] = FILES) -> Path:
    """A folder here, or else one fetched from the hub, or found in the hub's cache.

    Args:
        source: a path, or a name on the hub.
        revision: the version on the hub.
        files: what is fetched, as patterns of names.

    Raises:
        DiffaugError: there is neither; the message says where it was looked for.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise DiffaugError(f"{source} is a file; a model is a folder")
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        seen = "" if path.is_absolute() and str(path) == source else f" (looked for {path.absolute()})"
        raise DiffaugError(f"there is no folder {source}{seen}; give the path of a model, or its name on the hub")
    try:
        return _fetch(source, revision, list(files))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        raise DiffaugError(
            f"{source} is neither a folder here nor a model that could be fetched from the hub: "
            f"{_reason(error, revision)}"
        ) from error


def _fetch(name: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        # Asked once and with a time limit, before anything that tries again and again or waits for ever.
        HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except RevisionNotFoundError:
        raise
    except Exception as error:
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=True))
        except Exception:
            raise error from None  # why the hub gave nothing, not that its cache is empty as well
    return Path(snapshot_download(name, revision=revision, allow_patterns=files))


def _reason(error: Exception, revision: str | None) -> str:
    """What was wrong, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    text = " ".join(str(error).split())[:160]
    cache = f"its cache ({constants.HF_HUB_CACHE}) does not hold the model"
    if isinstance(error, HFValidationError):
        return "there is no such folder, and names on the hub are of the form owner/name; check the spelling"
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE forbids to ask the hub, and {cache}; check the spelling, or unset HF_HUB_OFFLINE"
    if isinstance(error, GatedRepoError):
        return "the hub gives it only to those who accepted its terms; accept them there, then 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such model, or shows it to others only; check the spelling, or 'hf auth login'"
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has the model, but no revision {revision!r} of it"
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused ({text})"
    return (
        f"the hub at {constants.ENDPOINT} could not be reached or broke off ({text}), and {cache}; check the spelling "
        "and the connection, or give the path of a folder"
    )
