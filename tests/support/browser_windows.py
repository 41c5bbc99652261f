"""Browser windows for tests: each records the errors, dialogs and failed requests of its pages, and measures their size."""

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
"""Names of the browser on PATH, in order of preference."""
DESKTOP = (1280, 900)
PHONE = (390, 844)
"""Window sizes in CSS pixels."""
_NOT_MODIFIED = 304
Scheme = Literal["light", "dark"]
MAX_TAB_PRESSES = 150
"""Tab presses after which an element counts as unreachable."""


@dataclass(frozen=True, slots=True)
class TabWalk:
    """The elements of a page that Tab reaches and misses, each described by its tag and text."""

    stops: list[str]
    """Interactive elements, in document order."""
    reached: list[str]
    """Elements that Tab reached, in Tab order."""
    unmarked: list[str]
    """Elements without a visible focus style."""
    mouse_only: list[str]
    """Clickable elements that no key reaches."""
    out_of_order: list[str]
    """Elements whose visual or Tab order differs from the document order."""


class Window:
    """A browser window on the site."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        """Errors, dialogs, failed requests, and requests to other sites."""
        self._site = site
        self._responses: list[Response] = []
        self._sizes: dict[str, int] = {}
        self.page.on("console", self._record_console_message)
        self.page.on("pageerror", lambda error: self._record("error", str(error)))
        self.page.on("requestfailed", self._record_failed_request)
        self.page.on("request", self._record_foreign_request)
        self.page.on("response", self._record_response)
        self.page.on("dialog", self._dismiss_dialog)

    def reset(self) -> None:
        """Reset the window: desktop size, light colors and no recorded errors."""
        self.problems.clear()
        self.resize(DESKTOP)
        self.page.emulate_media(color_scheme="light")

    def open(self, path: str) -> Page:
        """Open a page of the site, and wait until it has loaded."""
        self._responses.clear()
        self.page.goto(self._site.url + path, wait_until="load")
        # Parts that the page loads from other pages arrive later.
        expect(self.page.locator("main [data-load]:not([data-loaded])")).to_have_count(0)
        # The SQL page updates its status until the first snapshot is ready.
        expect(self.page.locator("main [data-making]")).to_have_count(0)
        return self.page

    def resize(self, size: tuple[int, int]) -> None:
        """Resize the window."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def list_script_effects(self) -> list[str]:
        """Return the injected scripts that ran, and the policy violations of resources that the page tried to load."""
        effects: list[str] = self.page.evaluate("window.scriptEffects")
        return effects

    def background_color(self) -> str:
        """Return the background color of the page."""
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def weight(self) -> int:
        """Return the compressed size of the page and its resources, in bytes."""
        # The browser does not expose the body of an unchanged (304) response, so request it again.
        for response in self._responses:
            if response.status != _NOT_MODIFIED or response.url not in self._sizes:
                full_response = self.page.request.get(response.url) if response.status == _NOT_MODIFIED else response
                self._sizes[response.url] = len(gzip.compress(full_response.body()))
        return sum(self._sizes[response.url] for response in self._responses)

    def find_too_wide(self) -> list[str]:
        """Return the elements that make the page wider than the window."""
        width = self.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        return [f"{width[0]} of {width[1]}", *self.page.evaluate(BEYOND_THE_WINDOW)] if width[0] > width[1] else []

    def refresh(self) -> None:
        """Trigger the refresh that the page does by itself every few seconds."""
        with self.page.expect_response(lambda response: response.url == self.page.url):
            self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def tab_through(self) -> TabWalk:
        """Press Tab until it reaches no new element, and return the elements that it reached."""
        stop_count = int(self.page.evaluate(STOPS))
        self._press_tab(stop_count + 1)
        previous_count = -1
        reached_count = self._count_reached()
        while reached_count > previous_count:
            self._press_tab(5)
            previous_count = reached_count
            reached_count = self._count_reached()
        return TabWalk(**self.page.evaluate("walk.report()"))

    def tab_to(self, target: Locator) -> None:
        """Press Tab until the element has the focus; raise AssertionError if Tab never reaches it."""
        for _ in range(MAX_TAB_PRESSES):
            if target.evaluate("(element) => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {target}")

    def find_accessibility_violations(self, *rules: str) -> list[str]:
        """Return the serious accessibility violations that axe finds, each as a rule and its elements. Without arguments, check all rules."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        violations: list[str] = self.page.evaluate(AXE_VIOLATIONS, rules)
        return violations

    def find_overflowing(self) -> list[str]:
        """Return the elements that overflow their box without being clipped or scrollable."""
        overflowing: list[str] = self.page.evaluate(OVERFLOWING)
        return overflowing

    def _press_tab(self, times: int) -> None:
        for _ in range(times):
            self.page.keyboard.press("Tab")

    def _count_reached(self) -> int:
        return int(self.page.evaluate("walk.reached()"))

    def _record(self, kind: str, text: str) -> None:
        self.problems.append(f"{kind}: {text}")

    def _record_console_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._record("console", message.text)

    def _record_foreign_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self._site.url}/"):
            self._record("foreign", request.url)

    def _dismiss_dialog(self, dialog: Dialog) -> None:
        self._record("dialog", dialog.message)
        dialog.dismiss()

    def _record_failed_request(self, request: Request) -> None:
        # Leaving a page aborts its pending requests, which is no error.
        if request.failure != "net::ERR_ABORTED":
            self._record("failed", f"{request.url} {request.failure}")

    def _record_response(self, response: Response) -> None:
        self._responses.append(response)
        if response.status >= 400:
            self._record("refused", f"{response.status} {response.url}")


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield an installed browser; raise FileNotFoundError if there is none.

    While the browser is open, this thread cannot run another event loop, because Playwright runs its own there.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise FileNotFoundError(
            f"no browser on PATH, none of {', '.join(NAMES)}: install one, on Debian with `apt-get install chromium`"
        )
    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program)
        try:
            yield launched
        finally:
            launched.close()


def sign_in_cookie(site: Site) -> str:
    """Return the session cookie of a user who has just signed in."""
    answer = httpx2.post(
        site.url + SIGN_IN, headers={"Authorization": f"Bearer {site.operator}"}, json={}, trust_env=False, timeout=60
    )
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return cookie.value


@contextmanager
def open_context(
    browser: Browser,
    site: Site,
    cookie: str | None,
    size: tuple[int, int] = DESKTOP,
    scheme: Scheme = "light",
    *,
    has_touch: bool = False,
    has_scripts: bool = True,
    zone: str = "UTC",
) -> Iterator[BrowserContext]:
    """Yield a browser context that shares no state with others; with a cookie, the user is signed in."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        has_touch=has_touch,
        java_script_enabled=has_scripts,
        timezone_id=zone,
    )
    context.add_init_script(INIT_SCRIPT)
    if cookie is not None:
        context.add_cookies([{"name": cookie_name(urlsplit(site.url).port, encrypted=False), "value": cookie, "url": site.url}])
    try:
        yield context
    finally:
        context.close()


INIT_SCRIPT = """
window.scriptEffects = [];
window.canary = (what) => { scriptEffects.push(what); };
document.addEventListener("securitypolicyviolation", (event) => { scriptEffects.push(`${event.violatedDirective} ${event.blockedURI}`); });
"""
"""Runs before the scripts of every page, and records injected scripts and violations of the content security policy."""
BEYOND_THE_WINDOW = """() => [...document.querySelectorAll("main *")].filter((element) => !element.closest(".scroll, pre, svg, textarea, .visually-hidden")
    && element.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map((element) => element.outerHTML.slice(0, 120))"""
"""Returns the elements that reach beyond the right edge of the window."""
OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((element) => {
    if (element.closest(".visually-hidden, .skip, svg, textarea, select") || !element.checkVisibility()) return false;
    const { overflowX, display } = getComputedStyle(element);
    return overflowX === "visible" && !display.startsWith("inline") && display !== "contents" && element.scrollWidth > element.clientWidth + 4
        && element.clientWidth > 1;
}).slice(0, 3).map((element) => `${element.scrollWidth} of ${element.clientWidth}: ${element.outerHTML.slice(0, 160)}`)"""
"""Returns the elements whose content is wider than their box."""
STOPS = """() => {
    const describe = (element) => `${element.tagName.toLowerCase()} ${(element.getAttribute("aria-label") || element.textContent).trim().slice(0, 60)}`;
    const style = (element) => { const { outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor } = getComputedStyle(element);
        return [outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor]; };
    const look = (element) => JSON.stringify([element, element.parentElement, ...element.children].filter(Boolean).map(style));
    const isUsable = (element) => !element.disabled && element.checkVisibility({ visibilityProperty: true });
    const takesTab = (element) => element.type !== "radio" || element.checked
        || element === [...document.getElementsByName(element.name)].filter((other) => other.form === element.form).find((_, place, all) => !place && !all.some((other) => other.checked));
    const elements = [...document.querySelectorAll("*")];
    const stops = elements.filter((element) =>
        element.matches("a[href], button, input, select, textarea, summary, [tabindex], [contenteditable]")
        && element.tabIndex >= 0 && isUsable(element) && takesTab(element));
    const marks = new Map();
    document.activeElement.blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.addEventListener("focusin", ({ target }) => { if (target.tabIndex >= 0) marks.set(target, look(target)); });
    window.walk = {
        reached: () => marks.size,
        report: () => {
            document.body.focus();
            const order = [...marks.keys()];
            return {
                stops: stops.map(describe),
                reached: order.map(describe),
                unmarked: order.filter((element) => look(element) === marks.get(element)).map(describe),
                mouse_only: elements.filter((element) => isUsable(element) && getComputedStyle(element).cursor === "pointer"
                    && !element.closest("a[href], button, summary, label, select, input")).map(describe),
                out_of_order: elements.filter((element) => element.tabIndex > 0 || (({ order, flexDirection }) =>
                    order !== "0" || flexDirection.endsWith("reverse"))(getComputedStyle(element))).map(describe),
            };
        },
    };
    return stops.length;
}"""
"""Finds the interactive elements, returns their number, and records which of them get the focus. `walk` reports the result."""
AXE_VIOLATIONS = """(rules) => axe.run(document, {
    resultTypes: ["violations"], reporter: "no-passes", preload: false, ...(rules.length && { runOnly: rules }),
}).then(({ violations }) => violations.filter((violation) => ["serious", "critical"].includes(violation.impact)).flatMap((violation) =>
    violation.nodes.slice(0, 3).map((node) => `${violation.id} (${violation.impact}): ${node.target} ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""
"""Returns the serious and critical violations that axe finds, by all its rules or by the given ones."""
