"""What several runs of one process need only once: files that were read, sentences that were tokenised."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

from diffaug.data.collate import Collator
from diffaug.data.formats import HUB_PREFIX
from diffaug.data.given import Given
from diffaug.data.layout import Columns
from diffaug.data.problems import OnBad
from diffaug.data.sample import SAMPLE_PREFIX, sample_path
from diffaug.data.shared import SharedTokens
from diffaug.data.streams import TokenBank

Made = TypeVar("Made")


class KeptData:
    """Keeps everything that it is asked to make, for as long as it lives.

    A file that has changed since is read again. Sentences are recognised by their text: a run that draws other labels
    of the same file finds them tokenised, as long as its model reads sentences the same way.

    Args:
        shared: a folder for word pieces that other processes can use as well.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self._shared = None if shared is None else SharedTokens(shared)
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable | None, make: Callable[[], Made]) -> Made:
        """What ``make`` returned when this key was first asked for; without a key, what it returns now."""
        if key is None:
            return make()
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value] # a key belongs to one kind of thing

    def tokens(self, collator: Collator) -> TokenBank:
        """The word pieces of all sentences read so far in the way of this collator."""
        return self.once(("tokens", collator.reading), lambda: TokenBank(collator, self._shared))


def file_key(source: str | Given | Sequence[str | Given], columns: Columns | None, on_bad: OnBad) -> Hashable | None:
    """By what a source that was read is known again; None for one that must be read anew: rows, or a missing file.

    Of several sources that are joined, the keys of all.
    """
    if isinstance(source, Given):
        return None
    if not isinstance(source, str):
        keys = tuple(file_key(one, columns, on_bad) for one in source)
        return None if None in keys else keys
    how = (tuple(sorted(columns.items())) if columns else None, on_bad)
    if source.startswith(HUB_PREFIX):
        return source, how
    sample = source.startswith(SAMPLE_PREFIX)
    try:
        path = sample_path(source.removeprefix(SAMPLE_PREFIX)) if sample else Path(source).expanduser()
        found = path.stat()
    except OSError:
        return None
    return str(path.resolve()), found.st_mtime_ns, found.st_size, how
