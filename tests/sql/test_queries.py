"""Every query of `analytics/sql` returns the expected rows, has a complete header and is deterministic."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import duckdb
import pytest

from analytics.queries import queries, query_rows, run_query
from analytics.store.store import Store

Case = dict[str, Any]
Fill = Callable[[Sequence[Case]], duckdb.DuckDBPyConnection]
SQL = {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in (resources.files("analytics") / "sql").iterdir()}
CLOCK_WORDS = ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "sample", "tablesample")
HOSTILE = {
    "quotes": "it's \"so\" -- '); DROP TABLE x; --",
    "dollars": "$project $$ $1 ?",
    "a NUL": "before\0after",
    "only a NUL": "\0",
    "directions and escapes": "\u202eabc\x1b[31m",
    "letters of several bytes": "ß𝔘🦆é",
    "blanks": "  ",
    "very long": "x" * 200_000,
}


@functools.cache
def unpredictable_calls() -> re.Pattern[str]:
    """Return the pattern of calls that read the clock or are random. DuckDB lists its thousands of functions only once."""
    with duckdb.connect() as connection:
        volatile = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'")
        calls = [re.escape(name) + r"\s*\(" for (name,) in volatile.fetchall() if name[0].isalpha()]
    words = [rf"{word}\b" for word in CLOCK_WORDS]
    return re.compile(rf"\b(?:{'|'.join(calls + words)})")


def unpredictable(text: str) -> list[str]:
    """Return the calls in a statement that read the clock or are random."""
    return unpredictable_calls().findall(re.sub("^--.*$", "", text, flags=re.MULTILINE).lower())


def test_query_answers_its_case(query: str, case: Case, fill: Fill) -> None:
    """The case is the specification: which rows, in which order, with which values and types."""
    rows = query_rows(fill(case["given"]), query, case.get("parameters"))
    expected = case["expect"]
    actual = [{name: row[name] for name in expected[0]} for row in rows[case.get("skip", 0) :]] if expected else rows

    assert actual == expected


@pytest.mark.parametrize("query", ["evaluation_models", "evaluation_quality", "evaluation_spread"])
def test_the_order_of_arrival_changes_no_bit_of_a_mean_or_an_interval(query: str, fill: Fill) -> None:
    """Floating-point sums depend on their order; results must not, nor on the number of threads."""
    evaluations = [
        {
            "record": "Evaluation",
            "evaluation_id": f"{model}{score}",
            "session_id": f"{model}{score}",
            "subject_model": model,
            "final_score": score,
            "overall_spread": score,
            "successful_iterations": 2,
        }
        for model in ("alpha", "beta")
        for score in (7.1, 6.3, 9.9, 0.1, 5.7, 8.2, 3.3)
    ]
    values = dict.fromkeys(queries()[query].parameters)
    orders = [evaluations, evaluations[::-1], evaluations[1::2] + evaluations[::2], evaluations[5:] + evaluations[:5]]
    answers = [query_rows(fill(order), query, values) for order in orders]

    assert answers[0]
    assert len(set(map(repr, answers))) == 1


def test_the_mean_of_a_session_does_not_depend_on_the_order_of_its_scores(fill: Fill) -> None:
    """A mean halfway between two hundredths would be rounded up on one page view and down on the next."""
    scores = [0.71, 0.63, 0.99, 0.01, 0.57, 0.82, 0.33, 0.9]
    common_fields = {
        "record": "Score",
        "project": "ops",
        "connection": "north",
        "session_id": "s",
        "exchange_at": datetime(2026, 10, 1, tzinfo=UTC),
    }
    # The latest revisions are read in the order of their ids.
    orders = [scores, scores[::-1], scores[1::2] + scores[::2], scores[5:] + scores[:5]]
    entry_lists = [
        [{**common_fields, "score_id": str(index), "tier1_score": score} for index, score in enumerate(order)]
        for order in orders
    ]
    times = {"since": common_fields["exchange_at"], "until": common_fields["exchange_at"]}
    values = {"project": "ops", "connection": "north", "session": "s", **times}

    assert len({query_rows(fill(order), "session_totals", values)[0]["tier1"] for order in entry_lists}) == 1


def test_every_query_has_cases(all_cases: dict[str, list[Case]]) -> None:
    """A query without a case is untested."""
    assert set(all_cases) == set(SQL)


@pytest.mark.parametrize("query", SQL)
def test_every_query_has_a_case_with_an_empty_database(query: str, all_cases: dict[str, list[Case]]) -> None:
    """New users start with an empty database."""
    assert [case["expect"] for case in all_cases[query] if not case["given"]] == [[]]


@pytest.mark.parametrize("query", SQL)
def test_every_column_is_expected_somewhere(query: str, all_cases: dict[str, list[Case]], fill: Fill) -> None:
    """A column that no case checks may have any value."""
    expected_columns = {name for case in all_cases[query] for row in case["expect"] for name in row}
    columns = run_query(fill([]), query, dict.fromkeys(queries()[query].parameters)).columns

    assert set(columns) == expected_columns


@pytest.mark.parametrize("query", SQL)
def test_every_query_has_a_purpose_a_grain_and_parameters(query: str) -> None:
    """The grain decides which columns may be summed; without it a reader has to derive it from the joins."""
    described = queries()[query]

    assert all((described.purpose, described.grain, described.explained))


@pytest.mark.parametrize("query", SQL)
def test_the_header_names_the_parameters_that_are_used(query: str, shared_store: Store) -> None:
    """Parameters are read from the header, so callers could not pass a missing one."""
    with contextlib.closing(shared_store.cursor()) as cursor:
        (statement,) = cursor.extract_statements(SQL[query])

    assert statement.type == duckdb.StatementType.SELECT
    assert statement.named_parameters == set(queries()[query].parameters)
    assert len(queries()[query].parameters) == len(statement.named_parameters)


@pytest.mark.parametrize("query", SQL)
def test_no_query_reads_the_clock_or_is_random(query: str) -> None:
    """The same records must give the same result tomorrow; the time is a parameter."""
    assert unpredictable(SQL[query]) == []


@pytest.mark.parametrize(
    "call", ["now()", "CURRENT_DATE", "Random ( )", "uuid()", "USING SAMPLE", "today()", "current_timestamp"]
)
def test_an_unpredictable_call_is_detected(call: str) -> None:
    """The test above passes only if there is nothing to detect."""
    assert unpredictable(f"-- now()\nSELECT a FROM b WHERE c < {call}") != []
    assert unpredictable("-- now()\nSELECT known, sampling_reason FROM b") == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_and_texts_come_back_as_they_went_in(kind: str, fill: Fill) -> None:
    """Agents choose session names and texts. They are values and never SQL, and none is truncated or mixed up."""
    text = HOSTILE[kind]
    hostile_names = {"project": text, "session_id": text, "agent": text}
    plain_names = {"project": "p", "session_id": "s", "agent": "a"}
    entries = [
        {"record": record} | fields | names
        for names in (hostile_names, plain_names)
        for record, fields in (
            ("Exchange", {"user_message": text, "agent_response": "yes"}),
            ("AgentEvent", {"payload": text}),
            ("Score", {"score_id": names["session_id"]}),
            ("Diagnosis", {"failure_causes": [{"type": "t"}], "readiness_level": "review_recommended", "trust_score": 80}),
        )
    ]
    cursor = fill(entries)
    by_session = {"session": text, "connection": "connection"}
    parameters_by_query = {
        "runs": dict.fromkeys(("since", "until", "agent", "failure", "tool", "version", "tool_error", "newest"))
        | {"project": text},
        "failed_sessions": {"project": text, "limit": 9},
        "failures_by_agent": {"project": text},
        "trust_over_time": {"project": text},
        "sampling_mix": {"project": text},
        "project_scores": dict.fromkeys(
            (
                "from",
                "to",
                "since",
                "agent",
                "version",
                "tool",
                "tool_error",
                "text",
                "blocks",
                "after_at",
                "after_turn",
                "after_id",
            )
        )
        | {"project": text, "session": text, "anomalies": False, "limit": 9},
        "open_topics": {"sessions": [text], "connection": "connection", "as_of": datetime(2026, 10, 2, tzinfo=UTC)},
        "wrap_exchanges": {
            "project": text,
            "projects": None,
            "limit": 9,
            "after_at": None,
            "after_id": None,
            "from": None,
            "to": None,
        },
    }
    for query, values in parameters_by_query.items():
        rows = query_rows(cursor, query, values)
        assert rows, query
        for row in rows:
            assert row.items() >= {name: value for name, value in hostile_names.items() if name in row}.items()

    assert [row["payload"] for row in query_rows(cursor, "session_events", by_session)] == [text]
    assert [row["texts"] for row in query_rows(cursor, "wrap_exchanges", parameters_by_query["wrap_exchanges"])] == [
        [f"{text}\nyes"]
    ]
