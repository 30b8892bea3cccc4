"""The documentation as a site: every page is in the menu, and every link leads somewhere."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from code_blocks import PAGES, ROOT, code_blocks, transcript
from examples import extras, run_cli

SOURCE = ROOT / "src"
INSTALL = ROOT / "docs" / "install.md"


@pytest.fixture(scope="session")
def staging() -> ModuleType:
    """docs/stage.py, which is no part of a package."""
    return importlib.import_module("stage")


def test_every_page_is_in_the_menu_once(staging: ModuleType, tmp_path: Path) -> None:
    staging.stage(tmp_path)
    menu = list(_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert len(menu) == len(set(menu))
    assert {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.md")} == set(menu)


def test_the_reference_has_every_command_and_recipe_and_describes_every_setting(
    staging: ModuleType, tmp_path: Path
) -> None:
    from dataclasses import asdict

    from diffaug.config import load_recipe, recipe_names

    staging.stage(tmp_path)
    commands = (tmp_path / "commands.md").read_text("utf-8")
    help_text = run_cli(["--help"])
    shown = set(re.findall(r"^\W*([a-z]+)  ", help_text.partition("Commands")[2], re.MULTILINE))
    assert {"train", "data", "search"} <= shown
    assert {name.split()[1] for name in re.findall(r"^## (diffaug .*)$", commands, re.MULTILINE)} == shown
    assert "`--unique`" in commands
    settings = (tmp_path / "settings.md").read_text("utf-8")
    described = dict(re.findall(r"^\| `([\w.]+)` \| .+ \| .+ \| (.*) \|$", settings, re.MULTILINE))
    for section, values in asdict(load_recipe("diffaug-semi")).items():
        names = {f"{section}.{key}" for key in values} if f"## {section}\n" in settings else {section}
        assert names <= set(described)
    assert all(len(meaning) > 5 for meaning in described.values())
    assert "| `stage1.steps` | int, `auto` or null |" in settings
    assert "`--on-bad error|skip`" in commands
    recipes = (tmp_path / "recipes.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", recipes, re.MULTILINE) == recipe_names()


def test_every_extra_is_in_the_table_of_the_installation() -> None:
    table = set(
        re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", INSTALL.read_text("utf-8"), re.MULTILINE)))
    )
    assert {"serve", "wandb"} <= table
    assert set(extras()) == table


def test_a_tutorial_is_a_notebook_with_the_same_examples(staging: ModuleType, tmp_path: Path) -> None:
    """The examples of the pages are run by test_code_blocks.py."""
    staging.stage(tmp_path)
    pages = sorted((ROOT / "docs").glob(f"{staging.TUTORIAL}*.md"))
    assert len(pages) == len(list(tmp_path.glob("*.ipynb"))) == 4
    for page in pages:
        found = json.loads((tmp_path / f"{page.stem}.ipynb").read_text("utf-8"))
        assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
        cells = found["cells"]
        assert len({cell["id"] for cell in cells}) == len(cells)
        assert {frozenset(cell) for cell in cells} == {
            frozenset({"cell_type", "id", "metadata", "source"}),
            frozenset({"cell_type", "id", "metadata", "source", "execution_count", "outputs"}),
        }
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        blocks = [block for block in code_blocks(page) if block.not_run is None and block.language != "text"]
        assert len(code) == len(blocks)
        for cell, block in zip(code, blocks, strict=True):
            if block.language == "python":
                assert cell == block.text.strip()
            else:
                assert cell.startswith("%%")
                commands = transcript(block.text) if block.language == "console" else [(block.text.strip(), "")]
                assert all(command in cell for command, _ in commands)


def test_links_lead_somewhere(staging: ModuleType, tmp_path: Path) -> None:
    assert staging.stage(tmp_path) == []


def test_links_of_the_readme_lead_somewhere(staging: ModuleType) -> None:
    _, linked, missing = staging.relink(ROOT / "README.md")
    assert "docs/" in (ROOT / "README.md").read_text("utf-8")
    assert len(linked) > 5
    assert not missing


def test_links_are_changed_to_match_the_site(
    staging: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docs/a.md", "docs/b.md", "results/x.json", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text", "utf-8")
    (tmp_path / "docs/a.md").write_text(
        "[b](b.md#part) [x](../results/x.json) [site](https://example.org)\n```text\n[c](c.md)\n```\n[d](d.md)", "utf-8"
    )
    (tmp_path / "CONTRIBUTING.md").write_text("[a](docs/a.md)", "utf-8")
    monkeypatch.setattr(staging, "ROOT", tmp_path)
    monkeypatch.setattr(staging, "DOCS", tmp_path / "docs")
    assert staging.stage(tmp_path / "site") == ["docs/a.md links to d.md, which is not there"]
    assert (tmp_path / "site/a.md").read_text("utf-8") == (
        "[b](b.md#part) [x](results/x.json) [site](https://example.org)\n```text\n[c](c.md)\n```\n[d](d.md)"
    )
    assert (tmp_path / "site/CONTRIBUTING.md").read_text("utf-8") == "[a](a.md)"
    assert (tmp_path / "site/results/x.json").is_file()


def test_no_page_names_a_recipe_that_is_not_there(models: dict[str, Path]) -> None:
    from diffaug.config import recipe_names

    known = recipe_names()
    families = {name.split("-")[0] for name in known}
    for page in PAGES:
        for name in re.findall(rf"`((?:{'|'.join(sorted(families))})-[a-z0-9-]+)`", page.read_text("utf-8")):
            assert name in known or name in models, f"{page.name} names the recipe {name}"


def test_the_settings_of_the_released_script_are_those_of_the_budget() -> None:
    """docs/bert-base.md spells them out for a single run."""
    from diffaug.experiments.budget import load_budget

    (command,) = re.findall(
        r"^diffaug train (?:.*\\\n)*.*", (ROOT / "docs/bert-base.md").read_text("utf-8"), re.MULTILINE
    )
    shown = {
        change for change in re.findall(r"--set (\S+)", command) if not change.startswith(("data.", "model.backbone="))
    }
    (setting,) = load_budget("released").settings_of("diffaug-sup")
    assert shown == set(setting)


@pytest.mark.parametrize("page", ["methods.md", "few-labels.md", "diffaug.md"])
def test_figures_are_those_of_the_results(page: str) -> None:
    """Scores have two decimals here, those quoted from papers one. Tables made of results have tests of their own."""
    known: set[str] = set()
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        text = file.read_text("utf-8")
        if file.name.startswith("reproduce-"):  # not of single runs, which are so many that any figure is among them
            text = " ".join(re.findall(r'"(?:mean|deviation|difference|dev)": -?\d+\.\d+', text))
        known |= {f"{float(number):.2f}" for number in re.findall(r"\d+\.\d+", text)}
    text = (ROOT / "docs" / page).read_text("utf-8")
    typed, tables = re.subn(r"^<!-- from .*?^<!-- end -->$", "", text, flags=re.MULTILINE | re.DOTALL)
    figures = re.findall(r"(?<![\d.,])\d\d\.\d\d(?![\d.])", typed)
    assert len(figures) > 5 or tables
    assert set(figures) <= known


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in sorted(SOURCE.rglob("*.py"))
        if ">>> " in path.read_text("utf-8")
    ],
)
def test_examples_of_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, list):
                yield from _pages(value)
            else:
                yield value
