"""Groups of failures: what belongs together, what does not, and what changes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.builders import START, event, exchange, score
from support.watch_histories import END, ended_run, failure, put

from analytics.deletion.retention import delete_rows
from analytics.store.connection import fetch
from analytics.store.store import Store
from analytics.sums.daily import is_failure_behind, refresh_daily
from schemas.records import EvidenceRef, Exchange, Record, Score, ToolCall
from service.read.failures import FailureGroup, read_failures

DAY = timedelta(days=1)
REFUSED = "Error: connect ECONNREFUSED 10.0.3.17:9200"


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def failed_turn(session: str, calls: Sequence[tuple[str, str, str]], day: float = 0, **fields: Any) -> tuple[Exchange, Score]:
    """Return an anomalous exchange with tool calls (name, outcome, result) on a day."""
    at = START + day * DAY
    tool_calls = tuple(ToolCall(name=name, arguments=None, result=result, outcome=outcome) for name, outcome, result in calls)
    low: dict[str, Any] = {
        "anomaly": True,
        "anomaly_reasons": ("the agent gave no response (silent_refusal)",),
        "tier1_flags": ("silent_refusal",),
    }
    return (
        exchange(session, 1, occurred_at=at, ingested_at=at, tool_calls=tool_calls, input_tokens=90, output_tokens=10),
        msgspec.structs.replace(score(session, 1), exchange_at=at, **(low | fields)),
    )


def fill(store: Store, turns: Sequence[tuple[Exchange, Score]], **topics: Sequence[Record]) -> None:
    """Store exchanges with their scores, and other records, and sum them."""
    put(store, "exchanges", [turn for turn, _ in turns])
    put(store, "scores", [verdict for _, verdict in turns])
    for topic, records in topics.items():
        put(store, topic.replace("_", "-"), records)
    refresh_daily(store)


def groups(store: Store, since: float | None = None) -> list[FailureGroup]:
    """Return the groups of the project, or those since a day."""
    return read_failures(store.cursor(), "ops", None if since is None else START + since * DAY, None)


def name_of(store: Store, *calls: tuple[str, str, str], **fields: Any) -> str:
    """Return the name of the group of a failed turn."""
    fill(store, [failed_turn("s", calls, **fields)])
    (group,) = groups(store)
    return group.name


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (REFUSED, "connect connection refused {host}"),
        (
            '{"type":"error","error":{"type":"rate_limit","message":"Rate limit of 50 exceeded for key \\"k-1\\""}}',
            "rate limit of {n} exceeded for key {text}",
        ),
        (
            "Traceback (most recent call last):\n  File \"/srv/app/x.py\", line 3, in <module>\n    f()\nModuleNotFoundError: No module named 'yaml'\n",
            "module not found error: no module named {text}",
        ),
        (
            "Fetching…\nRequest 8f14e45fceea167a failed with status code 503 at 2026-11-30T10:54:18Z",
            "request {n} failed with status code 503 at {time}",
        ),
        ("cat: /var/lib/data/a-17.csv: No such file or directory", "cat: {path}: no such file or directory"),
        ("bash: line 1: jq: command not found\n\nExit code 127", "bash: line {n}: jq: command not found"),
        ("Command exited with code 137", "command exited with code 137"),
        (
            "\x1b[31mfatal\x1b[0m: unable to access 'https://git.example/x.git/': Could not resolve host: git.example",
            "unable to access {text}: could not resolve host: {host}",
        ),
        ("<script>alert(1)</script> denied for job_99a1 by bob@example.com", "alert({n}) denied for {id} by {email}"),
        ("", ""),
        ("x" * 10_000, "x" * 160),
    ],
)
def test_what_varies_in_an_error_does_not_count(store: Store, text: str, line: str) -> None:
    """Otherwise each failure would be a group of its own; texts are an agent's, and are bounded."""
    (folded,) = store.cursor().execute("SELECT log.folded_error(?)", [text]).fetchall()[0]
    assert folded == line


def test_failures_of_one_cause_are_a_group_and_others_are_not(store: Store) -> None:
    """Another status, another tool and another error are other failures, however near their words are."""
    texts = [
        ("search", REFUSED),
        ("search", "connect ECONNREFUSED search-2.internal:9200 (attempt 3)"),
        ("search", "Error: connect ETIMEDOUT 10.0.3.17:9200"),
        ("fetch", REFUSED),
        ("search", "Request failed with status code 404"),
        ("search", "Request failed with status code 500"),
    ]
    fill(store, [failed_turn(f"s{number}", [(tool, "error", text)], number) for number, (tool, text) in enumerate(texts)])
    assert sorted((group.tool, group.sessions, group.wordings) for group in groups(store)) == [
        ("fetch", 1, 1),
        ("search", 1, 1),
        ("search", 1, 1),
        ("search", 1, 1),
        ("search", 2, 2),
    ]


def test_a_call_that_a_later_one_made_good_explains_nothing(store: Store) -> None:
    """Agents recover from most errors; then the failure has another cause."""
    failed, repeated, other = ("search", "error", REFUSED), ("search", "ok", "3 hits"), ("fetch", "ok", "a page")
    assert name_of(store, failed, repeated) == "The agent gave no response"
    fill(store, [failed_turn("t", [failed, other])])
    assert {group.kind for group in groups(store)} == {"check", "tool_error"}


def test_an_attempt_comes_before_an_error(store: Store) -> None:
    """An error must not hide it. Its reason names the tool."""
    reason = "prompt_injection: the output of the tool fetch tells the agent to ignore its instructions"
    name = name_of(store, ("fetch", "error", REFUSED), anomaly_reasons=(reason,))
    assert name == "Prompt injection: the output of a tool tells the agent to ignore its instructions: fetch"


def test_the_error_of_a_run_is_that_of_the_tool_that_is_evidence(store: Store) -> None:
    """A run and an exchange that fail by the same error are in the same group."""
    session = "looping"
    events = [
        event(session, 0, event="tool_call", tool="search"),
        event(session, 1, event="tool_output", tool="search", is_error=True, result=REFUSED),
    ]
    events.append(event(session, 2, event="tool_output", tool="fetch", is_error=True, result="Exit code 1"))
    cause = msgspec.structs.replace(failure("infinite_tool_loop"), evidence=(EvidenceRef(seq=0, event_id=events[0].event_id),))
    run = msgspec.structs.replace(
        ended_run(session, START + timedelta(minutes=5), bad=True, project="ops"),
        connection="local", failure_causes=(cause,), primary_failure_type=cause.type, started_at=START,
    )  # fmt: skip
    fill(store, [failed_turn("s", [("search", "error", REFUSED)])], agent_events=events, diagnoses=[run])
    (group,) = groups(store)
    assert (group.name, group.sessions, group.runs, group.exchanges) == (
        "search failed: connect connection refused {host}",
        2,
        1,
        1,
    )
    assert [example.session_id for example in group.examples] == [session, "s"]


def test_groups_depend_on_the_records_alone(store: Store) -> None:
    """A rebuild, another order of arrival and more records must not change a group."""
    wordings = (
        "disk quota exceeded",
        "disk quota exceeded again",
        "the disk quota is exceeded again today",
        "the folder is gone",
    )
    turns = [failed_turn(f"s{number}", [("write", "error", text)], number) for number, text in enumerate(wordings)]
    with Store(None) as other:
        for turn in reversed(turns):
            fill(other, [turn])
        fill(store, turns)
        assert groups(other) == groups(store)
    with store.transaction() as transaction:
        transaction.clear_tables(["scores"])
    put(store, "scores", [verdict for _, verdict in turns])
    before = groups(store)
    refresh_daily(store)
    assert (before, len(groups(store))) == ([], 2)


def test_a_deleted_text_leaves_its_group(store: Store) -> None:
    """Rows have words of errors and name sessions, so they go with their records."""
    fill(store, [failed_turn("s", [("search", "error", REFUSED)])])
    positions = fetch(store.cursor(), "SELECT _topic, _partition, _offset FROM log.exchanges", {})
    delete_rows(store, "Exchange", positions)
    assert [(group.name, group.tool) for group in groups(store)] == [("The agent gave no response", "")]


def test_new_and_growing_groups_come_first(store: Store) -> None:
    """They are what a person should look at; without a period before, nothing is new."""
    old, grown, new = ("a", "error", "disk full"), ("b", "error", "quota exceeded"), ("c", "error", "token expired")
    turns = [failed_turn(f"{call[0]}{day}-{number}", [call], day) for call, counts in ((old, (20, 20)), (grown, (1, 12)), (new, (0, 3)))
             for day, count in enumerate(counts) for number in range(count)]  # fmt: skip
    healthy = [
        exchange(f"h{day}-{number}", 1, occurred_at=turns[0][0].occurred_at + day * DAY, ingested_at=END)
        for number in range(100)
        for day in (0, 1)
    ]
    put(store, "exchanges", healthy)
    fill(store, turns)
    assert [(group.tool, group.trend, group.sessions_before) for group in groups(store, since=1)] == [
        ("b", "growing", 1),
        ("c", "new", 0),
        ("a", "steady", 20),
    ]
    assert {group.trend for group in groups(store)} == {None}


def test_texts_without_end_are_bounded(store: Store) -> None:
    """A hostile tool can invent a text per call; the failures are still counted."""
    words = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(300)]
    fill(store, [failed_turn(f"s{word}", [("shell", "error", f"failed {word}{word} {word}x {word}y")]) for word in words])
    shown = groups(store)
    assert (len(shown), sum(group.sessions for group in shown), shown[0].name) == (201, 300, "tools failed: other errors")


def test_records_that_are_not_grouped_yet_are_noticed(store: Store) -> None:
    """An answer without them would be false without saying so."""
    fill(store, [failed_turn("s", [])])
    assert not is_failure_behind(store.cursor())
    put(store, "scores", [failed_turn("t", [])[1]])
    assert is_failure_behind(store.cursor())
