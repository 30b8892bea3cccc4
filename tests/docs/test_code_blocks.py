"""Every code block of the documentation runs, or says why it does not: `<!-- not run: reason -->` in front of it."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from code_blocks import PAGES, ROOT, Block, code_blocks, shell_commands, transcript
from examples import ExampleError, Examples
from workspace import fill

from diffaug.errors import DiffaugError

RUN = {"python", "bash", "console", "yaml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("in_little_time", "clean_registry")
def test_the_blocks_of_a_page_run(
    page: Path,
    models: dict[str, Path],
    saved_model: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    fill(folder, page.read_text("utf-8"), models, saved_model, tasks)
    monkeypatch.chdir(folder)
    examples = Examples(page)
    for block in code_blocks(page):
        if block.not_run is not None:
            continue
        try:
            examples.run(block)
        except Exception as error:
            where = f"{page.relative_to(ROOT)}, line {block.line}"
            detail = str(error) if isinstance(error, ExampleError) else traceback.format_exc()
            pytest.fail(f"{where}: {detail}", pytrace=False)


def test_hardly_any_block_is_left_out_and_each_says_why() -> None:
    blocks = [(page, block) for page in PAGES for block in code_blocks(page) if block.language in RUN]
    left_out = [(page, block) for page, block in blocks if block.not_run is not None]
    assert len(blocks) > 20
    assert len(left_out) <= len(blocks) // 10
    for page, block in left_out:
        assert len((block.not_run or "").split()) >= 3, f"{page.name}, line {block.line}: no reason"


@pytest.mark.parametrize(
    ("language", "text", "complaint"),
    [
        ("python", "print(1 + 1)  # 3\n", "but it is\n2"),
        ("python", "1 / 0\n", "division by zero"),
        ("bash", "diffaug train --recipe no-such-recipe --out x\n", "no-such-recipe"),
        ("bash", "diffaug encode --no-such-option\n", "No such option"),
        ("bash", "make no-such-target\n", "no-such-target"),
        ("bash", "pip install 'diffaug[no-such-extra]'\n", "no such extras"),
        ("bash", "python benchmarks/encode.py --no-such-option\n", "--no-such-option"),
        ("bash", "rm -rf everything\n", "no way to run"),
        ("console", "$ diffaug --version\ndiffaug 99\n", "diffaug 99"),
        ("yaml", "stage2:\n  no_such_setting: 1\n", "no_such_setting"),
        ("text", "diffaug train --recipe x\n", "bash or console"),
        ("", "anything\n", "unknown language"),
    ],
)
def test_an_example_that_is_wrong_is_found(
    language: str, text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ExampleError, DiffaugError, ZeroDivisionError)) as caught:
        Examples(tmp_path / "page.md").run(Block(1, language, None, text, None))
    assert complaint in str(caught.value)


def test_blocks_are_found_with_their_titles_and_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# Page\n\n```csv title="a.csv"\nx\n```\n\n<!-- not run: needs two machines -->\n```bash\nls\n```\n\n'
        "- item\n\n  ```python\n  if 1:\n      pass\n  ```\n",
        "utf-8",
    )
    assert code_blocks(page) == [
        Block(4, "csv", "a.csv", "x\n", None),
        Block(9, "bash", None, "ls\n", "needs two machines"),
        Block(15, "python", None, "if 1:\n    pass\n", None),
    ]
    page.write_text("<!-- not run: there is nothing here -->\n\nText.\n", "utf-8")
    with pytest.raises(ValueError, match="no block behind it"):
        code_blocks(page)


def test_shell_commands_are_split_like_a_shell_does() -> None:
    text = 'diffaug a \\\n  --b "c d"   # comment\n# another\n\ncut -f1 x | tail -n +2 > y && ls\n'
    assert shell_commands(text) == [
        ["diffaug", "a", "--b", "c d"],
        ["cut", "-f1", "x", "|", "tail", "-n", "+2", ">", "y"],
        ["ls"],
    ]
    assert transcript("$ a b\nout\n$ c\n") == [("a b", "out\n"), ("c", "")]
