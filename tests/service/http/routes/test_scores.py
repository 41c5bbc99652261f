"""Operators read the rows of their own projects only."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from support.api_server import BodyBuilder, Call, Tokens

from streams.engine.engine import Engine

SCORES = "/api/audit/ops/scores"


@pytest.fixture
def filled(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Store two exchanges in ops, one of them anomalous, and one in web."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(1))
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(7, response="   "))
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(8))
    call("POST", "/api/audit/ingest", tokens.web, json=exchange_body(8, session="web-session"))


@pytest.mark.usefixtures("filled")
def test_scores_of_the_project_are_listed_newest_first(call: Call, tokens: Tokens) -> None:
    """Each exchange has one score; an unsampled one is listed with its disposition."""
    body = call("GET", SCORES, tokens.root, params={"limit": 10}).json()
    assert [score["exchangeId"] for score in body["scores"] if score["disposition"] == "sampling_skip"] == ["s1:8"]
    assert {score["project"] for score in body["scores"]} == {"ops"}
    assert len(body["scores"]) == body["count"]


def test_pages_of_scores_make_up_the_list(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, loop: asyncio.Runner, engine: Engine
) -> None:
    """Pages have every score once, also if new ones arrive meanwhile."""
    limit = 2
    for number in range(1, 6):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number, timestamp="2026-10-01T09:00:00Z"))
    loop.run(engine.wait_until_drained())
    full_list = [score["id"] for score in call("GET", SCORES, tokens.root).json()["scores"]]
    paged_ids: list[str] = []
    query = {"limit": limit}
    while True:
        body = call("GET", SCORES, tokens.root, params=query).json()
        paged_ids += [score["id"] for score in body["scores"]]
        if body["nextCursor"] is None:
            break
        query = {"limit": limit, "cursor": body["nextCursor"]}
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(10 + len(paged_ids)))
        loop.run(engine.wait_until_drained())
    assert len(full_list) == 5
    assert paged_ids == full_list


@pytest.mark.usefixtures("filled")
def test_polling_returns_exchanges_scored_since_a_time(
    call: Call, tokens: Tokens, loop: asyncio.Runner, engine: Engine
) -> None:
    """The time of scoring counts, because an old exchange that is judged again is news."""
    loop.run(engine.wait_until_drained())
    assert call("GET", SCORES, tokens.root, params={"since": "2026-10-01T12:00:00Z"}).json()["count"] == 3
    assert call("GET", SCORES, tokens.root, params={"since": "2026-10-01T12:00:00.000001Z"}).json()["count"] == 0
    assert call("GET", SCORES, tokens.root, params={"session": "s1"}).json()["count"] == 3
    assert call("GET", SCORES, tokens.root, params={"session": "web-session"}).json()["count"] == 0


@pytest.mark.usefixtures("filled")
def test_a_score_is_found_in_its_project_only(call: Call, tokens: Tokens, loop: asyncio.Runner, engine: Engine) -> None:
    """The document is that of the list, and another project must not reveal whether the score exists."""
    loop.run(engine.wait_until_drained())
    [first, *_] = call("GET", SCORES, tokens.root).json()["scores"]
    assert call("GET", f"{SCORES}/{first['id']}", tokens.root).json() == {"score": first}
    elsewhere = call("GET", f"/api/audit/web/scores/{first['id']}", tokens.root)
    nowhere = call("GET", "/api/audit/web/scores/no-such-score", tokens.root)
    assert [elsewhere.status_code, nowhere.status_code] == [404, 404]
    assert elsewhere.json() == nowhere.json()


@pytest.mark.usefixtures("filled")
def test_times_and_limit_filter_the_list(call: Call, tokens: Tokens) -> None:
    """The bound `from` is inclusive, `to` is not, as everywhere."""
    late = call("GET", SCORES, tokens.root, params={"from": "2026-10-01T09:08:00Z"}).json()
    early = call("GET", SCORES, tokens.root, params={"to": "2026-10-01T09:08:00Z"}).json()
    assert [score["exchangeId"] for score in late["scores"]] == ["s1:8"]
    assert "s1:8" not in [score["exchangeId"] for score in early["scores"]]
    assert call("GET", SCORES, tokens.root, params={"limit": 1}).json()["count"] == 1


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "moment",
    [
        "1790845680",
        "1790845680.0",
        "1790845680000",
        "1790845680000000",
        "2026-10-01T09:08:00%2B00:00",
        "2026-10-01T09:08:00+00:00",
        "2026-10-01T11:08:00+02:00",
        "2026-10-01T11:08:00.000+0200",
        "20261001T090800Z",
        "2026-10-01 09:08",
    ],
)
def test_a_time_filter_accepts_every_documented_format(call: Call, tokens: Tokens, moment: str) -> None:
    """In an address every number is a text, and an unescaped plus is a space."""
    late = call("GET", f"{SCORES}?from={moment}", tokens.root)
    early = call("GET", f"{SCORES}?to={moment}", tokens.root)
    assert late.status_code == 200
    assert [score["exchangeId"] for score in late.json()["scores"]] == ["s1:8"]
    assert "s1:8" not in [score["exchangeId"] for score in early.json()["scores"]]


def test_eight_digits_are_a_date(call: Call, tokens: Tokens) -> None:
    """ISO 8601 defines them as a date; as seconds they would be in 1970."""
    assert call("GET", f"{SCORES}?from=20261001", tokens.root).status_code == 200


def test_an_unknown_project_has_no_scores(call: Call, tokens: Tokens) -> None:
    """Projects come into being with their first record."""
    nothing = {"count": 0, "nextCursor": None, "coldDays": None}
    assert call("GET", "/api/audit/web/scores", tokens.root).json() == {"scores": [], **nothing}
    assert call("GET", "/api/audit/web/anomalies", tokens.root).json() == {"anomalies": [], **nothing}


@pytest.mark.usefixtures("filled")
def test_the_summary_counts_the_project(call: Call, tokens: Tokens) -> None:
    """Dashboards read these fields."""
    body = call("GET", "/api/audit/ops/summary", tokens.root).json()
    assert body["project"] == "ops"
    assert body["exchanges"]["total"] == 3
    assert body["openIncidents"] == 0
    assert {"total", "scored", "pending", "skippedSampling", "skippedCostCap"} <= set(body["exchanges"])


@pytest.mark.usefixtures("filled")
def test_the_summary_says_why_exchanges_are_unscored(call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner) -> None:
    """While a server uses the database, the reasons must be available over HTTP."""
    loop.run(engine.wait_until_drained())
    counts = call("GET", "/api/audit/ops/summary", tokens.root).json()["exchanges"]
    assert counts["unscoredReasons"] == {"no_judge": counts["unscored"]}
    assert counts["unscored"] > 0


def test_the_description_names_the_fields_of_scores_and_summaries(app: FastAPI) -> None:
    """Generated clients need the names of the fields."""
    schemas = app.openapi()["components"]["schemas"]
    assert schemas["Scores"]["properties"]["scores"]["items"] == {"$ref": "#/components/schemas/Score"}
    assert list(schemas["Score"]["properties"]) == schemas["Score"]["required"]
    assert {"tier2_5AlignmentScore", "tier3BehavioralScore"} < set(schemas["Score"]["properties"])
    assert {"unscoredReasons"} < set(schemas["ExchangeCounts"]["properties"])


def test_the_banner_is_text_with_the_settings_in_force(call: Call, tokens: Tokens) -> None:
    """The banner is inserted into an agent's prompt unchanged."""
    response = call("GET", "/api/audit/ops/banner", tokens.root)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text.startswith("Eval Audit Mode: Active\n")
    assert response.text.endswith("Open incidents: 0. Not checked yet: there are no scores to check.")
    assert call("GET", "/api/audit/dark/banner", tokens.root).text.startswith("Eval Audit Mode: Off\n")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=yesterday", "from"),
        ("from=1970-01-01", "from"),
        ("to=2100-01-01", "to"),
        ("from=", "from"),
        ("from=2026-10-02&to=2026-10-01", "from"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("anomalies=maybe", "anomalies"),
        ("cursor=", "cursor"),
        ("cursor=MQ", "cursor"),
        ("since=soon", "since"),
        ("session=", "session"),
    ],
)
def test_an_invalid_query_is_refused_with_its_field(call: Call, tokens: Tokens, query: str, field: str) -> None:
    """An invalid filter must not be ignored, which would return everything."""
    response = call("GET", f"{SCORES}?{query}", tokens.root)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith(f"{field}: ")


@pytest.mark.parametrize("project", ["OPS", "..", "%2e%2e", "a b", "-x", "x" * 64, "ops'--", "%00"])
def test_an_invalid_project_name_is_refused(call: Call, tokens: Tokens, project: str) -> None:
    """A name must not be able to change a path."""
    assert call("GET", f"/api/audit/{project}/scores", tokens.root).status_code in (400, 404)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("what", ["scores", "anomalies", "summary", "banner"])
def test_an_operator_of_one_project_reads_no_other(call: Call, tokens: Tokens, what: str) -> None:
    """The answer must not reveal whether the other project exists."""
    assert call("GET", f"/api/audit/ops/{what}", tokens.ops_reader).status_code == 200
    refused = [call("GET", f"/api/audit/{project}/{what}", tokens.ops_reader) for project in ("web", "no-such-project")]
    assert [response.status_code for response in refused] == [403, 403]
    assert refused[0].json() == refused[1].json()
