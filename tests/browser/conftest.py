"""One server for all, one browser and one window for a module: each test finds the window as if it were new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext
from support.browser_windows import Window, browser, cookie_of, windows
from support.processes import skip_or_fail
from support.sites import Site, site


@pytest.fixture(scope="session", name="site")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server."""
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


# Not for longer than a module: other tests of this process run event loops of their own.
@pytest.fixture(scope="module", name="chromium")
def opened() -> Iterator[Browser]:
    """The browser; where none is installed, its tests are skipped."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(browser())
        except FileNotFoundError as error:
            skip_or_fail(error)
        yield found


@pytest.fixture(scope="module")
def cookie(site: Site) -> str:
    """The cookie of somebody who has signed in."""
    return cookie_of(site)


@pytest.fixture(scope="module")
def context(chromium: Browser, site: Site, cookie: str) -> Iterator[BrowserContext]:
    """Windows of somebody who has signed in."""
    with windows(chromium, site, cookie) as found:
        yield found


@pytest.fixture(scope="module")
def kept(context: BrowserContext, site: Site) -> Window:
    """One of them: a new one for each test would take longer than most tests."""
    return Window(context, site)


@pytest.fixture
def window(kept: Window) -> Iterator[Window]:
    """It, as if it were new. At the end no text of anybody has run in it."""
    kept.anew()
    yield kept
    assert kept.ran() == []


@pytest.fixture
def another(context: BrowserContext, site: Site) -> Iterator[Callable[[], Window]]:
    """Opens another of them."""
    opened: list[Window] = []

    def made() -> Window:
        opened.append(Window(context, site))
        return opened[-1]

    yield made
    for one in opened:
        one.page.close()


@pytest.fixture
def stranger(chromium: Browser, site: Site) -> Iterator[Window]:
    """A window of somebody who has not signed in."""
    with windows(chromium, site, None) as found:
        yield Window(found, site)
