"""A data folder as small as plans can be made from: nothing of it is trained on."""

from __future__ import annotations

import lzma
from pathlib import Path

from diffaug.experiments.budget import load_budget
from diffaug.experiments.data import DataFiles
from diffaug.experiments.plan import Plan, PlanOptions, make_plan
from diffaug.experiments.spec import paper_spec

LABELS = 400


def fill_folder(folder: Path) -> Path:
    """Triplets, pairs and sentences, packed or not, STS-B dev and test."""
    for name in ("nli", "wiki", "sts"):
        (folder / name).mkdir(parents=True)
    triplets = "sent0,sent1,hard_neg\n" + "".join(f"A {i},B {i},C {i}\n" for i in range(LABELS))
    (folder / "nli" / "triplets.csv.xz").write_bytes(lzma.compress(triplets.encode()))
    pairs = "".join(f"A {i}\tB {i}\t{('entailment', 'neutral', 'contradiction')[i % 3]}\n" for i in range(9))
    (folder / "nli" / "pairs.tsv").write_text(pairs, "utf-8")
    (folder / "wiki" / "wiki1m.txt").write_text("One.\nTwo.\n", "utf-8")
    for split, rows in (("dev", 1500), ("test", 1379)):
        lines = "".join(f"{i % 6}\tFirst  {split} {i}\tSecond {split} {i}\n" for i in range(rows))
        (folder / "sts" / f"STSB.{split}.tsv").write_text(lines, "utf-8")
    return folder


def plan(experiment: str, data: DataFiles, budget: str = "paper", **others: object) -> Plan:
    """The plan of an experiment of the paper: BERT-base, three seeds, two draws, unless said otherwise."""
    return make_plan(paper_spec(experiment), options(data, budget, **others))


def options(data: DataFiles, budget: str = "paper", **others: object) -> PlanOptions:
    values = {"encoder": "bert-base-uncased", "seeds": (42, 43, 44), "draws": 2, "changes": (), **others}
    return PlanOptions(data=data, budget=load_budget(budget), **values)  # type: ignore[arg-type]
