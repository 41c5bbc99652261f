"""The charts of a page as its script draws them."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any


def drawn_charts(page: str) -> dict[str, dict[str, Any]]:
    """What is drawn in each chart of a page, by its key."""
    found = re.findall(r'<figure class="drawn" id="([^"]*)-chart" data-chart="([^"]*)"', page)
    return {key: json.loads(unescape(told)) for key, told in found}


def chart_table(page: str, key: str) -> list[dict[str, str]]:
    """The table of a chart: each row by the headings."""
    table = page.split(f'id="{key}-table"')[1].split("</table>", maxsplit=1)[0]
    head, *rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    names = _cells(head)
    return [dict(zip(names, _cells(row), strict=True)) for row in rows]


def _cells(row: str) -> list[str]:
    return [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
