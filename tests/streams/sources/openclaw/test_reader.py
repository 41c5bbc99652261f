"""Finding transcripts, hostile transcripts, and the contents of records."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.fingerprints import canonical_json, digest
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.bounds import NOT_UNICODE
from schemas.errors import InputError
from streams.sources.lines import Line
from streams.sources.openclaw.companions import SessionFacts
from streams.sources.openclaw.reader import find_transcripts, read_session, read_transcript
from streams.sources.source import Reading, ReadingContext

Read = Callable[..., Reading]
KEY = "AKIA" + "J7Q2M5X8R1T4W6Z9"


def _message(entry_id: str, parent: str | None, role: str, content: Any, **message: Any) -> dict[str, Any]:
    body = {"role": role, "content": content, **message}
    return {"type": "message", "id": entry_id, "parentId": parent, "timestamp": "2026-11-03T09:00:00Z", "message": body}


def _place(root: Path, name: str, text: str = '{"type":"session","id":"s"}\n') -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_transcripts_are_found_by_place_or_first_line(tmp_path: Path) -> None:
    """A state root has other JSON lines files, such as logs and indexes."""
    placed = _place(tmp_path, "agents/a/sessions/1.jsonl", "damaged\n")
    bare = _place(tmp_path, "old/2.jsonl")
    _place(tmp_path, "logs/3.jsonl", '{"level":"info"}\n')
    _place(tmp_path, "agents/a/sessions/sessions.json")
    _place(tmp_path, "agents/a/sessions/4.jsonl.bak", "damaged\n")
    backup = _place(tmp_path, "agents/a/sessions/5.jsonl.bak-12-34")
    (tmp_path / "folder.jsonl").mkdir()
    assert find_transcripts(tmp_path) == [placed, backup, bare]
    assert find_transcripts(bare) == [bare]


def test_links_are_not_followed_out_of_the_tree(tmp_path: Path) -> None:
    """Otherwise a link in an agent's folder could import any file of the machine."""
    outside = _place(tmp_path, "outside/agents/b/sessions/1.jsonl")
    root = tmp_path / "root"
    own = _place(root, "agents/a/sessions/1.jsonl")
    (root / "agents/a/sessions/2.jsonl").symlink_to(outside)
    (root / "agents/b").symlink_to(outside.parents[1])
    (root / "agents/loop").symlink_to(root)
    assert find_transcripts(root) == [own]


def test_a_path_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    """Importing nothing silently would look like success."""
    for attempt in (find_transcripts, lambda path: read_transcript(path, None)):  # type: ignore[arg-type]
        with pytest.raises(InputError) as caught:
            attempt(tmp_path / "nowhere.jsonl")
        assert caught.value.hint


@pytest.mark.parametrize(("given", "expected"), [(None, "ops-oncall"), ("renamed", "renamed")])
def test_the_agent_comes_from_the_path_unless_overridden(
    given: str | None, expected: str, tmp_path: Path, context: ReadingContext
) -> None:
    """A transcript does not name its agent."""
    text = json.dumps(_message("u1", None, "user", "Hi")) + "\n"
    file = _place(tmp_path, "agents/ops-oncall/sessions/77.jsonl", text)
    reading = read_transcript(file, dataclasses.replace(context, agent=given))
    assert [(exchange.agent, exchange.session_id) for exchange in reading.exchanges] == [(expected, "77")]


def test_secrets_are_redacted_before_truncation(read: Read, context: ReadingContext) -> None:
    """A secret halved by a cut would no longer be recognised."""
    long = "x" * (16 * 1024 - 10)
    entries = [
        _message("u1", None, "user", f"Sender (untrusted metadata):\n```json\n{{}}\n```\nkey {KEY}"),
        _message(
            "a1",
            "u1",
            "assistant",
            [
                {"type": "thinking", "thinking": f"hide {KEY}"},
                {"type": "toolCall", "id": "t", "name": "exec", "arguments": {"env": [{"deep": KEY}]}},
            ],
            stopReason="toolUse",
        ),
        _message("r1", "a1", "toolResult", f"{long} {KEY} {long}", toolName="exec"),
        _message("a2", "r1", "assistant", f"done {KEY}", stopReason="stop"),
        {"type": "compaction", "id": "c1", "parentId": "a2", "summary": KEY},
        _message("a3", "c1", "assistant", [], stopReason="error", errorMessage=f"bad key {KEY}"),
    ]
    reading = read(entries, dataclasses.replace(context, redactor=Redactor(RedactionSettings())))
    assert KEY not in str(reading)
    assert KEY[:12] not in str(reading)
    assert str(reading).count("[SECRET:") >= 6
    (exchange,) = reading.exchanges
    assert sum(redaction.count for redaction in exchange.redactions) == 2
    assert exchange.raw_user_message is not None


def test_long_texts_are_truncated_with_a_note(read: Read) -> None:
    """Records must stay small, whatever an agent prints."""
    entries = [
        _message("u1", None, "user", "q" * 300_000),
        _message(
            "a1", "u1", "assistant", [{"type": "toolCall", "name": "w", "arguments": {"t": "a" * 70_000}}], stopReason="toolUse"
        ),
        _message("r1", "a1", "toolResult", "r" * 20_000),
        _message("a2", "r1", "assistant", "s" * 200_001, stopReason="stop"),
    ]
    reading = read(entries)
    (exchange,) = reading.exchanges
    assert exchange.user_message == "q" * 200_000 + "[cut: 100000 more characters]"
    assert exchange.agent_response == "s" * 200_000 + "[cut: 1 more characters]"
    call, output = (json.loads(event.payload) for event in reading.events)
    assert call["arguments"].endswith("a[cut: 4472 more characters]")
    assert len(call["arguments"]) == 65_536 + len("[cut: 4472 more characters]")
    assert output["result"] == "r" * 16_384 + "[cut: 3616 more characters]"


def test_the_digest_covers_the_content_as_delivered(read: Read) -> None:
    """Equal content must have the same digest, whoever computes it."""
    (exchange,) = read(
        [_message("u1", None, "user", "Hi"), _message("a1", "u1", "assistant", "Ho", stopReason="stop")]
    ).exchanges
    assert digest(canonical_json(["Hi", "Ho", None, "2026-11-03T09:00:00+00:00"])) == exchange.content_digest


def test_an_open_exchange_is_held_back(read: Read, context: ReadingContext) -> None:
    """Half an answer must not be scored. The open answer is reported with the time at which silence ends it."""
    entries = [_message("u1", None, "user", "Hi"), _message("a1", "u1", "assistant", "One moment.", stopReason="toolUse")]
    at = datetime(2026, 11, 3, 9, tzinfo=UTC)
    early = read(entries, dataclasses.replace(context, ingested_at=at + context.session_gap))
    late = read(entries, dataclasses.replace(context, ingested_at=at + context.session_gap + timedelta(microseconds=1)))
    followed = read([*entries, _message("u2", "a1", "user", "And?")], dataclasses.replace(context, ingested_at=at))
    assert early.exchanges == []
    assert early.complete is False
    assert [(one.exchange_id, one.asked_at, one.counts_at) for one in early.open] == [("file:u1", at, at + context.session_gap)]
    assert [exchange.exchange_id for exchange in late.exchanges] == ["file:u1"]
    assert late.complete is True
    assert late.open == []
    assert [exchange.exchange_id for exchange in followed.exchanges] == ["file:u1"]
    assert followed.complete is False
    assert [one.exchange_id for one in followed.open] == ["file:u2"]
    assert early.open[0].reason != followed.open[0].reason


def test_a_finished_answer_counts_at_once(read: Read, context: ReadingContext) -> None:
    """An import right after a session used to find nothing. The file is read again until silence ends the turn."""
    entries = [_message("u1", None, "user", "Hi"), _message("a1", "u1", "assistant", "Hello.", stopReason="stop")]
    soon = dataclasses.replace(context, ingested_at=datetime(2026, 11, 3, 9, 0, 1, tzinfo=UTC))
    reading = read(entries, soon)
    assert [exchange.agent_response for exchange in reading.exchanges] == ["Hello."]
    assert reading.open == []
    assert reading.complete is False
    assert reading.revisable == frozenset()
    further = read([*entries, _message("a2", "a1", "assistant", "And bye.", stopReason="stop")], soon)
    assert [exchange.agent_response for exchange in further.exchanges] == ["And bye."]
    assert further.revisable == {"file:u1"}


@pytest.mark.parametrize(
    ("stamp", "message_stamp", "expected", "faults"),
    [
        ("2026-11-03T10:00:00+02:00", 5, "2026-11-03T08:00:00+00:00", []),
        (None, 1793696410000, "2026-11-03T09:00:10+00:00", []),
        ("soon", 1793696410000, "2026-11-03T09:00:10+00:00", []),
        ("1969-01-01T00:00:00Z", None, "2026-11-20T00:00:00+00:00", ["bad_timestamp"]),
        (None, None, "2026-11-20T00:00:00+00:00", []),
    ],
)
def test_the_time_is_that_of_the_entry_or_message_or_reading(
    stamp: str | None, message_stamp: int | None, expected: str, faults: list[str], read: Read
) -> None:
    """Event time decides the day on which an exchange counts."""
    call = [{"type": "toolCall", "name": "x"}]
    entry = _message("a1", None, "assistant", call, timestamp=message_stamp)
    reading = read([{**entry, "timestamp": stamp}])
    assert [event.occurred_at.isoformat() for event in reading.events] == [expected]
    assert [fault.reason for fault in reading.faults] == faults


@pytest.mark.parametrize("arguments", ["x" * 1_000, ["a", 1], {"deep": {"b": None}}, 5, False])
def test_arguments_of_any_type_are_kept_completely(arguments: Any, read: Read) -> None:
    """Two calls are equal only if all their arguments are."""
    call = [{"type": "toolCall", "name": "x", "arguments": arguments}]
    (event,) = read([_message("a1", None, "assistant", call)]).events
    assert json.loads(event.payload)["arguments"] == arguments


@pytest.mark.parametrize("count", [2**63, -1, float("1e300"), True, "12", None, []])
def test_invalid_token_counts_are_ignored(count: Any, read: Read) -> None:
    """A count beyond a column's range would stop the import."""
    usage = {"input": count, "output": 3}
    reading = read(
        [_message("u1", None, "user", "Hi"), _message("a1", "u1", "assistant", "Ho", usage=usage, stopReason="stop")]
    )
    (exchange,) = reading.exchanges
    assert exchange.output_tokens == 3
    assert 0 <= (exchange.input_tokens or 0) <= 2**53


def test_lone_surrogates_are_repaired(read: Read) -> None:
    """Gateways cut text within an emoji; the rest of the line is valid."""
    reading = read([json.dumps(_message("u1", None, "user", "cut \ud83d here"))])
    assert [exchange.user_message for exchange in reading.exchanges] == ["cut � here"]
    assert reading.faults == []


@pytest.mark.parametrize(("entry_id", "parent", "field"), [("x\ud800", None, "id"), ("x", "x\ud800", "parentId")])
def test_an_entry_id_with_a_lone_surrogate_is_a_fault(read: Read, entry_id: str, parent: str | None, field: str) -> None:
    """Repaired, it could equal another id, whose answer would be set aside as a repetition."""
    reading = read([json.dumps(_message(entry_id, parent, "user", "a")), json.dumps(_message("x\ufffd", None, "user", "b"))])
    assert [exchange.user_message for exchange in reading.exchanges] == ["b"]
    assert [(fault.line, fault.detail) for fault in reading.faults] == [(1, f"{field}: {NOT_UNICODE}")]


def test_event_ids_stay_distinct_if_entry_ids_contain_dots(read: Read) -> None:
    """Entry ids are arbitrary: `a.1` may be an entry, or the second event of `a`."""
    call = {"type": "toolCall", "name": "x"}
    entries = [_message(name, None, "assistant", [call] * n) for name, n in (("a", 2), ("a.1", 1), ("a.1.0", 1), ("b", 1))]
    assert [event.event_id for event in read(entries).events] == ["a.0", "a.1", "a.1.0", "a.1.0.0", "b"]


def _chain(count: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "toolResult", "assistant")
    return [_message(f"e{i}", f"e{i - 1}" if i else None, roles[i % 4], f"text {i}", stopReason="stop") for i in range(count)]


def _fan(count: int) -> list[dict[str, Any]]:
    prompt = _message("u", None, "user", "q" * 10_000)
    return [prompt, *(_message(f"e{i}", "u", "assistant", "a", stopReason="stop") for i in range(count))]


def _one_answer(count: int) -> list[dict[str, Any]]:
    thought = [{"type": "thinking", "thinking": "hm"}]
    first = _message("e-1", None, "user", "Go")
    return [first, *(_message(f"e{i}", f"e{i - 1}", "assistant", thought, stopReason="toolUse") for i in range(count))]


def _zigzag(count: int) -> list[dict[str, Any]]:
    moves = [{"type": "leaf", "id": f"l{i}", "parentId": None, "targetId": f"e{i % 50}"} for i in range(count)]
    return [*_chain(50), *moves]


@pytest.mark.parametrize("shape", [_chain, _fan, _one_answer, _zigzag])
def test_reading_takes_linear_time_whatever_the_shape_of_the_session(shape: Callable[[int], list[Any]], read: Read) -> None:
    """A malicious tree could make a walk quadratic or exhaust the stack."""
    began = time.process_time()
    reading = read(shape(20_000))
    assert time.process_time() - began < 8.0
    assert reading.complete


def test_branches_do_not_multiply_shared_text(read: Read) -> None:
    """Each further answer repeats the question: a megabyte of file must not become gigabytes of records."""
    reading = read(_fan(3_000))
    assert sum(len(exchange.user_message) for exchange in reading.exchanges) < 17 * 1024 * 1024
    assert {fault.reason for fault in reading.faults} == {"too_many_answers"}
    assert len(reading.exchanges) + len(reading.faults) == 3_000


def test_exchange_ids_stay_distinct_whatever_their_parts_contain(read: Read) -> None:
    """Ids are arbitrary: `a:b` of session `s` is not `b` of session `s:a`, and `u~a` is not the answer `a` to `u`."""
    ids = []
    for session, entry in (("s", "a:b"), ("s:a", "b"), ("s", "a%3Ab"), ("s%3Aa", "b"), ("f-1", "u1")):
        reading = read([{"type": "session", "id": session}, _message(entry, None, "user", "Hi")])
        ids += [exchange.exchange_id for exchange in reading.exchanges]
    assert ids == ["s:a%3Ab", "s%3Aa:b", "s:a%253Ab", "s%253Aa:b", "f-1:u1"]
    branches = [_message("u", None, "user", "Hi"), *(_message(name, "u", "assistant", "x") for name in ("b", "a"))]
    reading = read([*branches, _message("u~a", "a", "user", "And?")])
    assert [exchange.exchange_id for exchange in reading.exchanges] == ["file:u", "file:u~a", "file:u%7Ea"]


def test_an_unreadable_file_is_listed_only_in_a_transcript_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported when it is read; outside these folders it may be anything."""
    sessions = tmp_path / "agents" / "ops" / "sessions"
    sessions.mkdir(parents=True)
    for folder in (sessions, tmp_path):
        (folder / "x.jsonl").write_text('{"type":"session","id":"s"}\n')
    (tmp_path / "y.jsonl").write_text('{"type":"session","id":"s"}\n')
    opened = Path.open

    def refused(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "x.jsonl":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    assert find_transcripts(tmp_path) == [sessions / "x.jsonl", tmp_path / "y.jsonl"]


def test_a_fault_in_a_copied_line_is_reported_where_it_was_written_first(context: ReadingContext) -> None:
    """A fork starts with another session's lines, often without their parents: each fault would be repeated for every fork."""
    lines = [Line(1, json.dumps(_message("u2", "u1", "user", "Two?")).encode(), 1, ended=True)]

    def faults(window: SessionFacts) -> list[str]:
        reading = read_session(lines, context, session_id="s", agent=None, facts=window)
        return [fault.reason for fault in reading.faults]

    assert faults(SessionFacts(inherited=frozenset({"u2"}))) == []
    assert faults(SessionFacts()) == ["unknown_parent"]


def test_a_turn_without_text_has_a_placeholder(read: Read) -> None:
    """An image without text is a question."""
    picture = [{"type": "image", "data": "eA==", "mimeType": "image/png"}]
    lines = [_message("u", None, "user", picture), _message("a", "u", "assistant", "I see.", stopReason="stop")]
    assert [exchange.user_message for exchange in read(lines).exchanges] == ["[image]"]
