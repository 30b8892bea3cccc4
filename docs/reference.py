"""The reference pages that are made from the code: commands with their options, recipes, settings of a recipe."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from diffaug import cli
from diffaug.config import Recipe, recipe_names
from diffaug.config.recipe import recipe_text


def commands_page() -> str:
    """Every command of the command line, with its arguments and options as `--help` shows them."""
    root = typer.main.get_command(cli.app)
    commands = sorted(_commands(root, "diffaug"))
    lines = ["# Commands", ""]
    lines += ["`diffaug COMMAND --help` prints the same in a terminal. `diffaug --version` prints the version.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    for name, command in commands:
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_first_line(command))} |")
    for name, command in commands:
        lines += ["", f"## {name}", "", *inspect.cleandoc(command.help or "").splitlines()]
        context = command.context_class(command, info_name=name)
        rows = [record for parameter in command.params if (record := parameter.get_help_record(context))]
        usage = re.sub(r"\{\w+\}|\[\w+\]", lambda name: name[0].strip("{}").upper(), command.get_usage(context))
        usage = re.sub(r"\{(.*\.\.\.)\}\.\.\.", r"\1", usage.removeprefix("Usage: "))
        lines += ["", "```text", usage, "```"]
        if rows := [(names, meaning) for names, meaning in rows if "--help" not in names]:
            lines += ["", '<div class="stacked" markdown>', "", "| argument or option | meaning |", "|---|---|"]
            lines += [f"| `{_names(names)}` | {_cell(meaning)} |" for names, meaning in rows]
            lines += ["", "</div>"]
    return "\n".join(lines) + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {part}")
        elif not command.hidden:
            yield f"{name} {part}", command


def _names(text: str) -> str:
    """`--k <int range>` as `--k INT`, choices in full, and an argument in capitals, as in the line of usage."""
    text = re.sub(r"<(?:list\[)?(\w+)([^>]*)>", lambda kind: kind[0][1:-1] if "|" in kind[2] else kind[1].upper(), text)
    return text if text.startswith("-") else text.split(" ")[0].upper()


def _first_line(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n")[0]


def recipes_page() -> str:
    """Every recipe of the package with the first line of its file, in full below."""
    texts = {name: recipe_text(name).strip() for name in recipe_names()}
    lines = ["# Recipes", ""]
    lines += [
        "A recipe is a YAML file with the [settings](settings.md) of a training run. `diffaug train --recipe NAME` "
        "trains with one of these recipes, and `diffaug recipes cp NAME FILE` copies it to a file that you can edit. "
        "The [methods](methods.md) are described on pages of their own.",
        "",
        "| recipe | what it trains |",
        "|---|---|",
    ]
    for name, text in texts.items():
        lines.append(f"| [`{name}`](#{name}) | {_cell(text.partition(chr(10))[0].lstrip('# '))} |")
    for name, text in texts.items():
        lines += ["", f"## {name}", "", "```yaml", text, "```"]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Every setting of a recipe: type, default and description, from the classes of the schema."""
    lines = ["# Settings", ""]
    lines += [
        "A recipe is a YAML file with these settings; `--set key=value` changes one of them for a run. "
        "`diffaug recipes show NAME --resolved` prints the value of each in a recipe. A setting that is not listed "
        "here, a wrong type or a value out of range is an error.",
        "",
    ]
    sections = [(f, _section(f)) for f in dataclasses.fields(Recipe)]
    plain = [f for f, section in sections if section is None]
    lines += ["## The recipe", "", _summary(Recipe), "", *_table(Recipe, plain, "")]
    for f, section in sections:
        if section is not None:
            lines += ["", f"## {f.name}", "", _summary(section)]
            lines += ["", *_table(section, list(dataclasses.fields(section)), f"{f.name}.")]
    return "\n".join(lines) + "\n"


def _section(field: dataclasses.Field[Any]) -> type | None:
    """The class of a group of settings; None for a single setting."""
    name = str(field.type).removesuffix(" | None")
    found = getattr(inspect.getmodule(Recipe), name, None)
    return found if dataclasses.is_dataclass(found) and isinstance(found, type) else None


def _table(owner: type, fields: list[dataclasses.Field[Any]], prefix: str) -> list[str]:
    described = descriptions(owner)
    # The class lets the style sheet (assets/site.css) arrange the table on a phone.
    rows = [
        '<div class="stacked described" markdown>',
        "",
        "| setting | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for f in fields:
        rows.append(f"| `{prefix}{f.name}` | {_type(f)} | {_default(f)} | {_cell(described.get(f.name, ''))} |")
    return [*rows, "", "</div>"]


def _summary(owner: type) -> str:
    return inspect.cleandoc(owner.__doc__ or "").partition("\nAttributes:")[0].strip()


def descriptions(owner: type) -> dict[str, str]:
    """What the docstring of a class says about its attributes."""
    _, _, text = inspect.cleandoc(owner.__doc__ or "").partition("\nAttributes:\n")
    found: dict[str, str] = {}
    for names, meaning in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
        for name in names.split(", "):
            found[name] = re.sub(r"\s+", " ", meaning)
    return found


def _type(field: dataclasses.Field[Any]) -> str:
    """An annotation in words: `int | Literal["auto"] | None` is int, `auto` or null."""
    parts: list[str] = []
    for values, other in re.findall(r"\s*Literal\[([^]]*)\]\s*|((?:[^|\[]|\[[^]]*\])+)", str(field.type)):
        if values:
            parts += [f"`{ast.literal_eval(value.strip())}`" for value in values.split(",")]
        elif other.strip():
            parts.append("null" if other.strip() == "None" else other.strip().replace("Option", "value"))
    return _cell(", ".join(parts[:-1]) + f" or {parts[-1]}" if len(parts) > 1 else parts[0])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is dataclasses.MISSING:
        return "required"
    else:
        value = field.default
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    """Text for a cell of a table; brackets that are not links stay brackets."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
