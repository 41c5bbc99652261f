"""Screenshots for the documents: `make pictures` takes them from the pages of the demo.

The demo has invented sessions with scores of a simulated judge, and its pages say so. It is generated again unless a folder is given. It
ends on the day that the documents name, and the pages are rendered as of that day, so the pictures do not depend on the current date.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx2
from playwright.sync_api import Page, expect
from support.browser_windows import browser
from support.demo_pages import PICTURED_PAGES, PICTURES, headings_of, serving_demo

from driftline_trial.demo.script import SCRIPT_END
from service.text.links import Links

MAX_PICTURE_BYTES = 260_000
"""Limit of the size of a picture."""
WIDTH, HEIGHT = 1280, 860
MARGIN = 12
"""Pixels between the top of the window and the element in the picture."""
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


SUBJECTS: Mapping[str, tuple[str, Callable[[Page], None]]] = {
    "fleet": (LINKS.fleet, _stay_at_top),
    "project": (LINKS.project("support"), _stay_at_top),
    "trends": (LINKS.project("support"), _scroll_to("#days")),
    "cost": (LINKS.project("support"), _expand("#judging-costs")),
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
        url, token = stack.enter_context(serving_demo(folder))
        page = stack.enter_context(browser()).new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Fleet")
        paths = _find_paths(page, url)
        PICTURES.mkdir(exist_ok=True)
        pages = {}
        for name, (path, prepare) in SUBJECTS.items():
            address = paths.get(path, path)
            page.goto(url + address, wait_until="networkidle")
            html = page.context.request.get(url + address, headers={"accept": "text/html"}).text()
            pages[name] = {"path": address, "headings": headings_of(html)}
            prepare(page)
            picture = page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
            if len(picture) > MAX_PICTURE_BYTES:
                sys.exit(
                    f"{name}.png has {len(picture)} bytes; the limit is {MAX_PICTURE_BYTES}. Show a smaller part of the page."
                )
        PICTURED_PAGES.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _find_paths(page: Page, url: str) -> dict[str, str]:
    """Return the paths of an incident, of an exchange that contributed to it, and of the least trusted run."""
    page.goto(url + LINKS.incidents("support", status="any", window="all"))
    incident = str(page.get_by_role("link", name="answer quality").first.get_attribute("href"))
    page.goto(url + incident)
    exchange = str(page.locator('main a[href*="/exchanges/"]').first.get_attribute("href"))
    page.goto(url + LINKS.runs("demo", readiness="unsafe_for_production", window="all"))
    run = str(page.locator("main tbody a").first.get_attribute("href"))
    return {"incident": incident, "exchange": exchange, "run": run}


if __name__ == "__main__":
    main()
