"""The pages in a browser: they ask for nothing, say nothing wrong, and sort, filter, draw, copy and fit their width."""

import json
import shutil
from contextlib import contextmanager
from itertools import accumulate, combinations
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import main
from experiments.kept.held import Held
from experiments.kept.page import render
from experiments.leaderboard.board import MEAN
from experiments.leaderboard.write import write
from tests.experiments.test_experiments_leaderboard import CELLS, made

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COMMITTED = Path(__file__).parents[2] / "docs/results/leaderboard.html"
#: Where texts stand; the line of a text reaches above its letters.
BOXES = "all => all.map(t => t.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"


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


@contextmanager
def opened(browser, path, width):
    """The page at a width; at the end it must fit, have asked for itself alone and have complained of nothing."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    said, asked, page = [], [], context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda wanted: asked.append(wanted.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn]")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert said == [] and {url.split("#")[0] for url in asked if not url.startswith(("data:", "blob:"))} == {path.as_uri()}
    context.close()


@pytest.fixture(params=[1200, 400])
def page(request, browser, written):
    """The leaderboard."""
    with opened(browser, written.page, request.param) as page:
        yield page


def shown(page):
    """Methods with their budgets, from top to bottom."""
    return page.eval_on_selector_all("tbody tr[data-method]", "rows => rows.filter(r => !r.hidden).map(r => r.cells[0].innerText)")


def drawn(page, count):
    page.wait_for_selector(f"body[data-drawn='{count}']")


def on_front(page, name):
    """Names that stand at a chart's front."""
    found = page.eval_on_selector_all(f"#chart-{name} .mark-text.role-mark text", "all => all.map(t => t.textContent)")
    return set(found)


@pytest.mark.parametrize("width", [1200, 400])
def test_the_committed_page_fits_and_names_on_its_charts_lie_apart(browser, width):
    with opened(browser, COMMITTED, width) as page:
        for task in page.locator("select[name=task] option").evaluate_all("all => all.map(o => o.value)"):
            page.select_option("select[name=task]", task)
            page.wait_for_timeout(200)
            boxes = page.eval_on_selector_all(".mark-text.role-mark text", BOXES)
            assert boxes and [pair for pair in combinations(boxes, 2) if overlap(*pair)] == []


def overlap(one, other):
    """Whether two rectangles (left, top, right, bottom) share more than a pixel in both directions."""
    return all(min(one[i + 2], other[i + 2]) - max(one[i], other[i]) > 1 for i in (0, 1))


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


@pytest.mark.parametrize("width", [1200, 400])
def test_a_reports_page_filters_its_tables_and_charts(browser, tmp_path, width):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in made(tasks=("needle",), table_bytes=1_500_000)))
    assert main(["report", str(rows), "--out", str(tmp_path), "--charts"]) == 0
    with opened(browser, tmp_path / "index.html", width) as page:
        drawn(page, 2 * len(CELLS))
        assert page.locator(".chart svg.marks").count() == 2
        page.fill("input[type=search]", "snap key")
        page.locator("label.chip", has_text="0.25").click()
        drawn(page, 4)
        assert shown(page) == ["keydiff", "snapkv"] * 2
        page.get_by_role("button", name="of 16-bit cache").first.click()
        assert "50%" in page.locator("tr:not([hidden])[data-method=keydiff]").first.inner_text()  # 2.5 of 5 MB
        assert page.get_by_role("button", name="tables MB").count() == 2


#: Two layers of two heads over ten tokens, the second and third of which are one character; two policies.
PIECES = [("a", 1), ("漢", 2), (" b", 1), ("\n", 1), *[(f" w{i}", 1) for i in range(5)]]
FIRST = np.array([[[1] * 10, [1] * 5 + [0] * 5], [[0] * 10, [0, 1, 0] + [0] * 7]], bool)
SECOND = np.array([[[0] * 7 + [1] * 3] * 2] * 2, bool)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A page of `kvjax show`."""
    common = dict(budget=0.5, policy_repr="P", device=1000, host=0, tables=0)
    found = [Held(policy="adakv", mask=FIRST, **common), Held(policy="streaming_llm:sinks=0", mask=SECOND, **common)]
    path = tmp_path_factory.mktemp("kept") / "page.html"
    path.write_text(render(found, PIECES, model="toy", full=4000, half=2000, command="kvjax show"))
    return path


@pytest.fixture(params=[1200, 400])
def kept_page(request, browser, kept):
    with opened(browser, kept, request.param) as page:
        drawn(page, 8)
        yield page


def shades(page, table):
    """The shade of each piece of a policy's text."""
    read = "all => all.map(span => Number(span.style.getPropertyValue('--s')))"
    return page.eval_on_selector_all(f".tokens[data-table={table}] span", read)


def of_pieces(share):
    """The mean of each of PIECES."""
    edges = [0, *accumulate(count for _, count in PIECES)]
    return [pytest.approx(share[a:b].mean(), abs=1e-3) for a, b in zip(edges, edges[1:], strict=False)]


def tooltip(page):
    page.wait_for_selector("#vg-tooltip-element.visible")
    return page.inner_text("#vg-tooltip-element")


def test_show_draws_every_head_of_both_policies_and_says_it(kept_page):
    for table in ("p0", "p1"):
        assert kept_page.locator(f"[data-chart=heat][data-table={table}] .mark-rect.role-mark path").count() == 4
    cell = kept_page.locator("[data-chart=heat][data-table=p0] .mark-rect.role-mark path[aria-label*='layer: 0; KV head: 1']")
    cell.hover()
    said = tooltip(kept_page)
    assert all(words in said for words in ("adakv 0.5", "50.0%", "5")), said
    cell.click()
    assert kept_page.url.endswith("#p0-0-1") and kept_page.locator("tr:target td").nth(3).inner_text() == "5"


def test_show_filters_heads_for_charts_and_text(kept_page):
    assert shades(kept_page, "p0") == of_pieces(FIRST.mean((0, 1))) and shades(kept_page, "p1") == of_pieces(SECOND.mean((0, 1)))
    kept_page.select_option("select[name=layer]", "1")
    drawn(kept_page, 4)
    assert kept_page.locator("form output").inner_text() == "4 of 8 heads"
    assert shades(kept_page, "p0") == of_pieces(FIRST[1].mean(0))
    assert kept_page.locator("[data-chart=heat][data-table=p1] .mark-rect.role-mark path").count() == 2
    kept_page.select_option("select[name=head]", "1")
    drawn(kept_page, 2)
    assert shades(kept_page, "p0") == of_pieces(FIRST[1, 1].astype(float))
    kept_page.get_by_role("button", name="all", exact=True).click()
    drawn(kept_page, 8)
    assert shades(kept_page, "p0") == of_pieces(FIRST.mean((0, 1)))


def test_shows_tables_sort(kept_page):
    head = kept_page.locator("#table + .wide").get_by_role("button", name="share kept")
    first = kept_page.locator("#table + .wide tbody tr td").nth(4)
    head.click()
    assert first.inner_text() == "100.0%"
    head.click()
    assert first.inner_text() == "0.0%"


def test_a_token_says_how_many_heads_keep_it_and_its_character_is_whole(kept_page):
    piece = kept_page.locator(".tokens[data-table=p1] span").nth(1)
    assert piece.inner_text() == "漢"
    piece.hover()
    where, one, two = kept_page.inner_text("#tip").splitlines()
    assert where == "position 1 to 2 of 10" and one == "adakv 0.5: kept by 62.5% of 4 heads"
    assert two == "streaming_llm:sinks=0 0.5: kept by 0.0% of 4 heads"
    assert kept_page.locator(".tokens span.at").count() == 2
    box = kept_page.locator("#tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= kept_page.viewport_size["width"]
    kept_page.mouse.move(1, 1)
    assert kept_page.locator("#tip").is_hidden()


def test_the_curve_along_the_prompt_says_both_policies(kept_page):
    point = kept_page.locator("[data-chart=along] .mark-rect.role-mark path").nth(8)
    point.hover()
    said = tooltip(kept_page)
    assert all(words in said for words in ("position", "8", "w3", "25.0%", "100.0%")), said
    box = kept_page.locator("#vg-tooltip-element").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= kept_page.viewport_size["width"]
