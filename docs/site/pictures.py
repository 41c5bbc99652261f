"""Pictures of pages: a document says where one belongs, `<!-- picture: NAME what it shows -->`, and it stands there once it has been taken."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

FOLDER = "pictures"
_PLACE = re.compile(r"^<!-- picture: ([a-z-]+) (.+) -->$", re.MULTILINE)


def with_pictures(text: str, source: str) -> str:
    """The Markdown of a page with the pictures that are there; places of others stay empty."""

    def placed(found: re.Match[str]) -> str:
        name = f"{FOLDER}/{found[1]}.png"
        there = (Path(__file__).parents[1] / name).exists()
        return f"![{found[2]}]({posixpath.relpath(name, posixpath.dirname(source) or '.')})" if there else ""

    return _PLACE.sub(placed, text)
