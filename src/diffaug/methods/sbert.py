"""SBERT: one encoder reads both sentences of an NLI pair, a classifier over [u; v; |u - v|] names their relation."""

from __future__ import annotations

from typing import ClassVar

from diffaug.methods.twostage import TwoStage


class SBERT(TwoStage):
    """See the module's text. Its recipe has a stage 1 and no stage 2."""

    normal_init: ClassVar[bool] = False
