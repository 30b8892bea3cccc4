"""The page of real runs and of a grid, as a parser sees it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from report.made_runs import NASTY, write_grid, write_run

from diffaug.experiments.grid import Grid, write_result
from diffaug.experiments.results import DEV, Cell, Result
from diffaug.report import build
from diffaug.report.grids import read_grid


class Parsed(HTMLParser):
    """The elements of a page, the text of each `id`, and the rows of its tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text("utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag in ("script", "style", "td", "th"):
            self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside in ("td", "th"):
            self.rows[-1][-1] += data
        if self._inside not in ("script", "style"):
            self.text.append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found

    def row(self, start: str) -> list[str]:
        return next(row for row in self.rows if row and row[0].startswith(start))


@pytest.fixture(scope="module")
def page(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    return Parsed(build(trained, tmp_path_factory.mktemp("page") / "report.html", device="cpu"))


def test_the_page_is_one_file_that_fetches_nothing(page: Parsed) -> None:
    assert not [
        attrs for _, attrs in page.tags if re.match("(?i)https?:|//", attrs.get("src") or attrs.get("href") or "")
    ]
    assert {tag for tag, attrs in page.tags if "src" in attrs} <= {"img"}
    assert [attrs.get("href") for tag, attrs in page.tags if tag == "link"] == ["data:,"]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "url(" not in page.source
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(", page.scripts[1])


def test_a_sentence_with_markup_stays_a_sentence(page: Parsed) -> None:
    assert len(page.scripts) == 2
    assert NASTY in page.data["sentences"]
    assert not set("<>&") & set(page.scripts[0])
    assert "window.broken" not in page.scripts[1]
    assert "<b>bold</b>" not in page.source


def test_names_with_markup_stay_text_and_nan_becomes_null(tmp_path: Path) -> None:
    name = '"><script>window.broken = 1</script>'.replace("/", "-")
    run = write_run(tmp_path / "runs" / name, note=NASTY)
    write_run(tmp_path / "runs" / "other", note="plain")
    summary = json.loads((run / "summary.json").read_text())
    summary["scores"]["dev"] = float("nan")
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_text('{"stage": 2, "step": 1, "dev": NaN}\n')
    page = Parsed(build(tmp_path / "runs", tmp_path / "r.html"))
    assert len(page.scripts) == 2
    assert page.row(name)[1] == "–"
    assert any(NASTY in row for row in page.rows)
    assert "NaN" not in page.scripts[0]


def test_heading_says_what_was_run(page: Parsed) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "3 runs" in text
    assert "Encoder bert" in text
    assert "simcse, diffaug" in text
    assert "dev dev.tsv" in text
    assert "3: 2 finished, 1 unfinished" in text


def test_every_run_is_in_the_table_with_its_scores_and_state(page: Parsed, trained: Path) -> None:
    for name in ("diffaug", "deeper/simcse"):
        summary = json.loads((trained / name / "summary.json").read_text())
        row = page.row(name)
        assert "finished" in row[1]
        assert f"{summary['scores']['dev']:.2f}".replace("-", "−") in row[2]
    before = json.loads((trained / "diffaug" / "summary.json").read_text())["before"]["dev"]
    assert page.row("Before training")[2] == f"{before:.2f}".replace("-", "−")
    assert page.row("unfinished")[1:3] == ["unfinishedstage 2, step 20", "60.00so far"]


def test_one_entry_is_not_bold_and_empty_columns_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", finished=False)
    page = Parsed(build(tmp_path / "runs", tmp_path / "r.html"))
    assert "<b>60.00</b>" not in page.source
    write_run(tmp_path / "runs" / "b")
    assert "<b>60.00</b>" in build(tmp_path / "runs", tmp_path / "r.html").read_text("utf-8")
    write_run(tmp_path / "started" / "a", finished=False)
    assert Parsed(build(tmp_path / "started", tmp_path / "r.html")).rows[0] == ["Run", "State"]


def test_curves_are_those_of_the_metrics(page: Parsed, trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "diffaug" / "metrics.jsonl").read_text().splitlines()]
    run = next(run for run in page.data["runs"] if run["name"] == "diffaug")
    expected = [(line["stage"], line["step"], line["dev"]) for line in lines if "dev" in line]
    found = [(stage, x, y) for stage, xs, ys in run["curves"]["dev"] for x, y in zip(xs, ys, strict=True)]
    assert [(s, x) for s, x, _ in found] == [(s, x) for s, x, _ in expected]
    assert [y for *_, y in found] == pytest.approx([y for *_, y in expected], rel=1e-3)
    assert run["stages"] == [[1, 4], [2, 4]]
    names = [metric["name"] for metric in page.data["metrics"]]
    assert names[:6] == ["dev", "loss", "delta", "kappa", "alignment", "uniformity"]
    assert names[-1].startswith("lr_")


def test_settings_are_shared_or_a_runs_own(page: Parsed) -> None:
    assert page.data["shared"]["seed"] == "42"
    head = next(row for row in page.rows if row[:2] == ["Run", "name"])
    assert "method" in head
    assert next(row for row in page.rows if row[:2] == ["diffaug", "quickstart"])[head.index("method")] == "diffaug"
    run = next(run for run in page.data["runs"] if run["name"] == "diffaug")
    assert run["settings"]["views.length"] == "3"


def test_worst_pairs_and_map_are_what_the_model_says(page: Parsed, trained: Path) -> None:
    from diffaug import Embedder

    data = page.data
    place = next(i for i, run in enumerate(data["runs"]) if run["name"] == "diffaug")
    embedder = Embedder.from_pretrained(trained / "diffaug" / "best", device="cpu")
    rows = data["pairs"][0]["runs"][str(place)]
    assert data["pairs"][0]["count"] == 41
    for first, second, gold, gold_rank, cosine, rank, _ in rows:
        assert cosine == pytest.approx(
            embedder.similarity(data["sentences"][first], data["sentences"][second]), abs=2e-3
        )
        assert 0 <= min(gold_rank, rank) <= max(gold_rank, rank) <= 100
        assert 0 <= gold <= 5
    # Both ranks are rounded, which moves an error by one at the most; the order is that of the exact ones.
    errors = [abs(row[5] - row[3]) for row in rows]
    assert all(larger >= smaller - 2 for larger, smaller in pairwise(errors))
    assert errors[0] - errors[-1] > 50

    drawn = data["map"]
    assert drawn["from"].endswith(", nli")
    model = next(model for model in drawn["models"] if model["run"] == place)
    texts = [data["sentences"][i] for i in drawn["points"]]
    backbone = yaml.safe_load((trained / "diffaug" / "recipe.yaml").read_text())["model"]["backbone"]
    for side, source in ((model["after"], embedder), (drawn["before"][model["before"]], backbone)):
        vectors = (source if source is embedder else Embedder.from_pretrained(source, device="cpu")).encode(texts)
        near, cosine = side["near"][0][0]
        assert cosine == pytest.approx(100 * max(vectors[0] @ vectors[j] for j in range(1, len(texts))), abs=0.6)
        assert near != 0
        assert len(side["xy"]) == len(texts)
        assert np.min(side["xy"]) >= 0
        assert np.max(side["xy"]) <= 1000


def test_the_same_runs_give_the_same_page(trained: Path, page: Parsed, tmp_path: Path) -> None:
    assert build(trained, tmp_path / "again.html", device="cpu").read_text("utf-8") == page.source


def test_where_all_are_finished_states_take_no_room(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b")
    page = Parsed(build(tmp_path / "runs", tmp_path / "r.html"))
    assert page.rows[0][:2] == ["Run", "dev"]
    assert "2, all finished" in page.text
    write_run(tmp_path / "runs" / "c", finished=False)
    assert Parsed(build(tmp_path / "runs", tmp_path / "r.html")).rows[0][:2] == ["Run", "State"]


def test_without_a_map_no_model_is_mapped(trained: Path, tmp_path: Path) -> None:
    assert Parsed(build(trained, tmp_path / "r.html", projection=None, device="cpu")).data["map"] is None
    few = Parsed(build(trained, tmp_path / "r.html", maps=1, device="cpu")).data
    assert len(few["map"]["models"]) == 1


def test_why_there_is_no_map_is_said(trained: Path, tmp_path: Path) -> None:
    def why(folder: Path, **options: Any) -> str:
        return " ".join(Parsed(build(folder, tmp_path / "r.html", device="cpu", **options)).data["map_notes"])

    assert "turned off with --map none" in why(trained, projection=None)
    assert "no run has one in its folder best/" in why(write_run(tmp_path / "a" / "run").parent)
    assert why(trained) == ""


def test_the_figure_follows_the_first_table_and_long_settings_are_closed(tmp_path: Path) -> None:
    cells = [Cell(f"Row {i}", "", "simcse-sup", (), group="g", baseline=True) for i in range(14)]
    grid = Grid.begin(tmp_path / "grid", {"experiment": "main"}, {}, cells)
    for cell in cells:
        write_result(grid.folder_of(cell), Result({DEV: 60.0, "STS-B": 60.0, "average": 60.0}, 1.0, 1.0))
    (grid.folder / "figures").mkdir()
    (grid.folder / "figures" / "main.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    source = build(grid.folder, tmp_path / "r.html").read_text("utf-8")
    places = [source.index(text) for text in (">Scores by task<", "<figure>", "<summary>Settings and runs")]
    assert places == sorted(places)


def test_many_failures_are_not_all_named_at_once(tmp_path: Path) -> None:
    for i in range(9):
        write_run(tmp_path / "runs" / f"run-{i}", finished=False)
        (tmp_path / "runs" / f"run-{i}" / "failure.txt").write_text("no luck\n")
    page = Parsed(build(tmp_path / "runs", tmp_path / "r.html"))
    assert "9 runs have failed" in page.text
    assert "3 more" in page.text


def test_a_single_run_is_its_own_report(tmp_path: Path) -> None:
    write_run(tmp_path / "my-run")
    page = Parsed(build(tmp_path / "my-run", tmp_path / "r.html"))
    assert "my-run" in page.text
    assert "Settings that differ" not in page.text
    assert page.data["map"] is None


def test_a_grid_has_its_tables_and_every_cell(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid")
    recorded = json.loads((grid.folder / "grid.json").read_text())
    recorded["request"]["changes"] = ["stage2.steps=<20>"]
    (grid.folder / "grid.json").write_text(json.dumps(recorded))
    (grid.folder / "figures").mkdir()
    (grid.folder / "figures" / "main.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    page = Parsed(build(grid.folder, tmp_path / "r.html"))
    text = " ".join(" ".join(page.text).split())
    assert "The <main> table" in page.text
    assert "<main> table" not in page.source.replace("&lt;", "")
    assert "6: 3 finished, 1 unfinished, 1 failed, 1 waiting" in text
    assert "Machine a GPU, torch 2.13.0" in text
    assert text.count("Changed for all rows: --set 'stage2.steps=<20>'.") == 3  # scores, tests, settings
    assert "1 run has failed" in text
    assert "the loss is not a finite number any more; lower the learning rate" in text
    result = grid.result(grid.cells[2])
    assert result is not None
    assert any(f"{result.scores['STS-B']:.2f}" in cell for cell in page.row("DiffAug, sup"))
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img"] == ["Figure: main"]
    assert page.data["pairs"][0]["name"] == "STS-B"
    assert set(page.data["pairs"][0]["runs"]) == {"0", "1", "2"}
    assert "DiffAug, sup has the highest average" in text
    assert "No measurement yet for 2 of 4 rows: PromptBERT, sup; SBERT" in text
    assert [row for row in page.rows if len(row) > 1 and not set(row[1:]) - {"–", ""}] == []


def test_a_grid_whose_tasks_are_in_its_data_folder(tmp_path: Path) -> None:
    from evaluation.made_up import sts_spec, write_tsv

    from diffaug.report.pairs import PairReader

    write_tsv(tmp_path, sts_spec("STS-B"))
    (tmp_path / "first").mkdir()
    grid = write_grid(tmp_path / "grid")
    for folder in (str(tmp_path), [str(tmp_path / "first"), str(tmp_path), str(tmp_path / "gone")]):
        grid.request["data"] = {"folder": folder}
        grid._write()
        run = read_grid(grid.folder).runs[0]
        assert len(PairReader().tasks(run.tasks)["STS-B"]) == 1379
    assert PairReader().tasks(()) == {}


def test_joined_sources_are_named_in_the_facts(tmp_path: Path) -> None:
    write_run(tmp_path / "a", data={"nli": ["/d/snli.jsonl", "hub:nyu-mll/multi_nli"]})
    page = Parsed(build(tmp_path, tmp_path / "r.html", device="cpu"))
    assert "snli.jsonl + hub:nyu-mll/multi_nli" in "".join(page.text)


def test_a_hundred_runs_stay_below_three_megabytes(tmp_path: Path) -> None:
    """Runs of real length: 3,000 steps, logged every 10, evaluated every 50."""
    random = np.random.default_rng(0)
    gold = random.uniform(0, 5, 1500).round(1)
    sentences = [f"{' '.join(f'word{w}' for w in random.integers(0, 999, 9))}." for _ in range(3000)]
    dev = tmp_path / "dev.tsv"
    dev.write_text(
        "".join(f"{g}\t{a}\t{b}\n" for g, a, b in zip(gold, sentences[:1500], sentences[1500:], strict=True))
    )
    metrics = []
    for step in range(10, 3001, 10):
        names = ["loss", "nli", "contrastive", "lr_backbone", "lr_views", "lr_projection"]
        metrics.append({"stage": 2, "step": step, **{name: float(random.random()) for name in names}})
        if step % 50 == 0:
            names = ["dev", "alignment", "uniformity", "delta", "kappa"]
            metrics.append({"stage": 2, "step": step, **{name: float(random.random()) for name in names}})
    text = "".join(json.dumps(line) + "\n" for line in metrics)
    for i in range(100):
        run = write_run(tmp_path / "runs" / f"run-{i}", dev, seed=i)
        (run / "metrics.jsonl").write_text(text)
        np.savez(run / "similarities.npz", **{"dev/cosine": random.random(1500), "dev/gold": gold})
    assert build(tmp_path / "runs", tmp_path / "r.html").stat().st_size < 3_000_000


def test_a_report_never_goes_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants

    modes = []

    def load_dataset(*_: object, **__: object) -> None:
        modes.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        raise ConnectionError("it is not in the cache")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    folder = write_run(tmp_path / "a")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["data"]["dev"] = "hub:owner/pairs"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    page = Parsed(build(folder, tmp_path / "r.html"))
    assert set(modes) == {(True, True)}
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)
    assert any("it is not in the cache" in text for text in page.text)
