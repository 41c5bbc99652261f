"""Spans of which nothing was made, on every surface: the same numbers, an example, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from support.api_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
from support.api_server import NOW, Call, Tokens
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, body, request, span
from support.pages import cookie, signed_in

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import TraceAssembly
from service.read.telemetry import WITHIN, WORDS, count_by_state, read_unused_spans, sum_up_expected
from service.setup.workspace import utc_now
from streams.sources.otlp.trace_records import STATES

HOSTILE = "<img src=x onerror=alert(1)>"
Command = Callable[..., tuple[int, str, str]]


def decisions(at: datetime, connection: str = "north", kind: str = "ponder", count: int = 3) -> list[TraceAssembly]:
    """The decisions on two traces: spans of a kind that is not read, and a turn with a query of a database."""
    odd = [span(number, trace="ab" * 16, attributes={"gen_ai.operation.name": kind}) for number in range(count)]
    turn = [agent(0), span(1, 0, attributes={"db.system": "duckdb"})]
    traces = assembled(records_of([request(*odd, scope="litellm"), request(*turn, scope="shop")]))
    return [msgspec.structs.replace(one.decision, connection=connection, assembled_at=at) for one in traces]


def keep(store: Store, records: Sequence[TraceAssembly]) -> None:
    """Put them into the log."""
    with store.transaction() as transaction:
        transaction.append("trace-assemblies", [encode(record) for record in records])


def connect_page(call: Call, tokens: Tokens, connection: str = "north") -> str:
    """The page about a connection."""
    return call("GET", f"/connect?connection={connection}", headers=cookie(signed_in(call, tokens.root))).text


def test_every_state_has_a_message() -> None:
    """A page could not show a state without one."""
    assert set(STATES) == set(WORDS)


def test_the_page_and_the_metrics_show_the_same_numbers(call: Call, tokens: Tokens, store: Store) -> None:
    """The page and the metrics must show the same numbers."""
    keep(store, decisions(NOW))
    page, figures = connect_page(call, tokens), call("GET", "/metrics", tokens.root).text

    assert "3 spans of scope litellm" in page
    assert "gen_ai.operation.name = ponder" in page
    assert WORDS["unknown_kind"].advice in page
    assert 'driftline_unused_spans{state="unknown_kind"} 3.0' in figures
    assert "1 span without a model" in page
    assert 'driftline_unused_spans{state="not_a_model_call"} 1.0' in figures
    assert 'driftline_unused_spans{state="no_content"} 0.0' in figures


def test_the_page_shows_only_its_connection(call: Call, tokens: Tokens, store: Store) -> None:
    """Names and examples of other projects' spans must not be shown."""
    keep(store, decisions(NOW, connection="south"))
    assert "ponder" not in connect_page(call, tokens)


def test_an_example_is_escaped(call: Call, tokens: Tokens, store: Store) -> None:
    """Examples are texts of senders and must be escaped."""
    keep(store, decisions(NOW, kind=HOSTILE))
    page = connect_page(call, tokens)
    assert HOSTILE not in page
    assert "&lt;img" in page


def test_a_fixed_problem_disappears_after_a_day(store: Store) -> None:
    """A note must disappear once the problem is fixed."""
    keep(store, decisions(NOW - WITHIN - timedelta(seconds=1)))
    assert read_unused_spans(store.cursor(), NOW) == []


def test_a_reassembled_trace_counts_once(store: Store) -> None:
    """The new revision replaces the earlier count."""
    first = decisions(NOW)
    keep(store, first)
    keep(store, [msgspec.structs.replace(one, revision=1) for one in first])
    assert count_by_state(read_unused_spans(store.cursor(), NOW))["unknown_kind"] == 3


def test_the_page_of_a_connection_shows_refused_spans(call: Call, tokens: Tokens) -> None:
    """Few exporters report refusals, so the page must show them."""
    late = span(0, startTimeUnixNano="17")
    headers = {"content-type": "application/json"}
    assert call("POST", "/v1/traces", tokens.ops, content=json.dumps(body([late])).encode(), headers=headers).status_code == 200

    assert "1 rejected" in connect_page(call, tokens)
    assert "start_time_unix_nano" in connect_page(call, tokens)
    assert "refused" not in connect_page(call, tokens, "south")


def test_the_doctor_names_unused_spans_with_the_remedy(driftline: Command, tmp_path: Path) -> None:
    """Terminal users see the same numbers."""
    with Store(tmp_path / "driftline.duckdb") as store:
        keep(store, decisions(utc_now()))
        unused = read_unused_spans(store.cursor(), utc_now())
    code, out, _ = driftline("doctor", "--json")
    findings: list[dict[str, Any]] = [finding for finding in json.loads(out) if finding["subject"] == "traces"]

    assert code == 0
    assert [(one["state"], one["advice"]) for one in findings] == [("note", WORDS["unknown_kind"].advice), ("ok", "")]
    assert findings[0]["detail"].startswith(unused[0].words)
    assert "gen_ai.operation.name = ponder" in findings[0]["detail"]
    assert findings[1]["detail"].endswith(sum_up_expected(unused))


def test_the_doctor_summarises_many_groups(driftline: Command, tmp_path: Path) -> None:
    """A hundred scopes of a fleet must not fill the screen."""
    _, odd = decisions(utc_now())
    [group] = odd.unused_spans
    groups = tuple(msgspec.structs.replace(group, scope=f"scope-{number}", spans=2) for number in range(20))
    with Store(tmp_path / "driftline.duckdb") as store:
        keep(store, [msgspec.structs.replace(odd, unused_spans=groups)])
    _, out, _ = driftline("doctor", "--json")
    details = [finding["detail"] for finding in json.loads(out) if finding["subject"] == "traces"]

    assert len(details) == 9
    assert details[-1].startswith("24 more spans")
