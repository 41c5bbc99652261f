"""Screenshots for the documents: `make pictures` takes them from the pages of the demo.

The demo has invented sessions with scores of a simulated judge, and its pages say so. It is generated again unless a folder is given. It
ends on the day that the documents name, and the pages are rendered as of that day, so the pictures do not depend on the current date.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
from playwright.sync_api import Page, expect
from support.browser_windows import browser

from driftline_trial.demo.script import SCRIPT_END, present_of
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
from service.text.links import Links

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
MAX_PICTURE_BYTES = 260_000
"""Limit of the size of a picture."""
WIDTH, HEIGHT = 1280, 860
MARGIN = 12
"""Pixels between the top of the window and the element in the picture."""
OPERATOR = "ada"
LINKS = Links()
STATEMENT = """SELECT date_trunc('week', day)::DATE AS week,
  round(avg(tier2), 2) AS tier2, sum(anomalies) AS anomalies
FROM days WHERE project = 'support'
GROUP BY week ORDER BY week"""


def _run_statement(page: Page) -> None:
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-chart] canvas")).to_be_visible(timeout=30_000)
    _scroll_to("[data-sql]")(page)


def _scroll_to(selector: str) -> Callable[[Page], None]:
    """Return a function that scrolls an element to the top of the page."""

    def scroll(page: Page) -> None:
        page.locator(selector).evaluate(f"(element) => scrollTo(0, element.getBoundingClientRect().top + scrollY - {MARGIN})")

    return scroll


def _expand(selector: str) -> Callable[[Page], None]:
    """Return a function that expands a collapsed section and scrolls it to the top of the page."""

    def expand(page: Page) -> None:
        page.locator(f"{selector} summary").first.click()
        _scroll_to(selector)(page)

    return expand


def _stay_at_top(_: Page) -> None:
    """Leave the page as it is."""


PICTURES: Mapping[str, tuple[str, Callable[[Page], None]]] = {
    "fleet": (LINKS.fleet, _stay_at_top),
    "project": (LINKS.project("support"), _stay_at_top),
    "trends": (LINKS.project("support"), _scroll_to("#days")),
    "cost": (LINKS.project("support"), _scroll_to("section:has(> .head > h2:text-is('Cost of judging'))")),
    "incident": ("incident", _stay_at_top),
    "moved": ("incident", _expand("#moved")),
    "exchange": ("exchange", _stay_at_top),
    "run": ("run", _stay_at_top),
    "graph": ("run", _scroll_to("#graph")),
    "review": (LINKS.review("support"), _stay_at_top),
    "sql": (f"{LINKS.sql}?{httpx2.QueryParams(q=STATEMENT)}", _run_statement),
}
"""The path of the page in each picture, and the function that prepares the page. Paths without a slash are keys of `_find_paths`."""


def main() -> None:
    """Take all pictures."""
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "demo"
            demo_command = [sys.executable, "-m", "service.cli.main", "demo", "--dir", folder, "--last-day", f"{SCRIPT_END}"]
            subprocess.run(demo_command, check=True, stdout=subprocess.DEVNULL)
        url, token = stack.enter_context(_serve_demo(folder))
        page = stack.enter_context(browser()).new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Fleet")
        paths = _find_paths(page, url)
        FOLDER.mkdir(exist_ok=True)
        for name, (path, prepare) in PICTURES.items():
            page.goto(url + paths.get(path, path), wait_until="networkidle")
            prepare(page)
            picture = page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")
            if len(picture) > MAX_PICTURE_BYTES:
                sys.exit(
                    f"{name}.png has {len(picture)} bytes; the limit is {MAX_PICTURE_BYTES}. Show a smaller part of the page."
                )


def _find_paths(page: Page, url: str) -> dict[str, str]:
    """Return the paths of an incident, of an exchange that contributed to it, and of the least trusted run."""
    page.goto(url + LINKS.incidents("support", status="any", window="all"))
    incident = str(page.get_by_role("link", name="answer quality").first.get_attribute("href"))
    page.goto(url + incident)
    exchange = str(page.locator('main a[href*="/exchanges/"]').first.get_attribute("href"))
    page.goto(url + LINKS.runs("demo", readiness="unsafe_for_production", window="all"))
    run = str(page.locator("main tbody a").first.get_attribute("href"))
    return {"incident": incident, "exchange": exchange, "run": run}


@contextmanager
def _serve_demo(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the demo; yield the address of the server and the token of an operator."""
    database = folder / "demo.duckdb"
    policy = folder / "policy.yaml"
    with AccessStore(access_file(database), utc_now) as access:
        if access.holder("operator", OPERATOR) is None:
            token = access.add(Holder("operator", OPERATOR, None))
        else:
            access.revoke("operator", OPERATOR)
            token = access.rotate("operator", OPERATOR)
    arguments = ["serve", "--port", "0", "--judge", "none", "--db", str(database), "--policy", str(policy)]
    arguments += ["--as-of", present_of(SCRIPT_END).isoformat()]
    with serving(arguments, {}, folder / "pictures.log") as url:
        yield url, token


if __name__ == "__main__":
    main()
