"""The JSON file that describes a saved or exported model."""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.version import __version__


def read_description(path: Path, kind: str, newest: int, keys: Set[str]) -> dict[str, Any]:
    """Read a description with exactly these keys, of any format version up to ``newest``.

    Args:
        path: the file.
        kind: what it describes, for error messages, such as "a diffaug model".
        newest: the newest supported format version.
        keys: the expected keys.

    Raises:
        DiffaugError: the file cannot be read, is not a description, or was written by a newer version.
    """
    try:
        description = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON ({error}); save or copy the model again") from error
    version = description.get("format_version") if isinstance(description, dict) else None
    if type(version) is not int or version < 1:
        raise DiffaugError(f"{path} has no format_version; it is not a description of {kind}")
    if version > newest:
        raise DiffaugError(
            f"{path} has format version {version}, written by a newer diffaug "
            f"({description.get('diffaug_version', 'unknown')}) than this one ({__version__}); upgrade diffaug"
        )
    for what, wrong in (("lacks", keys - description.keys()), ("has the unknown keys", description.keys() - keys)):
        if wrong:
            raise DiffaugError(f"{path} {what} {', '.join(sorted(wrong))}")
    return dict(description)
