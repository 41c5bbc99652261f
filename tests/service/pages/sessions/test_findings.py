"""Findings of a run are marked on their events and turns: on the page, in the API and on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_server import Call, Tokens
from support.builders import START, event, exchange
from support.pages import Elements
from support.stored_sessions import filled

from analytics.store.store import Store
from audit.detectors.detectors import DETECTORS
from audit.detectors.thresholds import DEFAULTS
from audit.diagnosis.diagnosis import diagnose, to_record
from audit.diagnosis.evidence import SessionEvidence
from schemas.records import AgentEvent, Diagnosis, Record
from service.cli.main import run as run_command
from service.pages.run_view import MAX_STEPS_PER_TURN
from service.read import sessions as module
from service.read.sessions import NOT_MARKED
from service.text.links import Links

LINKS = Links()
HOSTILE = "<script>alert(1)</script>\u202etxt.exe"
Look = Callable[..., str]
Json = dict[str, Any]


def call_of(tool: str, **args: object) -> Json:
    """Return a tool call."""
    return {"event": "tool_call", "tool": tool, "args": args}


def used(tokens: int) -> Json:
    """Return an event with token usage."""
    return {"event": "token_usage", "usage": {"total": tokens}}


FINE = {61: call_of("search", q="a"), 62: {"event": "tool_output", "used": True}, 63: used(200), 64: {"event": "context_event", "saturation": 20},
        65: {"event": "memory_event", "action": "stored"}, 66: {"event": "skill_event", "invoked": True}, 181: call_of("search", q="b"), 182: used(300)}  # fmt: skip
"""Events of the first and of the third turn, by second: there is nothing wrong with them."""
REFUND = call_of("refund", order=7)
WRONG: dict[str, Mapping[int, Json]] = {
    "infinite_tool_loop": {
        121: call_of("orders", id=7),
        **dict.fromkeys(range(122, 125), REFUND),
        125: {"event": "retry_event"},
    },
    "memory_degradation": {121: call_of("recall"), 122: {"event": "memory_event", "action": "miss"}},
    "ignoring_tool_outputs": {121: call_of("orders", id=7), 122: {"event": "tool_output", "used": False}},
    "context_pollution": {121: {"event": "context_event", "saturation": 80}, 122: {"event": "context_event", "saturation": 96}},
    "cost_explosion": {121: used(900), 122: used(14_000), 123: call_of("orders", id=7)},
    "skill_failure": {121: call_of("skills"), 122: {"event": "skill_event", "invoked": False}},
}
"""Events of the second turn, by the failure that they make."""
ABOUT = {
    "infinite_tool_loop": [122, 123, 124, 125],
    "memory_degradation": [122],
    "ignoring_tool_outputs": [122],
    "context_pollution": [122],
    "cost_explosion": [122],
    "skill_failure": [122],
}
"""The events, by second, that each failure is about."""


def diagnosis_of(events: Sequence[AgentEvent], session: str = "s", **fields: Any) -> Diagnosis:
    """Return the stage's diagnosis of a session's events, with some fields changed."""
    evidence = SessionEvidence(reference_limit=100)
    for agent_event in events:
        evidence.add(agent_event, agent_event.seq)
    profile = DEFAULTS["events"]
    record = to_record(
        diagnose(evidence, profile.thresholds), evidence, connection="local", project="ops", agent="scout", session_id=session, revision=0,
        started_at=START, ended_at=START, closed_at=START, closed_reason="explicit", policy_digest="", profile=profile,
    )  # fmt: skip
    return msgspec.structs.replace(record, **fields)


def session_events(raw: Mapping[int, Json], session: str = "s") -> list[AgentEvent]:
    """Return events of a session at the given seconds."""
    return [event(session, second, **fields) for second, fields in sorted(raw.items())]


def session_of(raw: Mapping[int, Json], **fields: Any) -> list[tuple[str, Record]]:
    """Store a diagnosed session of three turns, which begin after 60, 120 and 180 seconds."""
    events = session_events(raw)
    turns = [("exchanges", exchange("s", number)) for number in (1, 2, 3)]
    return [*turns, *(("agent-events", one) for one in events), ("diagnoses", diagnosis_of(events, **fields))]


def steps_of(page: str) -> dict[int, bool]:
    """Return whether each event of a page is marked, by its position."""
    items = re.findall(r'<li (?:class="([^"]*)")? ?value="\d+">\s*<details id="step-(\d+)"', page)
    return {int(place): "is-marked" in kind for kind, place in items}


def turns_of(page: str) -> dict[int, bool]:
    """Return whether each turn of a page is marked, by its number."""
    return {
        int(place): "is-marked" in kind
        for kind, place in re.findall(r'<article class="panel turn ([^"]*)"[^>]*aria-labelledby="turn-title-(\d+)"', page)
    }


def test_every_detector_has_a_case() -> None:
    """Every new detector needs a case here."""
    assert {detector.failure_type for detector in DETECTORS} == WRONG.keys() == ABOUT.keys()


@pytest.mark.parametrize("failure", WRONG)
def test_a_finding_marks_its_turn_and_events_on_the_page(failure: str, store: Store, look: Look) -> None:
    """The conversation shows the affected turns and events, the severity, and a link to the finding."""
    raw = {**FINE, **WRONG[failure]}
    filled(store, *session_of(raw))
    page = look(LINKS.session("ops", "s"))
    assert turns_of(page) == {1: False, 2: True, 3: False}
    places = {second: place for place, second in enumerate(sorted(raw))}
    assert {places[second] for second in ABOUT[failure]} == {place for place, is_marked in steps_of(page).items() if is_marked}
    assert len(raw) == len(steps_of(page))
    run = LINKS.run("ops", "run_001", "finding-1")
    assert re.search(rf'<a class="pill (medium|high|critical)" href="{re.escape(run)}"', page)
    assert 'id="finding-1"' in look(LINKS.run("ops", "run_001"))


@pytest.mark.parametrize("failure", WRONG)
def test_a_finding_links_to_its_turn(failure: str, store: Store, look: Look) -> None:
    """Findings link to the turns that they are about."""
    filled(store, *session_of({**FINE, **WRONG[failure]}))
    turn = LINKS.session("ops", "s", "local", fragment="turn-title-2", turn=2).replace("&", "&amp;")
    for page in (look(LINKS.run("ops", "run_001")), look(LINKS.session("ops", "s"))):
        assert f'href="{turn}"' in page
    assert 'id="turn-title-2"' in look(LINKS.session("ops", "s", "local", turn=2))


@pytest.mark.parametrize("failure", WRONG)
def test_api_and_command_line_return_the_same_marks(
    *, failure: str, store: Store, call: Call, tokens: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script and a terminal user see the marks of the page."""
    records = session_of({**FINE, **WRONG[failure]})
    answer = call("GET", "/api/audit/ops/sessions/s", filled(store, *records) and tokens.root).json()
    (finding,) = answer["session"]["findings"]
    (turn,) = finding["turns"]
    ids = [f"event_{second}" for second in ABOUT[failure]]
    assert finding["number"] == 1
    assert finding["type"] == failure
    assert finding["note"] == ""
    assert finding["eventCount"] == len(ids)
    assert finding["markedCount"] == len(ids)
    assert finding["turnCount"] == 1
    assert turn["turn"] == 2
    assert [one["eventId"] for one in turn["events"]] == ids
    of_turns = [[(one["number"], one["severity"], one["events"]) for one in shown["findings"]] for shown in answer["turns"]]
    assert of_turns == [[], [(1, finding["severity"], turn["events"])], []]
    (of_run,) = call("GET", "/api/audit/ops/runs/run_001", tokens.root).json()["findings"]
    assert finding == of_run
    path = tmp_path / "other.duckdb"
    with Store(path) as other:
        filled(other, *records)
    assert run_command(["run", "s", "--json", "--db", str(path)]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["findings"]
    assert printed["type"] == failure
    assert printed["severity"] == finding["severity"]
    assert printed["markedCount"] == len(ids)
    assert [(one["turn"], [shown["eventId"] for shown in one["events"]]) for one in printed["turns"]] == [(2, ids)]
    assert run_command(["run", "s", "--db", str(path)]) == 0
    assert re.search(rf"turn 2 +{failure}", capsys.readouterr().out)


def test_every_event_is_marked_whatever_the_number(store: Store, look: Look, call: Call, tokens: Tokens) -> None:
    """A record names the first hundred events of a finding, but the later ones are affected as well."""
    raw = {
        **dict.fromkeys(range(61, 61 + 58), REFUND),
        **dict.fromkeys(range(121, 121 + 58), REFUND),
        **dict.fromkeys(range(181, 281), REFUND),
    }
    filled(store, *session_of(raw))
    page = look(LINKS.session("ops", "s"))
    assert turns_of(page) == {1: True, 2: True, 3: True}
    assert [
        one["findings"][0]["eventCount"] for one in call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["turns"]
    ] == [58, 58, 100]
    alone = look(LINKS.session("ops", "s", "local", part=3))
    assert sum(steps_of(alone).values()) == 100


def test_a_marked_event_beyond_the_shown_ones_is_linked(store: Store, look: Look) -> None:
    """A turn may make a hundred calls before it fails."""
    raw = {121 + n: call_of("search", q=n) for n in range(MAX_STEPS_PER_TURN)} | {
        121 + MAX_STEPS_PER_TURN + n: REFUND for n in range(3)
    }
    filled(store, *session_of(raw))
    page = look(LINKS.session("ops", "s"))
    assert turns_of(page) == {1: False, 2: True, 3: False}
    assert not any(steps_of(page).values())
    link = LINKS.session("ops", "s", "local", fragment=f"step-{MAX_STEPS_PER_TURN}", part=2, step=MAX_STEPS_PER_TURN + 1)
    assert f'href="{link.replace("&", "&amp;")}"' in page
    assert steps_of(look(link.partition("#")[0]))[MAX_STEPS_PER_TURN]


def test_each_of_several_loops_has_its_own_marks(store: Store, call: Call, tokens: Tokens) -> None:
    """Two loops with the same description are separate findings."""
    raw = {**{61 + n: call_of("refund", order=1) for n in range(3)}, **{121 + n: call_of("refund", order=2) for n in range(3)}}
    filled(store, *session_of(raw))
    findings = call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["session"]["findings"]
    turns = [(one["type"], [turn["turn"] for turn in one["turns"]]) for one in findings]
    assert turns == [("infinite_tool_loop", [1]), ("infinite_tool_loop", [2]), ("cost_explosion", [1, 2])]


def test_events_outside_turns_are_marked(store: Store, look: Look, call: Call, tokens: Tokens) -> None:
    """Findings before the first turn, or without any turn, must be marked as well."""
    filled(store, *session_of({1: {"event": "memory_event", "action": "miss"}, **FINE}))
    assert steps_of(look(LINKS.session("ops", "s")))[0]
    events = session_events({1: {"event": "memory_event", "action": "miss"}}, "quiet")
    filled(store, ("agent-events", events[0]), ("diagnoses", diagnosis_of(events, "quiet")))
    assert list(steps_of(look(LINKS.session("ops", "quiet"))).values()) == [True]
    for session in ("s", "quiet"):
        (finding,) = call("GET", f"/api/audit/ops/sessions/{session}", tokens.root).json()["session"]["findings"]
        assert [one["turn"] for one in finding["turns"]] == [0]


def test_events_after_the_diagnosis_are_not_marked(store: Store, look: Look) -> None:
    """Marks belong to recorded findings, and the next diagnosis covers the new events."""
    events = session_events(
        {**FINE, 183: {"event": "memory_event", "action": "miss"}, 184: {"event": "memory_event", "action": "lost"}}
    )
    turns = [("exchanges", exchange("s", number)) for number in (1, 2, 3)]
    filled(store, *turns, *(("agent-events", one) for one in events), ("diagnoses", diagnosis_of(events[:-1])))
    assert sum(steps_of(look(LINKS.session("ops", "s"))).values()) == 1


def test_an_older_diagnosis_is_marked_by_the_current_rule(store: Store, call: Call, tokens: Tokens) -> None:
    """Before version 2, the evidence of a cost explosion was the first events of the session, which were harmless."""
    raw = {**FINE, **WRONG["cost_explosion"]}
    events = session_events(raw)
    (cause,) = diagnosis_of(events).failure_causes
    first = tuple({"seq": one.seq, "event_id": one.event_id} for one in events[:3])
    old = msgspec.structs.replace(
        cause, evidence_count=3, evidence=msgspec.convert(first, type(cause.evidence) and tuple[type(cause.evidence[0]), ...])
    )
    filled(store, *session_of(raw, failure_causes=(old,), rule_version="diagnosis-1:2.1.2.1.2.1"))
    (finding,) = call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["session"]["findings"]
    assert [one["eventId"] for turn in finding["turns"] for one in turn["events"]] == ["event_122"]


def test_a_finding_with_deleted_events_says_so(store: Store, look: Look, call: Call, tokens: Tokens) -> None:
    """Only events of the finding may be marked."""
    remaining, wrong = session_events(FINE), session_events(WRONG["infinite_tool_loop"])
    turns = [("exchanges", exchange("s", number)) for number in (1, 2, 3)]
    filled(store, *turns, *(("agent-events", one) for one in remaining), ("diagnoses", diagnosis_of([*remaining, *wrong])))
    page = look(LINKS.session("ops", "s"))
    assert not any((*turns_of(page).values(), *steps_of(page).values()))
    assert NOT_MARKED in page
    (finding,) = call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["session"]["findings"]
    assert finding["turns"] == []
    assert finding["note"] == NOT_MARKED


@pytest.mark.parametrize(("rules", "marked"), [(None, 100), ("diagnosis-1:1", 0)], ids=["today's rules", "other rules"])
def test_a_very_long_session_is_marked_by_its_record(
    *, rules: str | None, marked: int, store: Store, call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page cannot read a million events, so it marks those that the record names and says that there are more."""
    monkeypatch.setattr(module, "MAX_REDIAGNOSED_EVENTS", 100)
    raw = dict.fromkeys(range(121, 271), REFUND)
    filled(store, *session_of(raw, **({"rule_version": rules} if rules else {})))
    findings = call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["session"]["findings"]
    assert {one["type"]: one["markedCount"] for one in findings} == {"infinite_tool_loop": marked, "cost_explosion": marked}
    assert all(one["eventCount"] == 150 and one["note"] for one in findings)


def test_a_run_without_findings_marks_nothing(store: Store, look: Look, call: Call, tokens: Tokens) -> None:
    """A run without findings must mark nothing."""
    filled(store, *session_of(FINE))
    page = look(LINKS.session("ops", "s"))
    assert not any((*turns_of(page).values(), *steps_of(page).values()))
    assert call("GET", "/api/audit/ops/sessions/s", tokens.root).json()["session"]["findings"] == []


def test_the_name_of_a_marked_event_is_escaped(
    store: Store, look: Look, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The description of a loop quotes the tool, which the agent named."""
    records = session_of(dict.fromkeys(range(121, 124), call_of(HOSTILE)))
    filled(store, *records)
    for address in (LINKS.session("ops", "s"), LINKS.session("ops", "s", part=2), LINKS.run("ops", "run_001")):
        page = look(address)
        assert "<script>alert" not in page
        assert "\u202e" not in page
    assert Elements(look(LINKS.session("ops", "s"))).active() == []
    path = tmp_path / "other.duckdb"
    with Store(path) as other:
        filled(other, *records)
    assert run_command(["run", "s", "--db", str(path)]) == 0
    assert "\u202e" not in capsys.readouterr().out
