"""Hard negatives: those of sentence-transformers with the same settings, and never a false one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diffaug import DiffaugError, Embedder, mine_hard_negatives
from diffaug.cli import app
from diffaug.data.labels import Label
from diffaug.data.read import read_triplets
from diffaug.data.records import Classes, LabelledPairs, PositivePairs, ScoredPairs

WORDS = ["dog", "cat", "horse", "bird", "market", "price", "bank", "money", "tomato", "kitchen"]


@pytest.fixture(scope="module")
def model() -> Embedder:
    return Embedder.from_pretrained(device="cpu")


@pytest.fixture(scope="module")
def pairs() -> PositivePairs:
    return PositivePairs(
        [f"The {word} was seen on Monday." for word in WORDS], [f"On Monday, someone saw a {word}." for word in WORDS]
    )


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"relative_margin": None},
        {"relative_margin": 0.05},
        {"relative_margin": None, "absolute_margin": 0.02, "range_max": 4},
        {"relative_margin": None, "range_min": 1, "range_max": 8, "max_score": 0.9},
        {"relative_margin": None, "min_score": 0.5, "num_negatives": 1},
    ],
)
def test_the_negatives_of_sentence_transformers(
    options: dict[str, float], several: bool, model: Embedder, pairs: PositivePairs, tmp_path: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    from sentence_transformers.util import mine_hard_negatives as theirs

    from diffaug.integrations.st_native import export_native

    if several:  # positives of some anchors
        others = [f"A {word} again, seen by someone." for word in WORDS[:4]]
        pairs = PositivePairs([*pairs.anchors, *pairs.anchors[:4]], [*pairs.positives, *others])
    export_native(model, tmp_path / "st")
    dataset = datasets.Dataset.from_dict({"anchor": pairs.anchors, "positive": pairs.positives})
    # They look for negatives among the positives, and do not exclude the anchor.
    options = {"range_min": 0, "range_max": 10, "num_negatives": 2, **options}
    other = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    found = theirs(dataset, other, verbose=False, corpus=pairs.positives, output_format="triplet", **options)
    expected = {tuple(row[name] for name in ("anchor", "positive", "negative")) for row in found}
    assert expected
    assert set(mine_hard_negatives(model, pairs, pairs.positives, **options)) == expected  # type: ignore[arg-type]


def test_what_belongs_together_is_never_a_negative(model: Embedder) -> None:
    first, second = "How do I reset my password?", "I forgot my password, what now?"
    labels = PositivePairs([first, second], [second, "Where can I change my password?"])
    text = [first.upper(), second, f" {first} ", "Where can I change my  password?", "The cat sleeps.", "Buy bread."]
    negatives = mine_hard_negatives(model, labels, text, relative_margin=None, num_negatives=9)
    by_anchor = {anchor: {n for a, _, n in negatives if a == anchor} for anchor in labels.anchors}
    assert by_anchor[second] == {"The cat sleeps.", "Buy bread."}
    assert not by_anchor[first] & {first.upper(), f" {first} ".strip(), second}
    classes = Classes(
        [f"Card {i} is lost" for i in range(3)] + [f"Card {i} works" for i in range(3)], ["a"] * 3 + ["b"] * 3
    )
    for anchor, positive, negative in mine_hard_negatives(model, classes, relative_margin=None):
        assert anchor.split()[2:] == positive.split()[2:] != negative.split()[2:]
        assert anchor != positive


def test_blocks_and_random_sampling(model: Embedder, pairs: PositivePairs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mine_hard_negatives(model, pairs)
    monkeypatch.setattr("diffaug.mining._BLOCK", 30)
    assert mine_hard_negatives(model, pairs) == whole
    drawn = [mine_hard_negatives(model, pairs, sampling="random", seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    cosines = np.einsum("ij,ij->i", model.encode(whole.anchors), model.encode(whole.positives))
    others = np.einsum("ij,ij->i", model.encode(whole.anchors), model.encode(whole.negatives))
    assert (others <= 0.95 * cosines + 1e-6).all()


def test_what_cannot_be_mined(model: Embedder, pairs: PositivePairs) -> None:
    with pytest.raises(DiffaugError, match="none of 10 pairs has a negative that fits"):
        mine_hard_negatives(model, pairs, max_score=-1.0)
    with pytest.raises(DiffaugError, match="range_min must be at least 0 and below range_max, got 5 and 5"):
        mine_hard_negatives(model, pairs, range_min=5, range_max=5)
    with pytest.raises(DiffaugError, match="scored pairs do not say which sentences belong together"):
        mine_hard_negatives(model, ScoredPairs(["a"], ["b"], [1.0]))
    with pytest.raises(DiffaugError, match="1 labelled pairs have no two sentences that belong together"):
        mine_hard_negatives(model, LabelledPairs(["a"], ["b"], [Label.NOT_ENTAILMENT]))


def test_the_command(pairs: PositivePairs, tmp_path: Path) -> None:
    lines = ["anchor\tpositive", *("\t".join(row) for row in pairs)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), "utf-8")
    command = [
        "data",
        "mine",
        str(tmp_path / "pairs.tsv"),
        "--out",
        str(tmp_path / "mined.csv"),
        "--num-negatives",
        "1",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert read_triplets(tmp_path / "mined.csv") == mine_hard_negatives(
        Embedder.from_pretrained(), pairs, num_negatives=1
    )


def test_the_command_writes_over_nothing(pairs: PositivePairs, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\n" + "\n".join(f"{a},{b}" for a, b in pairs), "utf-8")
    before = path.read_text("utf-8")
    result = CliRunner().invoke(app, ["data", "mine", str(path), "--out", str(path)])
    assert isinstance(result.exception, DiffaugError)
    assert "exists; choose another name, or remove it" in str(result.exception)
    assert path.read_text("utf-8") == before


def test_columns_and_labels_have_other_names(pairs: PositivePairs, tmp_path: Path) -> None:
    rows = [f'"{a}","{b}",{"ja" if i < 8 else "nein"}' for i, (a, b) in enumerate(pairs)]
    (tmp_path / "a.csv").write_text("\n".join(["Erste,Zweite,Urteil", *rows]), "utf-8")
    (tmp_path / "raw.csv").write_text("Nr,Betreff\n1,Rain on Monday\n2,Buy bread\n", "utf-8")
    options = ["premise=Erste", "hypothesis=Zweite", "label=Urteil"]
    command = ["data", "mine", str(tmp_path / "a.csv"), *(word for option in options for word in ("--column", option))]
    command += ["--label", "ja=same", "--label", "nein=different", "--text", str(tmp_path / "raw.csv")]
    command += ["--text-column", "Betreff", "--out", str(tmp_path / "mined.csv")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output + repr(result.exception)
    mined = read_triplets(tmp_path / "mined.csv")
    assert set(mined.anchors) == set(pairs.anchors[:8])
    assert set(mined.negatives) <= {"Rain on Monday", "Buy bread"}


def test_bad_rows_and_pairs_without_negatives_are_named(
    model: Embedder, pairs: PositivePairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nearest = mine_hard_negatives(model, pairs, num_negatives=1, relative_margin=None)
    cosines = sorted(model.similarity(anchor, negative) for anchor, _, negative in nearest)
    rows = [f'"{a}","{b}"' for a, b in pairs]
    (tmp_path / "a.csv").write_text("\n".join(["anchor,positive", "alone,", *rows]), "utf-8")
    command = [
        "data",
        "mine",
        str(tmp_path / "a.csv"),
        "--out",
        str(tmp_path / "mined.csv"),
        "--relative-margin",
        "-99",
    ]
    with pytest.raises(DiffaugError, match="or skip such lines with --on-bad skip"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    result = CliRunner().invoke(app, [*command, "--on-bad", "skip", "--min-score", str((cosines[2] + cosines[3]) / 2)])
    assert result.exit_code == 0, result.output + repr(result.exception)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("skipped 1 of" in line for line in warnings)
    assert any(f" of {len(pairs)} pairs have no negative that fits and are left out" in line for line in warnings)


def test_margins_are_finite(model: Embedder, pairs: PositivePairs) -> None:
    with pytest.raises(DiffaugError, match="relative_margin must be a finite number, got nan"):
        mine_hard_negatives(model, pairs, relative_margin=float("nan"))
