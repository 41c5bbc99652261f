"""No page shuts anybody out: axe finds nothing serious, in light and in dark."""

from __future__ import annotations

import pytest
from pages import PAGES, Shown
from sites import Site
from windows import PHONE, Window

COLOURS = ("color-contrast", "link-in-text-block")
"""Rules about what differs between light and dark."""
FIRST = [shown for shown in PAGES if not shown.again]
"""The pages of which no other is made in the same way."""


@pytest.mark.parametrize("shown", FIRST, ids=lambda shown: shown.name)
def test_nobody_is_shut_out(window: Window, site: Site, shown: Shown) -> None:
    """Names for screen readers, contrast in both schemes, headings, labels, and room for fingers on a phone."""
    page = window.open(shown.address(site))
    assert [] == window.barriers()
    page.emulate_media(color_scheme="dark")
    window.resize(PHONE)
    assert [] == window.barriers(*COLOURS)
