"""The pages in a browser: they ask for nothing, say nothing wrong, and sort, filter, draw, copy and fit their width."""

import json
import shutil

import pytest

from experiments.cli import main
from experiments.leaderboard.board import MEAN
from experiments.leaderboard.write import write
from tests.experiments.test_experiments_leaderboard import CELLS, made

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `browser`")
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: the extra `pages`")
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH")
    with api.sync_playwright() as found:
        browser = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(made(), tmp_path_factory.mktemp("board"), left_out={"dms": "no weights"}, command="kvjax leaderboard")


@pytest.fixture(params=[1200, 400])
def page(request, browser, written):
    """The page at a width; at the end it must have asked for itself alone and have complained of nothing."""
    context = browser.new_context(viewport={"width": request.param, "height": 800})
    said, asked, opened = [], [], context.new_page()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda wanted: asked.append(wanted.url))
    opened.goto(written.page.as_uri())
    opened.wait_for_selector("body[data-drawn]")
    yield opened
    assert said == [] and [url for url in asked if not url.startswith(("data:", "blob:"))] == [written.page.as_uri()]
    context.close()


def shown(page):
    """Methods with their budgets, from top to bottom."""
    return page.eval_on_selector_all("tbody tr[data-method]", "rows => rows.filter(r => !r.hidden).map(r => r.cells[0].innerText)")


def drawn(page, count):
    page.wait_for_selector(f"body[data-drawn='{count}']")


def on_front(page, name):
    """Names that stand at a chart's front."""
    found = page.eval_on_selector_all(f"#chart-{name} .mark-text.role-mark text", "all => all.map(t => t.textContent)")
    return set(found)


def test_rows_sort_by_a_click_and_back(page):
    assert shown(page)[0] == "full" and len(shown(page)) == len(CELLS)
    head = page.get_by_role("button", name="device MB")
    head.click()
    assert shown(page)[-1] == "full" and page.locator("th[aria-sort=ascending]").inner_text().startswith("device MB")
    head.click()
    assert shown(page)[0] == "full"


def test_filters_of_task_kind_budget_and_name_hold_for_table_and_charts(page, written):
    page.select_option("select[name=task]", "needle unseen")
    drawn(page, len(CELLS))
    places = [place for place in written.places if place.task == "needle unseen"]
    assert on_front(page, "bytes") == {place.name for place in places if place.cheap}
    assert on_front(page, "time") == {place.name for place in places if place.fast}
    page.locator("label.chip", has_text="evict").first.click()
    drawn(page, 4)
    assert set(shown(page)) == {"snapkv 0.5", "snapkv 0.25", "keydiff 0.5", "keydiff 0.25"}
    assert on_front(page, "bytes") == {"snapkv 0.25", "keydiff 0.5"}  # among what is shown
    page.locator("label.chip", has_text="0.25").click()
    drawn(page, 2)
    page.fill("input[type=search]", "snap")
    drawn(page, 1)
    assert shown(page) == ["snapkv 0.25"]
    page.get_by_role("button", name="all", exact=True).click()
    drawn(page, len(CELLS))
    assert page.locator("select[name=task]").input_value() == MEAN


def test_perplexity_has_charts_of_its_own(page):
    page.select_option("select[name=task]", "ppl")
    page.wait_for_function("document.querySelector('#chart-bytes svg').textContent.includes('nats per token')")
    assert on_front(page, "bytes") == {"snapkv 0.25", "kivi", "full"}


def test_a_point_says_its_row_and_leads_to_it(page):
    point = page.locator("#chart-bytes .mark-symbol path[aria-label*='keydiff 0.5']").first
    point.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "keydiff 0.5" in page.inner_text("#vg-tooltip-element") and "90 [" in page.inner_text("#vg-tooltip-element")
    point.click(force=True)
    assert page.url.split("#")[1].startswith("row-")
    assert page.locator("tr:target td").first.inner_text() == "keydiff 0.5"


def test_a_rows_command_is_copied(page):
    page.evaluate("navigator.clipboard.writeText = text => { window.held = text; return Promise.resolve(); }")
    page.locator("tr:not([hidden]) button.copy").first.click()
    page.wait_for_selector("text=copied")
    assert page.evaluate("window.held").startswith("kvjax leaderboard --model toy --dtype float32 --methods full")


def test_it_fits_its_width_with_the_score_second_and_the_method_frozen(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    heads = page.locator("th button")
    assert [heads.nth(i).inner_text() for i in (0, 1)] == ["method", "score"]
    region = page.locator("[aria-label=leaderboard]")
    before = page.locator("tbody tr td").first.bounding_box()["x"]
    score = page.locator("tbody tr td").nth(1).bounding_box()
    assert score["x"] + score["width"] <= page.viewport_size["width"]
    region.evaluate("box => { box.scrollLeft = 300; }")
    assert page.locator("tbody tr td").first.bounding_box()["x"] == before


def test_a_reports_page_filters_its_tables_and_charts(browser, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in made(tasks=("needle",))))
    assert main(["report", str(rows), "--out", str(tmp_path), "--charts"]) == 0
    page = browser.new_page(viewport={"width": 400, "height": 800})
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "index.html").as_uri())
    drawn(page, 2 * len(CELLS))
    assert page.locator(".chart svg.marks").count() == 2 and page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.fill("input[type=search]", "snap key")
    page.locator("label.chip", has_text="0.25").click()
    drawn(page, 4)
    assert shown(page) == ["keydiff", "snapkv"] * 2 and said == []
    page.close()
