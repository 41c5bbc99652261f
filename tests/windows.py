"""Windows of a browser that look at a site: each notes what went wrong in it, what it asked for and what that weighs."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Literal

import httpx2
from axe_playwright_python.sync_playwright import Axe
from browsers import SIGN_IN
from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, expect, sync_playwright
from servers import PATIENCE
from sites import Site

from service.api.authentication import COOKIE

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Programs that a browser may be, as found on PATH."""
DESKTOP, PHONE = (1280, 900), (390, 844)
"""Sizes in CSS pixels."""
Scheme = Literal["light", "dark"]
_WIDER = """() => [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll, pre, svg, textarea, .visually-hidden")
    && one.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map((one) => one.outerHTML.slice(0, 120))"""
_BEGIN = """() => {
    const style = (one) => { const { outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor } = getComputedStyle(one);
        return [outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor]; };
    window.look = (one) => JSON.stringify([one, one.parentElement, ...one.children].filter(Boolean).map(style));
    window.reached = new Map();
    document.activeElement.blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.addEventListener("focusin", ({ target }) => { if (target.tabIndex >= 0) reached.set(target, look(target)); });
}"""
_END = """() => {
    document.body.focus();
    const said = (one) => `${one.tagName.toLowerCase()} ${(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 60)}`;
    const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter((one) =>
        !one.disabled && one.tabIndex >= 0 && (one.type !== "radio" || one.checked) && one.checkVisibility({ visibilityProperty: true }));
    return {
        first: said([...reached.keys()][0]),
        missed: all.filter((one) => !reached.has(one)).map(said),
        unmarked: [...reached].filter(([one, before]) => look(one) === before).map(([one]) => said(one)),
    };
}"""
MOST_STOPS = 150
"""How often Tab is pressed on a page, at most."""


@dataclass(frozen=True, slots=True)
class Tabbed:
    """What Tab reaches."""

    first: str
    missed: list[str]
    """What can be reached and was not."""
    unmarked: list[str]
    """What looks the same whether one is there or not."""
    ended: bool
    """Whether all was tried."""


class Window:
    """A page of a browser."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        """What went wrong: errors, dialogs, requests that failed or went elsewhere."""
        self._site = site
        self._answers: list[Response] = []
        self.page.on("console", lambda said: said.type in {"error", "warning"} and self._note("console", said.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", lambda asked: asked.url.startswith(f"{site.url}/") or self._note("elsewhere", asked.url))
        self.page.on("response", self._answered)
        self.page.on("dialog", lambda dialog: (self._note("dialog", dialog.message), dialog.dismiss()))

    def open(self, path: str) -> Page:
        """Go to a page of the site, and wait until it is whole."""
        self._answers.clear()
        self.page.goto(self._site.url + path, wait_until="load")
        return self.page

    def resize(self, size: tuple[int, int]) -> None:
        """Give it another size."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def weight(self) -> int:
        """Bytes of what the page is made of, compressed."""
        return sum(len(gzip.compress(answer.body())) for answer in self._answers)

    def too_wide(self) -> list[str]:
        """What makes the page wider than the window; nothing where it is not."""
        width = self.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        return [f"{width[0]} of {width[1]}", *self.page.evaluate(_WIDER)] if width[0] > width[1] else []

    def refreshed(self) -> None:
        """Let the page look for what is new, as it does by itself every few seconds."""
        with self.page.expect_response(lambda answer: answer.url == self.page.url):
            self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def tabbed(self) -> Tabbed:
        """Press Tab until it has gone round."""
        self.page.evaluate(_BEGIN)
        count = 0
        for _ in range(MOST_STOPS):
            self.page.keyboard.press("Tab")
            count, before = self.page.evaluate("reached.size"), count
            if count == before:
                break
        return Tabbed(**self.page.evaluate(_END), ended=count < MOST_STOPS)

    def barriers(self, *rules: str) -> list[str]:
        """What shuts people out, gravely: each as a rule of axe and the elements; all rules where none is named."""
        options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
        found = Axe().run(self.page, options=options).response["violations"]
        return [
            f"{one['id']} ({one['impact']}): {node['target']} {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"][:3]
        ]

    def _note(self, what: str, words: str) -> None:
        self.troubles.append(f"{what}: {words}")

    def _failed(self, asked: Request) -> None:
        # What a page that is left has not read to its end was aborted, and nothing was wrong with it.
        if asked.failure != "net::ERR_ABORTED":
            self._note("failed", f"{asked.url} {asked.failure}")

    def _answered(self, answer: Response) -> None:
        self._answers.append(answer)
        if answer.status >= 400:
            self._note("refused", f"{answer.status} {answer.url}")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is installed here; a FileNotFoundError where there is none.

    While it is open, no event loop can be run in this thread: Playwright's own is in it.
    """
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        raise FileNotFoundError(f"there is no browser on PATH: none of {', '.join(NAMES)}")
    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def cookie_of(site: Site) -> str:
    """The cookie of somebody who has signed in."""
    answer = httpx2.post(site.url + SIGN_IN, headers={"Authorization": f"Bearer {site.operator}"}, json={}, trust_env=False)
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE].value


@contextmanager
def windows(
    opened: Browser, site: Site, cookie: str | None, size: tuple[int, int] = DESKTOP, scheme: Scheme = "light"
) -> Iterator[BrowserContext]:
    """Windows of their own, which share nothing with others; with a cookie somebody has signed in."""
    context = opened.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    if cookie is not None:
        context.add_cookies([{"name": COOKIE, "value": cookie, "url": site.url}])
    yield context
    context.close()
