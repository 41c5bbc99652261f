"""Versions of a project with more exchanges than are read: of some sessions, each whole."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import START, exchange, score
from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Label
from service.read import versions

SESSIONS, EACH = 60, 4


@pytest.mark.parametrize("most", [SESSIONS * EACH // 3, SESSIONS * EACH])
def test_of_many_exchanges_complete_sessions_of_both_versions_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The newest exchanges alone would contain only the newest version of a large project."""
    monkeypatch.setattr(versions, "MAX_EXCHANGES", most)
    exchanges, scores = [], []
    for session in range(SESSIONS):
        name, version = f"s{session}", "6" if session < SESSIONS // 2 else "7"
        for turn in range(EACH):
            at = START + timedelta(hours=session, minutes=turn)
            exchanges.append(
                exchange(
                    name,
                    turn,
                    agent="cleo",
                    occurred_at=at,
                    ingested_at=at,
                    labels=[Label(name="agent_version", value=version)],
                )
            )
            judged = {"tier2_state": "scored", "tier2_score": 0.9 if version == "6" else 0.4, "sampling_probability": 1.0}
            scores.append(score(name, turn, agent="cleo", exchange_at=at, scored_at=at, **judged))
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(one) for one in exchanges])
        transaction.append("scores", [encode(one) for one in scores])
    compared = versions.agent_versions(store.cursor(), "ops", START, START + timedelta(hours=SESSIONS))
    (comparison,) = compared.agents
    assert [one.value for one in comparison.versions] == ["7", "6"]
    assert comparison.verdict == "worse"
    assert compared.one_in == SESSIONS * EACH // most
    assert all(EACH * one.row["sessions"] == one.row["exchanges"] for one in comparison.versions)
    assert (sum(one.row["sessions"] for one in comparison.versions) < SESSIONS) is (compared.one_in > 1)
