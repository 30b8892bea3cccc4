"""Runs the examples of a page the way a reader would, in little time."""

from __future__ import annotations

import ast
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml
from code_blocks import ROOT, Block, shell_commands, transcript

from diffaug import cli
from diffaug.config import load_recipe
from diffaug.config.typed import build
from diffaug.experiments.spec import GridSpec

# Programs of a system that examples may use to prepare files.
TOOLS = {"cat", "cut", "head", "ls", "tail", "tr"}


class ExampleError(Exception):
    """An example that does not do what the page says."""


class Examples:
    """The examples of one page: Python blocks share their names, all blocks share the working directory."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """Run or check a block; raises what is wrong with it."""
        if block.title is not None:
            Path(block.title).write_text(block.text, "utf-8")
        if block.language == "python" and (block.title or "").endswith(".py"):
            compile(block.text, str(block.title), "exec")  # a module, which later blocks import
        elif block.language == "python":
            self._python(block)
        elif block.language == "bash":
            for words in shell_commands(block.text):
                run_command(words)
        elif block.language == "console":
            for command, shown in transcript(block.text):
                (words,) = shell_commands(command)
                compare(run_command(words), shown)
        elif block.language == "yaml":
            check_recipe(block.text)
        elif block.language in {"text", "csv"}:
            if re.search(r"^(\$ )?(diffaug|make|pip|python) ", block.text, re.MULTILINE):
                raise ExampleError("a block with commands is a bash or console block")
        else:
            raise ExampleError(f"a block of an unknown language {block.language!r}; say bash, python, text ...")

    def _python(self, block: Block) -> None:
        """Statement by statement; the comment behind a `print` is what it prints, with `...` for anything."""
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(block.text).readline)
            if token.type == tokenize.COMMENT
        }
        for statement in ast.parse(block.text).body:
            end = statement.end_lineno or statement.lineno
            module = ast.Module([statement], type_ignores=[])
            ast.increment_lineno(module, block.line - 1)
            with captured() as output:
                exec(compile(module, str(self.page), "exec"), self.names)
            if "print(" in ast.unparse(statement) and end in comments:
                compare(output.text, comments[end])


def run_command(words: list[str]) -> str:
    """Run a command, or see that what it names is there; returns what it printed."""
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    match words:
        case ["diffaug", *arguments]:
            return run_cli(arguments)
        case ["accelerate" | "torchrun", *_, "-m", "diffaug", "train", _, _, _, _]:
            return run_cli(words[words.index("-m") + 2 :])
        case ["make", target]:
            if not re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE):
                raise ExampleError(f"there is no target {target} in the Makefile")
        case ["pip", "install", package]:
            check_package(package)
        case ["python", "-m", module, *arguments] if module.startswith("diffaug."):
            check_script(ROOT / "src" / f"{module.replace('.', '/')}.py", arguments)
        case ["python", script, *arguments]:
            check_script(ROOT / script, arguments)
        case ["pytest", path, *_]:
            if not (ROOT / path).exists():
                raise ExampleError(f"there is no {path}")
        case ["git", "clone", _] | ["cd", _]:
            pass
        case [tool, *_] if tool in TOOLS:
            line = f"set -o pipefail; {shell_line(words)}"
            return subprocess.run(["bash", "-c", line], check=True, text=True, stdout=subprocess.PIPE).stdout
        case _:
            raise ExampleError(f"no way to run {' '.join(words)!r}")
    return ""


def run_cli(arguments: list[str]) -> str:
    """`diffaug` with these arguments, in this process; returns what it printed, errors included."""
    code: Any = 0
    with captured() as output, restored():
        sys.argv = ["diffaug", *arguments]
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    # An example of going on with a run cannot interrupt it first.
    finished = "--resume" in arguments and "is finished" in output.text
    if code not in (0, None) and not finished:
        raise ExampleError(f"diffaug {' '.join(arguments)} ended with {code}: {output.text}")
    return output.text


def check_recipe(text: str) -> None:
    """A whole recipe, or settings that change one; with rows, the specification of a grid."""
    if "rows" in yaml.safe_load(text):
        build(GridSpec, yaml.safe_load(text), "the page")
        return
    if not {"method", "extends"} & set(yaml.safe_load(text)):
        text = f"extends: diffaug-sup\n{text}"
    file = Path("recipe-of-the-page.yaml")
    file.write_text(text, "utf-8")
    load_recipe(str(file))


def check_package(package: str) -> None:
    """`diffaug[a,b]` or `.[a,b]`: are there such extras?"""
    found = re.fullmatch(r"(?:\.|diffaug)(?:\[(.*)\])?", package)
    known = extras()
    if found is None or not set((found[1] or "").split(",")) - {""} <= set(known):
        raise ExampleError(f"{package} is not this package, or has no such extras; there are {', '.join(known)}")


def extras() -> list[str]:
    """The optional dependencies of the package."""
    section = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    return re.findall(r"^([\w-]+) = \[", section.partition("\n[")[0], re.MULTILINE)


def check_script(script: Path, arguments: list[str]) -> None:
    """Is there such a script, with such options?"""
    source = script.read_text("utf-8") if script.is_file() else ""
    unknown = [word for word in arguments if word.startswith("--") and f'"{word}"' not in source]
    if not source or unknown:
        raise ExampleError(f"there is no {script.relative_to(ROOT)} {' '.join(unknown)}")


def compare(printed: str, shown: str) -> None:
    """Is it what the page shows, but for spaces and what stands behind `...`?"""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(shown.strip() + "\n", printed.strip() + "\n", flags):
        raise ExampleError(f"the page shows\n{shown}\nbut it is\n{printed}")


def shell_line(words: list[str]) -> str:
    """Words as a line for a shell, in which only operators mean something."""
    return " ".join(word if re.fullmatch(r"[|<>]+", word) else shlex.quote(word) for word in words)


class _Output(io.TextIOWrapper):
    """Standard output in memory, with the buffer below it that bytes are written to."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


@contextmanager
def captured() -> Iterator[_Output]:
    """What is printed meanwhile."""
    output = _Output()
    with redirect_stdout(output), redirect_stderr(output):
        yield output


@contextmanager
def restored() -> Iterator[None]:
    """Undo what the command line changes for its process."""
    arguments, form, environment = sys.argv, warnings.formatwarning, dict(os.environ)
    try:
        yield
    finally:
        sys.argv, warnings.formatwarning = arguments, form
        os.environ.clear()
        os.environ.update(environment)
