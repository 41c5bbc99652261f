"""Unused spans: those of the last day of which nothing was made, counted by the reason why. One answer for page, command line and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from streams.sources.otlp.trace_records import (
    EVALUATION,
    HELPER,
    NO_CONTENT,
    NOT_A_MODEL_CALL,
    REPEATED,
    RETRIEVAL,
    STATES,
    UNKNOWN_KIND,
)

WITHIN = timedelta(days=1)
"""How far back is looked: what a sender has mended is gone a day later."""


class _State(NamedTuple):
    """The words for a reason, for one span and for several; `advice` where a user can do something about it."""

    one: str
    several: str
    advice: str = ""


WORDS: Mapping[str, _State] = {
    UNKNOWN_KIND: _State(
        "span was not understood",
        "spans were not understood",
        "Give them a kind that is read, such as gen_ai.operation.name = chat, or report the scope and the example, so that it is read.",
    ),
    NO_CONTENT: _State(
        "span came without texts",
        "spans came without texts",
        "Have the sender record them: without texts there are no exchanges, and nothing can be scored.",
    ),
    HELPER: _State(
        "request beside the turn, such as an embedding or a title", "requests beside turns, such as embeddings or titles"
    ),
    EVALUATION: _State("span of an evaluation or experiment", "spans of evaluations and experiments"),
    REPEATED: _State("span that repeats what others say", "spans that repeat what others say"),
    RETRIEVAL: _State("retrieval", "retrievals"),
    NOT_A_MODEL_CALL: _State("span of no model, such as a call over HTTP", "spans of no model, such as calls over HTTP"),
}


class UnusedSpans(msgspec.Struct, frozen=True):
    """Spans of one connection and scope that share a reason. Scope and example are the sender's own text."""

    project: str
    connection: str
    state: str
    scope: str
    spans: int
    traces: int
    example: str
    trace_id: str
    last_at: datetime

    @property
    def needs_action(self) -> bool:
        """True where something is lost that the sender could give."""
        return bool(WORDS[self.state].advice)

    @property
    def words(self) -> str:
        """How many, of which scope, and why: `312 spans of scope litellm were not understood`."""
        state = WORDS[self.state]
        subject, _, rest = (state.one if self.spans == 1 else state.several).partition(" ")
        return f"{self.spans:,} {subject} of {f'scope {self.scope}' if self.scope else 'no scope'} {rest}"

    @property
    def advice(self) -> str:
        """What can be done."""
        return WORDS[self.state].advice


def read_unused_spans(cursor: duckdb.DuckDBPyConnection, now: datetime, connection: str | None = None) -> list[UnusedSpans]:
    """The unused spans of the last day, of one connection or all; those that need action first."""
    rows = query_rows(cursor, "unused_spans", {"project": None, "connection": connection, "since": now - WITHIN})
    return msgspec.convert(rows, list[UnusedSpans])


def count_by_state(unused: Iterable[UnusedSpans]) -> dict[str, int]:
    """The number of spans of each state, 0 for those that none has."""
    counts = dict.fromkeys(STATES, 0)
    for group in unused:
        counts[group.state] += group.spans
    return counts


def sum_up_expected(unused: Iterable[UnusedSpans]) -> str:
    """The spans that are left out as they should be: how many of which sort; empty where there are none."""
    counts = count_by_state(group for group in unused if not group.needs_action)
    return "; ".join(
        f"{count:,} {WORDS[state].one if count == 1 else WORDS[state].several}" for state, count in counts.items() if count
    )
