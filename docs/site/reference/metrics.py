"""The figures at /metrics, from what the server itself answers."""

from __future__ import annotations

import re

from reference.markdown import code, page, table, words
from service.web.context import Metrics
from streams.engine.record_intake import EngineState

_FAMILY = re.compile(r"^# HELP (\S+) (.+)\n# TYPE \S+ (\w+)", re.MULTILINE)


def metrics() -> str:
    """Return the page."""
    text = Metrics().text(EngineState(True, "", {}, {}, 0.0, {}), {}).decode()
    rows = [(code(name), kind, words(about)) for name, about, kind in _FAMILY.findall(text) if not name.endswith("_created")]
    return page(
        "Metrics",
        "`GET /metrics` answers them in Prometheus' text format, without a token to callers on the same machine, else to an operator of every project. They name outcomes, endpoints and queues: no token, no "
        "project, no session.",
        table(("metric", "kind", "what it counts"), rows),
    )
