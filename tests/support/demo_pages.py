"""The pages of the demo as of its last day: pictures are taken of them, and a test compares their headings with those of the pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

from support.servers import ROOT

from driftline_trial.demo.script import SCRIPT_END, present_of
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

PICTURES = ROOT / "docs" / "pictures"
PICTURED_PAGES = PICTURES / "pages.json"
"""For each picture, the path of its page, and the headings that the page had."""
OPERATOR = "ada"
_HEADING = re.compile(r"<(h1|h2)\b[^>]*>(.*?)</\1>", re.DOTALL)


@contextmanager
def serving_demo(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the demo in a folder; yield the address of the server and the token of an operator."""
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


def headings_of(page: str) -> list[str]:
    """Return the headings of a page as text, in order."""
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", heading)).split()) for _, heading in _HEADING.findall(page)]
