"""POST /api/audit/query: analysts can read all records but no files, and their statements delay no other request."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import msgspec
import polars as pl
import pytest
from fastapi import FastAPI
from support.api_server import PATIENT, BodyBuilder, Call, LiveServer, Tokens
from support.forking import forked
from support.servers import LONG, until

from service.read.queries import pool as query_pool
from service.read.queries.protocol import QueryLimits
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine

QUERY = "/api/audit/query"
ONE_STATEMENT = msgspec.structs.replace(PATIENT, at_once=1)
ONE_STATEMENT_TWO_SECONDS = msgspec.structs.replace(ONE_STATEMENT, seconds=2.0)
SLOW_STATEMENT = "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"
Ask = Callable[..., httpx2.Response]


@pytest.fixture(autouse=True)
def forked_query_processes() -> Iterator[None]:
    """Fork query processes instead of starting them, except in a soak run."""
    with forked():
        yield


@pytest.fixture
def settings() -> ApiSettings:
    """Return settings that allow one statement at a time."""
    return ApiSettings(queries=ONE_STATEMENT)


@pytest.fixture
def short_time_limit(app: FastAPI) -> None:
    """Lower the time limit of statements to two seconds."""
    set_limits(app, ONE_STATEMENT_TWO_SECONDS)


def set_limits(app: FastAPI, limits: QueryLimits) -> None:
    """Give an application that has answered no statement other limits of statements."""
    engine = app.state.context.engine
    app.state.query_pool = query_pool.QueryPool(query_pool.DatabaseSource(engine.store, engine.flush), engine.now, limits)


@pytest.fixture
def ask(call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner) -> Ask:
    """Return a function that queries as the operator of every project, after three exchanges were scored."""
    for number in (1, 2, 3):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number))
    loop.run(engine.wait_until_drained())
    return lambda sql, **body: call("POST", QUERY, tokens.root, json={"sql": sql} | body)


def test_a_statement_is_answered_with_columns_types_and_rows(ask: Ask) -> None:
    """Clients build tables and charts from the names and types of the columns."""
    sql = "SELECT project, count(*) AS n, max(exchange_at) AS last FROM turns WHERE project = $project GROUP BY ALL"
    document = ask(sql, parameters={"project": "ops"}).json()

    assert document["rows"] == [{"project": "ops", "n": 3, "last": "2026-10-01T09:03:00Z"}]
    assert [(column["name"], column["type"]) for column in document["columns"]] == [
        ("project", "VARCHAR"),
        ("n", "BIGINT"),
        ("last", "TIMESTAMP"),
    ]
    assert document["rowCount"] == 1
    assert document["truncated"] is False
    assert document["asOf"] == "2026-10-01T12:00:00Z"


def test_rows_beyond_the_limit_are_omitted_with_a_note(ask: Ask) -> None:
    """The note is in the answer, or in a header if the format has no room for it."""
    document = ask("FROM range(10) ORDER BY 1", limit=2).json()
    assert document["rows"] == [{"range": 0}, {"range": 1}]
    assert document["truncated"] is True
    headers = ask("FROM range(10)", limit=2, format="csv").headers
    assert headers["x-driftline-rows"] == "2"
    assert headers["x-driftline-truncated"] == "true"


def test_every_format_has_the_same_rows(ask: Ask) -> None:
    """Programs, spreadsheets and dataframes read different formats."""
    sql = "SELECT exchange_id, turn_number FROM turns ORDER BY ALL"
    rows = [("s1:1", 1), ("s1:2", 2), ("s1:3", 3)]
    assert [tuple(row.values()) for row in ask(sql).json()["rows"]] == rows
    assert ask(sql, format="csv").text == "exchange_id,turn_number\ns1:1,1\ns1:2,2\ns1:3,3\n"
    assert pl.read_ipc(io.BytesIO(ask(sql, format="arrow").content)).rows() == rows
    assert pl.read_parquet(io.BytesIO(ask(sql, format="parquet").content)).rows() == rows


def test_a_column_of_nulls_has_a_plain_type_name(ask: Ask) -> None:
    """DuckDB quotes this type as if it were user-defined."""
    columns = ask("SELECT NULL AS a, 'x'::ENUM ('x', 'NULL') AS b").json()["columns"]
    assert columns == [{"name": "a", "type": "NULL"}, {"name": "b", "type": "ENUM('x', 'NULL')"}]


def test_a_csv_contains_no_formula(ask: Ask) -> None:
    """The text may be an agent's, and a spreadsheet would run it."""
    sql = "SELECT '=HYPERLINK(1)' AS a, '@x' AS \"+b\", -1 AS c, 'a=b' AS d"
    assert ask(sql, format="csv").text == "a,'+b,c,d\n'=HYPERLINK(1),'@x,-1,a=b\n"


def test_an_empty_database_answers_with_no_rows(call: Call, tokens: Tokens) -> None:
    """A new deployment has no records yet."""
    for view in (
        "turns",
        "days",
        "dimensions",
        "session_summaries",
        "runs",
        "run_dimensions",
        "judge_calls",
        "human_scores",
        "anchor_turns",
        "failure_groups",
    ):
        assert call("POST", QUERY, tokens.root, json={"sql": f"FROM {view}"}).json()["rows"] == []


def test_only_operators_with_the_scope_may_query(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Readers, connections and anonymous callers are refused."""
    reader = access.add(Holder("operator", "looks", None, scopes=frozenset({"read"})))
    status_by_token = {"": 401, "dl_wrong": 401, tokens.ops: 403, reader: 403}
    for token, status in status_by_token.items():
        assert call("POST", QUERY, token or None, json={"sql": "SELECT 1"}).status_code == status


def test_an_operator_of_one_project_sees_its_rows_only(ask: Ask, call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Whatever the statement says: see `tests/service/read/test_snapshot_parts.py`."""
    stranger = access.add(Holder("operator", "stranger", "web"))
    statement = {"sql": "SELECT count(*) AS n FROM exchanges"}

    assert ask(statement["sql"]).json()["rows"] == [{"n": 3}]
    assert call("POST", QUERY, tokens.ops_reader, json=statement).json()["rows"] == [{"n": 3}]
    assert call("POST", QUERY, stranger, json=statement).json()["rows"] == [{"n": 0}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sql": ""},
        {"sql": 1},
        {"sql": "SELECT 1", "format": "xlsx"},
        {"sql": "SELECT 1", "limit": 0},
        {"sql": "SELECT 1", "limit": 10**9},
        {"sql": "SELECT 1", "parameters": {"a b": 1}},
        {"sql": "SELECT 1", "parameters": {"a": {"b": 1}}},
        {"sql": "SELECT 1", "parameters": [1]},
        {"sql": "SELECT " + "1," * 30_000 + "1"},
    ],
)
def test_an_invalid_body_is_refused(call: Call, tokens: Tokens, body: dict[str, Any]) -> None:
    """An invalid body needs no query process."""
    answer = call("POST", QUERY, tokens.root, json=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"


def test_a_statement_of_a_megabyte_is_refused(call: Call, tokens: Tokens) -> None:
    """No analyst writes statements of that size."""
    answer = call("POST", QUERY, tokens.root, json={"sql": "SELECT '" + "x" * 1_000_000 + "'"})
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT nope FROM turns", "nope"),
        ("DELETE FROM scores", "not allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "no files"),
    ],
)
def test_a_failing_statement_is_a_400_with_a_hint(ask: Ask, sql: str, hint: str) -> None:
    """No statement may cause a 500."""
    answer = ask(sql)
    assert answer.status_code == 400
    assert answer.json()["code"] == "query_refused"
    assert hint in answer.text


@pytest.mark.usefixtures("short_time_limit")
def test_a_slow_statement_is_a_400_with_a_hint(ask: Ask) -> None:
    """The hint says that a shorter time range may fit into the limit."""
    answer = ask("SELECT count(*) FROM generate_series(1, 1000000000000)")
    assert answer.status_code == 400
    assert answer.json()["code"] == "query_refused"
    assert "a shorter time" in answer.text


def test_a_statement_beyond_the_concurrency_limit_is_refused(
    server: LiveServer, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets 503 with Retry-After at once, and the running statement continues."""
    first_started = threading.Event()
    may_finish = threading.Event()
    run_statement = query_pool.StatementProcesses.ask

    async def run_when_allowed(*arguments: Any) -> Any:
        first_started.set()
        await asyncio.to_thread(may_finish.wait, LONG)
        return await run_statement(*arguments)

    monkeypatch.setattr(query_pool.StatementProcesses, "ask", run_when_allowed)
    headers = {"Authorization": f"Bearer {tokens.root}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=LONG) as client:
        answers: list[httpx2.Response] = []
        first = threading.Thread(target=lambda: answers.append(client.post(QUERY, json={"sql": "SELECT 1"})))
        first.start()
        assert first_started.wait(LONG)
        refused = client.post(QUERY, json={"sql": "SELECT 1"})
        may_finish.set()
        first.join()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "2"
        assert refused.json()["code"] == "busy"
        assert [answer.status_code for answer in answers] == [200]
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200


def test_a_disconnected_client_frees_its_slot(server: LiveServer, tokens: Tokens) -> None:
    """The statement of a disconnected client is cancelled before its time limit."""
    headers = {"Authorization": f"Bearer {tokens.root}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=LONG) as client:
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200
        body = json.dumps({"sql": SLOW_STATEMENT}).encode()
        head = f"POST {QUERY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {headers['Authorization']}\r\n"
        connection = server.connect()
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.app.state.query_pool._running, "the statement to run", LONG)
        connection.close()
        until(lambda: not server.app.state.query_pool._running, "a free slot", LONG)
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200


def test_ingest_continues_during_queries(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Statements run in their own process, so they delay and lose no record."""

    async def query_and_ingest() -> tuple[list[int], list[int]]:
        set_limits(server.app, ONE_STATEMENT_TWO_SECONDS)
        async with httpx2.AsyncClient(base_url=server.url, timeout=LONG) as client:

            async def post(path: str, token: str, body: Any) -> int:
                return (await client.post(path, json=body, headers={"Authorization": f"Bearer {token}"})).status_code

            queries = asyncio.gather(*(post(QUERY, tokens.root, {"sql": SLOW_STATEMENT}) for _ in range(3)))
            ingest_statuses = [
                await post("/api/audit/ingest", tokens.ops, exchange_body(number, session="busy")) for number in range(1, 41)
            ]
            return ingest_statuses, await queries

    ingest_statuses, query_statuses = asyncio.run(query_and_ingest())
    assert set(ingest_statuses) == {201}
    assert set(query_statuses) == {400, 503}
