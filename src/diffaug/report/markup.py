"""HTML from Python, in which text can never be mistaken for markup."""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any


class Html(str):
    """Markup; any other string is text, and is escaped when it becomes part of some."""


# Tags without content, and so without an end.
_VOID = {"br", "img"}


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element; None and False leave a child or an attribute out, `class_` is the attribute `class`."""
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    opening = f"<{name}{''.join(parts)}>"
    return Html(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Children one after the other."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def embedded_json(values: Any) -> Html:
    """Values as JSON that may stand in a script element: no text in them can end it, and no number is a NaN."""
    text = json.dumps(_finite(values), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Outside of strings JSON has none of these characters.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _finite(values: Any) -> Any:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, dict):
        return {str(key): _finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return values
