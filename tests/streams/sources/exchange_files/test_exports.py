"""Exports of other programs and of Driftline give their exchanges in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.exchange_tables import EXPORTS, write_lines

from schemas.records import Exchange
from streams.sources.exchange_files import reading
from streams.sources.exchange_files.profiling import profile_file
from streams.sources.source import Reading

Read = Callable[..., Reading]
PHOENIX = ("phoenix_spans.parquet", "phoenix_spans.csv", "phoenix_spans.jsonl")
LANGFUSE = ("langfuse_observations.jsonl", "langfuse_observations.csv", "langfuse_bucket.jsonl")
SAID = [
    ("s-1", "Where is my order 1?", "Your order 1 was shipped."),
    ("s-1", "Thanks. And when does it arrive?", 'Tomorrow, "before noon".'),
    ("s-2", "Où est ma commande 3 ?", "I could not find out: the orders service does not answer."),
]
"""What was said in each of them: session, question, answer."""


def texts_of(exchanges: list[Exchange]) -> list[tuple[str, str, str]]:
    """Return session, question and answer of each exchange."""
    return [(exchange.session_id, exchange.user_message, exchange.agent_response) for exchange in exchanges]


@pytest.mark.parametrize("name", [*PHOENIX, *LANGFUSE, "langfuse_traces.json"])
def test_a_known_export_needs_no_mapping(read_file: Read, name: str) -> None:
    """Its users should not have to explain its columns."""
    reading = read_file(EXPORTS / name)
    assert texts_of(reading.exchanges) == SAID
    assert reading.faults == []


@pytest.mark.parametrize("names", [PHOENIX, LANGFUSE])
def test_an_export_gives_the_same_records_in_every_format(read_file: Read, names: tuple[str, ...]) -> None:
    """Pandas writes Python lists into CSV, Parquet pads objects, and a bucket has other names: the records must be equal."""
    first, *other_readings = (read_file(EXPORTS / name) for name in names)
    for other in other_readings:
        assert first.exchanges == other.exchanges
        assert first.events == other.events


@pytest.mark.parametrize("name", [PHOENIX[0], LANGFUSE[0]])
def test_tool_calls_and_tokens_of_an_export_are_events(read_file: Read, name: str) -> None:
    """A run of an export has evidence, not only a conversation."""
    reading = read_file(EXPORTS / name)
    kinds = [(event.session_id, event.event, event.tool) for event in reading.events]
    assert kinds.count(("s-1", "tool_call", "find_order")) + kinds.count(("s-2", "tool_call", "find_order")) == 2
    assert any('"is_error":true' in event.payload for event in reading.events if event.event == "tool_output")
    assert reading.exchanges[0].agent == "support"
    assert reading.exchanges[0].agent_model == "gpt-4o-mini"
    assert reading.exchanges[0].input_tokens == 282
    assert reading.exchanges[0].output_tokens == 62


def test_a_span_without_ids_is_one_dead_letter(tmp_path: Path, read_file: Read) -> None:
    """A row of an export may have been edited."""
    lines = (EXPORTS / "phoenix_spans.jsonl").read_text("utf-8").splitlines()
    broken = [
        json.loads(lines[0]) | change for change in ({"context.trace_id": None}, {"start_time": "never"}, {"start_time": None})
    ]
    reading = read_file(write_lines(tmp_path / "spans.jsonl", [*lines, *map(json.dumps, broken)]))
    assert texts_of(reading.exchanges) == SAID
    first = len(lines) + 1
    assert [(fault.line, fault.reason) for fault in reading.faults] == [
        (first, "missing_field"),
        (first + 1, "wrong_type"),
        (first + 2, "missing_field"),
    ]


def test_spans_in_any_order_and_repeated_give_the_same_records(tmp_path: Path, read_file: Read) -> None:
    """An export has the order of its query, and two exports may overlap."""
    lines = (EXPORTS / "phoenix_spans.jsonl").read_text("utf-8").splitlines()
    complete = read_file(EXPORTS / "phoenix_spans.jsonl")
    other = read_file(write_lines(tmp_path / "spans.jsonl", [*lines[::-1], *lines]))
    assert complete.exchanges == other.exchanges
    assert complete.events == other.events


def test_an_endless_trace_is_truncated_and_reported(read_file: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is assembled in memory, which a week-long loop must not fill."""
    monkeypatch.setattr(reading, "MAX_SPANS", 2)
    truncated = read_file(EXPORTS / "phoenix_spans.jsonl")
    assert [fault.reason for fault in truncated.faults] == ["too_many_spans"] * 2
    assert len(truncated.exchanges) == 3


def test_a_trace_downloaded_from_langfuse_is_read(tmp_path: Path, read_file: Read) -> None:
    """The trace page has a download button."""
    observations = [json.loads(line) for line in (EXPORTS / "langfuse_observations.jsonl").read_text("utf-8").splitlines()][:4]
    for observation in observations:
        del observation["sessionId"], observation["traceName"]
    trace = {
        "id": "t1",
        "timestamp": "2026-11-01T10:01:00Z",
        "name": "support-agent",
        "sessionId": "s-1",
        "observations": observations,
    }
    for document in (
        trace,
        {"trace": {name: value for name, value in trace.items() if name != "observations"}, "observations": observations},
    ):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(document, indent=2))
        assert texts_of(read_file(path).exchanges) == SAID[:1]


def test_an_answer_of_an_api_is_read(tmp_path: Path, read_file: Read) -> None:
    """Its rows are in `data`."""
    rows = [json.loads(line) for line in (EXPORTS / "langfuse_observations.jsonl").read_text("utf-8").splitlines()]
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"data": rows, "meta": {"cursor": None}}))
    assert texts_of(read_file(path).exchanges) == SAID


def test_a_langfuse_export_is_not_mistaken_for_a_transcript() -> None:
    """Claude Code uses the same name for sessions."""
    assert getattr(profile_file(EXPORTS / LANGFUSE[0]).export, "name", "") == "Langfuse observations"


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param({"usageDetails": {"input": 40, "input_cached_tokens": 60, "output": 7, "total": 107}}, id="types"),
        pytest.param({"usageDetails": '{"input": "40", "input_cache_read": "60", "output": "7"}'}, id="types as text"),
        pytest.param({"usageDetails": {}, "usage": {"input": 100, "output": 7, "total": 107, "unit": "TOKENS"}}, id="old object"),
        pytest.param({"usage": {"promptTokens": 100, "completionTokens": 7, "totalTokens": 107}}, id="older object"),
        pytest.param({"promptTokens": 100, "completionTokens": "7.0", "totalTokens": 107}, id="columns"),
    ],
)  # fmt: skip
def test_cached_tokens_of_langfuse_are_added_to_its_input(tmp_path: Path, read_file: Read, usage: dict[str, object]) -> None:
    """Its counts are disjoint: `input` alone misses most of what an agent with a long prompt reads."""
    row = {
        "id": "o-1", "traceId": "t-1", "parentObservationId": None, "type": "GENERATION", "name": "answer",
        "startTime": "2026-10-01T10:00:00Z", "endTime": "2026-10-01T10:00:02Z", "sessionId": "s-1",
        "input": "Is it open?", "output": "Until six.", **usage,
    }  # fmt: skip
    (exchange,) = read_file(write_lines(tmp_path / "observations.jsonl", [json.dumps(row)])).exchanges
    assert exchange.input_tokens == 100
    assert exchange.output_tokens == 7


def observation(trace: str, environment: str | None, **fields: object) -> str:
    """Return a request to a model as Langfuse exports it."""
    return json.dumps(
        {
            "id": f"o-{trace}", "traceId": trace, "parentObservationId": None, "type": "GENERATION", "name": "answer",
            "startTime": "2026-10-01T10:00:00Z", "endTime": "2026-10-01T10:00:02Z", "sessionId": f"s-{trace}",
            "input": "Is it open?", "output": "Until six.", "environment": environment, **fields,
        }
    )  # fmt: skip


def test_evaluators_and_experiments_of_langfuse_are_not_agents(tmp_path: Path, read_file: Read) -> None:
    """A judge's questions are not a user's: scored as exchanges they would move the agent's scores."""
    internal = ("langfuse-llm-as-a-judge", "langfuse-code-eval", "langfuse-something-new", "sdk-experiment")
    lines = [
        observation("t-1", "production"),
        observation("t-2", None),
        *(observation(f"e-{number}", name) for number, name in enumerate(internal)),
    ]
    reading = read_file(write_lines(tmp_path / "observations.jsonl", lines))
    assert [
        (exchange.session_id, {label.name: label.value for label in exchange.labels}) for exchange in reading.exchanges
    ] == [
        ("s-t-1", {"deployment": "production"}),
        ("s-t-2", {}),
    ]
    assert {*reading.session_ids} == {"s-t-1", "s-t-2"}
    assert dict(reading.skipped_traces) == {("evaluation", f"langfuse.environment = {name}"): 1 for name in internal}
    assert reading.faults == []


@pytest.mark.parametrize(
    "output", [{"object": "list", "data": [{"embedding": [0.5]}]}, {}, [], {"results": [{"relevance_score": 1}]}]
)
def test_helper_requests_do_not_break_an_export(tmp_path: Path, read_file: Read, output: object) -> None:
    """An embedding beside the answer gives no exchange and is not a fault."""
    question, answer = [{"role": "user", "content": "Is the pier open?"}], {"role": "assistant", "content": "Until dusk."}
    lines = [
        observation("t1", "production", id="o1", input=question, output=answer),
        observation("t2", "production", id="o2", type="EMBEDDING", input="pier", output=output),
    ]
    reading = read_file(write_lines(tmp_path / "observations.jsonl", lines))
    assert [(exchange.user_message, exchange.agent_response) for exchange in reading.exchanges] == [
        ("Is the pier open?", "Until dusk.")
    ]
    assert reading.faults == []
