"""POST /api/audit/query: analysts read everything, reach nothing else, and hold nobody up."""

from __future__ import annotations

from typing import Any

import pytest
from api_server import BodyBuilder, Call, Tokens

QUERY = "/api/audit/query"


@pytest.fixture
def ask(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> Any:
    """Asks as the operator of every project, after three exchanges came in."""
    for number in (1, 2, 3):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number))
    return lambda sql, **body: call("POST", QUERY, tokens.root, json={"sql": sql} | body)


def test_a_statement_is_answered_with_columns_types_and_rows(ask: Any) -> None:
    """The happy path, with a value as a parameter."""
    answer = ask(
        "SELECT project, count(*) AS n FROM turns WHERE project = $project GROUP BY ALL", parameters={"project": "ops"}
    )
    assert 200 == answer.status_code, answer.text
    told = answer.json()
    assert [{"project": "ops", "n": 3}] == told["rows"]
