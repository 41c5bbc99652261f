"""Named queries: how they are found, what they ask for, and that their times are UTC wherever they are run."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.builders import START, event

from analytics.queries import Query, queries, query_rows, run_query
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import QueryError

NEW_YORK = """
from datetime import timedelta
from analytics.queries import query_rows
from analytics.store.store import Store
from support.builders import START, event
from schemas.codec.single_object import encode

with Store(None) as store:
    with store.transaction() as transaction:
        transaction.append("agent-events", [encode(event("s", 0, event="message"))])
    for seconds in (1800, 1801):
        values = {"as_of": START + timedelta(seconds=seconds), "gap_seconds": 1800, "heard_before": None, "limit": None}
        print(*[str(row["last_at"]) for row in query_rows(store.cursor(), "idle_sessions", values)], sep=",")
"""


def test_a_query_has_its_text_header_and_parameters() -> None:
    """The parameters are those of the header, in order and without their descriptions."""
    query = queries()["human_scores"]

    assert isinstance(query, Query)
    assert query.name == "human_scores"
    assert "human score" in query.grain
    assert query.purpose.endswith("newest first")
    assert query.parameters == ("project", "score")
    assert query.text.startswith("-- purpose: ")


def test_a_query_may_have_no_parameters() -> None:
    """`none` in a header is not a parameter name."""
    assert queries()["dead_letters"].parameters == ()


def test_queries_are_listed_by_file_name() -> None:
    """An error message lists them, so the order must be stable."""
    names = list(queries())

    assert sorted(names) == names
    assert all(name == query.name and "." not in name for name, query in queries().items())


def test_an_unknown_query_is_refused_with_the_available_names() -> None:
    """A typo is the most common mistake."""
    with Store(None) as store, pytest.raises(QueryError, match="there is no query run") as refused:
        run_query(store.cursor(), "run")

    assert ", runs, " in refused.value.hint


@pytest.mark.parametrize("values", [None, {}, {"projekt": None}, {"project": None, "limit": 1}])
def test_parameters_must_match_those_of_the_query(values: dict[str, object] | None) -> None:
    """A missing or misspelt parameter must not silently select everything."""
    with (
        Store(None) as store,
        pytest.raises(
            QueryError,
            match="query runs has the parameters project, since, until, agent, failure, tool, version, tool_error, newest, not",
        ),
    ):
        run_query(store.cursor(), "runs", values)


def test_rows_have_times_in_utc() -> None:
    """A time without a zone would be taken for local time."""
    with Store(None) as store:
        with store.transaction() as transaction:
            transaction.append("agent-events", [encode(event("s", 0, event="message"))])
        (row,) = query_rows(store.cursor(), "open_topics", {"sessions": ["s"], "connection": None, "as_of": START})

    assert row["last_at"] == START
    assert row["last_at"].utcoffset() == timedelta(0)


def test_an_empty_result_has_its_columns() -> None:
    """Tables are built from the columns by name."""
    with Store(None) as store:
        frame = run_query(store.cursor(), "runs", dict.fromkeys(queries()["runs"].parameters))

    assert frame.height == 0
    assert "trust_score" in frame.columns


def test_the_time_zone_of_the_machine_does_not_matter() -> None:
    """Stored and queried times are UTC: whether a session is idle must not depend on the machine."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TZ": "America/New_York", "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    process = subprocess.run([sys.executable, "-c", NEW_YORK], env=environment, capture_output=True, text=True, check=True)

    assert process.stdout.splitlines() == ["", str(datetime(2026, 10, 1, 9, 0, tzinfo=UTC))]
