"""Who has an incident, and what people say of it: kept through checks, decisions, crashes and records of versions before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.builders import incident
from support.watch_histories import END, fallen, history, put

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.policy import Policy
from schemas.records import Incident
from service.read.incidents import history_of
from streams.log.sink import StorePublisher
from streams.watch.lifecycle import ACKNOWLEDGED, DISMISSED, OPEN, RESOLVED, assignee_of, with_decision
from streams.watch.watching import Change, Changed, Person, Watch, change

HOUR = timedelta(hours=1)
ANN, BOB = Person("ann"), Person("bob")


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with one open incident."""
    with Store(None) as opened:
        put(opened, "incidents", [incident()])
        yield opened


def watch_over(store: Store) -> Watch:
    """A watch that knows nothing but the store."""
    return Watch(StorePublisher(store, Policy(), lambda: END))


def changed(store: Store, person: Person, hours: int = 0, identity: str = "i1", **wanted: Any) -> Changed:
    """A change, so many hours after the end."""
    wanted |= {"assigns": True} if "assignee" in wanted else {}
    return asyncio.run(change(watch_over(store), ("ops", identity), Change(**wanted), person, END + hours * HOUR))


def now(store: Store, identity: str = "i1") -> Incident:
    """An incident as the tables show it."""
    values = {"project": "ops", "incident": identity}
    (found,) = query_records(store.cursor(), "incident_by_id", Incident, values)
    return found


def told(store: Store) -> list[tuple[Any, ...]]:
    """What people did with the incident."""
    return [(one.kind, one.by, one.status, one.assignee, one.comment) for one in history_of(store.cursor(), "i1")]


def test_acknowledging_assigns_to_oneself_what_nobody_has(store: Store) -> None:
    """The simplest thing for who is on call: one click, and it is theirs."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    assert now(store).status == ACKNOWLEDGED
    assert now(store).acknowledged_by == "ann"
    assert now(store).assignee == "ann"


def test_acknowledging_takes_it_from_nobody_to_whom_it_was_assigned(store: Store) -> None:
    """A colleague looks at it first: whose it is was decided by somebody."""
    changed(store, ANN, assignee="bob")
    changed(store, ANN, 1, decision=ACKNOWLEDGED)
    assert now(store).acknowledged_by == "ann"
    assert now(store).assignee == "bob"


def test_who_acknowledges_it_after_another_takes_it_over(store: Store) -> None:
    """As before there were assignees: the owner was who acknowledged it last."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, BOB, 1, decision=ACKNOWLEDGED)
    assert now(store).acknowledged_by == "bob"
    assert now(store).assignee == "bob"


def test_assigning_acknowledges_nothing(store: Store) -> None:
    """To be given an incident is not to work on it: it stays open, and red."""
    changed(store, ANN, assignee="bob", comment="yours")
    assert now(store).status == OPEN
    assert now(store).acknowledged_by is None
    assert now(store).assignee == "bob"
    assert now(store).assigned_at == END
    changed(store, BOB, 1, assignee=None)
    assert now(store).status == OPEN
    assert now(store).assignee is None
    assert told(store) == [("assignment", "ann", None, "bob", "yours"), ("assignment", "bob", None, None, None)]


def test_who_gives_it_back_has_it_no_more_and_who_reopens_it_leaves_it(store: Store) -> None:
    """Giving back says: not me. Reopening says: not over, whoever has it."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, ANN, 1, decision=OPEN)
    assert now(store).status == OPEN
    assert now(store).assignee is None
    changed(store, ANN, 2, assignee="bob")
    changed(store, ANN, 3, decision=RESOLVED)
    changed(store, ANN, 4, decision=OPEN)
    assert now(store).status == OPEN
    assert now(store).assignee == "bob"


def test_a_comment_changes_nothing_else(store: Store) -> None:
    """No revision, no decision: it is read with the incident."""
    changed(store, ANN, comment="Looks like the prompt.")
    assert incident() == now(store)
    assert told(store) == [("comment", "ann", None, None, "Looks like the prompt.")]


def test_a_decision_and_an_assignee_are_one_change_with_one_reason(store: Store) -> None:
    """Acknowledge and hand over: the reason stands with the first of both."""
    made = changed(store, ANN, decision=ACKNOWLEDGED, assignee="bob", comment="prompt").incident
    assert made == now(store)
    assert sorted(told(store), key=lambda one: one[0] != "decision") == [
        ("decision", "ann", ACKNOWLEDGED, None, "prompt"),
        ("assignment", "ann", None, "bob", None),
    ]


def test_what_is_so_already_keeps_the_words(store: Store) -> None:
    """Nothing is decided twice, and what a person wrote is not lost."""
    changed(store, ANN, decision=DISMISSED, comment="noise")
    again = changed(store, BOB, 1, decision=DISMISSED, comment="noise, I say")
    assert again.problem is None
    assert again.incident == now(store)
    assert told(store) == [("decision", "ann", DISMISSED, None, "noise"), ("comment", "bob", None, None, "noise, I say")]
    changed(store, BOB, 2, assignee=None)
    assert len(told(store)) == 2


def test_what_cannot_be_changed_says_why(store: Store) -> None:
    """A bulk of a hundred says of each how it went."""
    assert changed(store, ANN, identity="none", decision=RESOLVED).problem == "not_found"
    assert asyncio.run(change(watch_over(store), ("web", "i1"), Change(comment="x"), ANN)).problem == "not_found"
    put(store, "incidents", [incident(incident_id="i2", status="resolved", resolved_at=END)])
    assert changed(store, ANN, identity="i2", decision=OPEN, assignee="bob").problem == "conflict"
    assert None is now(store, "i2").assignee


def test_who_enters_it_for_another_is_named(store: Store) -> None:
    """The history says who said so, and who typed it."""
    changed(store, Person("ann", "root"), assignee="bob")
    changed(store, Person("ann", "root"), 1, comment="x")
    assert [one[1] for one in told(store)] == ["ann (entered by root)"] * 2


def test_checks_keep_the_assignee_and_the_comments() -> None:
    """The watch writes an incident again every hour, and ends it when it recovers: whose it is stays."""
    with Store(None) as store:
        put(store, "scores", history(fallen(6), 40))
        watch = watch_over(store)
        (found,) = asyncio.run(watch.check(["ops"], END))
        (made,) = found.opened
        which = ("ops", made.incident_id)
        asyncio.run(change(watch, which, Change(assigns=True, assignee="bob", comment="yours"), ANN, END))
        put(store, "scores", history(fallen(7), 41, end=END + timedelta(days=1)))
        (again,) = asyncio.run(watch_over(store).check(["ops"], END + timedelta(days=1)))
        assert [one.incident_id for one in again.incidents] == [made.incident_id]
        assert now(store, made.incident_id).assignee == "bob"
        assert now(store, made.incident_id).revision == 2
        assert [one.comment for one in history_of(store.cursor(), made.incident_id)] == ["yours"]


def test_a_check_makes_the_revision_of_an_assignment_that_came_through_alone(store: Store) -> None:
    """A process that dies between the review and the revision has told the person nothing; what is in the log holds."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, ANN, 1, assignee="bob")
    cursor = store.cursor()
    cursor.execute("DELETE FROM log.incidents WHERE revision = 2")
    assert now(store).assignee == "ann"
    (pending,) = (
        row for row in query_rows(cursor, "incident_assignments", {"projects": None, "incident": "i1"}) if row["pending"]
    )
    assert pending["assignee"] == "bob"
    asyncio.run(watch_over(store).check(["ops"], END + 2 * HOUR))
    assert now(store).status == ACKNOWLEDGED
    assert now(store).assignee == "bob"
    assert now(store).assigned_at == END + HOUR
    asyncio.run(watch_over(store).check(["ops"], END + 3 * HOUR))
    assert now(store).revision == 2


def test_a_check_makes_a_decision_and_an_assignment_that_came_through_alone_in_their_order(store: Store) -> None:
    """Both were made, one after the other: the incident is as the later one left it."""
    changed(store, ANN, assignee="bob")
    changed(store, ANN, 1, decision=DISMISSED)
    store.cursor().execute("DELETE FROM log.incidents WHERE revision > 0")
    asyncio.run(watch_over(store).check(["ops"], END + 2 * HOUR))
    assert now(store).status == DISMISSED
    assert now(store).assignee == "bob"


@pytest.mark.parametrize("status", [ACKNOWLEDGED, RESOLVED, DISMISSED])
def test_of_versions_before_who_acknowledged_it_has_it(status: str) -> None:
    """Their records have no assignee; decisions of today go on from there."""
    before = incident(status=status, acknowledged_by="ann", acknowledged_at=END)
    assert assignee_of(before) == "ann"
    assert assignee_of(with_decision(before, RESOLVED, "bob", END)) == "ann"
    reopened = with_decision(before, OPEN, "bob", END)
    assert assignee_of(reopened) == (None if status == ACKNOWLEDGED else "ann")
    assert None is assignee_of(msgspec.structs.replace(before, assigned_at=END))
