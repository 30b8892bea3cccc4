"""SimCSE: the first token's state, contrasted under dropout (unsupervised) or over NLI triplets (supervised).

With the views' kind `synonym`, the baseline of its paper: the positive is the sentence with a word exchanged.
"""

from __future__ import annotations

from diffaug.methods.twostage import TwoStage


class SimCSE(TwoStage):
    """See the module's text."""
