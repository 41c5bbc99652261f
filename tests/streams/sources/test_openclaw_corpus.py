"""Transcripts written from the format's rules, with the records that the rules require."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.sources.openclaw.reader import read_transcript
from streams.sources.source import ReadingContext

CORPUS = Path(__file__).parents[2] / "corpus" / "openclaw"
NAMES = sorted(file.name.removesuffix(".jsonl") for file in CORPUS.glob("*.jsonl"))

UNSAID = {
    "agent_thinking": None,
    "raw_user_message": None,
    "agent_model": None,
    "input_tokens": None,
    "output_tokens": None,
    "stop_reason": None,
    "outcome": "answered",
    "multi_user": False,
    "tags": [],
}


def _shown(exchange: Any, expected: dict[str, Any]) -> dict[str, Any]:
    fields = {name: getattr(exchange, name) for name in expected}
    return {
        name: list(v) if isinstance(v, tuple) else v.isoformat() if name == "occurred_at" else v for name, v in fields.items()
    }


def test_the_corpus_is_not_empty() -> None:
    """With an empty corpus, every test below would pass."""
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_gives_the_records_required_by_the_rules(name: str, context: ReadingContext) -> None:
    """Each expectation follows from the rules; its `why` explains how."""
    expected = json.loads((CORPUS / f"{name}.expected.json").read_text(encoding="utf-8"))
    reading = read_transcript(CORPUS / f"{name}.jsonl", context)
    assert reading.session_ids == [expected["session_id"]]
    assert reading.complete == expected["complete"]
    assert [[fault.line, fault.reason] for fault in reading.faults] == expected["faults"]
    expected_exchanges = [{**UNSAID, **exchange} for exchange in expected["exchanges"]]
    assert [
        _shown(exchange, {**UNSAID, **want}) for exchange, want in zip(reading.exchanges, expected_exchanges, strict=True)
    ] == expected_exchanges
    assert [[event.event_id, event.event] for event in reading.events] == [[i, e] for i, e, _ in expected["events"]]
    for event, (_, _, fields) in zip(reading.events, expected["events"], strict=True):
        payload = json.loads(event.payload)
        assert fields == {field: payload.get(field) for field in fields}
        if "exchange_id" in payload:
            assert payload["exchange_id"].startswith(f"{event.session_id}:")


@pytest.mark.parametrize("name", NAMES)
def test_columns_agree_with_the_payload(name: str, context: ReadingContext) -> None:
    """Detectors read columns and people read payloads, so they must agree."""
    reading = read_transcript(CORPUS / f"{name}.jsonl", context)
    assert list(range(len(reading.events))) == [event.seq for event in reading.events]
    assert len(reading.events) == len({event.event_id for event in reading.events})
    for event in reading.events:
        payload = json.loads(event.payload)
        assert (payload.get("tool") if event.event in ("tool_call", "tool_output") else None) == event.tool
        assert payload.get("action") == event.action
        assert (event.event == "tool_call") == (event.call_key is not None)
        assert (payload["usage"]["total"] if event.event == "token_usage" else None) == event.tokens
        assert event.used is None
        assert event.referenced is None
        assert event.status is None
