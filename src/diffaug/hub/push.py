"""Push models to the hub. `diffaug.embedder` loads them by name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from diffaug.errors import DiffaugError
from diffaug.hub.card import CARD, model_card, public_recipe
from diffaug.models.config import Provenance
from diffaug.models.io.saved import save_model

if TYPE_CHECKING:
    from diffaug.embedder import Embedder


def push(
    embedder: Embedder,
    repo_id: str,
    *,
    private: bool | None = None,
    branch: str | None = None,
    token: str | None = None,
    license: str | None = None,
    report: Mapping[str, Any] | None = None,
    card: str | None = None,
    message: str | None = None,
) -> str:
    """Push a model to a new or existing repository on the hub, see `Embedder.push_to_hub`."""
    if repo_id.count("/") != 1:
        raise DiffaugError(f"the name on the hub must have the form owner/name, got {repo_id!r}")
    if token is None and get_token() is None:
        raise DiffaugError(
            f"pushing to {repo_id} needs a token with write access: log in with 'hf auth login', set HF_TOKEN, or pass "
            "one (token=, on the command line --token)"
        )
    if card is not None and (license is not None or report is not None):
        raise DiffaugError("license and scores are for the generated card; leave them out if you give your own card")
    # Before the repository is created: an error here must not leave an empty repository.
    text = card or model_card(embedder.encoder, embedder.provenance, name=repo_id, license=license, report=report)
    api = HfApi(token=token, library_name="diffaug")
    with tempfile.TemporaryDirectory() as place, _explained(repo_id, api.endpoint):
        folder = Path(place) / "model"
        _write(folder, embedder, text)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=branch,
            commit_message=message or "A model trained with diffaug",
        )
    return str(commit.commit_url)


def _write(folder: Path, embedder: Embedder, card: str) -> None:
    """Save the model and its card, without paths of this machine."""
    provenance = embedder.provenance
    public = Provenance(provenance.method, public_recipe(provenance.recipe), provenance.scores)
    save_model(folder, embedder.encoder, embedder.tokenizer, public)
    (folder / CARD).write_text(card, "utf-8")


@contextmanager
def _explained(repo_id: str, endpoint: str) -> Iterator[None]:
    """Convert the hub's errors to one sentence each."""
    try:
        yield
    except DiffaugError:
        raise
    except OfflineModeIsEnabled as error:
        raise DiffaugError(f"{repo_id} cannot be pushed: HF_HUB_OFFLINE is set; unset it") from error
    except HFValidationError as error:
        raise DiffaugError(f"the name on the hub must have the form owner/name, got {repo_id!r}") from error
    except HfHubHTTPError as error:
        raise DiffaugError(f"{repo_id} cannot be pushed: {_refusal(error)}") from error
    except Exception as error:  # errors of the HTTP library and of the system: no connection, unknown host, timeout
        raise DiffaugError(
            f"{repo_id} cannot be pushed: the hub at {endpoint} cannot be reached ({_line(error)}); try again, "
            "finished uploads are not repeated"
        ) from error


def _refusal(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    if status == 401:
        return "the hub rejects the token; log in again with 'hf auth login'"
    if status in (403, 404):
        return "the token has no write access; use a token of the repository's owner, or another name"
    return f"the hub returned status {status}: {_line(error)}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
