"""Find the folder of a model: a local path, the hub's cache, or a download from the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from diffaug.errors import DiffaugError
from diffaug.files import restore
from diffaug.provenance import checksum

# The files of a transformers model. Pickles are not downloaded.
BACKBONE_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py")
# With the ONNX export at the top level; variants in subfolders are not needed.
FILES = (*BACKBONE_FILES, "model.onnx*")
# The files of a model that decide its vectors; those after the first line are of diffaug and sentence-transformers.
_MODEL_FILES = (
    *("config.json", "*.safetensors", "*.safetensors.index.json", "*.py"),
    *("diffaug.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("[0-9]_*/config.json", "[0-9]_*/*.safetensors"),
)
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model"),
)


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
    try:
        path = Path(model_source(source)).expanduser()
        restore(path)
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, or ~ of a user who does not exist
        raise DiffaugError(f"the model {source[:100]} cannot be read: {error}"[:300]) from error
    if path.is_dir():
        return path
    if exists:
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


def backbone_fingerprints(source: str) -> tuple[str, str]:
    """SHA-256, in hex, of the files of a backbone, and of those of its tokenizer, wherever the folder is.

    Args:
        source: the backbone's folder or hub name.

    Raises:
        DiffaugError: the model was not found, or a file cannot be read.
    """
    folder = find_folder(source, None, BACKBONE_FILES)
    return _files_fingerprint(folder, _MODEL_FILES), _files_fingerprint(folder, _TOKENIZER_FILES)


def _files_fingerprint(folder: Path, patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    try:
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
            digest.update(f"{path.relative_to(folder).as_posix()} {checksum(path)}\n".encode())
    except OSError as error:
        raise DiffaugError(f"{folder} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


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
