"""The label page and the search page in headless Chromium, used as a person would."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from browser_fixtures import DESKTOP, PHONE

from diffaug.data.documents import Documents
from diffaug.embedder import Embedder
from diffaug.serve.api import Served, create_app
from diffaug.serve.corpus import MemoryCorpus
from diffaug.serve.label.app import Background, create_label_app
from diffaug.serve.label.jobs import AdaptJobs
from diffaug.serve.label.kinds import make_kind
from diffaug.serve.label.store import Store
from diffaug.serve.web import Limits

NASTY = '<img src=x onerror="window.broken=1"></script><script>window.broken=2</script>'
LIMITS = Limits()
# The server of the page without the model, which has done its work when the page opens: it starts quickly.
SERVER = """
import os, sys; from pathlib import Path
from diffaug.serve.web import Limits, listen, run
from diffaug.serve.label.app import Background, create_label_app
from diffaug.serve.label.jobs import AdaptJobs
from diffaug.serve.label.store import Store, stored_kind
folder = Path(sys.argv[1]); database = folder / "labels.db"
store = Store(database, stored_kind(database))
os.environ["PYTHONPATH"] = str(folder / "program")  # of the jobs
background = Background(jobs=AdaptJobs(folder / "labels-adapt", "m"))
app = create_label_app(store, folder / "labels.csv", "s.txt", Limits(), background)
run(app, listen("127.0.0.1", int(sys.argv[2])), Limits())
"""


def make_store(folder: Path, kind: str = "same-different", count: int = 8, people: int = 1, text: str = "") -> Store:
    asked = make_kind(kind, ["billing", "login"] if kind == "classes" else [])
    store = Store(folder / "labels.db", asked)
    texts = [tuple(f"{field} {i} {text}" for field in asked.fields) for i in range(1, count + 1)]
    store.add_questions([(one, None, None) for one in texts], [people] * count)
    return store


def answers(folder: Path) -> list[tuple[int, str]]:
    """What is on disk, as another process reads it."""
    with sqlite3.connect(folder / "labels.db") as database:
        return database.execute("SELECT question, value FROM answers ORDER BY id").fetchall()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end, nothing must have been fetched from elsewhere or complained about."""
    contexts, said = [], list[str]()

    def go(url: str, *, quiet: bool = True, **options: Any) -> Any:
        context = browser.new_context(**{**DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        origin = re.match(r"http://[^/]+", url)[0]  # type: ignore[index]
        if quiet:
            page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.extend([] if request.url.startswith(origin) else [request.url]))
        page.goto(url)
        return page

    yield go
    assert [text for text in said if not text.startswith("data:")] == []
    for context in contexts:
        context.close()


@pytest.fixture
def label(serve: Callable[..., Any], tmp_path: Path, open_page: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Serve a store and open its page, as somebody."""
    servers: list[Any] = []

    def go(store: Store, name: str = "anna", background: Background | None = None, **options: Any) -> Any:
        if not servers:
            app = create_label_app(store, tmp_path / "labels.csv", "s.txt", LIMITS, background)
            servers.append(serve(app, LIMITS))
            servers.append(servers[0].__enter__())
        page = open_page(servers[1], **options)
        page.locator("#asked", has_text=store.kind.prompt).wait_for()
        page.get_by_label("Your name").fill(name)
        page.keyboard.press("Enter")
        page.wait_for_selector(".sentence, #done")
        return page

    yield go
    servers[0].__exit__(None, None, None)


def press(page: Any, key: str) -> None:
    """Press a key and wait until the page shows what follows."""
    with page.expect_response(re.compile("/api/(answer|undo)")):
        page.keyboard.press(key)
    page.wait_for_selector('#asking[aria-busy="false"]')


def test_keyboard_is_enough(label: Callable[..., Any], tmp_path: Path) -> None:
    page = label(make_store(tmp_path))
    for key in "12sb":
        press(page, key)
    assert answers(tmp_path) == [(1, "same"), (2, "different"), (3, "skip"), (4, "both wrong")]
    press(page, "u")
    assert "sentence1 4" in page.locator(".sentence").first.inner_text()
    assert len(answers(tmp_path)) == 3
    press(page, "1")
    assert answers(tmp_path)[-1] == (4, "same")
    assert "3 of 8 questions answered" in page.locator("#progress").inner_text()
    assert "a minute" in page.locator("#progress").inner_text()
    assert page.locator("#question").get_attribute("aria-live") == "polite"  # a screen reader says the next question
    page.keyboard.press("x")  # means nothing
    page.keyboard.press("Control+1")  # belongs to the browser
    page.locator("button[data-value=different]").focus()
    press(page, "Enter")  # the focused button
    assert [value for _, value in answers(tmp_path)][-1] == "different"
    for _ in range(3):
        press(page, "1")
    assert "no more questions" in page.locator("#done").inner_text()


def test_reload_in_the_middle_changes_nothing(label: Callable[..., Any], tmp_path: Path) -> None:
    page = label(make_store(tmp_path))
    press(page, "1")
    shown = page.locator(".sentence").first.inner_text()
    page.reload()
    page.wait_for_selector(".sentence")
    assert page.locator(".sentence").first.inner_text() == shown  # and nobody is asked for the name again
    press(page, "u")
    assert "sentence1 1" in page.locator(".sentence").first.inner_text()


@pytest.mark.parametrize("kind", ["same-different", "triplets", "scores", "classes"])
def test_phone(kind: str, label: Callable[..., Any], tmp_path: Path) -> None:
    page = label(make_store(tmp_path, kind, text="averyveryverylongword" * 8), **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    buttons = page.locator(".answers button")
    for box in [buttons.nth(i).bounding_box() for i in range(buttons.count())]:
        assert box["height"] >= 44
        assert box["x"] + box["width"] <= 360
    with page.expect_response(re.compile("/api/answer")):
        buttons.first.tap()
    first = {"same-different": "same", "triplets": "first", "scores": "0", "classes": "billing"}
    assert answers(tmp_path) == [(1, first[kind])]


def test_dark_mode(label: Callable[..., Any], tmp_path: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page = label(make_store(tmp_path), color_scheme=scheme)
        look = "(node) => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
        colours.append([page.locator(part).first.evaluate(look) for part in ("body", ".sentence")])
    for light, dark in zip(*colours, strict=True):
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (*light, *dark)]
        assert brightness[0] > brightness[1] + 300  # dark text on light
        assert brightness[2] + 300 < brightness[3]  # light text on dark


def test_sentences_and_names_with_markup_are_shown_and_not_run(label: Callable[..., Any], tmp_path: Path) -> None:
    store = make_store(tmp_path, people=2, text=NASTY)
    page = label(store, NASTY[:60])
    assert NASTY in page.locator(".sentence").first.inner_text()
    press(page, "1")
    other = label(store, "ben")
    press(other, "2")
    other.locator("#review summary").click()
    other.wait_for_selector(".dispute")
    assert NASTY in other.locator(".dispute p").first.inner_text()
    for each in (page, other):
        assert each.evaluate("window.broken") is None
        assert each.locator("img").count() == 0


def test_two_people_disagree_and_settle(label: Callable[..., Any], tmp_path: Path) -> None:
    store = make_store(tmp_path, count=4, people=2)
    for who, keys in (("anna", "1212"), ("ben", "1211")):
        page = label(store, who)
        for key in keys:
            press(page, key)
    page.locator("#review summary").click()
    page.wait_for_selector("#review table")
    row = page.locator("#agreement tbody tr").inner_text().split("\t")
    assert row == ["anna and ben", "4", "0.50"]  # 3 of 4 agree, by chance 2 of 4 would
    assert page.locator(".dispute").count() == 1
    with page.expect_response(re.compile("/api/settle")):
        page.locator(".dispute button", has_text="Different").click()
    page.get_by_text("Nothing to settle").wait_for()
    assert [row[2] for row in store.rows()] == ["same", "different", "same", "different"]


class Fitted:
    """A background thread that has fitted a head."""

    curve: ClassVar[dict[str, Any]] = {
        "candidate": "linear map", "measure": "average precision", "labels": 120, "more": 300,
        "sizes": [20, 40, 60, 80], "scores": [71.0, 73.5, 75.0, 75.75], "gain": 2.0,
        "low": 0.5, "high": 3.5, "visible": 2.5, "before": 70.0,
        "words": "300 more labels would bring +2.0 points.",
    }  # fmt: skip

    def start(self) -> None:
        pass

    stop = start

    def status(self) -> dict[str, Any]:
        return {"state": "ready", "message": None, "curve": self.curve}


@pytest.mark.parametrize("look", [DESKTOP, {**PHONE, "color_scheme": "dark"}], ids=["desktop", "dark phone"])
def test_adapt_is_started_watched_and_cancelled_by_keyboard(
    label: Callable[..., Any], tmp_path: Path, work: Path, finish: Callable[[Path], None], look: dict[str, Any]
) -> None:
    store = make_store(tmp_path)
    store.suggest(1, "different")
    background = Background(refit=Fitted(), jobs=AdaptJobs(work, "m"))  # type: ignore[arg-type]
    page = label(store, background=background, **look)
    assert page.locator(".answers .suggested").get_attribute("data-value") == "different"
    press(page, "1")  # a suggestion is no answer
    assert answers(tmp_path) == [(1, "same")]
    assert page.locator(".answers .suggested").count() == 0  # of the next question

    page.locator("#learning summary").focus()
    page.keyboard.press("Enter")
    chart = page.locator("#curve svg")
    chart.wait_for()
    assert page.locator("#curve h2").inner_text() == "Average precision on held-out answers"
    assert "71.0, 73.5, 75.0, 75.8" in str(chart.get_attribute("aria-label"))
    heights = [float(chart.locator("circle:not(.open)").nth(i).get_attribute("cy")) for i in range(4)]
    assert heights == sorted(heights, reverse=True)  # a higher score is higher up
    assert "the model as it is" in str(chart.text_content())
    assert page.evaluate("document.documentElement.scrollWidth") <= look["viewport"]["width"]

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "start-adapt"
    page.keyboard.press("Enter")
    page.locator("#cancel-adapt").wait_for()
    assert (work / "1" / "labels.csv").read_text().count("\n") == 2
    press(page, "2")  # labelling goes on
    page.reload()  # in the middle
    page.locator("#learning summary").click()
    page.locator("#log", has_text="begun with").wait_for()
    assert "Running for" in page.locator("#job").inner_text()
    page.locator("#cancel-adapt").focus()
    page.keyboard.press("Enter")
    page.locator("#job", has_text="Cancelled").wait_for()
    page.locator("#start-adapt").click()  # one label more: another job
    page.locator("#cancel-adapt").wait_for()
    finish(work / "2")
    page.locator("#job", has_text="Do not train").wait_for()
    assert page.locator("#adapt tbody td").first.inner_text() == "as it is"
    assert page.evaluate("document.documentElement.scrollWidth") <= look["viewport"]["width"]
    assert len(answers(tmp_path)) == 2


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(folder), str(port)], env=environment)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server
        except OSError:
            assert server.poll() is None
            time.sleep(0.05)
    raise TimeoutError


def test_killed_server_loses_nothing(open_page: Callable[..., Any], tmp_path: Path, work: Path) -> None:
    make_store(tmp_path).close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = _start(tmp_path, port)
    try:
        page = open_page(f"http://127.0.0.1:{port}/", quiet=False)  # the browser says that requests fail
        page.get_by_label("Your name").fill("anna")
        page.keyboard.press("Enter")
        page.wait_for_selector(".sentence")
        for key in "121":
            press(page, key)
        page.locator("#learning summary").click()
        page.locator("#start-adapt").click()
        page.locator("#log", has_text="begun with").wait_for()
        server.kill()
        server.wait()
        assert [value for _, value in answers(tmp_path)] == ["same", "different", "same"]
        page.keyboard.press("2")
        page.wait_for_selector("#problem:not([hidden])")
        assert "The server cannot be reached." in page.locator("#problem").inner_text()
        server = _start(tmp_path, port)
        press(page, "2")  # the same page goes on with the question it shows
        assert not page.locator("#problem").is_visible()
        assert answers(tmp_path) == [(1, "same"), (2, "different"), (3, "same"), (4, "different")]
        assert "sentence1 5" in page.locator(".sentence").first.inner_text()
        for _ in range(100):  # the CSV follows
            if (tmp_path / "labels.csv").is_file() and (tmp_path / "labels.csv").read_text().count("\n") == 5:
                break
            time.sleep(0.05)
        else:
            pytest.fail("labels.csv was not written")
        page.reload()
        page.locator("#learning summary").click()
        page.locator("#job", has_text="Running for").wait_for()  # the job did not end with the first server
        page.locator("#cancel-adapt").click()
        page.locator("#job", has_text="Cancelled").wait_for()
    finally:
        server.kill()
        server.wait()


def test_answer_to_an_earlier_search_is_not_shown(
    open_page: Callable[..., Any], serve: Callable[..., Any], embedder: Embedder, sentences: list[str]
) -> None:
    corpus = MemoryCorpus("s.txt", Documents(sentences, {}), embedder.encode(sentences))
    with serve(create_app([Served("one", embedder, corpus)], LIMITS), LIMITS) as url:
        page = open_page(url)
        waiting: list[Any] = []
        page.route("**/search", lambda route: waiting.append(route))
        for text in ("first", "second"):
            page.get_by_label("Query").fill(text)
            page.keyboard.press("Enter")
        while len(waiting) < 2:
            page.wait_for_timeout(10)
        for route, text in ((waiting[1], "the second"), (waiting[0], "the first")):
            hit = {"index": 0, "score": 0.5, "sentence": text, "columns": {}}
            with page.expect_response("**/search"):
                route.fulfill(json={"model": "one", "hits": [hit], "truncated": [], "max_tokens": 32})
        page.wait_for_timeout(100)
        assert page.locator(".hits p").all_inner_texts() == ["the second"]


def test_search_page(
    open_page: Callable[..., Any],
    serve: Callable[..., Any],
    embedder: Embedder,
    tiny_roberta: Path,
    sentences: list[str],
) -> None:
    other = Embedder.from_pretrained(tiny_roberta, device="cpu")
    documents = Documents([*sentences, NASTY], {"odd": [str(i % 2) for i in range(len(sentences) + 1)]})
    models = [
        Served(name, each, MemoryCorpus(f"{NASTY}.txt", documents, each.encode(documents.sentences)))
        for name, each in (("one", embedder), ("two", other))
    ]
    limits = Limits(token="secret")
    with serve(create_app(models, limits), limits) as url:
        refused = open_page(url, quiet=False)
        refused.get_by_label("Token").fill("secret")
        refused.keyboard.press("Enter")
        refused.get_by_label("Query").wait_for()
        page = open_page(f"{url}/#token=secret", **PHONE)
        page.get_by_label("Query").fill("A dog runs.")
        assert "secret" not in page.url
        assert page.locator("h1").inner_text() == f"{NASTY}.txt"
        page.keyboard.press("Enter")
        page.wait_for_selector(".hits li")
        assert page.locator("#results h2").all_inner_texts() == ["one", "two"]
        hits = page.locator(".hits").first.locator("li")
        assert hits.count() == 10
        expected = embedder.search(documents.sentences, "A dog runs.", 10)
        assert hits.first.locator("p").first.inner_text() == documents.sentences[expected[0].index]
        assert hits.first.locator(".score").inner_text() == f"{expected[0].score:.2f}"
        theirs = {documents.sentences[hit.index] for hit in other.search(documents.sentences, "A dog runs.", 10)}
        for i, hit in enumerate(expected):
            alone = documents.sentences[hit.index] not in theirs
            assert hits.nth(i).locator(".quiet", has_text="only here").count() == alone
        assert any(documents.sentences[hit.index] not in theirs for hit in expected)
        text = hits.nth(1).locator("p").first.inner_text()
        with page.expect_response(re.compile("/search")):
            hits.nth(1).get_by_role("button", name="More like this").click()
        page.locator(".hits p", has_text=text).first.wait_for(state="detached")
        assert page.get_by_label("Query").input_value() == text
        assert text not in page.locator(".hits").first.locator("p").all_inner_texts()
        page.reload()  # repeats the search, without the row that it was about
        page.wait_for_selector(".hits li")
        assert page.get_by_label("Query").input_value() == text
        assert text not in page.locator(".hits").first.locator("p").all_inner_texts()
        page.go_back()
        page.locator(".hits p", has_text=text).first.wait_for()
        assert page.get_by_label("Query").input_value() == "A dog runs."
        page.get_by_label("Query").fill(NASTY)
        page.get_by_label("Filter by column").select_option("odd")
        page.get_by_label("Value of the column").fill("0")
        page.get_by_role("button", name="Search").click()
        page.locator(".hits .quiet", has_text="odd: 1").first.wait_for(state="detached")
        assert {text.split(" · ")[-1] for text in page.locator(".hits .quiet").all_inner_texts()} == {"odd: 0"}
        assert NASTY in page.locator(".hits p").all_inner_texts()
        assert page.evaluate("window.broken") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
