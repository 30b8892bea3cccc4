"""Gathers the pages of the documentation for the site generator: `python docs/stage.py FOLDER`.

On a code host the pages in docs/ link to files beside them, such as ../benchmarks/results/x.json. A site generator
knows one folder only. So the pages are copied to a folder of their own, with every file they link to, and the links
are changed to match; a link to nothing is an error. Lines stay where they are, so that complaints name the right ones.
The reference of commands, recipes and settings is made from the code (docs/reference.py), and a notebook from each
tutorial (docs/notebooks.py).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from notebooks import notebook
from reference import commands_page, recipes_page, settings_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that live outside docs/ because a code host expects them there.
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
# How the names of pages begin that are notebooks as well.
TUTORIAL = "tutorial-"
# Pages that are no files: pages may link to them as if they were in docs/.
MADE: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "recipes.md": recipes_page,
    "settings.md": settings_page,
}

# A fenced block, which is left alone, or the target of an inline link without its anchor.
_FENCE_OR_LINK = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)$|(?<=\]\()(?P<target>[^)#\s]+)", re.MULTILINE | re.DOTALL)


def stage(target: Path) -> list[str]:
    """Copy the pages and what they link to into ``target``, made anew; returns what is wrong with their links."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, make in MADE.items():
        (target / name).write_text(make(), "utf-8")
    problems: list[str] = []
    waiting = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("assets/*")), *(ROOT / name for name in BESIDE)]
    done: set[Path] = set()
    while waiting:
        file = waiting.pop(0)
        if file in done:
            continue
        done.add(file)
        copy = target / site_path(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text, linked, missing = relink(file)
            if file.name.startswith(TUTORIAL):
                copy.with_suffix(".ipynb").write_text(notebook(file), "utf-8")
                text += f"\n[Download this page as a notebook]({file.stem}.ipynb).\n"
            copy.write_text(text, "utf-8")
            waiting += linked
            problems += [f"{file.relative_to(ROOT)} links to {name}, which is not there" for name in missing]
        else:
            shutil.copyfile(file, copy)
    return problems


def relink(page: Path) -> tuple[str, list[Path], list[str]]:
    """A page's text with the links it needs on the site, the files it links to, and the links that lead nowhere."""
    linked: list[Path] = []
    missing: list[str] = []

    def change(match: re.Match[str]) -> str:
        name = match["target"]
        if name is None or "://" in name or name.startswith("mailto:"):
            return match[0]
        file = (page.parent / name).resolve()
        if file.parent == DOCS and file.name in MADE:
            return os.path.relpath(file.name, site_path(page).parent)
        if not file.is_file():
            missing.append(name)
            return name
        linked.append(file)
        return os.path.relpath(site_path(file), site_path(page).parent)

    return _FENCE_OR_LINK.sub(change, page.read_text("utf-8")), linked, missing


def site_path(file: Path) -> Path:
    """Where a file stands on the site: the pages of docs/ at the top, all else where it is in the repository."""
    return file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT)


if __name__ == "__main__":
    found = stage(Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(found))
