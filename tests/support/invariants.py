"""What must hold in a database once it is quiet, whatever happened to the server that filled it."""

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
    """Return every record of a topic as bytes, sorted independently of the time of writing."""
    frames = store.read(topic, 0, store.end_of(topic))
    return sorted(encode(record) for _, _, record in StageBatch.of(topic, frames).records())


def scores_of(database: Path) -> list[bytes]:
    """Return every score of a database as bytes, all revisions."""
    with Store(database) as store:
        return encoded(store, "scores")


def check(database: Path, accepted: Collection[Key], caps: Mapping[str, float], calls: int | None = None) -> None:
    """Check the invariants. `caps` are in USD by project; `calls` is the number of judge calls, if counted."""
    with Store(database) as store:
        check_nothing_lost_or_doubled(store, accepted)
        check_money(store, caps)
        check_judgements(store, calls)
        assert describe_lag(store) == ""
        assert rows(store, "SELECT reason, detail FROM dead_letters") == []


def check_nothing_lost_or_doubled(store: Store, accepted: Collection[Key]) -> None:
    """Check that every accepted exchange is stored once and has one current score, and that nothing else is scored."""
    stored_exchanges = Counter(rows(store, "SELECT connection, exchange_id FROM log.exchanges"))
    assert set(accepted) - stored_exchanges.keys() == set(), "accepted and lost"
    assert set(stored_exchanges.values()) == {1}, "there twice"
    scored = Counter(rows(store, "SELECT connection, exchange_id FROM scores"))
    assert dict.fromkeys(stored_exchanges, 1) == dict(scored)
    revisions = rows(
        store, "SELECT connection, exchange_id, revision, count(*) FROM log.scores GROUP BY ALL HAVING count(*) > 1"
    )
    assert revisions == [], "a revision twice"


def check_money(store: Store, caps: Mapping[str, float]) -> None:
    """Check that judgements, current scores and session states account for the same nano-USD, and that no session is over its cap."""
    spent: Counter[tuple[str, str, str]] = Counter()
    for project, connection, session, cost in rows(store, "SELECT project, connection, session_id, cost_usd FROM judgements"):
        spent[project, connection, session] += nano_of(cost)
    in_scores = sum(nano_of(cost) for (cost,) in rows(store, "SELECT cost_usd FROM scores"))
    states = rows(store, "SELECT state FROM log.stage_state WHERE stage = 'scoring'")
    in_states = sum(STATE.decode(state).spent for (state,) in states)
    assert [sum(spent.values())] * 2 == [in_scores, in_states]
    assert [session for session, cost in spent.items() if cost > nano_of(caps[session[0]])] == [], "beyond their cap"
    with closing(store.cursor()) as cursor:
        assert query_rows(cursor, "open_reservations") == []


def check_judgements(store: Store, calls: int | None) -> None:
    """Check that no answered question was asked again, and that every call is accounted for.

    A call whose process died was reserved for; whether it was made before that, nobody knows.
    """
    repeated_answers = rows(
        store, "SELECT fingerprint FROM judgements WHERE outcome = 'answered' GROUP BY ALL HAVING count(*) > 1"
    )
    assert repeated_answers == []
    if calls is not None:
        ((recorded_calls, interrupted),) = rows(
            store,
            "SELECT coalesce(sum(attempts) FILTER (outcome <> 'interrupted'), 0), count(*) FILTER (outcome = 'interrupted') "
            "FROM judgements",
        )
        assert recorded_calls <= calls <= recorded_calls + interrupted
