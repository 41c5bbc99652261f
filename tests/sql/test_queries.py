"""Every query of `analytics/sql`: what it answers for given records, and that it is headed and deterministic."""

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
    """What reads the clock or draws lots; which functions do is asked of DuckDB itself, once: it lists thousands."""
    with duckdb.connect() as connection:
        volatile = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'")
        calls = [re.escape(name) + r"\s*\(" for (name,) in volatile.fetchall() if name[0].isalpha()]
    words = [rf"{word}\b" for word in CLOCK_WORDS]
    return re.compile(rf"\b(?:{'|'.join(calls + words)})")


def unpredictable(text: str) -> list[str]:
    """The words in a statement that read the clock or draw lots."""
    return unpredictable_calls().findall(re.sub("^--.*$", "", text, flags=re.MULTILINE).lower())


def test_query_answers_its_case(query: str, case: Case, fill: Fill) -> None:
    """The case is the specification: which rows, in which order, with which values and types."""
    rows = query_rows(fill(case["given"]), query, case.get("parameters"))
    expected = case["expect"]
    shown = [{name: row[name] for name in expected[0]} for row in rows[case.get("skip", 0) :]] if expected else rows

    assert shown == expected


@pytest.mark.parametrize("query", ["evaluation_models", "evaluation_quality", "evaluation_spread"])
def test_the_order_of_arrival_changes_no_bit_of_a_mean_or_an_interval(query: str, fill: Fill) -> None:
    """Sums of fractions depend on their order: an answer must not, nor on how many threads add up."""
    given = [
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
    orders = [given, given[::-1], given[1::2] + given[::2], given[5:] + given[:5]]
    answers = [query_rows(fill(order), query, values) for order in orders]

    assert answers[0]
    assert len(set(map(repr, answers))) == 1


def test_the_means_of_a_session_are_the_same_in_whatever_order_its_scores_are_met(fill: Fill) -> None:
    """A mean that lies between two hundredths would be shown as either, from one look at the page to the next."""
    scores = [0.71, 0.63, 0.99, 0.01, 0.57, 0.82, 0.33, 0.9]
    of = {
        "record": "Score",
        "project": "ops",
        "connection": "north",
        "session_id": "s",
        "exchange_at": datetime(2026, 10, 1, tzinfo=UTC),
    }
    # The ids decide in which order the latest revisions are met.
    orders = [scores, scores[::-1], scores[1::2] + scores[::2], scores[5:] + scores[:5]]
    given = [[{**of, "score_id": str(at), "tier1_score": score} for at, score in enumerate(order)] for order in orders]
    times = {"since": of["exchange_at"], "until": of["exchange_at"]}
    values = {"project": "ops", "connection": "north", "session": "s", **times}

    assert len({query_rows(fill(order), "session_totals", values)[0]["tier1"] for order in given}) == 1


def test_every_query_has_cases(all_cases: dict[str, list[Case]]) -> None:
    """A query without a case is a query nobody has ever seen answer."""
    assert set(all_cases) == set(SQL)


@pytest.mark.parametrize("query", SQL)
def test_every_query_is_asked_of_an_empty_database(query: str, all_cases: dict[str, list[Case]]) -> None:
    """The first thing a newcomer has is an empty database."""
    assert [case["expect"] for case in all_cases[query] if not case["given"]] == [[]]


@pytest.mark.parametrize("query", SQL)
def test_every_column_is_expected_somewhere(query: str, all_cases: dict[str, list[Case]], fill: Fill) -> None:
    """A column no case looks at may hold anything."""
    seen = {name for case in all_cases[query] for row in case["expect"] for name in row}
    columns = run_query(fill([]), query, dict.fromkeys(queries()[query].parameters)).columns

    assert set(columns) == seen


@pytest.mark.parametrize("query", SQL)
def test_every_query_has_a_purpose_a_grain_and_parameters(query: str) -> None:
    """The grain decides which columns may be summed; without it a reader has to derive it from the joins."""
    described = queries()[query]

    assert all((described.purpose, described.grain, described.explained))


@pytest.mark.parametrize("query", SQL)
def test_the_header_names_the_parameters_that_are_used(query: str, shared_store: Store) -> None:
    """Parameters are taken from the header; one that is missing there could not be given."""
    with contextlib.closing(shared_store.cursor()) as cursor:
        (statement,) = cursor.extract_statements(SQL[query])

    assert statement.type == duckdb.StatementType.SELECT
    assert statement.named_parameters == set(queries()[query].parameters)
    assert len(queries()[query].parameters) == len(statement.named_parameters)


@pytest.mark.parametrize("query", SQL)
def test_no_query_reads_a_clock_or_draws_lots(query: str) -> None:
    """The same records must give the same answer tomorrow; the time is a parameter."""
    assert unpredictable(SQL[query]) == []


@pytest.mark.parametrize(
    "found", ["now()", "CURRENT_DATE", "Random ( )", "uuid()", "USING SAMPLE", "today()", "current_timestamp"]
)
def test_a_clock_would_be_found(found: str) -> None:
    """A check that finds nothing anywhere proves nothing."""
    assert unpredictable(f"-- now()\nSELECT a FROM b WHERE c < {found}") != []
    assert unpredictable("-- now()\nSELECT known, sampling_reason FROM b") == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_and_texts_come_back_as_they_went_in(kind: str, fill: Fill) -> None:
    """Agents name sessions and write texts: whatever they hold is a value and never SQL, and none is cut or confused."""
    text = HOSTILE[kind]
    named = {"project": text, "session_id": text, "agent": text}
    others = {"project": "p", "session_id": "s", "agent": "a"}
    given = [
        {"record": record} | fields | names
        for names in (named, others)
        for record, fields in (
            ("Exchange", {"user_message": text, "agent_response": "yes"}),
            ("AgentEvent", {"payload": text}),
            ("Score", {"score_id": names["session_id"]}),
            ("Diagnosis", {"failure_causes": [{"type": "t"}], "readiness_level": "review_recommended", "trust_score": 80}),
        )
    ]
    cursor = fill(given)
    by_session = {"session": text, "connection": "connection"}
    asked = {
        "runs": {"project": text, "since": None, "newest": None},
        "failed_sessions": {"project": text, "limit": 9},
        "failures_by_agent": {"project": text},
        "trust_over_time": {"project": text},
        "sampling_mix": {"project": text},
        "project_scores": dict.fromkeys(("from", "to", "since", "after_at", "after_turn", "after_id"))
        | {"project": text, "session": text, "anomalies": False, "limit": 9},
        "open_topics": {"sessions": [text], "connection": "connection", "as_of": datetime(2026, 10, 2, tzinfo=UTC)},
        "wrap_exchanges": {"project": text, "limit": 9, "after_at": None, "after_id": None, "from": None, "to": None},
    }
    for query, values in asked.items():
        rows = query_rows(cursor, query, values)
        assert rows, query
        for row in rows:
            assert row.items() >= {name: value for name, value in named.items() if name in row}.items()

    assert [row["payload"] for row in query_rows(cursor, "session_events", by_session)] == [text]
    assert [row["texts"] for row in query_rows(cursor, "wrap_exchanges", asked["wrap_exchanges"])] == [[f"{text}\nyes"]]
