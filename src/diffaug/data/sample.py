"""The sample data that comes with the package: small, written for this project, enough for a first run."""

from __future__ import annotations

from pathlib import Path

from diffaug.errors import DiffaugError

SAMPLE_PREFIX = "sample:"
SAMPLE_FOLDER = Path(__file__).parent.parent / "assets" / "sample"
SAMPLE_FILES = {
    "sentences": SAMPLE_FOLDER / "sentences.txt",
    "triplets": SAMPLE_FOLDER / "triplets.csv",
    "dev": SAMPLE_FOLDER / "dev.tsv",
    "test": SAMPLE_FOLDER / "test.tsv",
}


def sample_path(name: str) -> Path:
    """The file of a part of the sample data: ``sentences``, ``triplets``, ``dev`` or ``test``.

    Wherever data is read from a file, ``sample:triplets`` and so on name the same files.
    """
    if name not in SAMPLE_FILES:
        raise DiffaugError(f"there is no sample data {name!r}; there are {', '.join(SAMPLE_FILES)}")
    return SAMPLE_FILES[name]
