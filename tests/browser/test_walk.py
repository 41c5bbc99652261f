"""Each page in a browser: it loads whole and alone, can be reached and left, works by keyboard, fits, and shuts nobody out."""

from __future__ import annotations

import re
from html import unescape

import httpx2
import pytest
from browsers import cookie as signed
from fastapi.routing import APIRoute
from pages import LINKS, PAGES, Shown
from playwright.sync_api import expect
from sites import DRIFTED, Site
from windows import PHONE, Window

from service.http.app import ROUTERS
from service.http.bounds import API

HEAVIEST = 300_000
"""Bytes that a page may weigh, compressed."""
LOOKS = ("color-contrast", "link-in-text-block", "target-size", "scrollable-region-focusable")
"""Rules of axe about colours and sizes. The others see the same on a phone and in the dark: nothing is left out there."""
_TEXTS = """() => [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility({ visibilityProperty: true })
    && [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())).length"""


@pytest.fixture(scope="module", params=PAGES, ids=lambda shown: shown.name)
def shown(request: pytest.FixtureRequest, kept: Window, site: Site) -> Shown:
    """Each page once: its tests run one after the other on what was loaded for the first of them."""
    found: Shown = request.param
    kept.anew()
    kept.open(found.address(site))
    return found


def test_a_page_is_whole_and_alone(kept: Window, shown: Shown) -> None:
    """It says what it is for, nothing on it fails or comes from elsewhere, and it is light enough for a phone on a train."""
    expect(kept.page.locator("h1")).to_contain_text(shown.heading)
    for words in shown.seen:
        expect(kept.page.locator("main")).to_contain_text(words)
    assert kept.weight() < HEAVIEST
    assert [] == kept.ran()
    assert [] == [one for one in kept.troubles if not (shown.missing and "404" in one)]


def test_tab_goes_through_all_that_can_be_used(kept: Window, shown: Shown) -> None:
    """Who has no mouse comes everywhere, in the order of reading, sees where, and is held nowhere; what every page begins with is skipped."""
    found = kept.tabbed()
    assert "a To the content" == found.reached[0]
    assert found.stops == found.reached, shown.name
    assert ([], [], []) == (found.unmarked, found.by_mouse, found.moved)


def test_a_page_fits_a_screen_and_a_phone_in_light_and_in_dark(kept: Window, shown: Shown) -> None:
    """Nothing is pushed off the screen, nothing is left out on the phone, and the dark is dark."""
    count, light = kept.page.evaluate(_TEXTS), kept.ground()
    assert [] == kept.too_wide(), shown.name
    kept.resize(PHONE)
    assert [] == kept.too_wide()
    assert count == kept.page.evaluate(_TEXTS)
    kept.page.emulate_media(color_scheme="dark")
    assert light != kept.ground()


def test_nobody_is_shut_out(kept: Window, shown: Shown) -> None:
    """Names for screen readers, contrast in both schemes, headings, labels, room for fingers on a phone, lists that scroll by keys."""
    if shown.again:
        return
    kept.anew()
    assert [] == kept.barriers(), shown.name
    kept.resize(PHONE)
    kept.page.emulate_media(color_scheme="dark")
    assert [] == kept.barriers(*LOOKS), shown.name


def test_pages_lead_to_each_other_and_back(window: Window, site: Site) -> None:
    """From the fleet to what moved an incident by clicks alone, and back by the browser's button: nobody types addresses."""
    page = window.open("/")
    page.get_by_role("link", name=DRIFTED, exact=True).click()
    page.locator(f'main a[href="{LINKS.incident(DRIFTED, site.incident)}"]').first.click()
    expect(page.locator("h1")).to_contain_text("Tier 2")
    # Why and what to do come first; the evidence below is folded.
    page.locator("#moved summary").first.click()
    page.locator('#moved a[href*="/exchanges/"]').first.click()
    expect(page.locator("h1")).to_contain_text("Turn 1")
    page.locator('main a[href*="/sessions/"]').first.click()
    expect(page.locator("h1")).to_contain_text("Session")
    page.get_by_label("Where you are").get_by_role("link", name=DRIFTED).click()
    expect(page.locator("h1")).to_contain_text(DRIFTED)
    for heading in ("Session", "Turn 1", "Tier 2", DRIFTED, "Fleet"):
        page.go_back()
        expect(page.locator("h1")).to_contain_text(heading)
    assert [] == window.troubles


def test_the_first_key_skips_what_every_page_begins_with(window: Window) -> None:
    """Who goes by keyboard does not want to pass the same links on every page."""
    page = window.open(LINKS.project(DRIFTED))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_every_page_is_in_the_table(site: Site, cookie: str) -> None:
    """What the pages link to is walked, too: a new page cannot be left out."""
    places = [shown.address(site) for shown in PAGES]
    with httpx2.Client(base_url=site.url, headers=signed(cookie), trust_env=False, timeout=60) as client:
        pages = [client.get(place).text for place in places]
    linked = {unescape(place) for page in pages for place in re.findall(r'<a [^>]*href="(/[^"]*)"', page)}
    assert set() == {_kind(place) for place in linked} - {_kind(place) for place in places} - FILES


def test_every_page_of_the_server_is_in_the_table(site: Site) -> None:
    """A page that no other page links to, such as the sign-in, is walked, too."""
    served = {
        re.sub(r"{[^}]*}", "*", route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.startswith(f"{API}/")
    }
    walked = {_kind(shown.address(site)) for shown in PAGES}
    assert (set(), set()) == (served - walked - FILES - NOT_ALONE - OF_OTHERS, walked - served)


FILES = {
    "/projects/*/runs/*/session.json",
    "/projects/*/runs/*/diagnosis.json",
    "/projects/*/runs/*/events",
    "/projects/*/runs/*/events/*.json",
    "/projects/*/lists/*",
    "/projects/*/exchanges/*/texts/*",
    "/projects/*/evaluations/*/prompts/*",
    "/static/*",
    "/healthz",
    "/readyz",
    "/metrics",
}
"""What is downloaded, or shown by the browser as it is."""
NOT_ALONE = {"/admin/deletion/plan", "/sql/snapshot"}
"""What another page of the table takes in."""
OF_OTHERS = {"/docs", "/docs/*", "/docs/start.js"}
"""The documentation of the API: its page is a library's."""


def _kind(address: str) -> str:
    """An address without the names in it."""
    parts = address.partition("?")[0].partition("#")[0].split("/")
    named = ("projects", "incidents", "exchanges", "runs", "sessions", "lists", "evaluations", "people", "connections")
    return "/".join("*" if place and parts[place - 1] in named else part for place, part in enumerate(parts))
