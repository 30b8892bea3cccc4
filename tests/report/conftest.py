"""A folder of real runs on a tiny model, trained once."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from report.made_runs import NASTY, write_run


@pytest.fixture(scope="session")
def trained(tiny_bert: Path, data_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, with a sentence full of markup among their data, and an unfinished one."""
    from diffaug.config import load_recipe
    from diffaug.training.run import train

    home = tmp_path_factory.mktemp("report")
    dev = home / "dev.tsv"
    lines = Path(data_files["dev"]).read_text("utf-8").splitlines()
    # With the highest gold score, and nothing like the other sentence: a pair that goes wrong.
    dev.write_text("\n".join([*lines, f"5\t{NASTY}\tYes."]) + "\n", "utf-8")
    nli = home / "triplets.csv"
    with nli.open("w", newline="", encoding="utf-8") as file:
        file.write(Path(data_files["nli"]).read_text("utf-8"))
        csv.writer(file).writerow([NASTY, "A sentence.", "Another one."])
    common = [
        f"model.backbone={tiny_bert}",
        f"data.nli={nli}",
        f"data.dev={dev}",
        "data.test=null",
        "data.max_length=16",
        "stage2.steps=4",
        "stage2.batch_size=8",
        "loop.eval_every=2",
    ]
    runs = home / "runs"
    stage1 = ["stage1.steps=4", "stage1.batch_size=8", "views.length=3"]
    train(load_recipe("quickstart", [*common, *stage1]), runs / "diffaug", quiet=True)
    train(load_recipe("simcse-sup", common), runs / "deeper" / "simcse", quiet=True)
    write_run(runs / "unfinished", finished=False)
    return runs
