"""Linking: which traces are assembled together, because they tell of the same turns (`streams.sources.otlp.traces.links`).

1. What two traces tell at the same time is known from those that were assembled lately, in memory: two instrumentors export side by side.
2. The parts of a turn are looked for in the table, among the traces of the session, and only for a trace that has one side of a call
   alone. Of those with the same question or call, the parts are the ones between the trace that begins the turn and the next that begins
   one. Traces of tools alone are added by the ids of the calls of these.
3. All traces that are linked are one group. One that is no longer complete after that, because more of it comes, is grouped again then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from schemas.records import Span
from streams.sources.otlp.kept_spans import kept_span
from streams.sources.otlp.traces.links import Links, RecentRequests, links_of

Key = tuple[str, str]
"""Connection and trace."""
Load = Callable[[Sequence[Key]], Mapping[Key, list[Span]]]


class Part(NamedTuple):
    """A trace that is complete: its session, where it names one, and what may link it to others."""

    key: Key
    session_id: str | None
    links: Links


class _Other(NamedTuple):
    """Another trace of a session, when it began, and whether its first request goes on with outputs of tools."""

    key: Key
    started_at: datetime
    resumes: bool | None


class TraceLinker:
    """Finds the traces that are assembled together."""

    def __init__(self) -> None:
        self._recent = RecentRequests[Key]()

    def groups(self, cursor: duckdb.DuckDBPyConnection, parts: Sequence[Part], load: Load) -> list[dict[Key, list[Span]]]:
        """The groups of more than one trace that these belong to, with the spans of each trace, which `load` reads."""
        groups = _Groups(part.key for part in parts)
        for part in parts:
            scoped = [request._replace(key=f"{part.key[0]} {request.key}") for request in part.links.requests]
            for other in self._recent.add(scoped, part.key):
                groups.join(part.key, other)
        asking = [part for part in parts if part.links.texts and part.session_id is not None]
        for part, others in _others(cursor, [(part, part.links.texts) for part in asking]):
            for key in _of_turn(part, others):
                groups.join(part.key, key)
        linked = groups.linked()
        spans = load([key for keys in linked for key in keys])
        found = [{key: spans[key] for key in keys if key in spans} for keys in linked]
        _add_tools(cursor, found, {part.key: part for part in asking}, load)
        return [group for group in found if len(group) > 1]


class _Groups:
    """Keys that belong together."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._groups: dict[Key, set[Key]] = {key: {key} for key in keys}

    def join(self, key: Key, other: Key) -> None:
        """Put two keys, and all that is with either, into one group."""
        joined = self._groups.setdefault(key, {key}) | self._groups.setdefault(other, {other})
        for one in joined:
            self._groups[one] = joined

    def linked(self) -> list[list[Key]]:
        """The groups of more than one key, in order."""
        distinct = {id(group): group for group in self._groups.values()}
        return sorted(sorted(group) for group in distinct.values() if len(group) > 1)


def _others(cursor: duckdb.DuckDBPyConnection, asking: Sequence[tuple[Part, Iterable[str]]]) -> list[tuple[Part, list[_Other]]]:
    """The other traces of each part's session that have one of these texts."""
    rows = [(*part.key, part.session_id, text) for part, texts in asking for text in sorted(texts)]
    if not rows:
        return []
    names = ("connections", "trace_ids", "sessions", "links")
    values = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    found: dict[Key, list[_Other]] = {}
    for row in query_rows(cursor, "linked_traces", values):
        other = _Other((row["connection"], row["other_id"]), row["started_at"], row["resumes"])
        found.setdefault((row["connection"], row["trace_id"]), []).append(other)
    return [(part, found[part.key]) for part, _ in asking if part.key in found]


def _of_turn(part: Part, others: Iterable[_Other]) -> list[Key]:
    """The traces that belong to the turn of a part: from the one that begins it up to the next that begins one."""
    own = _Other(part.key, part.links.started_at, part.links.resumes)
    ordered = sorted([own, *others], key=lambda one: (one.started_at, one.key))
    first = last = ordered.index(own)
    while first > 0 and ordered[first].resumes is not False:
        first -= 1
    while last + 1 < len(ordered) and ordered[last + 1].resumes is not False:
        last += 1
    return [one.key for one in ordered[first : last + 1]]


def _add_tools(
    cursor: duckdb.DuckDBPyConnection, groups: Sequence[dict[Key, list[Span]]], parts: Mapping[Key, Part], load: Load
) -> None:
    """Add the traces of tools alone that have a call of a group."""
    asking = list[tuple[Part, Iterable[str]]]()
    group_of: dict[Key, dict[Key, list[Span]]] = {}
    for group in groups:
        part = next((parts[key] for key in group if key in parts), None)
        if part is not None:
            links = links_of(kept_span(span) for spans in group.values() for span in spans)
            asking.append((part._replace(links=links), links.calls))
            group_of[part.key] = group
    for part, others in _others(cursor, asking):
        group = group_of[part.key]
        within = [
            one.key
            for one in others
            if one.resumes is None and part.links.started_at <= one.started_at <= part.links.ended_at and one.key not in group
        ]
        group.update(load(within))
