"""Each page in a browser: it loads whole and alone, can be reached and left, works by keyboard, fits, and shuts nobody out."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode, urlsplit

import httpx2
import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import expect
from support.browser_windows import PHONE, Window
from support.clocks import NOW
from support.pages import HTML, Elements, texts_by_id
from support.servers import ROOT
from support.sites import DRIFTED, LINKS, PAGES, Shown, Site

from service.server.app import ROUTERS
from service.text.links import API
from service.text.window import BEFORE, LENGTHS
from service.web.authentication import cookie_name

TEMPLATES = ROOT / "service" / "pages" / "templates"
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
    assert kept.ran() == []
    assert [one for one in kept.troubles if not (shown.missing and "404" in one)] == []


def test_tab_goes_through_all_that_can_be_used(kept: Window, shown: Shown) -> None:
    """Who has no mouse comes everywhere, in the order of reading, sees where, and is held nowhere; what every page begins with is skipped."""
    found = kept.tabbed()
    assert found.reached[0] == "a Skip to content"
    assert found.stops == found.reached, shown.name
    assert found.unmarked == []
    assert found.by_mouse == []
    assert found.moved == []


def test_a_page_fits_a_screen_and_a_phone_in_light_and_in_dark(kept: Window, shown: Shown) -> None:
    """Nothing is pushed off the screen, nothing is left out on the phone, and the dark is dark."""
    count, light = kept.page.evaluate(_TEXTS), kept.ground()
    assert kept.too_wide() == [], shown.name
    kept.resize(PHONE)
    assert kept.too_wide() == []
    assert count == kept.page.evaluate(_TEXTS)
    kept.page.emulate_media(color_scheme="dark")
    assert light != kept.ground()


def test_nobody_is_shut_out(kept: Window, shown: Shown) -> None:
    """Names for screen readers, contrast in both schemes, headings, labels, room for fingers on a phone, lists that scroll by keys."""
    if shown.again:
        return
    kept.anew()
    assert kept.barriers() == [], shown.name
    kept.resize(PHONE)
    kept.page.emulate_media(color_scheme="dark")
    assert kept.barriers(*LOOKS) == [], shown.name


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
    page.get_by_label("Breadcrumbs").get_by_role("link", name=DRIFTED).click()
    expect(page.locator("h1")).to_contain_text(DRIFTED)
    for heading in ("Session", "Turn 1", "Tier 2", DRIFTED, "Fleet"):
        page.go_back()
        expect(page.locator("h1")).to_contain_text(heading)
    assert window.troubles == []


def test_the_first_key_skips_what_every_page_begins_with(window: Window) -> None:
    """Who goes by keyboard does not want to pass the same links on every page."""
    page = window.open(LINKS.project(DRIFTED))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def reader(site: Site, cookie: str) -> httpx2.Client:
    """Who reads the pages as somebody who has signed in, without a browser."""
    name = cookie_name(urlsplit(site.url).port or 0, encrypted=False)
    return httpx2.Client(base_url=site.url, headers={"cookie": f"{name}={cookie}"} | HTML, trust_env=False, timeout=60)


def test_every_page_is_in_the_table(site: Site, cookie: str) -> None:
    """What the pages link to is walked, too: a new page cannot be left out."""
    places = [shown.address(site) for shown in PAGES]
    with reader(site, cookie) as client:
        pages = [client.get(place).text for place in places]
    linked = {unescape(place) for page in pages for place in re.findall(r'<a [^>]*href="(/[^"]*)"', page)}
    assert {_kind(place) for place in linked} - {_kind(place) for place in places} - FILES == set()


def test_every_page_of_the_server_is_in_the_table(site: Site) -> None:
    """A page that no other page links to, such as the sign-in, is walked, too."""
    served = {
        re.sub(r"{[^}]*}", "*", route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.startswith(f"{API}/")
    }
    walked = {_kind(shown.address(site)) for shown in PAGES}
    assert served - walked - FILES - NOT_ALONE - OF_OTHERS == set()
    assert walked - served == set()


def test_a_part_of_another_page_is_there_and_not_empty_whatever_time_is_shown(site: Site, cookie: str) -> None:
    """A page takes it in place of what it shows itself: where it is missing, a card would be empty."""
    places = [shown.address(site).partition("#")[0] for shown in PAGES if not shown.missing]
    days = (NOW.date(), NOW.date() - timedelta(days=400))
    times = [
        {},
        {"compare": BEFORE},
        {"until": f"{days[1]}"},
        *({"window": length, "until": f"{day}", "compare": BEFORE} for length in LENGTHS for day in days),
    ]
    taken: set[str] = set()
    absent: list[tuple[str, str]] = []
    with reader(site, cookie) as client:

        @functools.cache
        def slots(address: str) -> list[tuple[str, str]]:
            elements = Elements(client.get(address).raise_for_status().text).found
            return [(of["data-load"], of["data-take"]) for _, of in elements if "data-load" in of]

        @functools.cache
        def content(address: str) -> Mapping[str, str]:
            return texts_by_id(client.get(address).raise_for_status().text)

        for place in filter(slots, places):
            for time in times:
                shown = f"{place}{'&' if '?' in place else '?'}{urlencode(time)}"
                for address, part in slots(shown):
                    taken.add(part)
                    if not content(address).get(part, "").strip():
                        absent.append((shown, part))
    assert absent == []
    assert {
        part for file in TEMPLATES.rglob("*.html") for part in re.findall(r'data-take="([^"]*)"', file.read_text("utf-8"))
    } == taken


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
