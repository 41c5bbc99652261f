"""Fixtures of the browser tests: one server per session, one browser and one window per module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext
from support.browser_windows import Window, browser, open_context, sign_in_cookie
from support.processes import skip_or_fail
from support.sites import Site, site


@pytest.fixture(scope="session", name="site")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the running server."""
    with site(tmp_path_factory.mktemp("site")) as running:
        yield running


# Module scope, because tests of other modules in this process run their own event loops.
@pytest.fixture(scope="module", name="chromium")
def launched_browser() -> Iterator[Browser]:
    """Yield the browser; skip its tests if none is installed."""
    with ExitStack() as stack:
        try:
            chromium = stack.enter_context(browser())
        except FileNotFoundError as error:
            skip_or_fail(error)
        yield chromium


@pytest.fixture(scope="module")
def cookie(site: Site) -> str:
    """Return the cookie of a signed-in user."""
    return sign_in_cookie(site)


@pytest.fixture(scope="module")
def context(chromium: Browser, site: Site, cookie: str) -> Iterator[BrowserContext]:
    """Yield the browser context of a signed-in user."""
    with open_context(chromium, site, cookie) as signed_in:
        yield signed_in


@pytest.fixture(scope="module")
def shared_window(context: BrowserContext, site: Site) -> Window:
    """Return the window that a module shares, because opening one takes longer than most tests."""
    return Window(context, site)


@pytest.fixture
def window(shared_window: Window) -> Iterator[Window]:
    """Yield the shared window after a reset; fail if the test made it run an injected script."""
    shared_window.reset()
    yield shared_window
    assert shared_window.list_script_effects() == []


@pytest.fixture
def open_window(context: BrowserContext, site: Site) -> Iterator[Callable[[], Window]]:
    """Yield a function that opens further windows of the same user."""
    opened: list[Window] = []

    def open_one() -> Window:
        opened.append(Window(context, site))
        return opened[-1]

    yield open_one
    for extra_window in opened:
        extra_window.page.close()


@pytest.fixture
def signed_out_window(chromium: Browser, site: Site) -> Iterator[Window]:
    """Yield a window whose user has not signed in."""
    with open_context(chromium, site, None) as signed_out:
        yield Window(signed_out, site)
