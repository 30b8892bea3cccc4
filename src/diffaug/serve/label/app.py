"""The application of `diffaug label`: one question at a time, review of disagreements, and the export."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diffaug.errors import DiffaugError
from diffaug.serve.label.formats import csv_of, write_csv
from diffaug.serve.label.kinds import SKIP, UNUSABLE
from diffaug.serve.label.store import Store
from diffaug.serve.web import ApiError, Limits, application, field, read_json, reply

if TYPE_CHECKING:  # the page must open before torch is imported
    from diffaug.serve.label.jobs import AdaptJobs
    from diffaug.serve.label.refit import Refit
    from diffaug.serve.label.suggestions import Suggester

_EXPORT_SECONDS = 2.0
_MAX_NAME = 60
_MAX_SHOWN = 200  # disagreements on the page
_MAX_PAUSE = 300.0  # longer answers are pauses and do not count for the pace


@dataclass(frozen=True)
class Background:
    """What happens beside labelling; each may be missing.

    Attributes:
        refit: fits a linear head to the answers.
        jobs: starts adapt.
        suggester: asks a language model.
    """

    refit: Refit | None = None
    jobs: AdaptJobs | None = None
    suggester: Suggester | None = None


def create_label_app(
    store: Store, out: Path, title: str, limits: Limits, background: Background | None = None
) -> Starlette:
    """The application.

    Args:
        store: questions and answers.
        out: the CSV file, which is written some seconds after an answer, and at the end.
        title: shown on the page, such as the name of the file of sentences.
        limits: of requests.
        background: what happens beside labelling; its threads run as long as the application.
    """
    return _Label(store, out, title, limits, background or Background()).app


class _Label:
    def __init__(self, store: Store, out: Path, title: str, limits: Limits, background: Background) -> None:
        self.store, self.out, self.title, self.background = store, out, title, background
        self.changed = True  # also at the start: the last server may have been killed before it wrote the file
        self.app = application(
            [
                Route("/api/info", self.info),
                Route("/api/next", self.next, methods=["POST"]),
                Route("/api/answer", self.answer, methods=["POST"]),
                Route("/api/undo", self.undo, methods=["POST"]),
                Route("/api/review", self.review),
                Route("/api/settle", self.settle, methods=["POST"]),
                Route("/api/learning", self.learning),
                Route("/api/adapt", self.adapt, methods=["POST"]),
                Route("/health", self.health),
            ],
            limits,
            page="label.html",
            public=frozenset({"/health"}),
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        writing = asyncio.create_task(self._write_regularly())
        threads = [each for each in (self.background.refit, self.background.suggester) if each is not None]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            await run_in_threadpool(thread.stop)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await run_in_threadpool(write_csv, self.out, self.store)

    async def _write_regularly(self) -> None:
        while True:
            if self.changed:
                self.changed = False
                # A write that fails, as on a full disk, must not end the server: the answers are in the database.
                with suppress(Exception):
                    await run_in_threadpool(write_csv, self.out, self.store)
            await asyncio.sleep(_EXPORT_SECONDS)

    async def info(self, _: Request) -> Response:
        kind = self.store.kind
        unusable = {"same-different": "Unusable", "scores": "Unusable", "classes": "No class fits"}
        choices = [
            *({"value": each.value, "key": each.key, "text": each.text} for each in kind.choices),
            {"value": UNUSABLE, "key": "b", "text": unusable.get(kind.name, "Both wrong")},
            {"value": SKIP, "key": "s", "text": "Skip"},
        ]
        learning = self.background != Background()
        about = {"title": self.title, "kind": kind.name, "prompt": kind.prompt, "fields": kind.fields}
        return reply({**about, "choices": choices, "learning": learning})

    async def next(self, request: Request) -> Response:
        who = _annotator(await read_json(request))
        return await self._question(who, lambda: self.store.next(who))

    async def answer(self, request: Request) -> Response:
        data = await read_json(request)
        who, question, value = _annotator(data), field(data, "question", int), self._value(data)
        seconds = data.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _MAX_PAUSE:
            seconds = None
        if not await run_in_threadpool(self.store.answer, who, question, value, seconds):
            raise ApiError(404, "there is no such question", param="question")
        self.changed = True
        return await self._question(who, lambda: self.store.next(who))

    async def undo(self, request: Request) -> Response:
        who = _annotator(await read_json(request))
        self.changed = True
        return await self._question(who, lambda: self.store.undo(who) or self.store.next(who))

    async def review(self, _: Request) -> Response:
        def look() -> dict[str, Any]:
            disputes = self.store.disputes()
            shown = [{"id": one.id, "texts": one.texts, "answers": one.answers} for one in disputes[:_MAX_SHOWN]]
            return {"agreement": self.store.agreement(), "disputes": len(disputes), "shown": shown}

        return reply(await run_in_threadpool(look))

    async def settle(self, request: Request) -> Response:
        data = await read_json(request)
        who, question, value = _annotator(data), field(data, "question", int), self._value(data)
        if value == SKIP:
            raise ApiError(400, "a disagreement cannot be settled with skip", param="value")
        if not await run_in_threadpool(self.store.settle, who, question, value):
            raise ApiError(409, "there is no disagreement on this question any more", param="question")
        self.changed = True
        return await self.review(request)

    async def learning(self, _: Request) -> Response:
        def look() -> dict[str, Any]:
            parts = self.background
            return {
                "refit": parts.refit and parts.refit.status(),
                "adapt": parts.jobs and parts.jobs.status(),
                "suggestions": parts.suggester and parts.suggester.status(),
            }

        return reply(await run_in_threadpool(look))

    async def adapt(self, request: Request) -> Response:
        action, jobs = field(await read_json(request), "action", str), self.background.jobs
        if jobs is None or action not in ("start", "cancel"):
            raise ApiError(400, "action must be start or cancel", param="action")
        try:
            if action == "start":
                await run_in_threadpool(lambda: jobs.start(*csv_of(self.store)))
            else:
                await run_in_threadpool(jobs.cancel)
        except DiffaugError as error:
            raise ApiError(409, str(error)) from error
        except OSError as error:
            raise ApiError(500, f"adapt cannot be started: {error.strerror}") from error
        return await self.learning(request)

    async def health(self, _: Request) -> Response:
        return reply({"status": "ok"})

    def _value(self, data: dict[str, Any]) -> str:
        value: str = field(data, "value", str)
        if value not in self.store.kind.values:
            raise ApiError(400, "value is not an answer to this question", param="value")
        return value

    async def _question(self, who: str, find: Callable[[], tuple[int, tuple[str, ...]] | None]) -> Response:
        def look() -> dict[str, Any]:
            found = find()
            question = None
            if found is not None:
                question = {"id": found[0], "texts": found[1], "suggestion": self.store.suggestion(found[0])}
            return {"question": question, "progress": self.store.progress(who)}

        return reply(await run_in_threadpool(look))


def _annotator(data: dict[str, Any]) -> str:
    name = unicodedata.normalize("NFC", field(data, "annotator", str)).strip()
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise ApiError(400, f"annotator must be a name of 1 to {_MAX_NAME} characters", param="annotator")
    return name
