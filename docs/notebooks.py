"""Notebooks of the tutorials, made from their pages: text becomes Markdown cells, examples become code cells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_BLOCK = re.compile(
    r"(?P<mark>^<!-- not run: .*? -->\n\s*)?^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def notebook(page: Path) -> str:
    """The notebook of a page, in version 4 of the format, without outputs."""
    text = page.read_text("utf-8")
    cells: list[dict[str, Any]] = []
    end = 0
    for block in _BLOCK.finditer(text):
        code = _code(block)
        if code is None:
            continue  # stays in the text
        _add(cells, "markdown", text[end : block.start()])
        _add(cells, "code", code)
        end = block.end()
    _add(cells, "markdown", text[end:])
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _code(block: re.Match[str]) -> str | None:
    """What a cell runs; None for what only shows something."""
    if block["mark"]:
        return None
    if block["title"]:
        return f"%%writefile {block['title']}\n{block['code']}"
    if block["language"] == "python":
        return block["code"]
    if block["language"] == "bash":
        return f"%%bash\n{block['code']}"
    if block["language"] == "console":
        return "%%bash\n" + "".join(f"{command}\n" for command in re.findall(r"^\$ (.*)$", block["code"], re.MULTILINE))
    return None


def _add(cells: list[dict[str, Any]], kind: str, text: str) -> None:
    if not text.strip():
        return
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
    cell["source"] = text.strip("\n").splitlines(keepends=True)
    cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
