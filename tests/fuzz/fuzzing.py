"""What the fuzzing tests share: profiles, hostile values, mutations, and the rule that every outcome must obey.

The rule: an input is accepted, or refused with a `DiffaugError` (on the command line: a usage error) of one sentence. A
traceback, a hang or a crash is a failure.
"""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from diffaug.errors import DiffaugError

T = TypeVar("T")

TIMES = int(os.environ.get("DIFFAUG_FUZZ", "1"))
"""How many times more inputs are tried than in `make test`; with more, they are others on every run."""

TRIED: Counter[str] = Counter()
"""How many inputs were accepted and refused, by the name of the test."""

_SECONDS = 60  # after which an input counts as one that hangs; most take milliseconds
_MEMORY = 12 << 30  # address space; a damaged size must not take the whole machine

# Dates, numbers and tags that YAML's own constructors fail on, numbers that are out of every range, and names.
_WORDS = (
    "2024-99-99 0x_ 0b2 .inf -.inf .nan inf nan 1e400 -1e400 1:59:59 1_000 -0 -1 0 1 2 0.5 1e-9 4294967296 auto true "
    "!!int !!bool !!null !!set !!omap !!pairs &a *a <<: ~ null [ ] { } [] {} [[]] [null] [.nan] [[[ {{ ' \" ` | > # % "
    "--- ... embedded sample:dev hub: hub:a / . .. ~x *.py <script> é 𝔘 你好 [MASK] a.b.c = a=b ../x.yaml quickstart"
)
HOSTILE = [
    *_WORDS.split(),
    "no",
    "!!int x",
    "!!bool x",
    "!!float x",
    "!!timestamp x",
    "!!binary x",
    "!!set {a}",
    "!!omap [a: 1]",
    "&a [*a]",
]
HOSTILE += ["!!python/object/apply:os.system [ls]", "&a x", "<<: *a", "{<<: 1}", "? a", "%TAG !", ": ", "{a: {b: c}}"]
HOSTILE += ["", " ", "\t", "\r", "\n", "\x00", "\x1b", "\u2028", "\ud800", "\ufeff", "{} [MASK]", "a: b: c", "a" * 300]
HOSTILE += [
    "9" * 400,
    "9" * 5000,
    "0x" + "f" * 5000,
    "1" + "0" * 18,
    "[" * 60,
    "{a: " * 60,
    "- " * 60,
    f"{'a' * 300}.yaml",
]
JSON_VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    10**18,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
]
JSON_VALUES += [[], {}, [[]], {"a": 1}, [None], ["x"], [1], {"": None}, "[" * 50, "../../etc", "NaN", "a" * 300]


def profile(inputs: int) -> settings:
    """The settings of a test that tries so many inputs in `make test`."""
    return settings(
        max_examples=TIMES * inputs,
        derandomize=TIMES == 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # inputs are small: shrinking one that fails takes minutes, and shows little
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def limits() -> Iterator[None]:
    """An error after a time in which no input should still be busy, and beyond a size in memory."""

    def hangs(*_: object) -> None:
        raise TimeoutError(f"still busy after {_SECONDS} seconds")

    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, hard))
    handler = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def attempt(test: str, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T | None:
    """Call a function; None if it refuses its input. Anything but a result and a clean error is raised."""
    try:
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*arguments, **keywords)
    except DiffaugError as error:
        TRIED[f"{test}: refused"] += 1
        refusal = str(error)
    else:
        TRIED[f"{test}: accepted"] += 1
        return result
    assert refusal.strip(), "an error without a text"
    assert "\n" not in refusal, f"more than a line: {refusal}"
    return None


def texts() -> st.SearchStrategy[str]:
    """Hostile values, and any text: surrogates and control characters too."""
    anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
    return st.sampled_from(HOSTILE) | anything | st.text(max_size=12)


def writable(text: str) -> bytes:
    """Text as bytes of a file; lone surrogates become bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """A file with a few things wrong: cut off, bytes exchanged, parts repeated or removed, hostile text put in."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["cut", "flip", "remove", "repeat", "insert", "replace", "line"]))
        if kind == "cut":
            del content[at:]
        elif kind == "flip" and at < len(content):
            content[at] ^= draw(st.integers(1, 255))
        elif kind == "remove":
            del content[at:end]
        elif kind == "repeat":
            content[at:at] = content[at:end] * draw(st.integers(1, 3))
        elif kind == "line":  # a whole line again: keys that are there twice
            lines = bytes(content).splitlines(keepends=True) or [b""]
            content += b"\n" + draw(st.sampled_from(lines))
        else:
            content[at : end if kind == "replace" else at] = writable(draw(texts()))
    return bytes(content)


@st.composite
def changed_json(draw: st.DrawFn, original: Any) -> Any:
    """A JSON value in which one value is another, missing, or one more."""
    value = draw(st.sampled_from(JSON_VALUES))
    if not isinstance(original, (dict, list)) or not original or draw(st.integers(0, 4)) == 0:
        return value
    if isinstance(original, list):
        copy = list(original)
        copy[draw(st.integers(0, len(copy) - 1))] = value
        return copy
    key = draw(st.sampled_from(sorted(original)))
    kind = draw(st.sampled_from(["inner", "inner", "inner", "value", "missing", "more"]))
    if kind == "inner":
        return {**original, key: draw(changed_json(original[key]))}
    if kind == "missing":
        return {name: inner for name, inner in original.items() if name != key}
    return {**original, (key if kind == "value" else draw(st.sampled_from(["x", "", "auto_map", "version"]))): value}
