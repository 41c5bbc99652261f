"""POST /api/audit/query: analysts can read all records, reach nothing else, and delay no other request."""

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
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine

QUERY = "/api/audit/query"
ONE_AT_ONCE = msgspec.structs.replace(PATIENT, at_once=1)
HASTY = msgspec.structs.replace(ONE_AT_ONCE, seconds=2.0)
SLOW = "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"
Ask = Callable[..., httpx2.Response]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Processes are forked instead of started, but in a soak run."""
    with forked():
        yield


@pytest.fixture
def settings() -> ApiSettings:
    """One statement at a time."""
    return ApiSettings(queries=ONE_AT_ONCE)


@pytest.fixture
def hasty(app: FastAPI) -> None:
    """Statements are ended soon."""
    app.state.query_pool.limits = HASTY


@pytest.fixture
def ask(call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner) -> Ask:
    """Asks as the operator of every project, after three exchanges came in and were scored."""
    for number in (1, 2, 3):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number))
    loop.run(engine.wait_until_drained())
    return lambda sql, **body: call("POST", QUERY, tokens.root, json={"sql": sql} | body)


def test_a_statement_is_answered_with_columns_types_and_rows(ask: Ask) -> None:
    """The happy path, with a value as a parameter, and of what time it is."""
    sql = "SELECT project, count(*) AS n, max(exchange_at) AS last FROM turns WHERE project = $project GROUP BY ALL"
    told = ask(sql, parameters={"project": "ops"}).json()

    assert told["rows"] == [{"project": "ops", "n": 3, "last": "2026-10-01T09:03:00Z"}]
    assert [(one["name"], one["type"]) for one in told["columns"]] == [
        ("project", "VARCHAR"),
        ("n", "BIGINT"),
        ("last", "TIMESTAMP"),
    ]
    assert told["rowCount"] == 1
    assert told["truncated"] is False
    assert told["asOf"] == "2026-10-01T12:00:00Z"


def test_rows_beyond_the_limit_are_left_out_and_it_is_said_so(ask: Ask) -> None:
    """In the answer, and in a header where the answer has no room for it."""
    told = ask("FROM range(10) ORDER BY 1", limit=2).json()
    assert told["rows"] == [{"range": 0}, {"range": 1}]
    assert told["truncated"] is True
    headers = ask("FROM range(10)", limit=2, format="csv").headers
    assert headers["x-driftline-rows"] == "2"
    assert headers["x-driftline-truncated"] == "true"


def test_every_format_holds_the_same(ask: Ask) -> None:
    """For programs, spreadsheets and frames."""
    sql = "SELECT exchange_id, turn_number FROM turns ORDER BY ALL"
    rows = [("s1:1", 1), ("s1:2", 2), ("s1:3", 3)]
    assert rows == [tuple(row.values()) for row in ask(sql).json()["rows"]]
    assert ask(sql, format="csv").text == "exchange_id,turn_number\ns1:1,1\ns1:2,2\ns1:3,3\n"
    assert rows == pl.read_ipc(io.BytesIO(ask(sql, format="arrow").content)).rows()
    assert rows == pl.read_parquet(io.BytesIO(ask(sql, format="parquet").content)).rows()


def test_a_column_of_nothing_has_a_type_that_needs_no_quotes(ask: Ask) -> None:
    """DuckDB quotes the type's name as if it were user-defined."""
    columns = ask("SELECT NULL AS a, 'x'::ENUM ('x', 'NULL') AS b").json()["columns"]
    assert columns == [{"name": "a", "type": "NULL"}, {"name": "b", "type": "ENUM('x', 'NULL')"}]


def test_a_csv_runs_no_formula(ask: Ask) -> None:
    """An agent wrote the text; a spreadsheet would run it."""
    sql = "SELECT '=HYPERLINK(1)' AS a, '@x' AS \"+b\", -1 AS c, 'a=b' AS d"
    assert ask(sql, format="csv").text == "a,'+b,c,d\n'=HYPERLINK(1),'@x,-1,a=b\n"


def test_an_empty_database_answers_with_no_rows(call: Call, tokens: Tokens) -> None:
    """The first question of a new deployment."""
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
    ):
        assert call("POST", QUERY, tokens.root, json={"sql": f"FROM {view}"}).json()["rows"] == []


def test_who_may_not_ask_is_refused(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Answers contain all projects, so operators of one project, readers, connections and anonymous callers are refused."""
    reader = access.add(Holder("operator", "looks", None, scopes=frozenset({"read"})))
    refused = {"": 401, "dl_wrong": 401, tokens.ops: 403, tokens.ops_reader: 403, reader: 403}
    for token, status in refused.items():
        assert status == call("POST", QUERY, token or None, json={"sql": "SELECT 1"}).status_code


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
def test_a_body_that_does_not_fit_is_told_so(call: Call, tokens: Tokens, body: dict[str, Any]) -> None:
    """Before any process is started."""
    answer = call("POST", QUERY, tokens.root, json=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"


def test_a_statement_of_a_megabyte_is_not_read(call: Call, tokens: Tokens) -> None:
    """No analyst writes statements of that size."""
    answer = call("POST", QUERY, tokens.root, json={"sql": "SELECT '" + "x" * 1_000_000 + "'"})
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nope FROM turns", "nope"),
        ("DELETE FROM scores", "not allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "no files"),
    ],
)
def test_what_cannot_be_answered_is_a_400_that_says_what_to_do(ask: Ask, sql: str, said: str) -> None:
    """No statement may cause a 500."""
    answer = ask(sql)
    assert answer.status_code == 400
    assert answer.json()["code"] == "query_refused"
    assert said in answer.text


@pytest.mark.usefixtures("hasty")
def test_what_takes_too_long_is_a_400_that_says_what_to_do(ask: Ask) -> None:
    """The statement can be asked again for less."""
    answer = ask("SELECT count(*) FROM generate_series(1, 1000000000000)")
    assert answer.status_code == 400
    assert answer.json()["code"] == "query_refused"
    assert "a shorter time" in answer.text


def test_one_more_than_may_run_is_told_when_to_come_back(
    server: LiveServer, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with Retry-After, at once; the first one is not disturbed, and afterwards there is room again."""
    begun, go_on, ask = threading.Event(), threading.Event(), query_pool.ask

    async def held(*given: Any) -> Any:
        begun.set()
        await asyncio.to_thread(go_on.wait, LONG)
        return await ask(*given)

    monkeypatch.setattr(query_pool, "ask", held)
    headers = {"Authorization": f"Bearer {tokens.root}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=LONG) as client:
        answers: list[httpx2.Response] = []
        first = threading.Thread(target=lambda: answers.append(client.post(QUERY, json={"sql": "SELECT 1"})))
        first.start()
        assert begun.wait(LONG)
        refused = client.post(QUERY, json={"sql": "SELECT 1"})
        go_on.set()
        first.join()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "2"
        assert refused.json()["code"] == "busy"
        assert [answer.status_code for answer in answers] == [200]
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200


def test_a_client_that_leaves_makes_room(server: LiveServer, tokens: Tokens) -> None:
    """The statement of a disconnected client is cancelled before its time limit."""
    headers = {"Authorization": f"Bearer {tokens.root}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=LONG) as client:
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200
        body = json.dumps({"sql": SLOW}).encode()
        head = f"POST {QUERY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {headers['Authorization']}\r\n"
        raw = server.connect()
        raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.app.state.query_pool._running, "the statement to run", LONG)
        raw.close()
        until(lambda: not server.app.state.query_pool._running, "room", LONG)
        assert client.post(QUERY, json={"sql": "SELECT 1"}).status_code == 200


def test_ingest_goes_on_while_analysts_ask(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Statements that run away in a process of their own keep no record waiting, and no record is lost."""

    async def hammered() -> tuple[list[int], list[int]]:
        server.app.state.query_pool.limits = HASTY
        async with httpx2.AsyncClient(base_url=server.url, timeout=LONG) as client:

            async def post(path: str, token: str, body: Any) -> int:
                return (await client.post(path, json=body, headers={"Authorization": f"Bearer {token}"})).status_code

            asking = asyncio.gather(*(post(QUERY, tokens.root, {"sql": SLOW}) for _ in range(3)))
            taken = [
                await post("/api/audit/ingest", tokens.ops, exchange_body(number, session="busy")) for number in range(1, 41)
            ]
            return taken, await asking

    taken, asked = asyncio.run(hammered())
    assert set(taken) == {201}
    assert set(asked) == {400, 503}
