"""Budgets: who may try what, and that nobody may try more than others."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from diffaug.config import load_recipe, recipe_names
from diffaug.errors import DiffaugError
from diffaug.experiments.budget import Budget, Family, budget_names, check_equal, load_budget

TRAINED = [
    name
    for name in recipe_names()
    if not name.startswith(("quickstart", "adapt-", "distil"))
    and (load_recipe(name).stage1 is not None or load_recipe(name).stage2 is not None)
]

JOINT = ["simcse-joint", "simcse-sup-joint", "promptbert-joint", "promptbert-sup-joint"]
CONSERT_JOINT = ["consert-joint", "consert-sup-joint"]


def budget(*families: Family, **more: list[str]) -> Budget:
    return Budget("mine", "for tests", list(families), **more)


def test_the_budgets_of_the_package() -> None:
    assert budget_names() == ["paper", "paper-search", "released", "small"]


def test_the_paper_changes_nothing() -> None:
    assert [load_budget("paper").settings_of(recipe) for recipe in TRAINED] == [[()]] * len(TRAINED)
    assert load_budget() == load_budget("paper")


@pytest.mark.parametrize("recipe", TRAINED)
def test_the_released_scripts_are_one_setting(recipe: str) -> None:
    (setting,) = load_budget("released").settings_of(recipe)
    found = load_recipe(recipe, setting)
    if not recipe.startswith("diffaug"):
        assert found == load_recipe(recipe)
        return
    # Every switch there is: one that is added to the recipe must be added to the budget.
    assert set(asdict(found.released).values()) == {True}
    assert (found.loop.precision, found.model.final_stop, found.loop.eval_every) == ("fp16", False, 50)
    assert found.stage1 is not None
    assert found.stage2 is not None
    # What a step of each stage reads, in triplets or sentences, and how the batches of stage 2 share negatives.
    supervised = recipe == "diffaug-sup"
    assert found.stage1.batch_size * found.loop.accumulate == 128
    assert (found.stage2.batch_size, found.loop.accumulate) == ((128, 4) if supervised else (256, 1))


def test_the_released_weight_of_the_auxiliary_loss_is_that_of_two_processes() -> None:
    """Each process has its share of a gathered loss and an auxiliary loss of its own; gradients are averaged."""
    (setting,) = load_budget("released").settings_of("diffaug-semi-aux")
    stage2 = load_recipe("diffaug-semi-aux", setting).stage2
    assert stage2 is not None
    torch.manual_seed(0)
    script = 0.001
    rows = torch.randn(8, 3, dtype=torch.double)
    weights = torch.randn(3, 2, dtype=torch.double, requires_grad=True)

    def gathered(own: slice | None) -> torch.Tensor:
        """A loss of all pairs of rows, of which a process can only learn through its own."""
        vectors = rows @ weights
        if own is not None:
            learning = vectors.detach().clone()
            learning[own] = vectors[own]
            vectors = learning
        return (vectors @ vectors.T).logsumexp(1).mean()

    def auxiliary(own: slice) -> torch.Tensor:
        return (rows[own] @ weights).square().mean()

    halves = slice(0, 4), slice(4, 8)
    averaged = sum(torch.autograd.grad(gathered(h) + script * auxiliary(h), weights)[0] for h in halves) / 2
    whole = gathered(None) + stage2.aux_weight * auxiliary(slice(0, 8))
    torch.testing.assert_close(2 * averaged, torch.autograd.grad(whole, weights)[0])


@pytest.mark.parametrize("recipe", TRAINED)
def test_a_search_around_the_paper_starts_with_the_recipe(recipe: str) -> None:
    first, *others = load_budget("paper-search").settings_of(recipe)
    assert (first, len(others)) == ((), 2)
    own = load_recipe(recipe)
    tried = [load_recipe(recipe, setting) for setting in others]
    if recipe in JOINT or recipe == "diffaug-semi-aux":
        assert len({one.stage2.aux_weight for one in (own, *tried) if one.stage2 is not None}) == 3
    elif recipe in CONSERT_JOINT:
        assert len({one.stage2.weight for one in (own, *tried) if one.stage2 is not None}) == 3
    else:
        # Half and twice the recipe's rate, of the stage that makes the row.
        rates = [(one.stage2 or one.stage1) for one in (own, *tried)]
        full, half, twice = [stage.learning_rate for stage in rates if stage is not None]
        assert (half, twice) == (pytest.approx(full / 2), pytest.approx(full * 2))
    # Nothing else differs.
    for one, setting in zip(tried, others, strict=True):
        assert len(setting) == 1
        assert one != own


@pytest.mark.parametrize("labels", [None, 2_756])
@pytest.mark.parametrize("recipe", JOINT)
def test_joint_baselines_search_the_weight_of_the_nli_loss(recipe: str, labels: int | None) -> None:
    tried = [load_recipe(recipe, setting) for setting in load_budget("small").settings_of(recipe, labels)]
    assert [one.stage2.aux_weight for one in tried if one.stage2 is not None] == [0.1, 0.01, 1.0]
    # All else is the same.
    assert len({str(replace(one, stage2=replace(one.stage2, aux_weight=0.0))) for one in tried if one.stage2}) == 1


@pytest.mark.parametrize("labels", [None, 2_756])
@pytest.mark.parametrize("recipe", TRAINED)
def test_small_encoders_have_three_different_settings_for_every_recipe(recipe: str, labels: int | None) -> None:
    settings = load_budget("small").settings_of(recipe, labels)
    assert len(settings) == 3
    tried = [load_recipe(recipe, setting) for setting in settings]
    assert len({str(one) for one in tried}) == 3
    # The search is in rates, steps, batches and weights, not in what the method is.
    own = load_recipe(recipe)
    for one in tried:
        assert (one.model, one.views, one.flow, one.replaced) == (own.model, own.views, own.flow, own.replaced)


def test_supervised_methods_search_the_same_stage_2() -> None:
    small = load_budget("small")
    for labels in (None, 2_756):
        searched = []
        for recipe in ("simcse-sup", "promptbert-sup", "diffaug-sup"):
            tried = [load_recipe(recipe, setting).stage2 for setting in small.settings_of(recipe, labels)]
            searched.append([(s.batch_size, s.learning_rate, s.epochs, s.steps) for s in tried if s is not None])
        assert searched[0] == searched[1] == searched[2]


def test_few_labels_have_settings_of_their_own() -> None:
    plain = Family(["sbert"], [["stage1.epochs=1"]])
    few = Family(["sbert"], [["stage1.steps=9"]], labels_below=100)
    for families in ([plain, few], [few, plain]):
        mine = budget(*families)
        assert mine.settings_of("sbert") == [("stage1.epochs=1",)]
        assert mine.settings_of("sbert", 99) == [("stage1.steps=9",)]
        assert mine.settings_of("sbert", 100) == [("stage1.epochs=1",)]


def test_common_and_shared_changes_come_before_those_of_a_setting() -> None:
    family = Family(["sbert"], [["c=3"], []], always=["b=2"])
    mine = budget(family, common=["a=1"])
    assert mine.settings_of("sbert") == [("a=1", "b=2", "c=3"), ("a=1", "b=2")]


def test_a_recipe_without_settings_is_an_error_that_names_it() -> None:
    with pytest.raises(DiffaugError, match="'diffcse'"):
        budget(Family(["sbert"], [[]])).settings_of("diffcse")


def test_unequal_budgets_are_an_error_that_names_both_rows() -> None:
    assert check_equal({"a": 3, "b": 3}) == 3
    with pytest.raises(DiffaugError, match=r"gives 'b' 2 and 'a' 3"):
        check_equal({"a": 3, "b": 2})


def test_the_note_says_how_rows_were_tuned() -> None:
    tuning, starting_points = load_budget("small").words(3, "STS-B dev")
    assert "best of 3 settings on STS-B dev" in tuning
    assert "'small'" in tuning
    assert "The search is equal, what was known before it is not" in starting_points
    assert load_budget("paper").words(1, "STS-B dev") == ["No tuning: every row has one setting (budget 'paper')"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "name: a\nabout: b\nfamilies:\n  - recipes: [simcse-usup]\n    settings: [[]]\n",
            "did you mean 'simcse-unsup'",
        ),
        ("name: a\nabout: b\nfamilies:\n  - recipes: [sbert]\n    settings: []\n", "has no settings"),
        ("name: a\nabout: b\nfamilies:\n  - recipes: [sbert, sbert]\n    settings: [[]]\n", "in two families"),
        ("name: a\nabout: b\notherwise: [[stage1.epochs]]\n", "must be key=value"),
        ("name: a\nabout: b\notherwise: []\n", "`otherwise` has no settings"),
        ("name: a\nabout: b\nfamily: []\n", "did you mean 'families'"),
        ("- a\n", "holds no settings"),
        ("name: [\n", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_an_error_of_one_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(DiffaugError, match=complaint) as caught:
        load_budget(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_name_or_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="did you mean 'small'"):
        load_budget("smal")
    with pytest.raises(DiffaugError, match="cannot be read"):
        load_budget(str(tmp_path / "none.yaml"))
