"""The page in headless Chromium: it draws, answers to pointer, finger and keyboard, and fits a phone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import DESKTOP, PHONE
from report.made_runs import NASTY, write_grid, write_run

from diffaug.report import build

# The colour that a variable of the style sheet stands for now.
RESOLVED = """(name) => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}"""


@pytest.fixture(scope="module")
def report(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(trained, tmp_path_factory.mktemp("browser") / "report.html", device="cpu")


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page from its file; at the end, nothing must have been fetched or complained about."""
    contexts, said = [], list[str]()

    def go(path: Path, **options: Any) -> Any:
        context = browser.new_context(**{**DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.extend([] if request.url == path.as_uri() else [request.url[:80]]))
        page.goto(path.as_uri())
        page.wait_for_selector("#curves svg.chart")
        return page

    yield go
    assert [text for text in said if not text.startswith("data:")] == []
    for context in contexts:
        context.close()


def test_curves_follow_metric_runs_and_stage(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    lines = page.locator("#curves path.line")
    assert lines.count() == 3  # the last stage of each run, where the dev score is measured
    assert page.locator("#curves circle.best").count() == 2
    assert page.locator("#curves line.stage").count() >= 1
    page.get_by_label("Metric").select_option("loss")
    assert lines.count() == 5  # two runs have two stages
    page.get_by_role("button", name="Stage 1").click()
    assert lines.count() == 2
    page.get_by_role("button", name="All", exact=True).first.click()
    key = page.locator("#curves .keys button", has_text="unfinished")
    assert key.get_attribute("aria-pressed") == "true"
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert lines.count() == 3
    page.get_by_role("button", name="Hide all").click()
    assert page.locator("#curves .empty").inner_text() == "No run is shown."
    page.get_by_role("button", name="Show all").click()
    assert lines.count() == 5


def test_verdict_and_curves_name_the_score_before_training(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    assert "the model before training" in page.locator(".verdict-card .headline").inner_text()
    assert page.locator(".verdict-card dt").all_inner_texts()[0] == "Before training"
    assert page.locator("#curves line.before").count() == 1
    assert page.locator("#curves text.before").inner_html() == "before training"
    page.get_by_label("Metric").select_option("loss")
    assert page.locator("#curves line.before").count() == 0


def test_values_are_read_by_pointer_and_keyboard(visit: Callable[..., Any], report: Path, trained: Path) -> None:
    page = visit(report)
    page.get_by_label("Metric").select_option("loss")
    plot, readout = page.locator("#curves .plot"), page.locator("#curves .readout")
    assert not readout.is_visible()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 100)
    assert "unfinished" in readout.inner_text()
    assert "0.0250" in readout.inner_text()  # 1 / 40, its last loss
    page.mouse.move(5, 5)
    assert not readout.is_visible()
    plot.focus()
    page.keyboard.press("Home")
    first = readout.inner_text()
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() != first
    page.keyboard.press("Escape")
    assert not readout.is_visible()


def test_pairs_are_filtered(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    items = page.locator("#pairs .pairs > li")
    assert items.count() == 10
    page.get_by_role("button", name="Too similar").click()
    assert set(page.locator("#pairs .error b").all_inner_texts()) == {"too similar"}
    page.get_by_role("button", name="Too far").click()
    assert set(page.locator("#pairs .error b").all_inner_texts()) == {"too far"}
    before = items.count()
    if page.get_by_role("button", name="Show more").is_visible():
        page.get_by_role("button", name="Show more").click()
        assert items.count() > before


def test_a_sentence_with_markup_is_shown_and_not_run(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    page.get_by_placeholder("Find words").fill("window.broken")
    hit = page.locator("#map circle.hit")
    assert hit.count() == 1
    hit.scroll_into_view_if_needed()
    box = hit.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#map .chosen").text_content() == NASTY
    assert page.evaluate("window.broken") is None
    assert page.locator("#map .panel b").count() == 0


def test_the_map_is_read_by_keyboard_and_shows_every_model(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    plot = page.locator("#map .plot")
    plot.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#map .chosen").inner_text()
    assert page.locator("#map circle.near").count() >= 4
    seen = {first}
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        seen.add(page.locator("#map .chosen").inner_text())
    assert len(seen) > 1
    places = "[...document.querySelectorAll('#map .map circle')].map((c) => c.getAttribute('cx')).join()"
    before = page.evaluate(places)
    page.get_by_label("Model").select_option(index=1)
    assert page.evaluate(places) != before
    after = page.evaluate(places)
    page.get_by_role("button", name="Before training").click()
    assert page.evaluate(places) != after
    assert page.locator("#map h4").all_inner_texts() == ["Nearest after training", "Nearest before training"]
    assert "of the nearest neighbours of a sentence are new" in page.locator("#map .about").first.inner_text()
    page.locator("#map .sentence").first.click()
    assert page.locator("#map circle.selected").count() == 1


def test_a_table_is_sorted_and_leads_to_a_runs_curves_and_recipe(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    names = page.locator(".runs tbody th .named")
    assert names.all_inner_texts() == ["Before training", "deeper/simcse", "diffaug", "unfinished"]
    page.get_by_role("button", name="alignment").click()
    values = "[...document.querySelectorAll('.runs td:nth-child(4)')].map((cell) => Number(cell.dataset.v))"
    scores = page.evaluate(values)[:2]
    assert scores == sorted(scores, reverse=True)
    assert names.all_inner_texts()[2:] == ["Before training", "unfinished"]  # what has no value comes last, either way
    page.get_by_role("button", name="alignment").click()
    assert page.evaluate(values)[:2] == scores[::-1]
    assert names.all_inner_texts()[2:] == ["Before training", "unfinished"]
    row = page.locator(".runs tbody tr", has_text="diffaug")
    assert row.get_by_role("link", name="map").count() == 1
    assert page.locator(".runs tbody tr", has_text="unfinished").get_by_role("link", name="map").count() == 0
    row.get_by_role("link", name="curves").click()
    assert page.locator("#curves .keys [aria-pressed=true]").all_inner_texts() == ["diffaug"]
    row.get_by_role("link", name="diffaug").click()
    recipe = page.locator("details.recipe[open] pre")
    assert "views.length: 3" in recipe.inner_text()
    assert "method: diffaug\n" in recipe.locator("mark").all_text_contents()
    assert "seed: 42\n" in recipe.locator("span").all_text_contents()


def test_many_runs_are_found_in_long_tables_and_in_the_legend(visit: Callable[..., Any], tmp_path: Path) -> None:
    for i in range(20):
        write_run(tmp_path / "runs" / f"run-{i:02}", seed=i, name="simcse-sup" if i % 2 else "diffaug-sup")
    page = visit(build(tmp_path / "runs", tmp_path / "report.html"))
    find = page.get_by_label("Settings that differ: find runs")
    rows = page.locator("table.settings tbody tr")
    assert rows.count() == 20
    find.fill("SIMCSE run-0")
    assert page.locator("table.settings tbody tr:visible").count() == 5
    assert page.locator("#settings .find").inner_text() == "5 of 20"
    find.fill("")
    assert page.locator("table.settings tbody tr:visible").count() == 20
    pressed = page.locator("#curves .keys button").evaluate_all("(all) => all.map((b) => b.ariaPressed)")
    assert pressed == sorted(pressed, reverse=True), "those that are drawn come first"
    assert pressed.count("true") == 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", ["runs", "grid"])
def test_a_phone_needs_no_sideways_scrolling(
    visit: Callable[..., Any], report: Path, tmp_path: Path, what: str, scheme: str
) -> None:
    path = report if what == "runs" else build(write_grid(tmp_path / "grid").folder, tmp_path / "report.html")
    page = visit(path, **PHONE, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for heading in page.locator(".group span").all():
        box = heading.bounding_box()
        assert box["x"] + box["width"] <= 360, "what rows are compared with is read without scrolling"
    plot = page.locator("#curves .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 30, box["y"] + 60)
    assert "Step" in page.locator("#curves .readout").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    controls = "[...document.querySelectorAll('button, select, input:not([type=checkbox]), label')]"
    assert (
        page.evaluate(f"{controls}.filter((c) => c.offsetHeight && c.offsetHeight < 24).map((c) => c.outerHTML)") == []
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_have_enough_contrast(visit: Callable[..., Any], report: Path, scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for what is drawn."""
    page = visit(report, color_scheme=scheme)
    assert contrast(page, "--ink", "--paper") > 7
    for ground in ("--paper", "--card"):
        for text in ("--quiet", "--accent", "--near-text", "--far-text"):
            assert contrast(page, text, ground) >= 4.5, (text, ground)
        for drawn in ("--strong-line", *(f"--c{i}" for i in range(9)), *(f"--s{i}" for i in range(5))):
            assert contrast(page, drawn, ground) >= 3, (drawn, ground)
    for state in ("--good", "--warn", "--bad"):
        assert contrast(page, state, f"{state}-soft") >= 4.5, state
    assert contrast(page, "--quiet", "--line") >= 4.5
    assert contrast(page, "--ink", "--mark") >= 4.5
    assert contrast(page, "--quiet", "--mark") >= 4.5


def test_colours_follow_the_system_until_one_is_chosen(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    button = page.locator("#theme")
    assert button.get_attribute("aria-label") == "Colours: automatic"
    button.click()
    assert page.evaluate(ground) != dark
    page.reload()
    assert button.get_attribute("aria-label") == "Colours: light"
    button.click()
    assert page.evaluate(ground) == dark
    light = visit(report, color_scheme="light")
    assert light.evaluate(ground) != dark


def test_all_that_can_be_used_has_a_name_and_can_be_reached(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, select, input, a')].filter((e) => !(e.ariaLabel || e.innerText.trim()
        || (e.labels && e.labels.length))).map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    boxes = page.locator(".scroll")
    assert boxes.count() == page.locator(".scroll[tabindex='0'][aria-label]").count() > 0


def test_the_page_can_be_printed(visit: Callable[..., Any], report: Path) -> None:
    page = visit(report, color_scheme="dark")
    assert page.pdf()[:5] == b"%PDF-"
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for colour in ("--quiet", "--good", "--accent", "--c0", "--c3"):
        assert contrast(page, colour, "--paper") >= 3, colour


def contrast(page: Any, first: str, second: str) -> float:
    """Of two colours of the style sheet, as WCAG computes it."""

    def luminance(name: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", page.evaluate(RESOLVED, name))]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
