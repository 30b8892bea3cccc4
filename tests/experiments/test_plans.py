"""Plans: every cell is a run that can be started, and what makes it a row or column cannot be tuned away."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from plan_data import LABELS, fill_folder, options, plan
from published_data import MULTINLI, SNLI, STSB_ROWS, nli_zip, write_stsb

from diffaug.config import RECIPES, Recipe, load_recipe, recipe_names
from diffaug.data.public.store import find_dataset, get
from diffaug.errors import DiffaugError
from diffaug.experiments.budget import budget_names
from diffaug.experiments.data import DataFiles
from diffaug.experiments.paper import numbers
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell
from diffaug.experiments.spec import experiment_names, paper_spec
from diffaug.models.views.synonym import WordNet

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFiles:
    return DataFiles.find(fill_folder(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module", autouse=True)
def _wordnet() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffaug.models.views.synonym.WordNet", lambda: None)
        yield


@pytest.fixture(scope="module")
def planned(data: DataFiles) -> Planned:
    """The plan of an experiment with a budget, each made once."""

    @cache
    def make(experiment: str, budget: str = "paper") -> Plan:
        return plan(experiment, data, budget)

    return make


@cache
def recipe_of(cell: Cell) -> Recipe:
    return load_recipe(cell.recipe, cell.changes)


def at(made: Plan, row: str, column: str = "") -> list[Cell]:
    return [cell for cell in made.cells if (cell.row, cell.column) == (row, column)]


@pytest.mark.parametrize("budget", budget_names())
@pytest.mark.parametrize("experiment", experiment_names())
def test_every_cell_is_a_run_of_its_own(experiment: str, budget: str, data: DataFiles, planned: Planned) -> None:
    made = planned(experiment, budget)
    cells = [*made.cells, *made.more(made.cells[-1])]
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    runs = []
    for cell in cells:
        recipe = recipe_of(cell)
        assert (recipe.seed, recipe.data.label_draw) == (cell.seed, cell.draw)
        assert recipe.model.backbone == "bert-base-uncased"
        assert recipe.data.dev == data.dev
        runs.append(json.dumps(recipe.to_dict(), sort_keys=True))
    assert len(set(runs)) == len(runs), "two cells are the same run"
    assert {cell.seed for cell in made.cells} == {42}
    assert {cell.draw for cell in made.cells} == {0}
    assert made.spec.title


def test_main_and_ablation_have_every_recipe(planned: Planned) -> None:
    main, ablation = planned("main"), planned("ablation")
    recipes = {cell.recipe for cell in main.cells}
    variants = {name for name in recipe_names() if name.startswith("diffaug-semi-") and name != "diffaug-semi-aux"}
    assert recipes == set(recipe_names()) - variants - {"quickstart", "adapt-diffaug", "adapt-simcse", "distil"}
    assert {cell.recipe for cell in ablation.cells} == variants | {"diffaug-semi", "simcse-unsup", "simcse-synonym"}


def test_every_row_of_the_paper_is_a_row_of_ours(planned: Planned) -> None:
    for experiment in experiment_names():
        ours = {cell.place for cell in planned(experiment).cells}
        for table in paper_spec(experiment).published:
            assert {(row, column) for (row, column, _), _ in numbers(table)} <= ours, table.label


def test_only_diffaug_is_no_baseline_and_has_baselines_in_its_groups(planned: Planned) -> None:
    made = planned("main")
    ours = [cell for cell in made.cells if not cell.baseline]
    assert [cell.row for cell in ours] == ["DiffAug, semi", "DiffAug, semi + aux", "DiffAug, sup"]
    for cell in ours:
        assert any(other.baseline for other in made.cells if other.group == cell.group)
    # Flows that were shown the test sentences must not be anybody's strongest baseline.
    groups = {cell.recipe: cell.group for cell in made.cells}
    assert groups["bert-flow-target"] == groups["sbert-flow-target"] not in {cell.group for cell in ours}


def test_all_rows_that_learn_try_as_many_settings(planned: Planned) -> None:
    for experiment in ("main", "low-label", "ablation"):
        made = planned(experiment, "small")
        for cell in made.cells:
            assert len(at(made, cell.row, cell.column)) == (1 if cell.recipe.startswith("untrained") else 3)
        (place,) = (i for i, note in enumerate(made.notes) if "best of 3 settings on STS-B dev" in note)
        assert "what was known before it is not" in made.notes[place + 1]


def test_seeds_and_draws_of_a_chosen_cell(planned: Planned) -> None:
    made = planned("low-label")
    few, all_ = at(made, "DiffAug, sup", "10 %")[0], at(made, "DiffAug, sup", "100 %")[0]
    every = {(draw, seed) for draw in (0, 1) for seed in (42, 43, 44)}
    assert {(cell.draw, cell.seed) for cell in made.more(few)} == every - {(0, 42)}
    assert {(cell.draw, cell.seed) for cell in made.more(all_)} == {(0, 43), (0, 44)}
    for cell in made.more(few):
        assert recipe_of(cell).data.labels == recipe_of(few).data.labels == LABELS / 10
    untrained = at(planned("main"), "No training, mean")[0]
    assert made.more(untrained) == []


def test_the_chosen_setting_is_kept(planned: Planned) -> None:
    made = planned("main", "small")
    chosen = at(made, "SimCSE, joint")[2]
    assert {cell.setting for cell in made.more(chosen)} == {2}
    steps = {recipe.stage2.steps for cell in made.more(chosen) if (recipe := recipe_of(cell)).stage2}
    assert steps == {3000}


def test_fractions_and_counts_of_labels(data: DataFiles) -> None:
    wanted = ("0.01", "10%", "200", "400", "0")
    made = plan("low-label", data, columns=wanted)
    labels = {cell.column: recipe_of(cell).data.labels for cell in made.cells if cell.row == "SimCSE, sup"}
    assert labels == {"1 %": 4, "10 %": 40, "200": 200, "400": 1.0}
    unsup = at(made, "SimCSE, joint", "0 %")
    assert [cell.recipe for cell in unsup] == ["simcse-unsup"]
    assert not any(entry.startswith(("data.nli", "data.label")) for entry in unsup[0].changes)
    assert any(f"There are {LABELS} labelled examples" in note for note in made.notes)


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ("401", "between 0 and 400"),
        ("many", "not a number of labels"),
        ("-3", "between 0 and 400"),
        ("0.25%", "too few"),
    ],
)
def test_an_impossible_amount_of_labels_is_an_error(column: str, complaint: str, data: DataFiles) -> None:
    with pytest.raises(DiffaugError, match=complaint):
        plan("low-label", data, columns=(column,))


def test_few_labels_are_tuned_with_settings_for_few(data: DataFiles) -> None:
    made = plan("low-label", data, "small", columns=("1%", "100%"))
    stages = [recipe_of(at(made, "PromptBERT, sup", column)[0]).stage2 for column in ("1 %", "100 %")]
    assert [stage.steps for stage in stages if stage] == [200, None]


def test_a_column_stands_above_the_setting(data: DataFiles) -> None:
    weights = plan("aux-weight", data, "small", columns=("0", "1e-3"))
    found = {cell.column: recipe_of(cell).stage2 for cell in weights.cells}
    assert {name: stage.aux_weight for name, stage in found.items() if stage} == {"0": 0.0, "0.001": 0.001}
    steps = plan("stage1-steps", data, "small", columns=("0", "1,500", "auto"))
    stages = {cell.column: recipe_of(cell).stage1 for cell in steps.cells}
    assert stages["0"] is None
    assert {name: stage.steps for name, stage in stages.items() if stage} == {"1,500": 1500, "auto": "auto"}
    lengths = plan("prefix-length", data, columns=("4", "12"))
    assert [recipe_of(cell).views.length for cell in lengths.cells] == [4, 12]


def test_changes_of_the_user_stand_above_all_but_seeds_and_draws(data: DataFiles) -> None:
    changes = ("stage2.learning_rate=0.5", "stage1.steps=7")
    for cell in plan("low-label", data, "small", changes=changes, columns=("10%",)).cells:
        recipe = recipe_of(cell)
        assert (recipe.seed, recipe.data.label_draw) == (42, 0)
        assert recipe.stage2 is not None
        assert recipe.stage2.learning_rate == 0.5
        keys = [entry.partition("=")[0] for entry in cell.changes]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize("budget", budget_names())
def test_costs_are_compared_over_the_same_work(budget: str, planned: Planned) -> None:
    made = planned("cost", budget)
    assert made.spec.measure == ["time-and-memory"]
    recipes = [recipe_of(cell) for cell in made.cells]
    work = {(r.stage2.batch_size, r.stage2.epochs, r.stage2.steps, r.loop.eval_every) for r in recipes if r.stage2}
    assert work == {(128, 3.0, None, 125)}
    assert [r.method for r in recipes] == ["simcse", "promptbert", "diffaug"]
    assert recipes[2].stage1 is not None
    assert recipes[2].stage1.steps == 1250


def test_experiments_that_vary_one_thing_take_the_first_setting(planned: Planned) -> None:
    for experiment in ("prefix-length", "stage1-steps", "aux-weight", "divergence", "cost"):
        assert {cell.setting for cell in planned(experiment, "small").cells} == {0}


def test_rows_without_their_data_are_left_out_with_a_note(data: DataFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffaug.models.views.synonym.WordNet", _no_wordnet)
    files = DataFiles(folders=data.folders, triplets=data.triplets, sentences=data.sentences, dev=data.dev)
    made = plan("main", files)
    rows = {cell.row for cell in made.cells}
    gone = {"SBERT", "SBERT-flow, NLI", "ConSERT, joint", "BERT-flow, target", "SBERT-flow, target", "SimCSE, synonyms"}
    assert not rows & gone
    assert {"SBERT, two labels", "ConSERT, unsup", "DiffAug, semi"} <= rows
    notes = " ".join(made.notes)
    for row, what in (("SBERT", "--pairs"), ("BERT-flow, target", "--target"), ("SimCSE, synonyms", "no words here")):
        note = next(note for note in made.notes if what in note)
        assert row in note
        assert "left out" in note
    assert "DiffAug" not in notes


def test_with_fetched_data_no_row_of_the_main_table_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data in the layout in which `diffaug data get` leaves it; of WordNet it is said how to get it."""
    folder = tmp_path / "data"
    archives = {"snli": nli_zip("snli", SNLI), "multinli": nli_zip("multinli", MULTINLI)}
    for name, content in archives.items():
        source = find_dataset(name)
        (tmp_path / source.files[0].name).write_bytes(content)
        # It has other rows than the published one.
        own = replace(source, files=(replace(source.files[0], sha256=None),))
        assert get(own, folder, local=tmp_path / source.files[0].name) == folder / name
    others = {"nli/nli_for_simcse.csv": "sent0,sent1,hard_neg\nA,B,C\n", "wiki1m/wiki1m_for_simcse.txt": "A.\n"}
    for name, text in others.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text, "utf-8")
    benchmark = folder / "senteval" / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    for split, rows in (("dev", 1500), ("test", 1379)):
        write_stsb(benchmark / f"sts-{split}.csv", [STSB_ROWS[i % 4] for i in range(rows)])
    files = DataFiles.find(folder, tmp_path / "made")
    assert not [note for note in plan("main", files).notes if "left out" in note]
    monkeypatch.setattr("diffaug.models.views.synonym.WordNet", WordNet)
    monkeypatch.setitem(sys.modules, "wn", None)
    (note,) = [note for note in plan("main", files).notes if "left out" in note]
    assert note.startswith("SimCSE, synonyms: left out")
    assert "pip install 'diffaug[synonyms]' and then python -m wn download" in note


def _no_wordnet() -> None:
    raise DiffaugError("no words here")


def test_nothing_left_is_an_error_that_says_what_is_missing(data: DataFiles) -> None:
    with pytest.raises(DiffaugError, match=r"cost cannot be run.*SimCSE, sup.*--triplets"):
        plan("cost", DataFiles(dev=data.dev))
    with pytest.raises(DiffaugError, match="--triplets"):
        plan("low-label", DataFiles(dev=data.dev))


def test_diffcse_needs_a_generator_with_the_vocabulary_of_the_encoder(data: DataFiles, tmp_path: Path) -> None:
    def generator(encoder: str, **others: object) -> str | None:
        made = plan("main", data, encoder=encoder, rows=("DiffCSE", "DiffAug, sup"), **others)
        found = at(made, "DiffCSE")
        return recipe_of(found[0]).replaced.generator if found else None

    assert generator("bert-base-uncased") == "distilbert-base-uncased"
    assert generator("models/roberta-base") == "distilroberta-base"
    assert generator("embedded") == "embedded"
    assert generator(str(tmp_path)) is None
    assert generator(str(tmp_path), generator="mine") == "mine"
    words = json.loads((RECIPES.parent / "assets/mini/tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words["model"]["vocab"]}}), "utf-8")
    assert generator(str(tmp_path)) == "embedded"


def test_rows_can_be_chosen(data: DataFiles) -> None:
    made = plan("main", data, rows=("simcse, sup*", "no training, [CLS]"))
    assert made.rows == {"SimCSE, sup-unsup", "SimCSE, sup-joint", "SimCSE, sup", "No training, [CLS]"}
    # The others are part of the grid as well, for later.
    assert len({cell.row for cell in made.cells}) > 20
    with pytest.raises(DiffaugError, match=r"no row matches 'bart\*'; there are: .*DiffCSE"):
        plan("main", data, rows=("bart*",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "otherwise: [[]]\nfamilies:\n  - recipes: [sbert]\n    settings: [[], [stage1.epochs=2]]\n",
            "gives 'SBERT' 2 and '.*' 1",
        ),
        ("otherwise: [[stage2.learning_rat=1]]\n", "setting 0: .*did you mean 'learning_rate'"),
    ],
)
def test_a_budget_that_does_not_fit_is_an_error_that_names_the_row(
    text: str, complaint: str, data: DataFiles, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nabout: for a test\n{text}", "utf-8")
    with pytest.raises(DiffaugError, match=complaint):
        plan("main", data, str(path))


def test_what_cannot_be_asked_for_is_an_error(data: DataFiles) -> None:
    for experiment in ("main", "ablation", "cost"):
        with pytest.raises(DiffaugError, match="has no columns"):
            plan(experiment, data, columns=("1",))
    for experiment, column, words in (
        ("prefix-length", "0", "must be at least 1"),
        ("stage1-steps", "some", "a whole number or 'auto'"),
        ("aux-weight", "-1", "stage2.aux_weight must be at least 0"),
        ("aux-weight", "inf", "stage2.aux_weight must be at least 0"),
    ):
        with pytest.raises(DiffaugError, match=words):
            plan(experiment, data, columns=(column,))
    with pytest.raises(DiffaugError, match="must all differ"):
        plan("prefix-length", data, columns=("8", "08"))
    with pytest.raises(DiffaugError, match="did you mean 'low-label'"):
        plan("low-labels", data)
    with pytest.raises(DiffaugError, match="at least one seed"):
        options(data, seeds=())
    with pytest.raises(DiffaugError, match="draws must be at least 1"):
        options(data, draws=0)
    for key, option in (("seed", "--seeds"), ("data.label_draw", "--draws")):
        with pytest.raises(DiffaugError, match=f"use {option} instead of --set {key}"):
            options(data, changes=(f"{key}=1",))


def test_a_budget_needs_settings_only_for_the_rows_that_run(data: DataFiles, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    family = "families:\n  - recipes: [simcse-sup]\n    settings: [[], [stage2.epochs=1]]\n"
    path.write_text(f"name: mine\nabout: for a test\n{family}", "utf-8")
    made = plan("main", data, str(path), rows=("SimCSE, sup", "No training, mean"))
    assert {cell.row for cell in made.cells if cell.recipe.split("-")[0] != "untrained"} == {"SimCSE, sup"}
    with pytest.raises(DiffaugError, match="no settings for the recipe 'diffaug-sup'"):
        plan("main", data, str(path), rows=("SimCSE, sup", "DiffAug, sup"))


def test_a_change_applies_to_rows_that_have_its_section(data: DataFiles) -> None:
    changes = ("stage1.steps=10", "stage2.steps=20")
    made = plan("low-label", data, changes=changes)
    with_stage1 = {cell.row for cell in made.cells if recipe_of(cell).stage1 is not None}
    untouched = {cell.row for cell in plan("low-label", data).cells if recipe_of(cell).stage1 is not None}
    assert with_stage1 == untouched
    assert {recipe_of(cell).stage1.steps for cell in made.cells if cell.row in with_stage1} == {10}
    assert {recipe_of(cell).stage2.steps for cell in made.cells} == {20}
    without = list(dict.fromkeys(cell.row for cell in made.cells if cell.row not in with_stage1))
    assert len(without) > 1
    assert f"--set stage1.steps=10 applies only where there is a stage1, not to {'; '.join(without)}" in made.notes
    assert not any("stage2.steps" in note for note in made.notes)


def test_a_change_that_applies_to_no_row_is_an_error(data: DataFiles) -> None:
    with pytest.raises(DiffaugError, match=r"--set stage1.steps=10 applies to no row: their recipes have no stage1"):
        plan("stage1-steps", data, changes=("stage1=null", "stage1.steps=10"))


def test_a_budget_does_not_add_a_stage_to_a_row(data: DataFiles, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nabout: x\notherwise: [[stage2.steps=9], [stage2.steps=8]]\n")
    budget = str(tmp_path / "own.yaml")
    rows = {cell.row for cell in plan("main", data, budget, rows=("SimCSE*",)).cells}
    assert any(row.startswith("SimCSE") for row in rows)
    assert not any(row.startswith("SBERT, ") for row in rows)
    with pytest.raises(DiffaugError, match=r"'own' sets stage2.steps=9 for the recipe 'sbert', which has no stage2"):
        plan("main", data, budget)
