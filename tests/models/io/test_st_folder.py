from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffaug.errors import DiffaugError
from diffaug.models.io.st_folder import add_requirements, check_nothing_added, write_st_files


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_what_is_written_leads_to_our_module(tmp_path: Path) -> None:
    write_st_files(tmp_path)
    from diffaug.integrations.sentence_transformers import DiffaugModule

    (module,) = json.loads((tmp_path / "modules.json").read_text())
    assert module["type"] == f"{DiffaugModule.__module__}.{DiffaugModule.__qualname__}"
    assert module["path"] == ""
    assert "diffaug" in json.loads((tmp_path / "config_sentence_transformers.json").read_text())["requirements"]


def test_our_own_files_and_none_at_all_are_fine(tmp_path: Path) -> None:
    check_nothing_added(tmp_path)
    write_st_files(tmp_path)
    check_nothing_added(tmp_path)
    # Neither a prompt that must be asked for nor an empty one changes a vector.
    change(tmp_path / "config_sentence_transformers.json", prompts={"ask": "Is it?", "": ""}, default_prompt_name="")
    check_nothing_added(tmp_path)


def test_requirements_join_what_is_there(tmp_path: Path) -> None:
    add_requirements(tmp_path)
    assert not list(tmp_path.iterdir())
    settings = tmp_path / "config_sentence_transformers.json"
    settings.write_text('{"prompts": {"ask": "Is it?"}}')
    add_requirements(tmp_path)
    assert json.loads(settings.read_text())["prompts"] == {"ask": "Is it?"}
    assert "diffaug" in json.loads(settings.read_text())["requirements"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("modules.json", "{}"), ("modules.json", "[1]"), ("config_sentence_transformers.json", "[]")],
)
def test_another_content_is_an_error(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DiffaugError, match=f"{name} is not a file of sentence-transformers"):
        check_nothing_added(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(DiffaugError, match=f"{name} cannot be read as JSON"):
        check_nothing_added(tmp_path)
