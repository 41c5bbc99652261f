"""Event files in every accepted form give the same records, and unreadable events are reported."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples

from audit.diagnosis.diagnosis import FAILURE_NODES
from audit.diagnosis.events import normalise_session
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.bounds import NOT_UNICODE
from schemas.errors import InputError
from streams.sources import event_files
from streams.sources.event_files import read_event_file, read_sessions
from streams.sources.source import ReadingContext

CALL = {"event": "tool_call", "tool": "exec", "args": {"n": 1}, "timestamp": "2026-11-03T09:00:00Z"}
OUTPUT = {"event": "tool_output", "tool": "exec", "used": False, "timestamp": "2026-11-03T09:00:01Z"}
FORMS = {
    "flat": [{"session_id": "s", **CALL}, {"session_id": "s", **OUTPUT}],
    "wrapped": [{"session_id": "s", "event": CALL}, {"session_id": "s", "event": OUTPUT}],
    "sessions": [{"session_id": "s", "events": [CALL, OUTPUT]}],
    "spread": [{"session_id": "s", "events": [CALL]}, {"session_id": "s", "events": [OUTPUT]}],
}
DOCUMENTS: dict[str, Any] = {
    "session": {"session_id": "s", "events": [CALL, OUTPUT]},
    "unnamed": {"events": [CALL, OUTPUT]},
    "list": [CALL, OUTPUT],
    "list of sessions": [{"session_id": "s", "events": [CALL, OUTPUT]}],
}


def _stream(lines: list[Any]) -> io.BytesIO:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    return io.BytesIO(text.encode())


def _summary(events: list[Any]) -> list[tuple[Any, ...]]:
    return [(e.session_id, e.seq, e.event_id, e.event, e.tool, e.used, e.occurred_at.isoformat()) for e in events]


EXPECTED = [
    ("s", 0, "event_0", "tool_call", "exec", None, "2026-11-03T09:00:00+00:00"),
    ("s", 1, "event_1", "tool_output", "exec", False, "2026-11-03T09:00:01+00:00"),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_line_format_gives_the_same_events(form: str, context: ReadingContext) -> None:
    """The evidence must not depend on the form that the sender chose."""
    (reading,) = read_event_file(_stream(FORMS[form]), context)
    assert _summary(reading.events) == EXPECTED
    assert reading.faults == []
    assert reading.complete is True
    assert reading.session_ids == ["s"]
    assert "session_id" not in json.loads(reading.events[0].payload)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_may_be_on_one_line_or_many(form: str, indent: int | None, tmp_path: Path, context: ReadingContext) -> None:
    """A session.json may be on one line or many; without a session id, the file's name is used."""
    file = tmp_path / "s.json"
    file.write_text(json.dumps(DOCUMENTS[form], indent=indent))
    (reading,) = read_event_file(file, context)
    assert _summary(reading.events) == EXPECTED
    with file.open("rb") as stream:
        (session,) = read_sessions(stream, "s")
    assert session.session_id == "s"
    assert session.events == [CALL, OUTPUT]


def test_positions_count_over_the_file_and_over_batches(context: ReadingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's order must not depend on other lines or on batch boundaries."""
    monkeypatch.setattr(event_files, "BATCH_SIZE", 3)
    lines = [{"session_id": f"s{i % 2}", **CALL} for i in range(8)]
    readings = list(read_event_file(_stream(lines), context))
    assert [len(reading.events) for reading in readings] == [3, 3, 2]
    events = [event for reading in readings for event in reading.events]
    assert [(event.session_id, event.seq) for event in events[:4]] == [("s0", 0), ("s1", 0), ("s0", 1), ("s1", 1)]


def test_a_session_object_followed_by_lines_is_not_a_document(context: ReadingContext) -> None:
    """The lines after it must be read as well."""
    session = json.dumps({"session_id": "s", "events": [CALL]})
    for between in ("\n", "\n\n", "\r\n \n"):
        (reading,) = read_event_file(io.BytesIO((session + between + session).encode()), context)
        assert [event.seq for event in reading.events] == [0, 1]


def test_a_lines_own_names_override_the_reading_and_options_override_both(context: ReadingContext) -> None:
    """One file may hold several agents; `--agent` overrides all."""
    line = {"session_id": "s", "connection": "c2", "project": "web", "agent": "a", "event": CALL}
    for override, expected in ((None, "a"), ("b", "b")):
        (reading,) = read_event_file(_stream([line]), dataclasses.replace(context, agent=override))
        (event,) = reading.events
        assert event.connection == "c2"
        assert event.project == "web"
        assert event.agent == expected


@pytest.mark.parametrize(
    ("line", "reason", "named", "missing"),
    [
        (CALL, "missing_field", "session_id", 0),
        ({"session_id": 5, **CALL}, "wrong_type", "session_id", 0),
        ({"session_id": [], **CALL}, "wrong_type", "session_id", 0),
        ({"session_id": "", **CALL}, "bounds", "session_id", 0),
        ({"session_id": "s", "connection": {}, **CALL}, "wrong_type", "connection", 0),
        ({"session_id": "s", "project": "../etc", **CALL}, "bounds", "project", 1),
        ({"session_id": "s", "project": "../etc", "events": [CALL, OUTPUT]}, "bounds", "project", 2),
        ({"session_id": "s", "events": {}}, "wrong_type", "events: is an object, not an array", 0),
        ({"session_id": "s", "events": None}, "wrong_type", "events: is null, not an array", 0),
        ({"session_id": "s", "event": CALL, "events": None}, "wrong_type", "events: is null, not an array", 0),
        ({"session_id": "s"}, "not_an_event", "neither an event nor a session", 1),
        ({"session_id": "s", "event": None, "tool": "exec"}, "not_an_event", "neither an event nor a session", 1),
        ({"session_id": "s", "events": [5]}, "malformed_event", "events[0]: is a number, not an object", 1),
        ({"session_id": "s", **CALL, "timestamp": "soon"}, "bad_timestamp", "timestamp", 1),
        ({"session_id": "s", "events": [{**CALL, "timestamp": "soon"}]}, "bad_timestamp", "events[0].timestamp", 1),
        ({"session_id": "s", **CALL, "args": "x" * 600_000}, "too_long", "the event", 1),
        ("{", "not_json", "JSON", 0),
        ("[1]", "not_an_object", "array", 0),
    ],
)
def test_an_invalid_event_is_a_fault_with_line_and_field(
    line: Any, reason: str, named: str, missing: int, context: ReadingContext
) -> None:
    """Nothing is dropped silently, and a rejected event keeps its position, so that correcting it moves no other."""
    good = {"session_id": "s", **CALL}
    (reading,) = read_event_file(_stream([good, line, good]), context)
    assert [(fault.line, fault.reason) for fault in reading.faults] == [(2, reason)]
    assert named in reading.faults[0].detail
    assert [event.seq for event in reading.events] == [0, 1 + missing]
    assert [event.event_id for event in reading.events] == ["event_0", f"event_{1 + missing}"]


IDS = st.one_of(st.none(), st.sampled_from(["a", "a#2", "a#3", "event_1", 5, *sorted(FAILURE_NODES)[:1]]))


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.tuples(st.sampled_from(["s", "t"]), IDS), max_size=12), batch=st.integers(1, 4))
def test_repeated_ids_are_renamed_as_in_a_diagnosis(events: list[tuple[str, Any]], batch: int, context: ReadingContext) -> None:
    """A second event with the same id is a separate event, and gets the same name in imports and diagnoses."""
    lines = [{"session_id": session, "event": "x", "event_id": name, "n": n} for n, (session, name) in enumerate(events)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "BATCH_SIZE", batch)
        records = [event for reading in read_event_file(_stream(lines), context) for event in reading.events]
    for session in read_sessions(_stream(lines), "f"):
        expected = normalise_session(session.events, reserved=FAILURE_NODES)
        session_records = [record for record in records if record.session_id == session.session_id]
        assert [record.event_id for record in session_records] == [event.event_id for event in expected]
        assert [json.loads(record.payload) for record in session_records] == [event.payload for event in expected]
    assert len(lines) == len({(record.session_id, record.event_id) for record in records})


def test_an_invalid_event_does_not_cost_a_session_its_diagnosis(context: ReadingContext) -> None:
    """The fault is reported with its position; the other events keep the ids that an import gives them."""
    reports: list[tuple[int, str]] = []
    lines = [{"session_id": "s", "events": [CALL, 5, OUTPUT]}, {"session_id": "t", **CALL}, {"session_id": "t", "n": 1}]
    lines += [{"session_id": "t", "project": "../etc", **CALL}, {"session_id": "t", **OUTPUT}]
    sessions = list(read_sessions(_stream(lines), "f", lambda line, detail: reports.append((line, detail))))
    assert [line for line, _ in reports] == [1, 3, 4]
    assert reports[0][1] == "events[1]: is a number, not an object"
    assert "neither an event nor a session" in reports[1][1]
    (reading,) = read_event_file(_stream(lines), context)
    event_ids = [(session.session_id, event.event_id) for session in sessions for event in normalise_session(session.events)]
    assert event_ids == [("s", "event_0"), ("s", "event_2"), ("t", "event_0"), ("t", "event_3")]
    assert event_ids == [(event.session_id, event.event_id) for event in reading.events]


def test_a_corrected_event_keeps_the_id_of_its_position(context: ReadingContext) -> None:
    """Correcting a line and importing again must add its event and change no other."""
    lines = [{"session_id": "s", **CALL, "event_id": "a", "timestamp": time} for time in (None, "soon", None)]
    (before,) = read_event_file(_stream(lines), context)
    (after,) = read_event_file(_stream([{**line, "timestamp": None} for line in lines]), context)
    assert [event.event_id for event in before.events] == ["a", "a#3"]
    assert before.events == [event for event in after.events if event.event_id != "a#2"]


@pytest.mark.parametrize(("name", "expected"), [("runs/night.json", "night"), ("-", "standard input"), ("f", "f")])
def test_a_session_without_a_name_is_named_after_its_file(name: str, expected: str) -> None:
    """An import gives the same name, in whatever folder the file is."""
    (session,) = read_sessions(io.BytesIO(json.dumps({"events": [CALL]}).encode()), name)
    assert session.session_id == expected


def test_a_torn_last_line_is_left_for_the_next_reading(context: ReadingContext) -> None:
    """The writer has not finished it."""
    stream = io.BytesIO(json.dumps({"session_id": "s", **CALL}).encode() + b'\n{"session_id": "s", "ev')
    (reading,) = read_event_file(stream, context)
    assert len(reading.events) == 1
    assert reading.faults == []
    assert reading.complete is False


def test_many_invalid_parts_of_one_line_are_stored_once(context: ReadingContext) -> None:
    """A fault keeps only its own part, so that a line of bad events is not stored once per event."""
    line = {"session_id": "s", "events": [{"event": "x", "timestamp": f"bad {i}"} for i in range(2_000)]}
    (reading,) = read_event_file(_stream([line]), context)
    assert len(reading.faults) == 2_000
    assert len({fault.digest for fault in reading.faults}) == 2_000
    assert max(len(fault.body) for fault in reading.faults) < 100


def test_secrets_in_payloads_are_redacted(context: ReadingContext) -> None:
    """The payload is stored and shown."""
    key = "AKIA" + "J7Q2M5X8R1T4W6Z9"
    line = {"session_id": "s", "event": "tool_call", "tool": "exec", "args": {"env": key}}
    (reading,) = read_event_file(_stream([line]), dataclasses.replace(context, redactor=Redactor(RedactionSettings())))
    assert key not in reading.events[0].payload
    assert "[SECRET:" in reading.events[0].payload


@pytest.mark.parametrize("form", FORMS)
def test_sessions_for_a_diagnosis_are_complete(form: str) -> None:
    """Detectors need whole sessions, not lines."""
    sessions = list(read_sessions(_stream(FORMS[form]), "f"))
    assert [event for session in sessions for event in session.events] == [CALL, OUTPUT]
    assert {session.session_id for session in sessions} == {"s"}


def test_a_transcript_gives_the_same_events_as_the_importer() -> None:
    """`diagnose` and the import must see the same evidence."""
    corpus = Path(__file__).parents[2] / "corpus" / "openclaw" / "malformed_lines.jsonl"
    with corpus.open("rb") as stream:
        (session,) = read_sessions(stream, "f")
    assert session.session_id == "s-1"
    assert session.line == 1
    assert len(session.faults) == 11
    assert [event["event_id"] for event in session.events] == ["a1", "a2"]


@pytest.mark.parametrize("data", [b"", b"{\n", b"nonsense\n", b'{"event":"x"}\n', b"5", b'{"session_id":"s"'])
def test_a_file_without_a_session_is_an_error_with_the_line(data: bytes) -> None:
    """A diagnosis of half a file would be wrong."""
    if not data:
        assert list(read_sessions(io.BytesIO(data), "f")) == []
        return
    with pytest.raises(InputError, match=r"f:1: "):
        list(read_sessions(io.BytesIO(data), "f"))


def test_an_unreadable_file_is_an_error_with_a_hint(tmp_path: Path, context: ReadingContext) -> None:
    """Importing nothing silently would look like success."""
    with pytest.raises(InputError) as caught:
        list(read_event_file(tmp_path / "nowhere.jsonl", context))
    assert caught.value.hint


BROKEN_IDS = {
    "the session of an event": ({"session_id": "x\ud800", **CALL}, "session_id"),
    "the agent of an event": ({"session_id": "x", "agent": "x\ud800", **CALL}, "agent"),
    "the connection of a session": ({"session_id": "x", "connection": "x\ud800", "events": [CALL]}, "connection"),
    "the project of a session": ({"session_id": "x", "project": "x\ud800", "events": [CALL]}, "project"),
    "an event of a session": ({"session_id": "x", "events": [{**CALL, "event_id": "x\ud800"}]}, "events[0].event_id"),
    "a flat event": ({"session_id": "x", **CALL, "event_id": "x\ud800"}, "event_id"),
}


@pytest.mark.parametrize("what", BROKEN_IDS)
def test_an_id_with_a_lone_surrogate_is_a_fault_with_its_field(what: str, context: ReadingContext) -> None:
    """Repaired, it would be the id of another session or event, and the records of both would become one."""
    line, field = BROKEN_IDS[what]
    (reading,) = read_event_file(_stream([line, {"session_id": "x\ufffd", **CALL}]), context)
    assert [(fault.line, fault.detail) for fault in reading.faults] == [(1, f"{field}: {NOT_UNICODE}")]
    assert [event.session_id for event in reading.events] == ["x\ufffd"]
    reports: list[tuple[int, str]] = []
    list(read_sessions(_stream([line]), "f", lambda number, detail: reports.append((number, detail))))
    assert reports == [(1, f"{field}: {NOT_UNICODE}")]


@pytest.mark.parametrize("indent", [None, 2])
def test_lone_surrogates_in_texts_are_repaired(indent: int | None, context: ReadingContext) -> None:
    """A cut text is no reason to lose an event, in a line or in a document."""
    event = {**CALL, "args": {"id": "x\ud800"}}
    text = json.dumps({"session_id": "s", "events": [event, event]}, indent=indent).encode()
    (reading,) = read_event_file(io.BytesIO(text), context)
    (session,) = read_sessions(io.BytesIO(text), "s")
    assert [
        *(json.loads(event.payload)["args"]["id"] for event in reading.events),
        *(event["args"]["id"] for event in session.events),
    ] == ["x\ufffd"] * 4
