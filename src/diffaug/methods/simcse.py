"""SimCSE: the first token's state, contrasted under dropout (unsupervised) or over NLI triplets (supervised).

With `views.kind: synonym` it is the baseline of its paper: in the positive, one word is replaced with a synonym.
"""

from __future__ import annotations

from typing import ClassVar

from diffaug.methods.twostage import TwoStage


class SimCSE(TwoStage):
    """SimCSE."""

    view_kinds: ClassVar[tuple[str, ...]] = ("dropout", "synonym")
