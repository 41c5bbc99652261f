"""Small lines and bars beside numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from markupsafe import Markup

from service.pages.charts.numbers import known, short, visible


def spark(values: Sequence[float | None], words: str) -> Markup:
    """Return the element in which a script draws a small line without axes; `words` describe it. Empty for fewer than two numbers."""
    if sum(known(value) is not None for value in values) < 2:
        return Markup("")
    return Markup('<span class="spark" data-spark="{}" role="img" aria-label="{}"></span>').format(
        json.dumps([short(value) for value in values], separators=(",", ":")), visible(words)
    )


def share_bar(value: float | None, kind: str = "") -> Markup:
    """Return a share as a bar beside its number, which screen readers read; `kind` is a class such as bad or left."""
    if value is None:
        return Markup("")
    return Markup('<progress class="share {}" max="1" value="{}" aria-hidden="true"></progress>').format(
        kind, round(min(max(value, 0.0), 1.0), 4)
    )
