"""Find the folder of a model: a local path, the hub's cache, or a download from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diffaug.errors import DiffaugError

# The files of a transformers model. Pickles are not downloaded.
BACKBONE_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py")
# With the ONNX export at the top level; variants in subfolders are not needed.
FILES = (*BACKBONE_FILES, "model.onnx*")


EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "mini"


def model_source(name: str) -> str:
    """The path or hub name of a model; `embedded` is the encoder included in the package."""
    return str(EMBEDDED_MODEL) if name == "embedded" else name


def find_folder(source: str, revision: str | None = None, files: Sequence[str] = FILES) -> Path:
    """Return a local folder, downloading the model from the hub if necessary.

    Args:
        source: a path, a name on the hub, or ``embedded``.
        revision: branch, tag or commit on the hub.
        files: patterns of the files to download.

    Raises:
        DiffaugError: the model was not found; the message says where it was searched.
    """
    path = Path(model_source(source)).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise DiffaugError(f"{source} is a file; give the folder of a model")
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        resolved = "" if path.is_absolute() and str(path) == source else f" ({path.absolute()})"
        raise DiffaugError(
            f"the folder {source}{resolved} does not exist; give the path of a model, or its name on the hub"
        )
    try:
        return _fetch(source, revision, list(files))
    except Exception as error:  # errors of huggingface_hub, of the HTTP library and of the system
        raise DiffaugError(
            f"{source} is neither a local folder nor a model that can be downloaded from the hub: "
            f"{_reason(error, revision)}"
        ) from error


def _fetch(name: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        # One request with a timeout first: snapshot_download retries, and may wait for a long time.
        HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except RevisionNotFoundError:
        raise
    except Exception as error:
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=True))
        except Exception:
            raise error from None  # report the hub's error, not that the cache is empty as well
    return Path(snapshot_download(name, revision=revision, allow_patterns=files))


def _reason(error: Exception, revision: str | None) -> str:
    """What went wrong, and what to do."""
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
    cache = f"the cache ({constants.HF_HUB_CACHE}) does not contain the model"
    if isinstance(error, HFValidationError):
        return "there is no such folder, and names on the hub have the form owner/name; check the spelling"
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, and {cache}; check the spelling, or unset HF_HUB_OFFLINE"
    if isinstance(error, GatedRepoError):
        return "the model is gated; accept its terms on the hub, then run 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such model, or it is private; check the spelling, or run 'hf auth login'"
    if isinstance(error, RevisionNotFoundError):
        return f"the model has no revision {revision!r}"
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused the request ({text})"
    return (
        f"the hub at {constants.ENDPOINT} cannot be reached ({text}), and {cache}; check the spelling and the "
        "connection, or give the path of a folder"
    )
