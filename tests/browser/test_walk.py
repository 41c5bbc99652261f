"""Every page in a browser: it loads without errors, is linked, works by keyboard, fits the screen and is accessible."""

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
from support.sites import DRIFTED, LINKS, PAGES, PageCase, Site

from service.server.app import ROUTERS
from service.text.links import API
from service.text.window import BEFORE, LENGTHS
from service.web.authentication import cookie_name

TEMPLATES = ROOT / "service" / "pages" / "templates"
MAX_PAGE_BYTES = 300_000
"""Limit of the compressed size of a page with its resources."""
APPEARANCE_RULES = ("color-contrast", "link-in-text-block", "target-size", "scrollable-region-focusable")
"""Rules of axe about colors and sizes. The others give the same result on a phone and in the dark scheme."""
_COUNT_VISIBLE_TEXTS = """() => [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility({ visibilityProperty: true })
    && [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())).length"""


@pytest.fixture(scope="module", params=PAGES, ids=lambda page_case: page_case.name)
def page_case(request: pytest.FixtureRequest, shared_window: Window, site: Site) -> PageCase:
    """Load a page in the shared window; its tests use it one after another."""
    page_case: PageCase = request.param
    shared_window.reset()
    shared_window.open(page_case.address(site))
    return page_case


def test_a_page_loads_without_errors(shared_window: Window, page_case: PageCase) -> None:
    """Nothing fails or comes from another site, and the page is small enough for a slow mobile connection."""
    expect(shared_window.page.locator("h1")).to_contain_text(page_case.heading)
    for text in page_case.visible_texts:
        expect(shared_window.page.locator("main")).to_contain_text(text)
    assert shared_window.weight() < MAX_PAGE_BYTES
    assert shared_window.list_script_effects() == []
    assert [problem for problem in shared_window.problems if not (page_case.is_missing and "404" in problem)] == []


def test_tab_reaches_every_interactive_element(shared_window: Window, page_case: PageCase) -> None:
    """Users without a mouse reach every element in reading order, and see which one has the focus."""
    tab_walk = shared_window.tab_through()
    assert tab_walk.reached[0] == "a Skip to content"
    assert tab_walk.reached == tab_walk.stops, page_case.name
    assert tab_walk.unmarked == []
    assert tab_walk.mouse_only == []
    assert tab_walk.out_of_order == []


def test_a_page_fits_desktop_and_phone_and_has_a_dark_scheme(shared_window: Window, page_case: PageCase) -> None:
    """A phone shows as many texts as a desktop, without scrolling sideways."""
    desktop_text_count = shared_window.page.evaluate(_COUNT_VISIBLE_TEXTS)
    light_background = shared_window.background_color()
    assert shared_window.find_too_wide() == [], page_case.name
    shared_window.resize(PHONE)
    assert shared_window.find_too_wide() == []
    assert shared_window.page.evaluate(_COUNT_VISIBLE_TEXTS) == desktop_text_count
    shared_window.page.emulate_media(color_scheme="dark")
    assert shared_window.background_color() != light_background


def test_a_page_is_accessible(shared_window: Window, page_case: PageCase) -> None:
    """The rules cover names for screen readers, contrast, headings, labels and touch targets."""
    if page_case.has_seen_layout:
        return
    shared_window.reset()
    assert shared_window.find_accessibility_violations() == [], page_case.name
    shared_window.resize(PHONE)
    shared_window.page.emulate_media(color_scheme="dark")
    assert shared_window.find_accessibility_violations(*APPEARANCE_RULES) == [], page_case.name


def test_pages_are_linked_and_the_back_button_works(window: Window, site: Site) -> None:
    """Users click from the fleet to the exchanges behind an incident, and go back with the button of the browser."""
    page = window.open("/")
    page.get_by_role("link", name=DRIFTED, exact=True).click()
    page.locator(f'main a[href="{LINKS.incident(DRIFTED, site.incident)}"]').first.click()
    expect(page.locator("h1")).to_contain_text("answer quality")
    # The evidence is collapsed below the reasons and advice.
    page.locator("#moved summary").first.click()
    page.locator('#moved a[href*="/exchanges/"]').first.click()
    expect(page.locator("h1")).to_contain_text("Turn 1")
    page.locator('main a[href*="/sessions/"]').first.click()
    expect(page.locator("h1")).to_contain_text("Session")
    page.get_by_label("Breadcrumbs").get_by_role("link", name=DRIFTED).click()
    expect(page.locator("h1")).to_contain_text(DRIFTED)
    for heading in ("Session", "Turn 1", "answer quality", DRIFTED, "Fleet"):
        page.go_back()
        expect(page.locator("h1")).to_contain_text(heading)
    assert window.problems == []


def test_the_first_tab_stop_skips_the_navigation(window: Window) -> None:
    """Keyboard users should not have to tab through the same links on every page."""
    page = window.open(LINKS.project(DRIFTED))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def signed_in_client(site: Site, cookie: str) -> httpx2.Client:
    """Return an HTTP client with the cookie of a signed-in user."""
    name = cookie_name(urlsplit(site.url).port or 0, encrypted=False)
    return httpx2.Client(base_url=site.url, headers={"cookie": f"{name}={cookie}"} | HTML, trust_env=False, timeout=60)


def test_every_linked_page_is_in_the_table(site: Site, cookie: str) -> None:
    """A new page is tested as soon as another page links to it."""
    paths = [page_case.address(site) for page_case in PAGES]
    with signed_in_client(site, cookie) as client:
        pages = [client.get(path).text for path in paths]
    linked = {unescape(path) for page in pages for path in re.findall(r'<a [^>]*href="(/[^"]*)"', page)}
    assert {_path_pattern(path) for path in linked} - {_path_pattern(path) for path in paths} - FILES == set()


def test_every_page_of_the_server_is_in_the_table(site: Site) -> None:
    """Pages that no other page links to, such as the sign-in, must be tested as well."""
    served = {
        re.sub(r"{[^}]*}", "*", route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.startswith(f"{API}/")
    }
    walked = {_path_pattern(page_case.address(site)) for page_case in PAGES}
    assert served - walked - FILES - EMBEDDED - REDIRECTS - THIRD_PARTY == set()
    assert walked - served == set()


def test_every_embedded_part_exists_in_its_source_page(site: Site, cookie: str) -> None:
    """A card that loads its content from another page would be empty without the part, whatever period is shown."""
    paths = [page_case.address(site).partition("#")[0] for page_case in PAGES if not page_case.is_missing]
    days = (NOW.date(), NOW.date() - timedelta(days=400))
    periods = [
        {},
        {"compare": BEFORE},
        {"until": f"{days[1]}"},
        *({"window": length, "until": f"{day}", "compare": BEFORE} for length in LENGTHS for day in days),
    ]
    loaded_parts: set[str] = set()
    absent: list[tuple[str, str]] = []
    with signed_in_client(site, cookie) as client:

        @functools.cache
        def list_slots(address: str) -> list[tuple[str, str]]:
            elements = Elements(client.get(address).raise_for_status().text).found
            return [
                (attributes["data-load"], attributes["data-take"]) for _, attributes in elements if "data-load" in attributes
            ]

        @functools.cache
        def content(address: str) -> Mapping[str, str]:
            return texts_by_id(client.get(address).raise_for_status().text)

        for path in filter(list_slots, paths):
            for period in periods:
                separator = "&" if "?" in path else "?"
                shown_path = f"{path}{separator}{urlencode(period)}"
                for address, part in list_slots(shown_path):
                    loaded_parts.add(part)
                    if not content(address).get(part, "").strip():
                        absent.append((shown_path, part))
    assert absent == []
    templates = [file.read_text("utf-8") for file in TEMPLATES.rglob("*.html")]
    assert loaded_parts == {part for template in templates for part in re.findall(r'data-take="([^"]*)"', template)}


FILES = {
    "/projects/*/runs/*/session.json",
    "/projects/*/runs/*/diagnosis.json",
    "/projects/*/runs/*/events",
    "/projects/*/runs/*/events/*.json",
    "/api/audit/*/incidents/*/cases",
    "/projects/*/lists/*",
    "/lists/*",
    "/projects/*/exchanges/*/texts/*",
    "/projects/*/evaluations/*/prompts/*",
    "/static/*",
    "/healthz",
    "/readyz",
    "/metrics",
}
"""Paths of downloads and other responses that are no pages."""
EMBEDDED = {"/admin/deletion/plan", "/projects/*/details", "/sql/snapshot"}
"""Paths that another page of the table embeds."""
REDIRECTS = {"/sign-in/oidc", "/sign-in/oidc/callback"}
"""Paths that lead to an identity provider and back; without one they are not found."""
THIRD_PARTY = {"/docs", "/docs/*", "/docs/start.js"}
"""The API documentation, which a library renders."""


def _path_pattern(address: str) -> str:
    """Return a path with a `*` for each name in it."""
    parts = address.partition("?")[0].partition("#")[0].split("/")
    collections = (
        "audit",
        "projects",
        "agents",
        "incidents",
        "exchanges",
        "runs",
        "sessions",
        "lists",
        "evaluations",
        "people",
        "connections",
    )
    return "/".join("*" if index and parts[index - 1] in collections else part for index, part in enumerate(parts))
