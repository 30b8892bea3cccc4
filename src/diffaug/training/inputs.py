"""The inputs of a run, data and models: their provenance, and whether an unfinished run may go on with them.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffaug.config import Recipe, source_list
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, source_path
from diffaug.errors import DiffaugError
from diffaug.models.io.fetch import backbone_fingerprints, model_source
from diffaug.provenance import RunProvenance, checksum

ROLES = ("nli", "unlabelled", "dev", "test")
Fingerprints = Callable[[str], tuple[str, str]]


def model_fingerprints(recipe: Recipe, fingerprints: Fingerprints = backbone_fingerprints) -> dict[str, str]:
    """The fingerprints of all models that a recipe starts from.

    Args:
        recipe: of the run.
        fingerprints: `backbone_fingerprints`, or the same with a cache.
    """
    backbone, tokenizer = fingerprints(model_source(recipe.model.backbone))
    found = {"backbone": backbone, "tokenizer": tokenizer}
    if recipe.replaced.generator is not None:
        found["generator"], _ = fingerprints(model_source(recipe.replaced.generator))
    if recipe.distil.teacher is not None:
        found["teacher"], _ = fingerprints(model_source(recipe.distil.teacher))
    return found


def data_checksums(recipe: Recipe, checksum_of: Callable[[Path], str] = checksum) -> dict[str, dict[str, str]]:
    """The SHA-256 of the data files that a recipe names, as they are now; settings with other sources are left out.

    Raises:
        DiffaugError: a file cannot be read.
    """
    found: dict[str, dict[str, str]] = {}
    for role in ROLES:
        sources = source_list(getattr(recipe.data, role))
        if not sources or any(source.startswith((HUB_PREFIX, IN_MEMORY)) for source in sources):
            continue
        try:
            found[role] = {str(path): checksum_of(path) for path in map(source_path, sources)}
        except OSError as error:
            raise DiffaugError(f"data.{role}: {error.filename} cannot be read: {error.strerror or error}") from error
    return found


def resumed_provenance(folder: Path, now: RunProvenance, *, force: bool, say: Callable[[str], None]) -> RunProvenance:
    """The provenance of a run that is about to go on.

    Args:
        folder: of the run.
        now: the inputs and versions that it would go on with.
        force: go on even if inputs have changed; this is recorded.
        say: prints a line.

    Raises:
        DiffaugError: data, backbone or tokenizer have changed since the run was started.
    """
    before = RunProvenance.load(folder)
    if before is None:
        say("this run was started without a record of its inputs: whether they have changed is unknown")
        return now
    changes = before.changed(now)
    if changes.inputs and not force:
        raise DiffaugError(
            f"the run in {folder} was started with other inputs: {'; '.join(changes.inputs)}; restore them, start in "
            "another folder, or continue regardless with --force, which is recorded"
        )
    if changes.inputs:
        say(f"continued with --force although inputs have changed: {'; '.join(changes.inputs)}")
    if changes.environment:
        say(f"since the run was started, {'; '.join(changes.environment)}: results may differ slightly")
    return before.continued(now, force)
