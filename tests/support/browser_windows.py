"""Windows of a browser that look at a site: each notes what went wrong in it, what it asked for and what that weighs."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Literal
from urllib.parse import urlsplit

import httpx2
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)
from support.pages import SIGN_IN
from support.servers import PATIENCE
from support.sites import Site

from service.web.authentication import cookie_name

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Programs that a browser may be, as found on PATH."""
DESKTOP, PHONE = (1280, 900), (390, 844)
"""Sizes in CSS pixels."""
_NOT_MODIFIED = 304
Scheme = Literal["light", "dark"]
MOSTSTOPS = 150
"""How often Tab is pressed on the way to something, at most."""


@dataclass(frozen=True, slots=True)
class Tabbed:
    """The elements that Tab reaches on a page, each described by its role and text."""

    stops: list[str]
    """What can be used, in the order of the page."""
    reached: list[str]
    """What Tab reached, in its order."""
    unmarked: list[str]
    """What looks the same whether one is there or not."""
    by_mouse: list[str]
    """What takes a click and cannot be reached by keys."""
    moved: list[str]
    """What is shown, or reached, elsewhere than where it stands."""


class Window:
    """A page of a browser."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        """What went wrong: errors, dialogs, requests that failed or went elsewhere."""
        self._site = site
        self._answers: list[Response] = []
        self._weights: dict[str, int] = {}
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)
        self.page.on("dialog", self._dialog)

    def anew(self) -> None:
        """Reset the window: desktop size, light colours and no recorded errors."""
        self.troubles.clear()
        self.resize(DESKTOP)
        self.page.emulate_media(color_scheme="light")

    def open(self, path: str) -> Page:
        """Open a page of the site, and wait until it has loaded."""
        self._answers.clear()
        self.page.goto(self._site.url + path, wait_until="load")
        # What a page borrows from another one comes after it.
        expect(self.page.locator("main [data-load]:not([data-came])")).to_have_count(0)
        # What the page SQL says of a snapshot changes until there is one.
        expect(self.page.locator("main [data-making]")).to_have_count(0)
        return self.page

    def resize(self, size: tuple[int, int]) -> None:
        """Resize the window."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def ran(self) -> list[str]:
        """Return the injected scripts that ran and the external resources that the page tried to load."""
        executions: list[str] = self.page.evaluate("window.ran")
        return executions

    def ground(self) -> str:
        """Return the background colour of the page."""
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def weight(self) -> int:
        """Return the compressed size of the page and its resources, in bytes."""
        # Of what had not changed since another page, the browser has the body and does not hand it out.
        for response in self._answers:
            if response.status != _NOT_MODIFIED or response.url not in self._weights:
                full_response = self.page.request.get(response.url) if response.status == _NOT_MODIFIED else response
                self._weights[response.url] = len(gzip.compress(full_response.body()))
        return sum(self._weights[one.url] for one in self._answers)

    def too_wide(self) -> list[str]:
        """Return the elements that make the page wider than the window."""
        width = self.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        return [f"{width[0]} of {width[1]}", *self.page.evaluate(WIDER)] if width[0] > width[1] else []

    def refreshed(self) -> None:
        """Trigger the refresh that the page does by itself every few seconds."""
        with self.page.expect_response(lambda answer: answer.url == self.page.url):
            self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def tabbed(self) -> Tabbed:
        """Press Tab until it reaches no new element, and return the elements that it reached."""
        self._tab(int(self.page.evaluate(STOPS)) + 1)
        reached, before = self._reached(), -1
        while reached > before:
            self._tab(5)
            reached, before = self._reached(), reached
        return Tabbed(**self.page.evaluate("walk.told()"))

    def tab_to(self, target: Locator) -> None:
        """Press Tab until the element has the focus; raise AssertionError if Tab never reaches it."""
        for _ in range(MOSTSTOPS):
            if target.evaluate("(one) => one === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {target}")

    def barriers(self, *rules: str) -> list[str]:
        """Return the serious accessibility violations that axe finds, each as a rule and its elements; check all rules if none is given."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        violations: list[str] = self.page.evaluate(BARRIERS, rules)
        return violations

    def spilt(self) -> list[str]:
        """Return the elements that overflow their box without being clipped or scrollable."""
        overflowing: list[str] = self.page.evaluate(SPILT)
        return overflowing

    def _tab(self, times: int) -> None:
        for _ in range(times):
            self.page.keyboard.press("Tab")

    def _reached(self) -> int:
        return int(self.page.evaluate("walk.reached()"))

    def _note(self, kind: str, text: str) -> None:
        self.troubles.append(f"{kind}: {text}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._note("console", message.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(f"{self._site.url}/"):
            self._note("elsewhere", request.url)

    def _dialog(self, dialog: Dialog) -> None:
        self._note("dialog", dialog.message)
        dialog.dismiss()

    def _failed(self, request: Request) -> None:
        # What a page that is left has not read to its end was aborted, and nothing was wrong with it.
        if request.failure != "net::ERR_ABORTED":
            self._note("failed", f"{request.url} {request.failure}")

    def _answered(self, answer: Response) -> None:
        self._answers.append(answer)
        if answer.status >= 400:
            self._note("refused", f"{answer.status} {answer.url}")


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield an installed browser; raise FileNotFoundError if there is none.

    While it is open, no event loop can be run in this thread: Playwright's own is in it.
    """
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        raise FileNotFoundError(
            f"no browser on PATH, none of {', '.join(NAMES)}: install one, on Debian with `apt-get install chromium`"
        )
    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def cookie_of(site: Site) -> str:
    """Return the session cookie of a user who has just signed in."""
    answer = httpx2.post(
        site.url + SIGN_IN, headers={"Authorization": f"Bearer {site.operator}"}, json={}, trust_env=False, timeout=60
    )
    (crumb,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return crumb.value


@contextmanager
def windows(
    opened: Browser,
    site: Site,
    cookie: str | None,
    size: tuple[int, int] = DESKTOP,
    scheme: Scheme = "light",
    *,
    has_touch: bool = False,
    has_scripts: bool = True,
) -> Iterator[BrowserContext]:
    """Yield a function that opens isolated windows; with a cookie, the user is signed in."""
    context = opened.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        has_touch=has_touch,
        java_script_enabled=has_scripts,
    )
    context.add_init_script(BEFORE)
    if cookie is not None:
        context.add_cookies([{"name": cookie_name(urlsplit(site.url).port, encrypted=False), "value": cookie, "url": site.url}])
    yield context
    context.close()


BEFORE = """
window.ran = [];
window.canary = (what) => { ran.push(what); };
document.addEventListener("securitypolicyviolation", (event) => { ran.push(`${event.violatedDirective} ${event.blockedURI}`); });
"""
"""What every page starts with: it notes what texts of others would run or load."""
WIDER = """() => [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll, pre, svg, textarea, .visually-hidden")
    && one.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map((one) => one.outerHTML.slice(0, 120))"""
"""Answers what reaches beyond the window's right side."""
SPILT = """() => [...document.querySelectorAll("body *")].filter((one) => {
    if (one.closest(".visually-hidden, .skip, svg, textarea, select") || !one.checkVisibility()) return false;
    const { overflowX, display } = getComputedStyle(one);
    return overflowX === "visible" && !display.startsWith("inline") && display !== "contents" && one.scrollWidth > one.clientWidth + 4
        && one.clientWidth > 1;
}).slice(0, 3).map((one) => `${one.scrollWidth} of ${one.clientWidth}: ${one.outerHTML.slice(0, 160)}`)"""
"""Answers what is wider than the box it stands in."""
STOPS = """() => {
    const said = (one) => `${one.tagName.toLowerCase()} ${(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 60)}`;
    const style = (one) => { const { outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor } = getComputedStyle(one);
        return [outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor]; };
    const look = (one) => JSON.stringify([one, one.parentElement, ...one.children].filter(Boolean).map(style));
    const seen = (one) => !one.disabled && one.checkVisibility({ visibilityProperty: true });
    const chosen = (one) => one.type !== "radio" || one.checked
        || one === [...one.form.elements[one.name]].find((_, place, all) => !place && !all.some((other) => other.checked));
    const elements = [...document.querySelectorAll("*")];
    const stops = elements.filter((one) =>
        one.matches("a[href], button, input, select, textarea, summary, [tabindex], [contenteditable]")
        && one.tabIndex >= 0 && seen(one) && chosen(one));
    const marks = new Map();
    document.activeElement.blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.addEventListener("focusin", ({ target }) => { if (target.tabIndex >= 0) marks.set(target, look(target)); });
    window.walk = {
        reached: () => marks.size,
        told: () => {
            document.body.focus();
            const order = [...marks.keys()];
            return {
                stops: stops.map(said),
                reached: order.map(said),
                unmarked: order.filter((one) => look(one) === marks.get(one)).map(said),
                by_mouse: elements.filter((one) => seen(one) && getComputedStyle(one).cursor === "pointer"
                    && !one.closest("a[href], button, summary, label, select, input")).map(said),
                moved: elements.filter((one) => one.tabIndex > 0 || (({ order, flexDirection }) =>
                    order !== "0" || flexDirection.endsWith("reverse"))(getComputedStyle(one))).map(said),
            };
        },
    };
    return stops.length;
}"""
"""Finds what can be used, and notes what is reached; answers how many there are. `walk` tells the rest."""
BARRIERS = """(rules) => axe.run(document, {
    resultTypes: ["violations"], reporter: "no-passes", preload: false, ...(rules.length && { runOnly: rules }),
}).then(({ violations }) => violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) =>
    one.nodes.slice(0, 3).map((node) => `${one.id} (${one.impact}): ${node.target} ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""
"""Answers what axe finds grave, by all its rules or by those that are named."""
