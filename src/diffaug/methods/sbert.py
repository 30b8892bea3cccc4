"""SBERT: one encoder for both sentences of an NLI pair, and a classifier over [u; v; |u - v|]."""

from __future__ import annotations

from typing import ClassVar

from diffaug.methods.twostage import TwoStage


class SBERT(TwoStage):
    """SBERT. Its recipe has a stage 1 and no stage 2."""

    normal_init: ClassVar[bool] = False
