"""Each page in a browser: it loads whole and alone, can be reached and left, works by keyboard, and fits."""

from __future__ import annotations

import re
from html import unescape

import httpx2
from browsers import cookie as signed
from pages import LINKS, PAGES, Shown, each
from playwright.sync_api import expect
from sites import DRIFTED, Site
from windows import PHONE, Window

HEAVIEST = 300_000
"""Bytes that a page may weigh, compressed."""


@each
def test_a_page_is_whole_fits_and_works_by_keyboard(window: Window, site: Site, shown: Shown) -> None:
    """Nothing fails or comes from elsewhere, nothing is pushed off a screen or a phone; Tab goes everywhere, and one sees where one is."""
    page = window.open(shown.address(site))
    expect(page.locator("h1")).to_contain_text(shown.heading)
    for words in shown.seen:
        expect(page.locator("main")).to_contain_text(words)
    assert window.weight() < HEAVIEST
    found = window.tabbed()
    assert "a To the content" == found.first
    assert [] == found.unmarked
    assert not found.ended or [] == found.missed
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert light != page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert [] == window.too_wide()
    window.resize(PHONE)
    assert [] == window.too_wide()
    assert [] == [one for one in window.troubles if not (shown.missing and "404" in one)]


def test_pages_lead_to_each_other_and_back(window: Window, site: Site) -> None:
    """From the fleet to what moved an incident by clicks alone, and back by the browser's button: nobody types addresses."""
    page = window.open("/")
    page.get_by_role("link", name=DRIFTED, exact=True).click()
    page.locator(f'main a[href="{LINKS.incident(DRIFTED, site.incident)}"]').first.click()
    expect(page.locator("h1")).to_contain_text("Tier 2")
    page.locator('main a[href*="/exchanges/"]').first.click()
    expect(page.locator("h1")).to_contain_text("Turn 1")
    page.get_by_label("Where you are").get_by_role("link", name=DRIFTED).click()
    expect(page.locator("h1")).to_contain_text(DRIFTED)
    for heading in ("Turn 1", "Tier 2", DRIFTED, "Fleet"):
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
    with httpx2.Client(base_url=site.url, headers=signed(cookie), trust_env=False) as client:
        pages = [client.get(place).text for place in places]
    linked = {unescape(place) for page in pages for place in re.findall(r'<a [^>]*href="(/[^"]*)"', page)}
    assert set() == {_kind(place) for place in linked} - {_kind(place) for place in places} - FILES


FILES = {"/projects/*/runs/*/session.json", "/projects/*/runs/*/diagnosis.json", "/projects/*/runs/*/events"}
"""What is downloaded, or shown by the browser as it is."""


def _kind(address: str) -> str:
    """An address without the names in it."""
    parts = address.partition("?")[0].partition("#")[0].split("/")
    named = ("projects", "incidents", "exchanges", "runs", "evaluations")
    return "/".join("*" if place and parts[place - 1] in named else part for place, part in enumerate(parts))
