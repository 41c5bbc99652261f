"""Texts that try to be more than texts: on every page they are read, and do nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile import WILD, Text, corpus, events
from pages import LINKS
from playwright.sync_api import expect
from sites import QUIET, Site
from windows import PHONE, Window

TEXTS = {one.name: one for one in corpus()}
FEW = ("script that closes what it stands in", "mutation", "terminal", "one long line", "huge")
"""Texts whose exchange and incident are opened, too; on all other pages is every text."""
LISTS = {
    "project": LINKS.project(WILD),
    "anomalies": LINKS.anomalies(WILD),
    "wrap quality": LINKS.wrap_quality(WILD),
    "incidents": LINKS.incidents(WILD),
    "review": LINKS.review(WILD),
}
_INJECTED = """() => {
    const ours = (one) => (one.getAttribute("src") ?? one.getAttribute("href") ?? "").startsWith("/static/");
    const named = "iframe, frame, object, embed, applet, base, style, math, foreignObject, video, audio, marquee, template, "
        + "meta[http-equiv], animate, set, use";
    return [...document.querySelectorAll("*")].filter((one) =>
        one.matches(named)
        || one.matches("script, img, link") && !ours(one)
        || one.matches("form") && one.hasAttribute("action") && !one.getAttribute("action").startsWith("/api/audit/")
        || one.matches("a[href]") && !/^[/#]/.test(one.getAttribute("href"))
        || [...one.attributes].some(({ name, value }) => name.startsWith("on") || name === "style" || name === "srcdoc"
            || name === "formaction" || /^\\s*javascript:/i.test(value) && name !== "value" && !name.startsWith("data-name"))
        || document.querySelectorAll("#main, main").length !== 1
    ).map((one) => one.outerHTML.slice(0, 200));
}"""
_CANARY = "window.ran = []; window.canary = (what) => { ran.push(what); };"


@pytest.fixture
def wary(window: Window, site: Site) -> Iterator[Window]:
    """A window that notes what ran; at the end nothing has, and nothing was asked of anybody else."""
    window.page.add_init_script(_CANARY)
    yield window
    assert [] == window.page.evaluate("window.ran")
    assert [] == window.page.evaluate(_INJECTED)
    assert [] == window.troubles
    assert window.page.url.startswith(site.url)


def looks_right(window: Window) -> None:
    """The page is as wide as the window, on a screen and on a phone, and one can leave it."""
    assert [] == window.too_wide()
    window.resize(PHONE)
    assert [] == window.too_wide()
    expect(window.page.get_by_role("link", name="Driftline")).to_be_in_viewport()


@pytest.mark.parametrize("path", LISTS.values(), ids=LISTS)
def test_lists_of_them_show_them(wary: Window, path: str) -> None:
    """Names of agents and sessions, titles, reasons: short texts, many at once."""
    wary.open(path)
    wary.refreshed() if path == LISTS["project"] else None
    looks_right(wary)


@pytest.mark.parametrize("name", FEW)
def test_what_was_said_and_found_is_read_as_it_is(wary: Window, name: str) -> None:
    """Whoever looks into an attack has to see it; looking must not be one."""
    one, place = TEXTS[name], list(TEXTS).index(name)
    for path in (LINKS.exchange(WILD, f"said-{place}"), LINKS.incident(WILD, f"wild-{place}")):
        page = wary.open(path)
        expect(page.locator("main")).to_contain_text(one.seen)
        looks_right(wary)
        assert [] == page.evaluate(_INJECTED)


def test_runs_that_speak_in_them_are_drawn_and_listed(wary: Window, site: Site) -> None:
    """Types of events, tools, arguments, results: in the timeline, in the causes, and in the graph."""
    site.work(WILD, "wild-run", events(), 1)
    for path in (LINKS.run(WILD, "run_001"), LINKS.agents(WILD), LINKS.runs(WILD)):
        wary.open(path)
        looks_right(wary)
        assert [] == wary.page.evaluate(_INJECTED)


def test_what_people_write_is_no_markup_either(wary: Window, site: Site) -> None:
    """A comment is read by colleagues who trust it; each comes back exactly as it was typed."""
    texts = [one for one in TEXTS.values() if len(one.text) < 500]
    said = "\n".join(one.text for one in texts)[:1900]
    page = wary.open(LINKS.incident(WILD, "wild-0"))
    page.get_by_label("Reason").fill(said)
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#decisions")).to_contain_text("Dismissed")
    expect(page.locator("main")).to_contain_text(texts[0].seen)
    looks_right(wary)
    site.post(f"{WILD}/scores/said-0/human", site.operator, {"score": 2, "comment": said, "rater": "<b>bob</b>"})
    page = wary.open(LINKS.exchange(WILD, "said-0"))
    expect(page.locator("main")).to_contain_text("<b>bob</b>")
    looks_right(wary)


def test_answers_to_questions_are_texts(wary: Window) -> None:
    """Rows of SQL are put into the page by a script of ours, columns and names of charts, too."""
    page = wary.open(LINKS.sql)
    statement = f"SELECT left(anomaly_reasons[1], 2000) AS \"<img src=x onerror=canary('name')>\", 1 AS one FROM scores WHERE project = '{WILD}'"
    page.get_by_label("Statement").fill(statement)
    page.keyboard.press("Control+Enter")
    table = page.locator("[data-table]")
    for one in TEXTS.values():
        expect(table).to_contain_text(one.seen)
    looks_right(wary)


def test_what_comes_while_one_looks_is_a_text(wary: Window, site: Site) -> None:
    """Parts of a page are exchanged as they come: that is another way in."""
    page = wary.open(LINKS.project(QUIET))
    script: Text = TEXTS["picture"]
    site.say(QUIET, script.named, 1, script.text, script.text, thinking=script.text)
    wary.refreshed()
    page.goto(site.url + LINKS.telemetry)
    expect(page.locator("main")).to_contain_text(script.seen)
    looks_right(wary)
