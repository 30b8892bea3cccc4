"""Suggested answers from a language model behind an OpenAI-compatible URL. Its failures never stop labelling."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from diffaug.errors import DiffaugError
from diffaug.serve.label.kinds import Kind
from diffaug.serve.label.store import Store

_SECONDS = 60.0  # for an answer of the model
_PAUSE, _LONGEST_PAUSE = 2.0, 120.0  # seconds after a failure, doubled after each further one
_IDLE = 1.0  # seconds until it is looked whether there are new questions
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ChatModel:
    """A language model behind an OpenAI-compatible URL.

    Attributes:
        url: up to the version, such as `http://localhost:11434/v1`.
        name: of the model there.
        key: sent as the bearer token; None: none.
    """

    url: str
    name: str
    key: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise DiffaugError(f"--suggest-url must be like http://localhost:11434/v1, got {self.url!r}")

    def answer(self, kind: Kind, texts: Sequence[str]) -> str | None:
        """The value of the choice that the model names; None if it names none, or several.

        Raises:
            OSError, ValueError, http.client.HTTPException: there is no answer, or not one in OpenAI's format.
        """
        values = ", ".join(choice.value for choice in kind.choices)
        system = f"{kind.prompt} Reply with exactly one of these answers and nothing else: {values}."
        user = json.dumps(dict(zip(kind.fields, texts, strict=True)), ensure_ascii=False)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            json.dumps({"model": self.name, "messages": messages, "temperature": 0}).encode(),
            {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {}),
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            reply = json.loads(response.read(_MAX_BYTES))
        try:
            return parse(kind, str(reply["choices"][0]["message"]["content"]))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError("the reply is not a chat completion") from error


def parse(kind: Kind, reply: str) -> str | None:
    """The value of the choice that a reply names; None if it names none, or several."""
    # Some models reason aloud before they answer.
    text = re.sub(r"<think>.*?</think>", "", reply, flags=re.DOTALL).strip().strip("\"'`*.").casefold()
    values = [choice.value for choice in kind.choices]
    for value in values:
        if text == value.casefold():
            return value
    named = [value for value in values if re.search(rf"(?<!\w){re.escape(value.casefold())}(?!\w)", text)]
    return named[0] if len(named) == 1 else None


class Suggester:
    """A thread that asks a model about questions before people do."""

    def __init__(self, store: Store, model: ChatModel) -> None:
        self._store, self._model = store, model
        self._stop = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="suggestions", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask about nothing more. A request under way is not waited for: it may take long, and changes nothing."""
        self._stop.set()
        self._thread.join(0.2)

    def status(self) -> dict[str, Any]:
        """For the page: counts, and what is wrong with the server."""
        return {"model": self._model.name, **self._store.suggestion_agreement(), "problem": self._problem}

    def _run(self) -> None:
        pause, failed = _PAUSE, 0
        while not self._stop.is_set():
            # After a failure another question: the model may refuse one because of its text.
            question = self._store.unsuggested(after=failed)
            if question is None:
                self._stop.wait(_IDLE)
                continue
            try:
                value = self._model.answer(self._store.kind, question[1])
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._problem = f"No suggestions at the moment: {_words(error)}"
                self._stop.wait(pause)
                pause, failed = min(2 * pause, _LONGEST_PAUSE), question[0]
                continue
            pause, failed, self._problem = _PAUSE, 0, None
            if not self._stop.is_set():
                self._store.suggest(question[0], value or "")


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers with status {error.code}."
    if isinstance(error, OSError):
        return "the server cannot be reached."
    return "the server does not answer like OpenAI's chat completions."
