"""The code blocks of a Markdown page."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_OPENING = re.compile(r"^ *(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)(?P<options>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_NOT_RUN = re.compile(r"^ *<!-- not run: (?P<reason>.*?) *-->$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: the number of its first line of text, from 1.
        title: the file it shows, if it says so.
        not_run: why it is not run, if a comment in front of it says so.
    """

    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None


def code_blocks(page: Path) -> list[Block]:
    """All fenced blocks, in their order. A mark without a block behind it is an error."""
    blocks: list[Block] = []
    reason: str | None = None
    lines = iter(enumerate(page.read_text("utf-8").splitlines(), start=1))
    for number, line in lines:
        if opening := _OPENING.match(line):
            inner = [text for _, text in takewhile(lambda item: item[1].strip() != opening["fence"], lines)]
            title = _TITLE.search(opening["options"])
            text = textwrap.dedent("\n".join(inner)) + "\n"
            blocks.append(Block(number + 1, opening["language"], title and title[1], text, reason))
            reason = None
        elif mark := _NOT_RUN.match(line):
            reason = mark["reason"]
        elif reason is not None and line.strip():
            raise ValueError(f"{page.name}, line {number}: the mark 'not run' has no block behind it")
    return blocks


def shell_commands(text: str) -> list[list[str]]:
    """The commands of a shell block as words; pipes, redirections and `&&` are words of their own."""
    commands: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, "&&"]:
            if word not in {"&&", ";"}:
                words.append(word)
            elif words:
                commands.append(words)
                words = []
    return commands


def transcript(text: str) -> list[tuple[str, str]]:
    """The commands of a console block (`$ command`) with the output shown for each."""
    first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first.strip() or not parts:
        raise ValueError("a console block starts with '$ ' and a command")
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]
