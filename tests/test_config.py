"""Recipes: what is read, what is refused, and how the user is helped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from diffaug.config import Recipe, load_recipe, recipe_from_dict, recipe_names
from diffaug.errors import DiffaugError

MINIMAL = {"name": "x", "method": "diffaug"}


def test_shipped_recipes_have_the_papers_settings() -> None:
    sup, semi, aux = (load_recipe(f"diffaug-{setting}") for setting in ("sup", "semi", "semi-aux"))
    assert (sup.stage1.steps, semi.stage1.steps, aux.stage1.steps) == (1250, 2000, 1500)
    assert {r.stage1.learning_rate for r in (sup, semi, aux)} == {1e-3}
    assert {r.stage1.batch_size for r in (sup, semi, aux)} == {128}
    assert (sup.stage2.learning_rate, semi.stage2.learning_rate, aux.stage2.learning_rate) == (5e-5, 1e-5, 1e-5)
    assert (sup.stage2.batch_size, semi.stage2.batch_size, aux.stage2.batch_size) == (128, 256, 256)
    assert (sup.stage2.epochs, semi.stage2.epochs, aux.stage2.epochs) == (3.0, 1.0, 1.0)
    assert (sup.stage2.aux_weight, semi.stage2.aux_weight, aux.stage2.aux_weight) == (0.0, 0.0, 0.001)
    assert {r.stage2.temperature for r in (sup, semi, aux)} == {0.05}
    assert {r.views.length for r in (sup, semi, aux)} == {8}
    assert {r.data.max_length for r in (sup, semi, aux)} == {32}
    assert {r.loop.eval_every for r in (sup, semi, aux)} == {50}


@pytest.mark.parametrize("name", recipe_names())
def test_a_resolved_recipe_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml(), "utf-8")
    assert load_recipe(str(tmp_path / "again.yaml")) == recipe


def test_changes_reach_their_settings() -> None:
    changes = ["stage1.steps=auto", "stage2.learning_rate=3e-5", "data.nli=my.csv", "loop.clip=null", "seed=7"]
    recipe = load_recipe("diffaug-sup", [*changes, "stage2.role_learning_rates.views=1e-3"])
    assert recipe.stage1.steps == "auto"
    assert recipe.stage2.learning_rate == 3e-5
    assert recipe.data.nli == "my.csv"
    assert recipe.loop.clip is None
    assert recipe.seed == 7
    assert recipe.stage2.role_learning_rates == {"views": 1e-3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stage1.step=3", r"unknown setting 'stage1.step'; did you mean 'steps'\?"),
        ("stage3.steps=3", r"unknown setting 'stage3'; did you mean 'stage1'\?|did you mean 'stage2'\?"),
        ("zebra=1", "unknown setting 'zebra'; there are data, distil, flow, loop"),
        ("stage1.steps=many", "stage1.steps = 'many' does not fit; it takes a whole number or 'auto' or null"),
        ("stage1.steps=2.5", "stage1.steps = 2.5 does not fit"),
        ("stage1.steps=true", "stage1.steps = True does not fit"),
        ("stage2.learning_rate=fast", "stage2.learning_rate = 'fast' does not fit; it takes a number"),
        ("stage2.objective=pairs", "it takes 'unlabelled' or 'nli_sentences' or 'triplets'"),
        ("loop.trackers=tensorboard", "it takes a list"),
        ("seed.deep=1", "seed is a single value"),
        ("stage1.steps", "write it as key=value"),
        ("stage1=5", "stage1 must be a group of settings"),
        ("stage1.steps=[1", r"the value of 'stage1.steps=\[1' is not valid YAML"),
        ("loop.eval_every=0", "loop.eval_every = 0 does not fit; it must be at least 1"),
        ("stage2.steps=-1", "stage2.steps = -1 does not fit; it must be at least 1"),
        ("stage2.batch_size=1", "stage2.batch_size = 1 does not fit; it must be at least 2"),
        ("stage2.learning_rate=-1e-5", "stage2.learning_rate = -1e-05 does not fit; it must be at least 0"),
        ("stage2.temperature=0", "stage2.temperature = 0.0 does not fit; it must be more than 0"),
        ("stage2.epochs=0", "stage2.epochs = 0.0 does not fit; it must be more than 0"),
        ("stage1.warmup=100", "stage1.warmup = 100.0 does not fit; it must be a part between 0 and 1"),
        ("data.max_length=0", "data.max_length = 0 does not fit"),
        ("stage2.schedule=cosine", "it takes 'linear' or 'constant'"),
        ("stage1.weight_decay=-0.01", "stage1.weight_decay = -0.01 does not fit; it must be at least 0"),
        ("loop.adam_epsilon=0", "loop.adam_epsilon = 0.0 does not fit; it must be more than 0"),
        ("flow.continues=both", "it takes 'first' or 'second'"),
        ("data.columns.nlii.premise=a", "unknown setting 'data.columns.nlii'; did you mean 'nli'"),
    ],
)
def test_mistakes_are_explained(change: str, message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        load_recipe("diffaug-sup", [change])


def test_the_change_is_named_and_not_the_file() -> None:
    with pytest.raises(DiffaugError, match=r"^the change 'seed=x': seed = 'x' does not fit"):
        load_recipe("diffaug-sup", ["data.nli=my.csv", "seed=x", "stage1.steps=3"])
    with pytest.raises(DiffaugError, match=r"^the change 'stage1.stps=3': unknown setting"):
        load_recipe("diffaug-sup", "stage1.stps=3")


def test_a_mistake_in_the_file_is_not_blamed_on_a_change(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: diffaug-sup\nsede: 3\n", "utf-8")
    with pytest.raises(DiffaugError, match=r"mine.yaml: unknown setting 'sede'; did you mean 'seed'"):
        load_recipe(str(tmp_path / "mine.yaml"), ["stage1.steps=3"])


def test_columns_may_be_numbers() -> None:
    recipe = load_recipe("diffaug-sup", ["data.columns.dev.score=1", "data.columns.nli.premise=text"])
    assert recipe.data.columns == {"dev": {"score": 1}, "nli": {"premise": "text"}}


def test_a_recipe_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(DiffaugError, match="did you mean 'diffaug-sup'"):
        load_recipe("difaug-sup")


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1, 2]", "holds no settings"), ("a: [", "is not valid YAML"), ("name: x\n", "the setting 'method' is missing")],
)
def test_files_that_are_no_recipes(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(DiffaugError, match=message):
        load_recipe(str(tmp_path / "bad.yaml"))
    with pytest.raises(DiffaugError, match="cannot be read"):
        load_recipe(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_bytes("name: schön".encode("latin-1"))
    with pytest.raises(DiffaugError, match="is not UTF-8"):
        load_recipe(str(tmp_path / "bad.yaml"))


def test_whole_numbers_are_numbers_and_yaml_strings_too() -> None:
    recipe = recipe_from_dict({**MINIMAL, "stage2": {"epochs": 2, "learning_rate": "1e-5"}})
    assert isinstance(recipe, Recipe)
    assert recipe.stage2.epochs == 2.0
    assert recipe.stage2.learning_rate == 1e-5
    assert yaml.safe_load(recipe.to_yaml())["stage2"]["learning_rate"] == 1e-5


TEMPLATES = [
    'This sentence : "{}" means [MASK].',
    "This sentence: '{}' means [MASK].",
    '"{}" means [MASK].',
    "[MASK] # {}",
    "{} : {x} [MASK]",
    "*{}* & [MASK]!",
]


@pytest.mark.parametrize("text", TEMPLATES)
def test_text_needs_no_quotes_in_a_change_and_may_have_them(text: str) -> None:
    assert load_recipe("promptbert-sup", [f"model.template={text}"]).model.template == text
    assert load_recipe("promptbert-sup", [f"model.template={json.dumps(text)}"]).model.template == text
    doubled = text.replace("'", "''")
    assert load_recipe("promptbert-sup", [f"model.template='{doubled}'"]).model.template == text


def test_null_and_numbers_as_text() -> None:
    recipe = load_recipe("diffaug-sup", ["model.template=null", "name=2024-01-31", "model.backbone=0123"])
    assert (recipe.model.template, recipe.name, recipe.model.backbone) == (None, "2024-01-31", "0123")


@pytest.mark.parametrize("change", ["stage1.steps=10", "stage1.learning_rate=1e-3", "stage1.x.y=1"])
def test_a_change_below_a_section_that_is_null_is_refused(change: str, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=r"cannot set stage1.*the recipe has no stage1 \(it is null\)"):
        load_recipe("simcse-sup", [change])
    # As a whole the section can be added, and is then there.
    assert load_recipe("simcse-sup", ["stage1={}", "stage1.steps=10"]).stage1.steps == 10
    with pytest.raises(DiffaugError, match="no stage1"):
        load_recipe("diffaug-sup", ["stage1=null", change])
    (tmp_path / "plain.yaml").write_text("name: x\nmethod: simcse\n")  # where it is not mentioned
    with pytest.raises(DiffaugError, match="no stage2"):
        load_recipe(str(tmp_path / "plain.yaml"), ["stage2.steps=3"])


def test_an_unknown_method_is_refused_with_the_recipe() -> None:
    with pytest.raises(DiffaugError, match="unknown method 'simsce'; did you mean 'simcse'"):
        load_recipe("simcse-sup", ["method=simsce"])


def test_extends_is_resolved_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "base.yaml").write_text("extends: simcse-sup\nseed: 5\n")
    (tmp_path / "inner" / "own.yaml").write_text("extends: ../base.yaml\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "base.yaml").write_text("extends: simcse-sup\nseed: 6\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_recipe(str(tmp_path / "inner" / "own.yaml")).seed == 5
    (tmp_path / "base.yaml").write_text("extends: inner/own.yaml\n")
    with pytest.raises(DiffaugError, match="extends itself"):
        load_recipe("../base.yaml")


LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])
CHAIN = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 400))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nname: y", "the key 'name' twice"),
        ("stage1: {steps: 1, steps: 2}", "the key 'steps' twice"),
        ("[" * 100_000, "nested more than 32 levels"),
        ("{a: " * 500 + "}" * 500, "nested more than 32 levels"),
        ("\n".join(" " * i + "a:" for i in range(900)), "nested more than 32 levels"),
        ("- " * 2000, "nested more than 32 levels"),
        (CHAIN, "nested more than 32 levels"),
        (LAUGHS, "is too large"),
        ("name: &a [*a]", r"alias \*a"),
        ("name: *b", r"alias \*b"),
        ("name: !!int x", "not valid YAML"),
        ("name: !!bool x", "not valid YAML"),
        ("name: !!timestamp x", "not valid YAML"),
        ("name: !!timestamp 2024-99-99", "not valid YAML"),
        ("name: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("seed: 0x_", "not valid YAML"),
        ("seed: " + "9" * 5000, "not valid YAML"),
        ("seed: 0x" + "f" * 5000, "at most 18 digits"),
        ("seed: " + ":".join(["59"] * 3000), "at most 18 digits"),
        ("name: \x00", "not valid YAML"),
        ("? [a, b]\n: c", "not valid YAML"),
        ("? {a: b}\n: c", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
    ],
)
def test_hostile_yaml_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.yaml").write_text(text)
    with pytest.raises(DiffaugError, match=message) as raised:
        load_recipe(str(tmp_path / "hostile.yaml"))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_aliases_and_merges_within_the_limits(tmp_path: Path) -> None:
    text = "name: x\nmethod: simcse\nstage2: &s {steps: 3, batch_size: 4}\nstage1: {<<: *s, steps: 5}\n"
    (tmp_path / "merged.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "merged.yaml"))
    assert (recipe.stage1.steps, recipe.stage1.batch_size, recipe.stage2.steps) == (5, 4, 3)


@pytest.mark.parametrize(
    "change",
    [
        "stage2.learning_rate=.inf",
        "stage2.learning_rate=.nan",
        "stage2.learning_rate=1e400",
        "stage2.learning_rate=" + "9" * 400,
        "stage2.learning_rate=inf",
        "stage2.learning_rate=NaN",
        "stage2.role_learning_rates.views=.nan",
        "data.labels=.inf",
        "seed=1000000000000000000",
        "seed=99999999999",
        "seed=-1",
        "data.label_draw=-1",
        "seed=2024-99-99",
        "seed=0x_",
        "seed=!!int x",
        "seed=" + "[" * 5000,
        "views.length=1000000000",
        "stage2.steps=99999999999",
    ],
)
def test_settings_out_of_range_are_one_sentence(change: str) -> None:
    with pytest.raises(DiffaugError, match=r"does not fit|not valid YAML|nested") as raised:
        load_recipe("diffaug-sup", [change])
    assert len(str(raised.value)) < 900
