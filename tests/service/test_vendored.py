"""Files of others that are served with the pages are those that were published, and say whose they are."""

from __future__ import annotations

import hashlib
from importlib import resources

import pytest

PUBLISHED = {
    # npm uplot 1.6.32, whose package has the SHA-256 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
    "uplot-1.6.32/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32/LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""The SHA-256 of each file in the package."""
VENDOR = resources.files("service") / "pages" / "static" / "vendor"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_equals_the_published_one(name: str) -> None:
    """A change in a file of one long line would go unnoticed."""
    content = (VENDOR / name).read_bytes()
    assert PUBLISHED[name] == hashlib.sha256(content).hexdigest()


def test_every_file_is_listed_and_every_folder_has_its_licence() -> None:
    """Copied files need their licence, and no other file may be there."""
    files = {f"{folder.name}/{file.name}" for folder in VENDOR.iterdir() for file in folder.iterdir()}
    assert files == set(PUBLISHED)
    assert {f"{name.partition('/')[0]}/LICENSE" for name in PUBLISHED} <= files
    assert "MIT License" in (VENDOR / "uplot-1.6.32/LICENSE").read_text("utf-8")
