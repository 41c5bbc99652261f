"""Pictures of the pages for the documents: `make pictures` takes them of the demo's data, as a browser shows them.

They are of a simulated judge's scores of made-up sessions, and say so. The demo is made anew unless a folder with one is named. It ends
on the day that the documents name, and its pages are seen as of then, so that the pictures are the same whenever they are taken.
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
HEAVIEST = 260_000
"""Bytes of a picture."""
WIDE, HIGH = 1280, 860
OPERATOR = "ada"
LINKS = Links()
STATEMENT = """SELECT date_trunc('week', day)::DATE AS week,
  round(avg(tier2), 2) AS tier2, sum(anomalies) AS anomalies
FROM days WHERE project = 'support'
GROUP BY week ORDER BY week"""


def _asked(page: Page) -> None:
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-chart] canvas")).to_be_visible(timeout=30_000)
    _shown("[data-sql]")(page)


def _shown(part: str) -> Callable[[Page], None]:
    """Scrolls a part of a page to its top."""

    def done(page: Page) -> None:
        page.locator(part).evaluate("(one) => scrollTo(0, one.getBoundingClientRect().top + scrollY - 12)")

    return done


def _opened(part: str) -> Callable[[Page], None]:
    """Unfolds a part of a page and scrolls it to its top."""

    def done(page: Page) -> None:
        page.locator(f"{part} summary").first.click()
        _shown(part)(page)

    return done


def _whole(_: Page) -> None:
    """The page from its top."""


PICTURES: Mapping[str, tuple[str, Callable[[Page], None]]] = {
    "fleet": (LINKS.fleet, _whole),
    "project": (LINKS.project("support"), _whole),
    "trends": (LINKS.project("support"), _shown("#days")),
    "cost": (LINKS.project("support"), _shown("section:has(> .head > h2:text-is('Cost of judging'))")),
    "incident": ("incident", _whole),
    "moved": ("incident", _opened("#moved")),
    "exchange": ("exchange", _whole),
    "run": ("run", _whole),
    "graph": ("run", _shown("#graph")),
    "review": (LINKS.review("support"), _whole),
    "sql": (f"{LINKS.sql}?{httpx2.QueryParams(q=STATEMENT)}", _asked),
}
"""Of each picture where it is taken (a name stands for what the demo has most of it), and what is done before."""


def main() -> None:
    """Take all of them."""
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "demo"
            made = [sys.executable, "-m", "service.cli.main", "demo", "--dir", folder, "--last-day", f"{SCRIPT_END}"]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        url, token = stack.enter_context(_served(folder))
        page = stack.enter_context(browser()).new_page(viewport={"width": WIDE, "height": HIGH}, color_scheme="light")
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Fleet")
        places = _places(page, url)
        FOLDER.mkdir(exist_ok=True)
        for name, (place, prepare) in PICTURES.items():
            page.goto(url + places.get(place, place), wait_until="networkidle")
            prepare(page)
            taken = page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")
            if len(taken) > HEAVIEST:
                sys.exit(f"{name}.png has {len(taken)} bytes, and {HEAVIEST} are the most: show less")


def _places(page: Page, url: str) -> dict[str, str]:
    """Where an incident of a tier is, an exchange that moved it, and the run that can be trusted least."""
    page.goto(url + LINKS.incidents("support", window="all"))
    incident = str(page.get_by_role("link", name="Tier").first.get_attribute("href"))
    page.goto(url + incident)
    exchange = str(page.locator('main a[href*="/exchanges/"]').first.get_attribute("href"))
    page.goto(url + LINKS.runs("demo", readiness="unsafe_for_production", window="all"))
    return {"incident": incident, "exchange": exchange, "run": str(page.locator("main tbody a").first.get_attribute("href"))}


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, str]]:
    """A server on the demo's data, and a token."""
    database, policy = folder / "demo.duckdb", folder / "policy.yaml"
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
