"""Mappings: read from a file, proposed from columns, and applied to any rows without a crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.exchange_tables import ROWS, write_lines

from schemas.errors import InputError, PolicyError
from schemas.records import Exchange
from streams.sources.exchange_files.mapping import (
    Fields,
    TimeSource,
    find_value,
    load_mapping,
    mapping_text,
    read_answer,
    read_count,
    read_input_tokens,
    read_name,
    read_output_tokens,
    read_question,
    read_time,
)
from streams.sources.exchange_files.profiling import COLUMN_NAMES, profile_file, propose_sources
from streams.sources.exchange_files.tables import TableReader
from streams.sources.lines import Problem
from streams.sources.source import Reading, ReadingContext

Read = Callable[..., Reading]
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
MAPPED = {
    "session_id": "s",
    "occurred_at": "t",
    "user_message": "q",
    "agent_response": "a",
    "labels": {"tenant": "l"},
    "input_tokens": "n",
}
TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "2026-11-01"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "messages", "x"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
"""A value as JSON may have it."""


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from("stqaln"), ANYTHING | st.datetimes()))
def test_any_row_gives_an_exchange_or_a_problem_with_a_field(redacting: ReadingContext, row: dict[str, Any]) -> None:
    """A bad row may be set aside, but must never stop the import."""
    result = TableReader(Fields.model_validate(MAPPED), redacting).exchange(row)
    assert isinstance(result, Exchange) or (isinstance(result, Problem) and ":" in result.detail)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from([name for names in COLUMN_NAMES.values() for name in names]), ANYTHING), max_size=5
    )
)
def test_a_proposed_mapping_names_existing_columns(rows: list[dict[str, Any]]) -> None:
    """Profiling must not fail, whatever the columns contain."""
    for source in propose_sources(rows).values():
        assert any(find_value(row, source.column or "") is not None for row in rows)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(COLUMN_NAMES)), st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30)
    )
)
def test_a_saved_mapping_is_loaded_unchanged(tmp_path_factory: pytest.TempPathFactory, columns: dict[str, str]) -> None:
    """--map must read what --save-map writes, whatever the columns are called."""
    given_columns = {**dict.fromkeys(("session_id", "occurred_at", "user_message", "agent_response"), "x"), **columns}
    fields = Fields.model_validate(given_columns)
    path = tmp_path_factory.mktemp("maps") / "map.yaml"
    path.write_text(mapping_text(fields.sources(), "a comment"), "utf-8")
    assert fields == load_mapping(path)


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        (("question", "answer", "conversation_id", "created_at"), ("Hi", "Hello", "c", "2026-11-01T12:00:00Z")),
        (("User Input", "Model Response", "Thread ID", "Time"), ("Hi", "Hello", "c", 1793534400)),
        (("userMessage", "completion", "sessionId", "ts"), ("Hi", "Hello", "c", 1793534400000)),
        (("messages", "id", "date"), (TALK, "c", "01.11.2026 12:00")),
        (("request.messages", "response.output", "session.id", "start_time"), (TALK[:2], "Hello", "c", "2026-11-01 12:00:00")),
    ],
)
def test_a_mapping_is_proposed_from_common_column_names(
    redacting: ReadingContext, columns: tuple[str, ...], values: tuple[Any, ...]
) -> None:
    """Most tables need no mapping."""
    row: dict[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        outer, _, inner = column.partition(".")
        row[outer] = {**row.get(outer, {}), inner: value} if inner else value
    fields = Fields(**propose_sources([row]))  # type: ignore[arg-type]
    exchange = TableReader(fields, redacting).exchange(row)
    assert isinstance(exchange, Exchange)
    assert exchange.user_message == "Hi"
    assert exchange.agent_response == "Hello"
    assert exchange.session_id == "c"
    assert exchange.occurred_at == NOON


def test_an_ambiguous_time_is_not_proposed() -> None:
    """The second of January is not the first of February, so the user has to decide."""
    row = {"question": "Hi", "answer": "Hello", "session": "s"}
    assert "occurred_at" not in propose_sources([{**row, "time": "01/02/2026 10:00"}])
    assert (
        TimeSource(column="time", format="%d/%m/%Y %H:%M")
        == propose_sources([{**row, "time": "13/02/2026 10:00"}])["occurred_at"]
    )


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("2026-11-01T12:00:00Z", {}),
        ('"2026-11-01T12:00:00.000Z"', {}),
        ("2026-11-01 13:00", {"zone": "Europe/Berlin"}),
        (datetime(2026, 11, 1, 12), {}),  # noqa: DTZ001 - as DuckDB gives it
        (1793534400, {}),
        ("1793534400", {}),
        (1793534400_000_000_000, {}),
        (1793534400_000, {"unit": "milliseconds"}),
        ("1793534400.0", {"unit": "seconds"}),
        ("01.11.2026 12:00", {"format": "%d.%m.%Y %H:%M"}),
        ("01.11.2026 13:00", {"format": "%d.%m.%Y %H:%M", "zone": "Europe/Berlin"}),
    ],
)
def test_a_time_is_parsed_in_the_format_of_its_source(value: Any, source: Mapping[str, Any]) -> None:
    """Every export writes times differently."""
    assert read_time(value, TimeSource(column="t", **source)) == NOON


@pytest.mark.parametrize("value", ["never", True, 5, 1e300, float("inf"), "99999999999999999999", "-1793534400", [1]])
@pytest.mark.parametrize("source", [{}, {"unit": "nanoseconds"}, {"format": "%Y"}, {"zone": "Asia/Tokyo"}])
def test_an_invalid_time_is_reported(value: Any, source: Mapping[str, Any]) -> None:
    """A number that is not a time must not become a time in 1970."""
    with pytest.raises(ValueError, match=r"\w"):
        read_time(value, TimeSource(column="t", **source))


def test_a_conversation_column_gives_its_last_question_and_answer() -> None:
    """One column often has the whole conversation, as JSON or as a list."""
    for talk in (TALK, json.dumps(TALK), {"messages": TALK}):
        assert read_question(talk) == "Hi"
        assert read_answer(talk) == "Hello"
    unanswered = [*TALK, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
    assert read_question(unanswered) == "And now?"
    assert read_answer(unanswered) == ""
    assert read_question("[see above]") == "[see above]"
    assert read_answer('{"a": 1}') == '{"a": 1}'
    assert read_question(3) == "3"


def test_names_and_counts_are_converted_from_text_and_floats() -> None:
    """In CSV everything is text, and pandas writes whole numbers as floats."""
    assert read_name(7.0) == "7"
    assert read_name(" ") is None
    assert read_name(" x ") == "x"
    assert read_count("7.0") == 7
    assert read_count(float("nan")) is None
    assert read_count(7) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nfields: {session_id: s, occurred_at: t, user_message: q}", "fields.agent_response: is required"),
        (
            "version: 1\nfields:\n  session_id: s\n  occurred_at: t\n  user_message: q\n  agent_response:\n",
            r":6: fields.agent_response",
        ),
        (
            "version: 1\nfields: {sesion_id: s, session_id: s, occurred_at: t, user_message: q, agent_response: a}",
            "fields.sesion_id: unknown",
        ),
        (
            "version: 1\nfields: {session_id: {}, occurred_at: t, user_message: q, agent_response: a}",
            "give either column or value",
        ),
        (
            "version: 1\nfields: {session_id: s, occurred_at: {column: t, zone: Mars}, user_message: q, agent_response: a}",
            "no time zone 'Mars'",
        ),
        (
            "version: 1\nfields: {session_id: s, occurred_at: {column: t, unit: days}, user_message: q, agent_response: a}",
            "occurred_at.unit",
        ),
        (
            "version: 1\nfields: {session_id: s, occurred_at: t, user_message: q, agent_response: a, labels: {model: m}}",
            "is a field, not a label",
        ),
        ("- 1", "document"),
    ],
)
def test_an_invalid_mapping_is_refused_with_line_and_field(tmp_path: Path, text: str, words: str) -> None:
    """A misspelled field must not be ignored silently."""
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=words):
        load_mapping(path)


def test_constants_and_paths_are_mapped(tmp_path: Path, read_file: Read) -> None:
    """A table of a single agent has no column with its name."""
    row = {"in": {"messages": TALK}, "out": [{"text": "Hello"}], "at": "2026-11-01T12:00:00Z", "who": {"tenant": "acme"}}
    fields = Fields.model_validate({
        "session_id": {"value": "only"}, "occurred_at": "at", "user_message": "in.messages.-2.content", "agent_response": "out.0.text",
        "agent": {"value": "support"}, "turn_number": {"value": 1}, "labels": {"tenant": "who.tenant"},
    })  # fmt: skip
    (exchange,) = read_file(write_lines(tmp_path / "a.jsonl", [row]), fields).exchanges
    assert exchange.session_id == "only"
    assert exchange.user_message == "Hi"
    assert exchange.agent_response == "Hello"
    assert exchange.agent == "support"
    assert exchange.turn_number == 1
    assert [(label.name, label.value) for label in exchange.labels] == [("tenant", "acme")]


def test_a_missing_required_column_is_reported_with_the_remedy(tmp_path: Path, redacting: ReadingContext) -> None:
    """A table without times is not a log of exchanges."""
    rows = [{name: value for name, value in row.items() if name != "timestamp"} for row in ROWS]
    with pytest.raises(InputError, match="no column gives occurred_at") as refused:
        profile_file(write_lines(tmp_path / "a.jsonl", rows)).layout(redacting.redactor)
    assert "session_id, prompt, response" in refused.value.hint
    assert "--save-map" in refused.value.hint


def test_a_column_that_is_empty_in_the_first_rows_is_found(tmp_path: Path, read_file: Read) -> None:
    """A table may have no token counts in its first rows."""
    path = tmp_path / "a.csv"
    path.write_text("s,t,q,a,n,l\n" + "s,1793534400,Hi,Hello,,\n" * 120 + "s,1793534400,Hi,Hello,7,acme\n")
    assert read_file(path, Fields.model_validate(MAPPED)).exchanges[-1].input_tokens == 7


def test_a_mapping_that_names_a_missing_column_is_refused(tmp_path: Path) -> None:
    """With a misspelled column every row would be set aside."""
    fields = Fields.model_validate({**MAPPED, "user_message": "qestion"})
    path = write_lines(tmp_path / "a.jsonl", [{"s": "s", "t": 1793534400, "a": "a"}])
    with pytest.raises(InputError, match=r"no column qestion, .* user_message"):
        profile_file(path, fields)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (
            {"input_tokens": 40, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 60, "output_tokens": 7},
            (1_000, 7),
        ),
        ({"prompt_tokens": 1_000, "prompt_tokens_details": {"cached_tokens": 900}, "completion_tokens": 7}, (1_000, 7)),
        ({"promptTokenCount": 1_000, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "totalTokenCount": 1_007}, (1_000, 7)),
        ({"input_tokens": 1_000, "output_tokens": 7}, (1_000, 7)),
    ],
)
def test_the_usage_of_an_answer_gives_all_tokens_without_a_mapping(
    tmp_path: Path, read_file: Callable[..., Reading], usage: dict[str, Any], tokens: tuple[int, int]
) -> None:
    """Anthropic's `input_tokens` alone are a fraction of what an agent with a long prompt reads."""
    row = {"session_id": "s", "timestamp": "2026-11-01T12:00:00Z", "question": "Hi", "answer": "Hello", "usage": usage}
    (exchange,) = read_file(write_lines(tmp_path / "rows.jsonl", [json.dumps(row)])).exchanges
    columns = {"session_id": "session_id", "occurred_at": "timestamp", "user_message": "question", "agent_response": "answer"}
    mapping = Fields.model_validate({**columns, "input_tokens": "usage", "output_tokens": "usage"})
    mapped = read_file(tmp_path / "rows.jsonl", mapping)
    results = [(one.input_tokens, one.output_tokens) for one in (exchange, *mapped.exchanges)]
    expected = tokens if "promptTokenCount" not in usage else (None, None)  # which no column of a count is named like
    assert results == [expected, tokens]


def test_a_contradictory_usage_is_a_dead_letter() -> None:
    """It is unknown which of its counts is wrong."""
    usage = {"input_tokens": 40, "cache_read_input_tokens": 30, "output_tokens": 7, "total_tokens": 5}
    with pytest.raises(ValueError, match="contradict"):
        read_input_tokens(usage)
    assert read_output_tokens(usage) == 7


def test_a_conversation_with_answers_is_preferred_to_questions_alone(tmp_path: Path, read_file: Read) -> None:
    """An export with `inputs.messages` and `outputs.messages` gave each question an empty answer."""
    question = [{"type": "human", "content": "Is the pier open?"}]
    row = {
        "thread_id": "t-1",
        "start_time": "2026-11-18T10:00:00Z",
        "inputs": json.dumps({"messages": question}),
        "outputs": json.dumps({"messages": [*question, {"type": "ai", "content": "Until dusk."}]}),
    }
    [exchange] = read_file(write_lines(tmp_path / "runs.jsonl", [row])).exchanges
    assert exchange.user_message == "Is the pier open?"
    assert exchange.agent_response == "Until dusk."
    assert exchange.outcome == "answered"


@pytest.mark.parametrize("kept_back", ["redacted-by-litellm", "<elided>"])
@pytest.mark.parametrize("form", ["message", "text"])
def test_redacted_texts_are_not_an_exchange(tmp_path: Path, read_file: Read, kept_back: str, form: str) -> None:
    """A judge would score the placeholder, and all redacted exchanges would look equal."""
    rows = [
        {
            "id": f"r-{number}",
            "trace_id": "t",
            "startTime": 1_795_000_000 + number,
            "messages": [{"role": "user", "content": text}] if form == "message" else text,
            "response": {"text": text} if form == "message" else text,
        }
        for number, text in enumerate([kept_back, f"What does {kept_back} mean?", *["Is the pier open?"] * 8])
    ]
    reading = read_file(write_lines(tmp_path / "log.jsonl", rows))

    assert [exchange.exchange_id for exchange in reading.exchanges] == [f"r-{number}" for number in range(1, 10)]
    assert ["withheld" in fault.detail for fault in reading.faults] == [True]


def test_where_a_session_is_a_project_the_thread_is_the_conversation(tmp_path: Path, read_file: Read) -> None:
    """LangSmith's exports name the tracing project in session_id."""
    row = {"session_id": "project-1", "start_time": "2026-10-01T10:00:00Z", "inputs": "Is it open?", "outputs": "Until dusk."}
    reading = read_file(
        write_lines(tmp_path / "runs.jsonl", [{**row, "thread_id": "thread-1"}, {**row, "thread_id": "thread-2"}])
    )

    assert [exchange.session_id for exchange in reading.exchanges] == ["thread-1", "thread-2"]


def test_helper_requests_are_set_aside_with_their_own_reason(tmp_path: Path, read_file: Read) -> None:
    """A proxy's log also has embeddings, rankings, and failed requests with an empty object as the answer."""
    answers: list[Any] = [
        {"choices": [{"message": {"role": "assistant", "content": "Until dusk."}}]},
        {"object": "list", "data": [{"index": 0, "embedding": [0.25]}]},
        {"results": [{"index": 0, "relevance_score": 0.5}]},
        {},
        {"ok": True},
    ]
    question = [{"role": "user", "content": "Is the pier open?"}]
    rows = [
        {"id": f"r-{number}", "trace_id": "t", "startTime": 1_795_000_000 + number, "messages": question, "response": answer}
        for number, answer in enumerate(answers)
    ]
    reading = read_file(write_lines(tmp_path / "log.jsonl", rows))
    results = {exchange.exchange_id: (exchange.agent_response, exchange.outcome) for exchange in reading.exchanges}
    assert {"r-1", "r-2"}.isdisjoint(results)
    assert [results[name] for name in ("r-0", "r-3", "r-4")] == [
        ("Until dusk.", "answered"),
        ("", "no_response"),
        ('{"ok":true}', "answered"),
    ]
    assert [[word for word in ("embedding", "relevance") if word in fault.detail] for fault in reading.faults] == [
        ["embedding"],
        ["relevance"],
    ]
