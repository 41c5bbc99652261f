"""The projects that a page of the fleet shows."""

from __future__ import annotations

import re


def cards_of(page: str) -> dict[str, str]:
    """Each project that is shown, in order, with its card or its row."""
    shown = re.split(r'(?=<li class="card |<tr class="\w+">)', page)[1:]
    return {
        re.findall(r'<a href="/projects/[^"]+">([^<]+)</a>', card)[0]: re.split("</li>\n<|</tr>", card)[0] for card in shown
    }


def projects_of(page: str) -> list[str]:
    """The names of the projects that are shown, in order."""
    return list(cards_of(page))


def text_of(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())
