"""The paper's figures: that they were copied rightly, as far as they can vouch for each other."""

from __future__ import annotations

import pytest

from diffaug.config import load_recipe
from diffaug.experiments.paper import Quoted, numbers
from diffaug.experiments.results import Published
from diffaug.experiments.spec import experiment_names, paper_spec

BERT, ROBERTA = "bert-base-uncased", "roberta-base"
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
# In these rows of the paper the average is not that of the seven figures beside it, by so much.
NOT_THE_MEAN = {"PromptBERT, unsup": 0.017, "SBERT": 0.030, "PromptBERT, joint": 0.241, "PromptBERT, sup-unsup": -1.554}
MAIN_ROWS = sorted({row for table in paper_spec("main").published for row in table.rows})


def published(encoder: str, experiment: str, row: str, column: str = "", task: str = "average") -> Published | None:
    return Quoted(paper_spec(experiment), encoder).get(row, column, task)


@pytest.mark.parametrize("row", MAIN_ROWS)
def test_the_average_is_the_mean_of_the_seven_tasks(row: str) -> None:
    figures = {task: published(BERT, "main", row, task=task) for task in (*SEVEN, "average")}
    means = {task: figure.mean for task, figure in figures.items() if figure is not None}
    off = means["average"] - sum(means[task] for task in SEVEN) / len(SEVEN)
    # Eight figures rounded to two places: a hundredth at the most.
    assert off == pytest.approx(NOT_THE_MEAN.get(row, 0.0), abs=0.01 if row not in NOT_THE_MEAN else 0.001)


def test_no_figure_is_there_twice() -> None:
    places = [
        (name, table.encoder, *place)
        for name in experiment_names()
        for table in paper_spec(name).published
        for place, _ in numbers(table)
    ]
    assert len(places) == len(set(places)) == 255


def test_what_two_tables_say_about_the_same_rows_agrees() -> None:
    for row in ("SimCSE, joint", "PromptBERT, joint", "DiffAug, semi + aux", "DiffAug, sup"):
        assert published(BERT, "low-label", row, "100 %") == published(BERT, "main", row)
    for joint, unsup in (("SimCSE, joint", "SimCSE, unsup"), ("PromptBERT, joint", "PromptBERT, unsup")):
        assert published(BERT, "low-label", joint, "0 %") == published(BERT, "main", unsup)
    # Supervised baselines are quoted in one table and trained again for the other.
    assert published(BERT, "main", "PromptBERT, sup") == Published(81.97, None)
    assert published(BERT, "low-label", "PromptBERT, sup", "100 %") == Published(81.88, 0.1)
    semi = published(BERT, "ablation", "Prefix, different", task="STS-B dev")
    assert published(BERT, "aux-weight", "DiffAug, semi + aux", "0", "STS-B dev") == semi


def test_more_labels_never_hurt() -> None:
    columns = ("1 %", "10 %", "100 %")
    for encoder in (BERT, ROBERTA):
        for row in ("SimCSE, joint", "PromptBERT, joint", "DiffAug, semi + aux", "SimCSE, sup", "PromptBERT, sup"):
            means = [figure.mean for c in columns if (figure := published(encoder, "low-label", row, c))]
            assert len(means) == 3
            assert means == sorted(means)


def test_a_number_of_labels_is_found_under_its_fraction() -> None:
    for column, fraction in (("2,756", "1 %"), ("27560", "10 %"), ("275,601", "100 %")):
        found = published(ROBERTA, "low-label", "DiffAug, sup", column)
        assert found is not None
        assert found == published(ROBERTA, "low-label", "DiffAug, sup", fraction)
    assert published(BERT, "low-label", "DiffAug, sup", "53,142") is None
    assert published(BERT, "prefix-length", "DiffAug, semi", "2,756") is None


def test_an_encoder_is_known_by_the_last_part_of_its_name() -> None:
    expected = Published(80.61, 0.2)
    for name in (BERT, f"google-bert/{BERT}", f"models/{BERT}/"):
        assert published(name, "main", "DiffAug, semi + aux") == expected
    assert published("small", "main", "DiffAug, semi + aux") is None
    assert str(expected) == "80.61 ± 0.2"


# tab:hyperpara of the paper
SETTINGS = {
    "diffaug-semi": (0.001, 128, 2000, 0.00001, 256, 1),
    "diffaug-semi-aux": (0.001, 128, 1500, 0.00001, 256, 1),
    "diffaug-sup": (0.001, 128, 1250, 0.00005, 128, 3),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_recipes_have_the_settings_of_the_paper(name: str) -> None:
    first, second = load_recipe(name).stage1, load_recipe(name).stage2
    assert first is not None
    assert second is not None
    stages = (first.learning_rate, first.batch_size, first.steps, second.learning_rate, second.batch_size)
    assert (*stages, second.epochs) == SETTINGS[name]


def test_what_the_text_says_about_drawings() -> None:
    assert paper_spec("prefix-length").stated["best"] == load_recipe("diffaug-semi").views.length
