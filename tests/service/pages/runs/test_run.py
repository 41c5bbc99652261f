"""The page of a run: the verdict first, why, what happened; and the runs of a project."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.api_server import Call, Tokens
from support.builders import START, event, score
from support.pages import HTML, cookie, signed_in
from support.sample_evaluations import CLAUDE, REFUND, Made, evaluated
from support.servers import until
from support.stored_sessions import diagnosed, filled

from analytics.store.store import Store
from audit.detectors.thresholds import DEFAULTS
from audit.detectors.thresholds import EVENTS as AS_EVENTS
from audit.diagnosis.diagnosis import _decide_readiness, diagnose, to_record
from audit.diagnosis.evidence import SessionEvidence
from service.pages.run_view import MAX_GIST_LENGTH, MAX_PAYLOAD_LENGTH, explain_readiness, read_context, read_events
from service.read.run_diagnoses import events_of
from service.read.runs import find_run
from service.read.sessions import finding_events
from streams.engine.engine import Engine

RUNS = "/projects/ops/runs"
RUN = f"{RUNS}/run_001"
HOSTILE = "<script>alert(1)</script>\u202etxt.exe"
LOOP: list[dict[str, Any]] = [
    {"event": "session_start"},
    *(
        one
        for _ in range(3)
        for one in (
            {"event": "tool_call", "tool": "search", "args": {"q": HOSTILE}},
            {"event": "tool_output", "tool": "search", "result": HOSTILE, "is_error": True},
        )
    ),
    {"event": HOSTILE, "tool": HOSTILE, "note": "x" * 2 * MAX_PAYLOAD_LENGTH},
]
Finished = Callable[..., None]


@pytest.fixture
def finished(call: Call, tokens: Tokens, loop: asyncio.Runner, engine: Engine) -> Finished:
    """Send the events of a session, end it, and wait until ops has this many runs."""

    def send(session: str, events: list[dict[str, Any]], runs: int) -> None:
        timed = [{"timestamp": f"2026-10-01T09:00:{place % 60:02}Z", **one} for place, one in enumerate(events)]
        body = {"session_id": session, "first_seq": 0, "events": timed}
        assert call("POST", "/api/audit/events", tokens.ops, json=body).status_code == 201
        call("POST", f"/api/audit/sessions/{session}/finalize", tokens.ops)
        loop.run(engine.wait_until_drained())
        until(lambda: runs == len(call("GET", "/api/audit/ops/runs", tokens.root).json()["runs"]), "the diagnoses")

    return send


def test_a_project_without_runs_explains_how_runs_are_created(look: Callable[..., str]) -> None:
    """The page must explain how runs are created, because it is opened before the first one."""
    assert "A session becomes a run when it ends" in look(RUNS)
    assert "No runs match" in look(f"{RUNS}?readiness=unsafe_for_production")
    look(RUN, 404)
    look(f"{RUNS}/run_1", 400)


def test_the_verdict_comes_first(finished: Finished, look: Callable[..., str]) -> None:
    """Readiness, trust, failure, its steps and the remedy follow in this order."""
    finished("s1", LOOP, 1)
    page = look(RUN)
    places = [
        page.index(text)
        for text in ("<h1>run_001</h1>", "Review recommended", "</a> 96 of 100", "Infinite tool loop", "loop flagged", 'data-copy="#fix"', "Six dimensions")
    ]  # fmt: skip
    assert sorted(places) == places
    assert page.count("<meter") == 6
    assert "add retry caps" in re.search(r'id="fix">([^<]+)<', page)[1]  # type: ignore[index]


def test_evidence_and_failures_are_marked(finished: Finished, look: Callable[..., str]) -> None:
    """Evidence and failures must stand out among many events."""
    finished("s1", LOOP, 1)
    page = look(RUN)
    rows = dict(re.findall(r'<tr id="event-(\d+)" (?:class="([^"]*)")?', page))
    assert {number: rows[number].split() for number in ("1", "2", "3", "8")} == {
        str(number): kind.split() for number, kind in ((1, ""), (2, "is-evidence"), (3, "is-failed"), (8, ""))
    }
    assert re.findall(r'<tr id="event-(\d+)"', look(f"{RUN}?only=evidence")) == ["2", "4", "6"]
    assert re.findall(r'<tr id="event-(\d+)"', look(f"{RUN}?only=failed")) == ["3", "5", "7"]
    assert re.findall(r'<tr id="event-(\d+)"', look(f"{RUN}?type=session_start")) == ["1"]
    assert "No event matches" in look(f"{RUN}?type=session_start&only=failed")


def test_the_timeline_summarises_each_event_in_a_line(finished: Finished, look: Callable[..., str]) -> None:
    """Each event has a short summary, without the values of other columns, so that events need not be opened one by one."""
    events = [
        {"event": "tool_call", "tool": "search", "args": {"q": "order 7"}},
        {"event": "decision"},
        LOOP[-1],
        {"event": "odd", "note": "y" * 200},
    ]
    finished("s1", events, 1)
    page = look(RUN)
    gists = re.findall(r'<span class="gist">(.*?)</span></summary>', page)
    assert gists == [
        "args: {q: order 7}",
        "note:" + "x" * (MAX_GIST_LENGTH - 6) + "\u2026",
        "note: " + "y" * (MAX_GIST_LENGTH - 7) + "\u2026",
    ]
    assert page.count("characters</summary>") == 1
    assert f'href="{RUN}/session.json" download>Raw session, 4 events</a>' in page


def test_every_node_of_the_graph_links_to_its_event(finished: Finished, look: Callable[..., str]) -> None:
    """The failure links to its cause on the page."""
    finished("s1", LOOP, 1)
    page = look(RUN)
    nodes = re.findall(r'<a class="node[^"]*" href="([^"]+)"', page)
    assert len(nodes) == len(LOOP)
    assert nodes[-1] == f"{RUN}?at=8#event-8"
    assert '<tr id="event-8"' in look(nodes[-1].split("#")[0])
    assert 'href="#cause-infinite_tool_loop"' in page
    assert 'id="cause-infinite_tool_loop"' in page


def test_a_long_session_is_shown_in_parts(finished: Finished, look: Callable[..., str]) -> None:
    """A block of the graph opens into its events; the timeline has pages."""
    finished("s1", [{"event": "decision", "text": str(number)} for number in range(500)], 1)
    page = look(RUN)
    blocks = [address for address in re.findall(r'<a class="node" href="([^"]+)"', page) if "graph=" in address]
    assert len(blocks) == 100
    part = look(blocks[3].split("#")[0])
    assert re.findall(r'aria-label="Event (\d+): decision"', part) == ["16", "17", "18", "19", "20"]
    assert "Events 16 to 20 of 500" in part
    assert f"{RUN}?at=51#timeline" in page
    assert look(f"{RUN}?at=75").count('<tr id="event-') == 50
    look(f"{RUN}?graph=400-9999")
    look(f"{RUN}?at=100000")


def test_no_text_of_an_agent_is_markup(finished: Finished, look: Callable[..., str]) -> None:
    """Types, tools, arguments and results are texts of the audited agent."""
    finished("s1", LOOP, 1)
    for page in (look(RUN), look(f"{RUN}?type={HOSTILE}"), look(RUNS)):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert re.findall(r"\son\w+=|\sstyle=", re.sub(r"&[a-z]+;|&#\d+;", "", page)) == []


def test_a_long_payload_is_truncated_with_a_link(finished: Finished, look: Callable[..., str]) -> None:
    """Long outputs of tools must not make the page large."""
    finished("s1", LOOP, 1)
    address = re.search(r'href="([^"]+/events/\d+\.json)"', look(RUN))
    assert address
    assert "x" * 2 * MAX_PAYLOAD_LENGTH not in look(RUN)
    assert "x" * 2 * MAX_PAYLOAD_LENGTH in look(address[1])
    look(f"{RUN}/events/999999.json", 404)


def test_the_files_of_a_run_are_downloads(
    finished: Finished, call: Call, tokens: Tokens, store: Store
) -> None:  # fmt: skip
    """They contain texts of agents, so a browser must save them and not interpret them."""
    finished("s1", LOOP, 1)
    headers = cookie(signed_in(call, tokens.root))
    session, diagnosis = (call("GET", f"{RUN}/{name}.json", headers=headers) for name in ("session", "diagnosis"))
    assert session.json() == {"session_id": "s1", "events": events_of(store.cursor(), "north", "s1")}
    assert call("GET", "/api/audit/ops/runs/run_001", tokens.root).json()["diagnosis"] == diagnosis.json()
    for answer in (session, diagnosis):
        assert tuple(answer.headers[name] for name in ("content-type", "x-content-type-options", "cache-control")) == (
            "application/json",
            "nosniff",
            "no-store",
        )
        assert answer.headers["content-disposition"].startswith('attachment; filename="ops-run_001-')


def test_a_session_without_events_has_no_evidence(store: Store, look: Callable[..., str]) -> None:
    """Without evidence, a run is neither trusted nor ready; its conversation is shown anyway."""
    nothing = SessionEvidence()
    record = to_record(
        diagnose(nothing, AS_EVENTS), nothing, connection="local", project="ops", agent=None, session_id="quiet", revision=0,
        started_at=None, ended_at=None, closed_at=START, closed_reason="explicit", policy_digest="", profile=DEFAULTS["events"],
    )  # fmt: skip
    filled(store, ("diagnoses", record), ("scores", score("quiet", 1)))
    page = look(RUN)
    assert "<h2>No runtime events: only exchanges were received</h2>" in page
    assert "Insufficient evidence" in page
    assert "No runtime events" in look(RUNS)
    assert "no failure" not in look(RUNS)
    assert "dimensions-title" not in page
    assert "<meter" not in page
    assert 'id="graph"' not in page
    assert "/projects/ops/exchanges/" in page


def test_later_events_are_shown_beside_the_recorded_verdict(store: Store, look: Callable[..., str]) -> None:
    """The page shows the recorded verdict, and notes that it does not include the later events."""
    nothing = SessionEvidence()
    record = to_record(
        diagnose(nothing, AS_EVENTS), nothing, connection="local", project="ops", agent=None, session_id="quiet", revision=0,
        started_at=None, ended_at=None, closed_at=START, closed_reason="explicit", policy_digest="", profile=DEFAULTS["events"],
    )  # fmt: skip
    filled(store, ("diagnoses", record), ("agent-events", event("quiet", 0, event="decision")))
    page = look(RUN)
    assert "1 event has arrived since" in page
    assert 'id="timeline"' in page


def test_a_run_is_shown_beside_the_previous_runs(finished: Finished, look: Callable[..., str]) -> None:
    """The page shows the trend and links to the previous runs."""
    finished("good", [{"event": "session_start"}], 1)
    finished("bad", LOOP, 2)
    first, second = look(f"{RUNS}/run_001"), look(f"{RUNS}/run_002")
    assert "agent's first run" in first
    assert f'href="{RUNS}/run_002" rel="next"' in first
    assert re.search(r"▼ 4</span> worse than\s+<a[^>]*>run_001</a>", second)
    assert "No failure detected" in first


def test_a_repeated_failure_is_pointed_out(finished: Finished, look: Callable[..., str]) -> None:
    """A repeated failure shows that a fix did not help."""
    finished("bad", LOOP, 1)
    finished("worse", LOOP * 2, 2)
    assert "The same failure as in the previous run" in look(f"{RUNS}/run_002")


def test_evaluations_of_the_run_link_to_their_pages(finished: Finished, look: Callable[..., str], store: Store) -> None:
    """Evaluations of another connection's session with the same id are not shown."""
    finished("s1", LOOP, 1)
    assert "has not been evaluated" in look(RUN)
    evaluation = evaluated(Made(CLAUDE, REFUND, "s1", (8.0, 8.0, 8.0), simulated=True)).evaluation
    mine = msgspec.structs.replace(evaluation, project="ops")
    other = msgspec.structs.replace(mine, connection="south", evaluation_id="other", case_title="Of another")
    filled(store, ("evaluations", mine), ("evaluations", other))
    page = look(RUN)
    assert "Refund within the policy" in page
    assert "Of another" not in page
    assert "Simulated judge" in page
    assert 'href="/projects/ops/evaluations/s1%3Arefund-policy"' in page


def test_runs_can_be_filtered_by_readiness(finished: Finished, look: Callable[..., str]) -> None:
    """They are listed newest first, and the unsafe ones alone on request."""
    finished("good", [{"event": "session_start"}], 1)
    finished("bad", LOOP, 2)
    listed = re.compile(r'<td class="whole"[^>]*><a href="[^"]+">(run_\d+)</a>')
    assert listed.findall(look(RUNS)) == ["run_002", "run_001"]
    assert listed.findall(look(f"{RUNS}?readiness=ready_for_runtime")) == ["run_001"]
    look(f"{RUNS}?readiness=odd", 400)


def test_runs_of_another_project_are_hidden(finished: Finished, look: Callable[..., str], call: Call, tokens: Tokens) -> None:
    """They cannot be reached by number either, and without a sign-in the page redirects there."""
    finished("s1", LOOP, 1)
    paths = ("", "/run_001", "/run_001/session.json", "/run_001/diagnosis.json", "/run_001/events/0.json")
    assert "run_001" not in look("/projects/web/runs")
    for path in paths[1:]:
        look(f"/projects/web/runs{path}", 404)
    reader = cookie(signed_in(call, tokens.ops_reader))
    for path in paths:
        assert call("GET", f"/projects/web/runs{path}", headers=reader).status_code == 403
        assert call("GET", f"{RUNS}{path}", headers=HTML).status_code == 303


def test_all_evidence_is_marked_whatever_its_number(store: Store) -> None:
    """A record names the first hundred events of a cause; the page marks every one."""
    calls = [event("s", number, event="tool_call", tool="search", args={"q": 1}) for number in range(150)]
    odd = event("s", 150, event="error_event", error="gone")
    evidence = SessionEvidence(reference_limit=100)
    for one in (*calls, odd):
        evidence.add(one, one.seq)
    record = to_record(
        diagnose(evidence, AS_EVENTS), evidence, connection="local", project="ops", agent=None, session_id="s", revision=0,
        started_at=START, ended_at=START, closed_at=START, closed_reason="explicit", policy_digest="", profile=DEFAULTS["events"],
    )  # fmt: skip
    cursor = filled(store, *(("agent-events", one) for one in [*calls, odd])).cursor()
    events = read_events(cursor, record, finding_events(cursor, record))
    loops = [place for place, names in events.evidence.items() if "infinite_tool_loop" in names]
    assert loops == list(range(150))
    assert events.failed == frozenset({150})
    assert sum(edge.failure == "infinite_tool_loop" for edge in events.reinforcing_edges) == 149


def test_a_run_without_a_cause_has_no_evidence(store: Store) -> None:
    """Later events are not part of the recorded findings, so they must not be marked."""
    calls = [event("s", number, event="tool_call", tool="search", args={"q": 1}) for number in range(5)]
    cursor = filled(store, *(("agent-events", one) for one in calls)).cursor()
    for events in (4, 5):
        record = diagnosed("s", failure_cause_count=0, event_count=events)
        assert read_events(cursor, record, finding_events(cursor, record)).evidence == {}


@pytest.mark.parametrize("apart", [timedelta(hours=1), timedelta(days=9)], ids=["near", "far"])
def test_neighbouring_runs_are_found_at_any_distance(store: Store, apart: timedelta) -> None:
    """The search starts with the surrounding days and is widened if they have no runs."""
    runs = [diagnosed(f"s{number}", ended_at=START + number * apart) for number in range(1, 5)]
    with filled(store, *(("diagnoses", one) for one in runs)).transaction() as transaction:
        transaction.number_all_runs()
    cursor = store.cursor()
    contexts = []
    for number in range(1, 5):
        recorded = find_run(cursor, "ops", f"run_{number:03}")
        assert recorded is not None
        contexts.append(read_context(cursor, recorded.run))

    assert [one.previous for one in contexts] == [None, "run_001", "run_002", "run_003"]
    assert [one.following for one in contexts] == ["run_002", "run_003", "run_004", None]
    assert [[run["run_id"] for run in one.history] for one in contexts[:2]] == [["run_001"], ["run_002", "run_001"]]
    assert [len(one.history) for one in contexts] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("trust", "level", "severities", "words"),
    [
        (88, "unsafe_for_production", ("critical", "high"), "a failure is critical"),
        (59, "unsafe_for_production", ("critical", "critical"), "trust is below 60 and 2 failures are critical"),
        (59, "unsafe_for_production", (), "trust is below 60"),
        (90, "review_recommended", ("high",), "a failure has high severity"),
        (79, "review_recommended", ("medium",), "trust is below 80"),
        (95, "ready_for_runtime", ("medium",), ""),
        (None, "insufficient_evidence", (), ""),
    ],
)
def test_a_readiness_names_its_reason(trust: int | None, level: str, severities: tuple[str, ...], words: str) -> None:
    """Without the reason, 88 of 100 and unsafe looks like a contradiction."""
    assert _decide_readiness(trust, [SimpleNamespace(severity=one) for one in severities]) == level  # type: ignore[misc]
    causes = [SimpleNamespace(severity=one) for one in severities]
    record = SimpleNamespace(trust_score=trust, readiness_level=level, failure_causes=causes)
    assert explain_readiness(record) == words  # type: ignore[arg-type]
