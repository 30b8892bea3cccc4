from __future__ import annotations

from pathlib import Path

import pytest

from diffaug import load_recipe, train
from diffaug.errors import DiffaugError


def test_a_stage_in_which_nothing_learns_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    changes = [
        f"model.backbone={tiny_bert}",
        "data.nli=sample:triplets",
        "data.dev=null",
        "data.test=null",
        "stage2.frozen=[backbone, views, projection]",
        "stage2.steps=1",
    ]
    with pytest.raises(DiffaugError, match=r"stage2\.frozen leaves nothing to train; remove one of .*backbone"):
        train(load_recipe("diffaug-sup", changes), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
