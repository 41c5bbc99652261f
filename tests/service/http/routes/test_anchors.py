"""Anchors over HTTP: chosen, judged again, withdrawn, and what they say of the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens, engine_of
from support.engines import live_judge

from analytics.store.store import Store
from driftline_trial.simulator import running
from service.setup.access import AccessStore, Holder
from streams.engine.engine import Engine

ANCHORS = "/api/audit/ops/anchors"
RUN = f"{ANCHORS}/run"


@pytest.fixture
def has_judge() -> bool:
    """Return whether the server has a judge."""
    return True


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, has_judge: bool) -> Iterator[Engine]:
    """Yield a started engine with a simulated judge."""
    with running() as simulator:
        started = engine_of(store, live_judge(simulator.base_url) if has_judge else None)
        loop.run(started.start())
        yield started
        loop.run(started.stop())


@pytest.fixture
def judged(call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner) -> None:
    """Store three judged exchanges in ops, and one in web."""
    for number in (1, 2, 3):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number, response=f"Answer {number}."))
    call("POST", "/api/audit/ingest", tokens.web, json=exchange_body(1, session="w"))
    loop.run(engine.wait_until_drained())


@pytest.mark.usefixtures("judged")
def test_anchors_are_chosen_judged_again_and_reported(call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner) -> None:
    """One round is too few to detect a change, and the figures show that."""
    response = call("POST", ANCHORS, tokens.root, json={"count": 2})
    assert response.status_code == 201
    assert response.json()["count"] == 2
    assert {(one["connection"], one["active"], one["chosenBy"]) for one in response.json()["anchors"]} == {
        ("north", True, "root")
    }
    begun = call("POST", RUN, tokens.root)
    assert begun.status_code == 202
    assert begun.json() == {"round": "2026-10-01T12:00:00Z", "anchors": 2}
    assert call("POST", RUN, tokens.root).json()["anchors"] == 0
    loop.run(engine.wait_until_drained())
    body = call("GET", ANCHORS, tokens.root).json()
    (round_row,) = body["rounds"]
    assert round_row["at"] == "2026-10-01T12:00:00Z"
    assert round_row["anchors"] == 2
    assert round_row["scored"] == 2
    assert round_row["costUsd"] > 0
    assert [one["tier"] for one in body["judge"]] == ["tier2", "tier2_5", "tier3"]
    assert {(one["changed"], one["direction"], one["size"]) for one in body["judge"]} == {(False, None, None)}
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["exchanges"]["total"] == 3


@pytest.mark.usefixtures("judged")
def test_an_exchange_can_be_chosen_by_id_and_withdrawn(call: Call, tokens: Tokens) -> None:
    """Results of a withdrawn anchor are kept, and the next round leaves it out."""
    selection = {"exchangeIds": ["s1:2"], "connection": "north"}
    (anchor,) = call("POST", ANCHORS, tokens.root, json=selection).json()["anchors"]
    assert call("POST", ANCHORS, tokens.root, json=selection).json()["anchors"] == [anchor]
    gone = call("DELETE", f"{ANCHORS}/{anchor['id']}", tokens.root).json()["anchor"]
    assert gone["exchangeId"] == "s1:2"
    assert gone["active"] is False
    assert call("GET", ANCHORS, tokens.root).json()["anchors"] == [gone]
    assert call("POST", RUN, tokens.root).json()["anchors"] == 0


@pytest.mark.usefixtures("judged")
def test_by_default_the_policys_number_of_anchors_is_chosen(call: Call, tokens: Tokens) -> None:
    """At most all candidates are chosen."""
    assert call("POST", ANCHORS, tokens.root).json()["count"] == 3
    assert call("POST", ANCHORS, tokens.root).json()["count"] == 0


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"exchangeIds": ["nothing"]}, "the project has no exchange with this id"),
        ({"exchangeIds": ["w:1"]}, "the project has no exchange with this id"),
        ({"exchangeIds": []}, "exchangeIds: "),
        ({"exchangeIds": ["s1:1"], "count": 3}, "give either exchangeIds or count"),
        ({"count": 0}, "count: "),
        ({"count": 501}, "count: "),
        ({"count": "2"}, "count: "),
    ],
)
def test_an_invalid_choice_is_refused_completely(call: Call, tokens: Tokens, body: dict[str, Any], words: str) -> None:
    """No part of the choice is applied."""
    response = call("POST", ANCHORS, tokens.root, json=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert words in response.json()["error"]
    assert call("GET", ANCHORS, tokens.root).json()["anchors"] == []


def test_an_unknown_anchor_cannot_be_withdrawn(call: Call, tokens: Tokens) -> None:
    """An anchor is identified by its id within the project."""
    response = call("DELETE", f"{ANCHORS}/nothing", tokens.root)
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


@pytest.mark.parametrize("has_judge", [False])
def test_without_a_judge_no_round_starts(call: Call, tokens: Tokens) -> None:
    """A round without a judge would have no result."""
    assert _told(call("POST", RUN, tokens.root)) == (409, "no_judge")


def test_a_project_that_is_not_audited_has_no_round(call: Call, tokens: Tokens) -> None:
    """The copies of the exchanges would be accepted and never judged."""
    assert _told(call("POST", "/api/audit/dark/anchors/run", tokens.root)) == (409, "not_audited")


def test_a_new_project_has_no_anchors(call: Call, tokens: Tokens) -> None:
    """Without anchors, there is no finding about the judge."""
    body = call("GET", ANCHORS, tokens.root).json()
    assert body["anchors"] == []
    assert body["rounds"] == []
    assert {(one["changed"], one["rounds"]) for one in body["judge"]} == {(False, 0)}


def test_a_round_requires_the_scope_for_spending(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Readers read, reviewers choose anchors, and only spenders start a round."""
    reader = access.add(Holder("operator", "eve", None, scopes=frozenset({"read"})))
    other = access.add(Holder("operator", "fay", "web"))
    for token, expected in ((None, [401, 401, 401]), (tokens.ops, [403] * 3), (reader, [200, 403, 403]), (other, [403] * 3)):
        calls = [call("GET", ANCHORS, token), call("POST", ANCHORS, token, json={}), call("POST", RUN, token)]
        assert [one.status_code for one in calls] == expected


def _told(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_a_project_of_anchors_has_no_anchors(call: Call, tokens: Tokens) -> None:
    """Anchors in a reserved project would cost money in each round, without any finding."""
    answer = call("POST", "/api/audit/anchors.ops/anchors", tokens.root, json={})

    assert answer.status_code == 400
    assert "consists of anchor rounds" in answer.json()["error"]
