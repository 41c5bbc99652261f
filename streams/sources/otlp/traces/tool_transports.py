"""Transports of tool calls, such as MCP's: spans without id and arguments within the time of a span that tells the same call with them.

A trace may have thousands of either, so spans are found by the ends of their names and by time, and never each beside all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple

from streams.sources.otlp.traces.trace import KeptSpan


class _Telling(NamedTuple):
    """A span that tells the arguments of its call: the name of the tool from its end to its beginning, and the time it took."""

    turned: str
    started_at: datetime
    ended_at: datetime


def told_better(tools: Iterable[KeptSpan]) -> frozenset[str]:
    """The ids of those spans of tools that are only the transport of a call which another span of that time tells of.

    The other one has arguments, and its tool's name ends as that of the transport's, which has neither id nor arguments.
    """
    telling, transports = list[_Telling](), defaultdict[str, list[KeptSpan]](list)
    for span in tools:
        called = span.facts.called
        if called is None:
            continue
        if called.arguments is not None:
            telling.append(_Telling((called.name or "")[::-1], span.started_at, span.ended_at))
        elif called.name is not None and called.call_id is None:
            transports[called.name].append(span)
    if not telling or not transports:
        return frozenset()
    telling.sort()
    turned = [one.turned for one in telling]
    return frozenset(
        span.span_id for name, spans in transports.items() for span in _during(_ending(name, telling, turned), spans)
    )


def _ending(name: str, telling: Sequence[_Telling], turned: Sequence[str]) -> Sequence[_Telling]:
    """Those whose name ends with this one: they stand together."""
    turned_name = name[::-1]
    start = bisect_left(turned, turned_name)
    return telling[start : bisect_left(turned, 1, start, key=lambda one: not one.startswith(turned_name))]


def _during(telling: Sequence[_Telling], spans: Iterable[KeptSpan]) -> Iterable[KeptSpan]:
    """The spans that began within the time of one of those."""
    by_start = sorted(telling, key=lambda one: one.started_at)
    starts = [one.started_at for one in by_start]
    latest = list(accumulate((one.ended_at for one in by_start), max))
    for span in spans:
        place = bisect_right(starts, span.started_at)
        if place and span.started_at <= latest[place - 1]:
            yield span
