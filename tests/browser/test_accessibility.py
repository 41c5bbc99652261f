"""No page shuts anybody out: axe finds nothing serious, in light and in dark."""

from __future__ import annotations

from pages import Shown, each
from sites import Site
from windows import PHONE, Window

COLOURS = ("color-contrast", "link-in-text-block")
"""Rules about what differs between light and dark."""


@each
def test_nobody_is_shut_out(window: Window, site: Site, shown: Shown) -> None:
    """Names for screen readers, contrast in both schemes, headings, labels, and room for fingers on a phone."""
    page = window.open(shown.address(site))
    assert [] == window.barriers()
    page.emulate_media(color_scheme="dark")
    window.resize(PHONE)
    assert [] == window.barriers(*COLOURS)
