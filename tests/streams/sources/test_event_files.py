"""Event files in every accepted form give the same records; what cannot be taken is named."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.errors import InputError
from streams.sources import event_files
from streams.sources.event_files import read_event_file, read_sessions
from streams.sources.reading import ReadingContext

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
def test_every_form_of_lines_gives_the_same_events(form: str, context: ReadingContext) -> None:
    """Whoever writes the file chooses the form; the evidence must not depend on it."""
    (reading,) = read_event_file(_stream(FORMS[form]), context)
    assert EXPECTED == _summary(reading.events)
    assert ([], True, ["s"]) == (reading.faults, reading.complete, reading.session_ids)
    assert "session_id" not in json.loads(reading.events[0].payload)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_is_read_whole_or_pretty(form: str, indent: int | None, tmp_path: Path, context: ReadingContext) -> None:
    """A session.json may be on one line or on many; where it names no session, the file does."""
    file = tmp_path / "s.json"
    file.write_text(json.dumps(DOCUMENTS[form], indent=indent))
    (reading,) = read_event_file(file, context)
    assert EXPECTED == _summary(reading.events)
    with file.open("rb") as stream:
        (session,) = read_sessions(stream, "s")
    assert ("s", [CALL, OUTPUT]) == (session.session_id, session.events)


def test_sessions_are_counted_over_the_whole_file_and_over_batches(
    context: ReadingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's order must not depend on what lies between its lines, nor on where a batch ends."""
    monkeypatch.setattr(event_files, "BATCH", 3)
    lines = [{"session_id": f"s{i % 2}", **CALL} for i in range(8)]
    readings = list(read_event_file(_stream(lines), context))
    assert [3, 3, 2] == [len(reading.events) for reading in readings]
    events = [event for reading in readings for event in reading.events]
    assert [("s0", 0), ("s1", 0), ("s0", 1), ("s1", 1)] == [(event.session_id, event.seq) for event in events[:4]]


def test_a_session_on_the_first_of_several_lines_is_no_document(context: ReadingContext) -> None:
    """Whatever stands between them, the lines after it must be read too."""
    session = json.dumps({"session_id": "s", "events": [CALL]})
    for between in ("\n", "\n\n", "\r\n \n"):
        (reading,) = read_event_file(io.BytesIO((session + between + session).encode()), context)
        assert [0, 1] == [event.seq for event in reading.events]


def test_what_a_line_names_counts_before_the_reading_but_not_before_an_override(context: ReadingContext) -> None:
    """One file may hold a fleet; `--agent` is the last word."""
    line = {"session_id": "s", "connection": "c2", "project": "web", "agent": "a", "event": CALL}
    for override, expected in ((None, "a"), ("b", "b")):
        (reading,) = read_event_file(_stream([line]), dataclasses.replace(context, agent=override))
        (event,) = reading.events
        assert ("c2", "web", expected) == (event.connection, event.project, event.agent)


@pytest.mark.parametrize(
    ("line", "reason", "named"),
    [
        (CALL, "missing_field", "session_id"),
        ({"session_id": 5, **CALL}, "wrong_type", "session_id"),
        ({"session_id": "", **CALL}, "bounds", "session_id"),
        ({"session_id": "s", "project": "../etc", **CALL}, "bounds", "project"),
        ({"session_id": "s", "events": {}}, "wrong_type", "events"),
        ({"session_id": "s", "events": [5]}, "malformed_event", "events[0]"),
        ({"session_id": "s", **CALL, "timestamp": "soon"}, "bad_timestamp", "timestamp"),
        ({"session_id": "s", "events": [{**CALL, "timestamp": "soon"}]}, "bad_timestamp", "events[0].timestamp"),
        ({"session_id": "s", **CALL, "args": "x" * 600_000}, "too_long", "the event"),
        ("{", "not_json", "JSON"),
        ("[1]", "not_an_object", "array"),
    ],
)
def test_what_cannot_be_taken_is_a_fault_that_names_line_and_field(
    line: Any, reason: str, named: str, context: ReadingContext
) -> None:
    """Nothing is dropped in silence, and nothing around it is lost or counted differently."""
    good = {"session_id": "s", **CALL}
    (reading,) = read_event_file(_stream([good, line, good]), context)
    assert [(2, reason)] == [(fault.line, fault.reason) for fault in reading.faults]
    assert named in reading.faults[0].detail
    assert [0, 1] == [event.seq for event in reading.events]


def test_a_torn_last_line_is_left_for_the_next_time(context: ReadingContext) -> None:
    """The writer has not finished it."""
    stream = io.BytesIO(json.dumps({"session_id": "s", **CALL}).encode() + b'\n{"session_id": "s", "ev')
    (reading,) = read_event_file(stream, context)
    assert (1, [], False) == (len(reading.events), reading.faults, reading.complete)


def test_many_bad_parts_of_one_line_cost_no_more_than_the_line(context: ReadingContext) -> None:
    """A fault keeps its own part, so that a line of bad events is not kept once for each of them."""
    line = {"session_id": "s", "events": [{"event": "x", "timestamp": f"bad {i}"} for i in range(2_000)]}
    (reading,) = read_event_file(_stream([line]), context)
    assert len(reading.faults) == 2_000
    assert len({fault.digest for fault in reading.faults}) == 2_000
    assert max(len(fault.body) for fault in reading.faults) < 100


def test_secrets_are_taken_out_of_payloads(context: ReadingContext) -> None:
    """The payload is stored and shown."""
    key = "AKIA" + "J7Q2M5X8R1T4W6Z9"
    line = {"session_id": "s", "event": "tool_call", "tool": "exec", "args": {"env": key}}
    (reading,) = read_event_file(_stream([line]), dataclasses.replace(context, redactor=Redactor(RedactionSettings())))
    assert key not in reading.events[0].payload
    assert "[SECRET:" in reading.events[0].payload


@pytest.mark.parametrize("form", FORMS)
def test_sessions_for_a_diagnosis_are_whole(form: str) -> None:
    """The detectors look at a session, not at a line."""
    sessions = list(read_sessions(_stream(FORMS[form]), "f"))
    assert [CALL, OUTPUT] == [event for session in sessions for event in session.events]
    assert {"s"} == {session.session_id for session in sessions}


def test_a_transcript_is_recognised_and_gives_the_events_of_the_importer() -> None:
    """`diagnose` and the import must see the same evidence."""
    corpus = Path(__file__).parents[2] / "corpus" / "openclaw" / "malformed_lines.jsonl"
    with corpus.open("rb") as stream:
        (session,) = read_sessions(stream, "f")
    assert ("s-1", 1, 11) == (session.session_id, session.line, len(session.faults))
    assert ["a1", "a2"] == [event["event_id"] for event in session.events]


@pytest.mark.parametrize("data", [b"", b"{\n", b"nonsense\n", b'{"event":"x"}\n', b"5", b'{"session_id":"s"'])
def test_what_holds_no_session_is_an_error_that_names_the_line(data: bytes) -> None:
    """A diagnosis of half a file would be a wrong one."""
    if not data:
        assert [] == list(read_sessions(io.BytesIO(data), "f"))
        return
    with pytest.raises(InputError, match=r"f:1: "):
        list(read_sessions(io.BytesIO(data), "f"))


def test_a_file_that_cannot_be_opened_is_an_error_with_a_hint(tmp_path: Path, context: ReadingContext) -> None:
    """Importing nothing in silence would look like success."""
    with pytest.raises(InputError) as caught:
        list(read_event_file(tmp_path / "nowhere.jsonl", context))
    assert caught.value.hint
