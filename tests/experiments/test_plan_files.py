"""The data of a plan: what is found where, and what is said about what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_data import LABELS, fill_folder
from published_data import MULTINLI, SNLI, nli_jsonl, write_all_nli

from diffaug.config import load_recipe
from diffaug.data.read import read_scored_pairs, read_sentences
from diffaug.errors import DiffaugError
from diffaug.experiments.data import DataFiles, MissingDataError, change


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_folder(tmp_path_factory.mktemp("data"))


def sources(files: DataFiles, recipe: str) -> dict[str, str]:
    """The data of a recipe, as its settings have it."""
    data = load_recipe(recipe, files.changes_for(load_recipe(recipe))).data
    found = {"nli": data.nli, "unlabelled": data.unlabelled, "dev": data.dev, "test": data.test}
    return {key: Path(value).name for key, value in found.items() if isinstance(value, str)}


def test_every_recipe_gets_what_it_reads_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    files = DataFiles.find(folder, tmp_path)
    dev = {"dev": "STSB.dev.tsv"}
    triplets, pairs, wiki = {"nli": "triplets.csv.xz"}, {"nli": "pairs.tsv"}, {"unlabelled": "wiki1m.txt"}
    assert sources(files, "untrained-mean") == dev
    assert sources(files, "simcse-unsup") == dev | wiki
    assert sources(files, "simcse-sup") == dev | triplets
    assert sources(files, "sbert") == dev | pairs
    assert sources(files, "sbert-2") == dev | triplets
    assert sources(files, "consert-joint") == dev | pairs | wiki
    assert sources(files, "diffaug-semi-aux") == dev | triplets | wiki
    assert sources(files, "bert-flow-nli") == dev | triplets
    assert sources(files, "sbert-flow-target") == dev | pairs | {"unlabelled": "target.txt"}
    assert files.count_labels() == LABELS


def test_the_target_sentences_are_those_of_the_tasks_each_once(folder: Path, tmp_path: Path) -> None:
    files = DataFiles.find(folder, tmp_path)
    recipe = load_recipe("bert-flow-target")
    files.changes_for(recipe)
    written = (tmp_path / "target.txt").stat().st_mtime_ns
    sentences = read_sentences(str(tmp_path / "target.txt"))
    assert sorted(sentences) == sorted(f"{which} test {i}" for which in ("First", "Second") for i in range(1379))
    files.changes_for(recipe)
    assert (tmp_path / "target.txt").stat().st_mtime_ns == written, "a grid that goes on must find the same file"


def test_named_files_come_before_those_of_the_folder(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("A sentence.\n", "utf-8")
    files = DataFiles.find(folder, tmp_path, sentences=str(mine), target=str(mine), triplets="hub:owner/name")
    assert sources(files, "simcse-unsup")["unlabelled"] == "mine.txt"
    assert sources(files, "bert-flow-target")["unlabelled"] == "mine.txt"
    assert files.triplets == "hub:owner/name"
    with pytest.raises(DiffaugError, match=r"none\.tsv, which was given as --pairs"):
        DataFiles.find(folder, tmp_path, pairs=str(tmp_path / "none.tsv"))


def test_the_layout_of_fetched_data_is_known(tmp_path: Path) -> None:
    benchmark = tmp_path / "stsb" / "stsbenchmark"
    benchmark.mkdir(parents=True)
    lines = [f"genre\tfile\t2015\t{i}\t{i % 6}.0\tFirst {i}\tSecond {i}\n" for i in range(1500)]
    (benchmark / "sts-dev.csv").write_text("".join(lines), "utf-8")
    for name in ("nli/nli_for_simcse.csv", "wiki1m/wiki1m_for_simcse.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x\n", "utf-8")
    files = DataFiles.find(tmp_path, tmp_path / "made")
    assert files.triplets == str(tmp_path / "nli" / "nli_for_simcse.csv")
    assert files.sentences == str(tmp_path / "wiki1m" / "wiki1m_for_simcse.txt")
    # As it was released, its columns are not what recipes read.
    pairs = read_scored_pairs(str(files.dev))
    assert (pairs.first[7], pairs.second[7], pairs.scores[7], len(pairs)) == ("First 7", "Second 7", 1.0, 1500)


def test_labelled_pairs_will_do_where_triplets_are_wanted(folder: Path) -> None:
    pairs = str(folder / "nli" / "pairs.tsv")
    files = DataFiles(pairs=pairs, dev="dev.tsv")
    assert sources(files, "simcse-sup")["nli"] == "pairs.tsv"
    assert files.count_labels() == 9


@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        ("simcse-unsup", "--sentences"),
        ("sbert", "--pairs"),
        ("simcse-sup", "--triplets"),
        ("bert-flow-target", "--target"),
    ],
)
def test_what_is_missing_is_named_with_its_option(recipe: str, option: str, tmp_path: Path) -> None:
    files = DataFiles.find(tmp_path, dev="sample:dev")
    with pytest.raises(MissingDataError, match=option):
        files.changes_for(load_recipe(recipe))


def test_dev_is_needed_by_all(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"STSB\.dev\.tsv"):
        DataFiles.find(tmp_path).changes_for(load_recipe("untrained-mean"))
    with pytest.raises(DiffaugError, match="does not exist"):
        DataFiles.find(tmp_path / "none")


@pytest.mark.parametrize("path", ["plain/file.csv", "a: b/c.csv", "007", "yes", "{x}/é 'q'.csv", '"quoted".csv', "- a"])
def test_any_path_survives_being_a_setting(path: str) -> None:
    assert load_recipe("simcse-sup", [change("data.nli", path)]).data.nli == path


def test_snli_and_multinli_together_are_labelled_pairs(tmp_path: Path) -> None:
    for name in ("snli", "multinli"):
        home = tmp_path / name / f"{name}_1.0"
        home.mkdir(parents=True)
        if name == "multinli":
            # One of the two would be another data set than the methods were trained on.
            with pytest.raises(MissingDataError, match="diffaug data get snli multinli"):
                DataFiles.find(tmp_path, dev="sample:dev").changes_for(load_recipe("sbert"))
        pairs = {"snli": SNLI, "multinli": MULTINLI}[name]
        (home / f"{name}_1.0_train.jsonl").write_text(nli_jsonl(name, pairs), "utf-8")
    files = DataFiles.find(tmp_path, dev="sample:dev")
    nli = load_recipe("sbert", files.changes_for(load_recipe("sbert"))).data.nli
    assert nli == [str(tmp_path / name / f"{name}_1.0" / f"{name}_1.0_train.jsonl") for name in ("snli", "multinli")]
    assert files.count_labels() == 7
    mine = str(tmp_path / "snli" / "snli_1.0" / "snli_1.0_train.jsonl")
    assert DataFiles.find(tmp_path, pairs=mine).pairs == mine
    assert DataFiles.find(tmp_path, pairs=[mine]).pairs == mine
    assert DataFiles.find(tmp_path, pairs=[mine, mine]).pairs == (mine, mine)
    write_all_nli(tmp_path / "AllNLI.tsv.gz")
    assert DataFiles.find(tmp_path).pairs == str(tmp_path / "AllNLI.tsv.gz")


def test_of_several_folders_the_first_that_has_something_is_taken(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    # Not the best name for triplets, but in the first folder.
    (mine / "nli_for_simcse.csv").write_text("sent0,sent1,hard_neg\nA,B,C\n", "utf-8")
    (mine / "wiki1m.txt").write_text("Mine.\n", "utf-8")
    files = DataFiles.find([mine, folder], tmp_path / "made")
    assert files.folders == (mine, folder)
    assert files.triplets == str(mine / "nli_for_simcse.csv")
    assert files.sentences == str(mine / "wiki1m.txt")
    assert files.dev == str(folder / "sts" / "STSB.dev.tsv")
    assert DataFiles.find([folder, mine]).sentences == str(folder / "wiki" / "wiki1m.txt")
    files.changes_for(load_recipe("bert-flow-target"))
    assert "First test 0\n" in (tmp_path / "made" / "target.txt").read_text("utf-8")
    with pytest.raises(DiffaugError, match="does not exist"):
        DataFiles.find([folder, tmp_path / "none"])


def test_a_named_file_replaces_the_source_of_a_recipe_and_one_that_is_found_does_not(
    folder: Path, tmp_path: Path
) -> None:
    own = sources(DataFiles(), "quickstart")
    assert own["nli"] == "sample:triplets"
    assert sources(DataFiles.find(folder, tmp_path), "quickstart") == own
    named = DataFiles.find(folder, tmp_path, triplets="hub:owner/name", dev="hub:owner/dev")
    assert sources(named, "quickstart") == {**own, "nli": "name", "dev": "dev"}
