"""Invariants of a database whose records are all processed, even if its server crashed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import nano_of
from schemas.codec.single_object import encode
from service.setup.workspace import describe_lag
from streams.judging.judged_stages import STATE
from streams.stage_batches import StageBatch

Key = tuple[str, str]
"""Connection and id of an exchange."""


def rows(store: Store, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with closing(store.cursor()) as cursor:
        return cursor.execute(statement).fetchall()


def encoded(store: Store, topic: str) -> list[bytes]:
    """Return every record of a topic as sorted bytes, so that databases written in another order compare equal."""
    frames = store.read(topic, 0, store.end_of(topic))
    return sorted(encode(record) for _, _, record in StageBatch.of(topic, frames).records())


def scores_of(database: Path) -> list[bytes]:
    """Return every score of a database as bytes, all revisions."""
    with Store(database) as store:
        return encoded(store, "scores")


def check(database: Path, accepted: Collection[Key], caps: Mapping[str, float], calls: int | None = None) -> None:
    """Check all invariants. `caps` are the session caps in USD by project; `calls` is the number of judge calls, if counted."""
    with Store(database) as store:
        check_nothing_lost_or_doubled(store, accepted)
        check_money(store, caps)
        check_judgements(store, calls)
        assert describe_lag(store) == ""
        assert rows(store, "SELECT reason, detail FROM dead_letters") == []


def check_nothing_lost_or_doubled(store: Store, accepted: Collection[Key]) -> None:
    """Check that every accepted exchange is stored once and has one current score, and that nothing else is scored."""
    stored_exchanges = Counter(rows(store, "SELECT connection, exchange_id FROM log.exchanges"))
    assert set(accepted) - stored_exchanges.keys() == set(), "accepted exchanges are not stored"
    assert set(stored_exchanges.values()) == {1}, "exchanges are stored twice"
    scored_exchanges = Counter(rows(store, "SELECT connection, exchange_id FROM scores"))
    assert scored_exchanges == stored_exchanges
    repeated_revisions = rows(
        store, "SELECT connection, exchange_id, revision, count(*) FROM log.scores GROUP BY ALL HAVING count(*) > 1"
    )
    assert repeated_revisions == []


def check_money(store: Store, caps: Mapping[str, float]) -> None:
    """Check that judgements, current scores and session states contain the same costs, and that no session exceeds its cap."""
    cost_by_session: Counter[tuple[str, str, str]] = Counter()
    for project, connection, session, cost in rows(store, "SELECT project, connection, session_id, cost_usd FROM judgements"):
        cost_by_session[project, connection, session] += nano_of(cost)
    total_of_scores = sum(nano_of(cost) for (cost,) in rows(store, "SELECT cost_usd FROM scores"))
    states = rows(store, "SELECT state FROM log.stage_state WHERE stage = 'scoring'")
    total_of_states = sum(STATE.decode(state).spent for (state,) in states)
    assert total_of_scores == cost_by_session.total()
    assert total_of_states == cost_by_session.total()
    for (project, connection, session), cost in cost_by_session.items():
        assert cost <= nano_of(caps[project]), f"session {session} of {connection} exceeds its cap"
    with closing(store.cursor()) as cursor:
        assert query_rows(cursor, "open_reservations") == []


def check_judgements(store: Store, calls: int | None) -> None:
    """Check that no answered question was asked again, and that every call is recorded.

    A call is reserved before it is made. If the process dies in between, the reservation is recorded as interrupted, with or without a call.
    """
    repeated_answers = rows(
        store, "SELECT fingerprint FROM judgements WHERE outcome = 'answered' GROUP BY ALL HAVING count(*) > 1"
    )
    assert repeated_answers == []
    if calls is not None:
        [(recorded,)] = rows(store, "SELECT coalesce(sum(attempts), 0) FROM judgements WHERE outcome <> 'interrupted'")
        [(interrupted,)] = rows(store, "SELECT count(*) FROM judgements WHERE outcome = 'interrupted'")
        assert recorded <= calls <= recorded + interrupted
