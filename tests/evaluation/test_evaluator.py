"""Whole evaluations: one pass over distinct sentences, what is missing, averages, comparisons, and what is written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import Counting, embed, few_folds, sts_spec, transfer_spec, write_senteval, write_transfer, write_tsv

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation import EvaluationResult, evaluate
from diffaug.evaluation.statistics import Spearman
from diffaug.models.io.fingerprint import fingerprint

TRIPLETS = [("a dog", "a dog runs", "rain falls"), ("rain", "rain falls", "a dog runs")]
PAIRS = [("a dog", "a dog runs", 5.0), ("rain falls", "a dog", 0.0), ("rain", "rain falls", 4.5), ("a", "b", 1.0)]


def slightly_worse(sentences: list[str]) -> np.ndarray:
    rng = np.random.default_rng(len(sentences))
    return embed(sentences) + 0.02 * rng.normal(size=(len(sentences), 16))


def much_worse(sentences: list[str]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(sentences), 16))


def test_every_distinct_sentence_is_embedded_once_in_one_call(sts_folder: Path) -> None:
    model = Counting()
    report = evaluate(model, sts_folder, "sts,geometry", triplets=TRIPLETS, resamples=0)
    assert len(model.calls) == 1
    assert len(model.calls[0]) == len(set(model.calls[0])) == report.sentences
    assert {"a dog", "rain falls"} <= set(model.calls[0])


def test_missing_tasks_are_named_and_never_counted(sts_folder: Path) -> None:
    report = evaluate(embed, sts_folder, resamples=50)
    assert list(report.scores) == ["STS12", "STS13", "STS-B"]
    assert list(report.missing) == ["STS14", "STS15", "STS16", "SICK-R"]
    assert "STS14.deft-forum.tsv" in report.missing["STS14"]
    (average,) = report.averages
    assert average.score == pytest.approx(np.mean(list(report.scores.values())))
    assert average.name == "average of 3 of 7"
    assert average.low < average.score < average.high
    written = report.to_dict()
    assert written["averages"]["sts"]["over"] == 3
    assert written["averages"]["sts"]["of"] == 7
    assert written["averages"]["sts"]["missing"] == ["STS14", "STS15", "STS16", "SICK-R"]


def test_the_dev_split_is_no_part_of_the_average(sts_folder: Path) -> None:
    report = evaluate(embed, sts_folder, "STS12,STS13,STS-B-dev", resamples=0)
    assert len(report.tasks) == 3
    assert report.averages[0].tasks == ("STS12", "STS13")


def test_a_wrong_count_stops_everything(sts_folder: Path, tmp_path: Path) -> None:
    write_tsv(tmp_path, sts_spec("STS-B"))
    path = tmp_path / "STSB.test.tsv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    model = Counting()
    with pytest.raises(DiffaugError, match=r"STSB\.test\.tsv: found 1,378 rows, but STS-B has 1,379"):
        evaluate(model, tmp_path)
    assert model.calls == [], "nothing is embedded before all data is checked"


def test_several_folders_and_layouts_at_once(sts_folder: Path, tmp_path: Path) -> None:
    write_senteval(tmp_path, sts_spec("STS14"))
    report = evaluate(embed, [sts_folder, tmp_path], "sts", resamples=0)
    assert list(report.scores) == ["STS12", "STS13", "STS14", "STS-B"]
    assert any(path.endswith("STS.gs.images.txt") for path in report.files)


def test_transfer_tasks_in_a_whole_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_folds(monkeypatch)
    for name in ("CR", "TREC"):
        write_transfer(tmp_path, transfer_spec(name))
    report = evaluate(embed, tmp_path, "transfer", resamples=100)
    assert {task.name: task.protocol for task in report.tasks} == {
        "CR": "logreg_10fold",
        "TREC": "logreg_test",
    }
    assert report.scores["CR"] > 99
    assert report.scores["TREC"] > 70
    assert list(report.missing) == ["MR", "SUBJ", "MPQA", "SST2", "MRPC"]
    assert report.averages[0].name == "average of 2 of 7"
    assert report.to_dict() == evaluate(embed, tmp_path, "transfer", resamples=100).to_dict()


def test_nothing_to_evaluate_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiffaugError, match=r"no data was found for any task\. STS12: found neither"):
        evaluate(embed, tmp_path)
    with pytest.raises(DiffaugError, match=r"the folder .*nowhere with evaluation data does not exist"):
        evaluate(embed, tmp_path / "nowhere")
    monkeypatch.setenv("DIFFAUG_DATA", str(tmp_path / "data"))
    with pytest.raises(DiffaugError, match="diffaug data get senteval"):
        evaluate(embed)
    with pytest.raises(DiffaugError, match="nothing to evaluate"):
        evaluate(embed, tmp_path, "")


def test_fetched_data_is_found_without_being_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFAUG_DATA", str(tmp_path))
    write_senteval(tmp_path / "senteval", sts_spec("STS16"))
    assert list(evaluate(embed, tasks="STS16", resamples=0).scores) == ["STS16"]


def test_own_data_needs_no_public_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFAUG_DATA", str(tmp_path / "data"))
    pairs = tmp_path / "STS12.csv"
    rows = "".join(f"{a},{b},{score}\n" for a, b, score in PAIRS)
    pairs.write_text("sentence1,sentence2,score\n" + rows)
    retrieval = {"queries": {"1": "a dog"}, "corpus": {"x": "a dog runs", "y": "rain"}, "relevant": {"1": ["x"]}}
    report = evaluate(embed, pairs=pairs, triplets={"my triplets": TRIPLETS}, retrieval=retrieval, resamples=20)
    assert {task.name: task.protocol for task in report.tasks} == {
        "pairs STS12": "pairs_spearman",  # not to be taken for the public task
        "my triplets": "triplets_accuracy",
        "retrieval": "retrieval_mrr",
    }
    assert report.scores["my triplets"] == 100
    assert report.averages == []
    geometry = evaluate(embed, tasks="geometry", pairs=PAIRS, resamples=0).geometry
    assert geometry is not None
    assert (geometry.data, geometry.positives, geometry.sentences) == ("pairs", 2, 6)


def test_a_constant_model_is_undefined_not_zero(sts_folder: Path) -> None:
    report = evaluate(lambda sentences: np.ones((len(sentences), 4)), sts_folder, "STS12,STS13", resamples=20)
    assert np.isnan(report.scores["STS12"])
    written = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert written["tasks"]["STS12"]["score"] is None
    assert written["averages"]["sts"]["score"] is None
    assert "STS12 is undefined" in report.to_markdown()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda sentences: np.full((len(sentences), 4), np.nan), "NaN or infinity for 1,"),
        (lambda sentences: np.ones(len(sentences)), "returned an array of shape"),
        (lambda sentences: np.ones((3, 4)), "returned an array of shape"),
        (7, "cannot evaluate a int"),
    ],
)
def test_a_model_that_gives_no_vectors_is_an_error(model: object, message: str, sts_folder: Path) -> None:
    with pytest.raises(DiffaugError, match=message):
        evaluate(model, sts_folder, "STS13")  # type: ignore[arg-type]


def test_all_kinds_of_models_give_the_same(tiny_bert: Path) -> None:
    embedder = Embedder.from_pretrained(tiny_bert, device="cpu")

    class Foreign(torch.nn.Module):
        """Like a model of sentence-transformers: callable, but not on sentences."""

        def forward(self, features: dict[str, object]) -> None:
            raise AssertionError

        def encode(self, sentences: list[str]) -> list[torch.Tensor]:
            return list(torch.from_numpy(embedder.encode(sentences)))

    models = [
        str(tiny_bert),
        tiny_bert,
        embedder,
        lambda sentences: torch.tensor(embedder.encode(sentences)),
        Foreign(),
    ]
    reports = [evaluate(model, pairs=PAIRS, device="cpu", resamples=0) for model in models]
    assert len({round(report.scores["pairs"], 6) for report in reports}) == 1
    known = fingerprint(embedder.encoder)
    assert [report.model.fingerprint for report in reports] == [known, known, known, None, None]
    assert reports[0].model.name == str(tiny_bert)


def test_two_models_are_compared_on_the_same_rows(sts_folder: Path) -> None:
    def gold(sentences: list[str]) -> np.ndarray:
        return embed(sentences)

    report = evaluate(gold, sts_folder, "STS12,STS13", versus=slightly_worse, resamples=200)
    assert report.versus is not None
    assert [comparison.name for comparison in report.comparisons] == ["STS12", "STS13", "sts average of 2"]
    for comparison, task, other in zip(report.comparisons, report.tasks, report.versus.tasks, strict=False):
        assert comparison.difference == pytest.approx(task.score - other.score)
        assert not comparison.shown, "such a difference is no result"
    text = report.to_markdown()
    assert "STS12: no difference shown (" in text
    assert "gold" in text
    assert "slightly_worse" in text
    written = report.to_dict()["versus"]
    assert written["comparisons"][2]["shown"] is False
    assert written["tasks"]["STS12"]["protocol"] == "sts_all_spearman"


def test_a_clear_difference_is_said_in_words() -> None:
    sentences = [f"s{i}" for i in range(200)]
    pairs = [(a, b, float(embed([a])[0] @ embed([b])[0])) for a, b in pairwise(sentences)]
    report = evaluate(embed, pairs=pairs, versus=much_worse, resamples=200)
    (comparison,) = report.comparisons
    assert comparison.shown
    assert comparison.p_value < 0.02
    assert "pairs: embed is better than much_worse by" in report.to_markdown()


def test_models_of_the_same_folder_name_are_told_apart(tiny_bert: Path, tmp_path: Path) -> None:
    import shutil

    for run in ("a", "b"):
        shutil.copytree(tiny_bert, tmp_path / run / "best")
    report = evaluate(
        tmp_path / "a" / "best", triplets=TRIPLETS, versus=tmp_path / "b" / "best", resamples=10, device="cpu"
    )
    assert report.labels == ("a/best", "b/best")
    report = evaluate(tmp_path / "a" / "best", triplets=TRIPLETS, versus=tmp_path / "a" / "best", resamples=10)
    assert report.labels == ("the model", "the other")


def test_json_and_markdown_carry_protocol_and_fingerprint(tiny_bert: Path, sts_folder: Path, tmp_path: Path) -> None:
    report = evaluate(tiny_bert, sts_folder, "STS13,geometry", device="cpu", resamples=20)
    report.save_json(tmp_path / "out.json")
    report.save_markdown(tmp_path / "out.md")
    written = json.loads((tmp_path / "out.json").read_text())
    text = (tmp_path / "out.md").read_text()
    print_of_model = fingerprint(Embedder.from_pretrained(tiny_bert, device="cpu").encoder)
    assert written["model"] == {"name": str(tiny_bert), "fingerprint": print_of_model}
    assert written["tasks"]["STS13"]["protocol"] == "sts_all_spearman"
    assert set(written["tasks"]["STS13"]["subtasks"]) == {"FNWN", "headlines", "OnWN"}
    assert {"all", "mean", "wmean"} <= set(written["tasks"]["STS13"])
    assert written["geometry"]["data"] == "STS-B-dev"
    assert written["settings"] == {"seed": 0, "resamples": 20, "confidence": 0.95}
    assert written["files"][str(sts_folder / "STS13.FNWN.tsv")]
    assert print_of_model in text
    assert "sts_all_spearman" in text
    assert str(report) == text


def test_scores_do_not_depend_on_resamples_or_other_tasks(sts_folder: Path) -> None:
    alone = evaluate(embed, sts_folder, "STS13", resamples=50)
    together = evaluate(embed, sts_folder, "sts", resamples=50)
    assert alone.tasks[0].score == together.scores["STS13"]
    assert np.array_equal(alone.tasks[0].resampled, together.tasks[1].resampled)
    assert isinstance(alone.tasks[0].statistic, Spearman)


def test_settings_that_make_no_sense(sts_folder: Path) -> None:
    with pytest.raises(DiffaugError, match="resamples must not be negative, got -1"):
        evaluate(embed, sts_folder, resamples=-1)
    with pytest.raises(DiffaugError, match=r"confidence must be between 0 and 1, got 1\.0"):
        evaluate(embed, sts_folder, confidence=1.0)
    with pytest.raises(DiffaugError, match="needs resamples"):
        evaluate(embed, sts_folder, versus=embed, resamples=0)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("foo", r"unknown task 'foo'\. Groups: sts"),
        ("transfr", r"did you mean transfer\? Groups: "),
    ],
)
def test_an_unknown_task_is_said_in_sentences(word: str, said: str) -> None:
    with pytest.raises(DiffaugError, match=said):
        evaluate(embed, tasks=word)


def test_pairs_of_one_score_are_no_fault_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("sentence1,sentence2,score\na dog,a dog runs,1\nrain,rain falls,1\n")
    model = Counting()
    with pytest.raises(
        DiffaugError, match=r"same\.csv: every score is 1, so there is no ranking .* at least two different scores"
    ):
        evaluate(model, pairs=tmp_path / "same.csv")
    with pytest.raises(DiffaugError, match=r"the pairs given: every score is 2\.5"):
        evaluate(model, pairs=[("a dog", "a dog runs", 2.5)])
    assert model.calls == [], "known before anything is embedded"


def test_each_kind_of_own_data_takes_its_columns(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(
        "left,right,rating\na dog,a dog runs,5\nrain falls,a dog,0\nrain,rain falls,4\n"
    )
    (tmp_path / "triplets.jsonl").write_text('{"x": "rain", "y": "rain falls", "z": "a dog"}\n')
    (tmp_path / "found.csv").write_text("asked,body,text\nrain,rain falls,1\na dog,a dog runs,2\n")
    columns = {
        "sentence1": "left",
        "sentence2": "right",
        "score": "rating",
        "anchor": "x",
        "Positive": "y",
        "negative": "z",
    }
    pairs = [("a dog", "a dog runs", 5.0), ("rain falls", "a dog", 0.0), ("rain", "rain falls", 4.0)]
    expected = evaluate(embed, pairs=pairs, triplets=[("rain", "rain falls", "a dog")], resamples=0)
    files = {"pairs": tmp_path / "pairs.csv", "triplets": tmp_path / "triplets.jsonl"}
    assert evaluate(embed, **files, columns=columns, resamples=0).scores == expected.scores
    queries = {"query": "asked", "document": "body"}
    assert list(evaluate(embed, retrieval=tmp_path / "found.csv", columns=queries, resamples=0).scores) == ["found"]


def test_columns_that_nothing_has(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("left,right,rating\na,b,5\na,c,0\n")
    (tmp_path / "found.csv").write_text("asked,body\nrain,rain falls\n")
    for options, said in (
        (
            {"pairs": tmp_path / "pairs.csv", "columns": {"anchor": "left"}},
            "unknown column role 'anchor'; pairs have sentence1",
        ),
        ({"tasks": "sts", "columns": {"score": "x"}}, "role 'score'; roles are only for your own data"),
        ({"retrieval": tmp_path / "found.csv"}, r"found: asked, body; choose them .*--column query=NAME"),
        (
            {"retrieval": tmp_path / "found.csv", "columns": {"query": "x"}},
            "has no column 'x'; its columns are: asked, body",
        ),
        ({"retrieval": tmp_path, "columns": {"query": "x"}}, "is not a table"),
    ):
        with pytest.raises(DiffaugError, match=said):
            evaluate(embed, **options)


def test_a_result_read_from_json_is_the_same(sts_folder: Path, tmp_path: Path) -> None:
    """Also a result with undefined scores, which are null in JSON."""
    for model in (embed, lambda texts: np.ones((len(texts), 4))):
        result = evaluate(
            model,
            sts_folder,
            "sts",
            versus=slightly_worse,
            resamples=20,
            triplets=[("a", "b", "c"), ("d", "e", "f")],
        )
        result.save_json(tmp_path / "result.json")
        again = EvaluationResult.from_dict(json.loads((tmp_path / "result.json").read_text("utf-8")))
        assert again.to_markdown() == result.to_markdown()
        found, expected = again.to_dict(), result.to_dict()
        for values in (found, expected):  # differences of rounded scores
            for comparison in values["versus"]["comparisons"]:
                comparison["difference"] = comparison["difference"] and round(comparison["difference"], 5)
        assert found == expected


def test_the_former_name_of_the_result() -> None:
    import diffaug.evaluation

    assert diffaug.evaluation.Report is EvaluationResult
