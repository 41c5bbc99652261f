"""Who has an incident, and what people say of it: kept through checks, decisions, crashes and records of versions before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.builders import incident
from support.watch_histories import END, check, fallen, finding, history, opened, put

from analytics.queries import query_records, query_rows
from analytics.store.store import Outbox, Store
from audit.drift.incident_evidence import Numbers, evidence_of
from audit.drift.watched_series import CRITICAL
from audit.policy import Policy
from schemas.records import Incident
from service.read.incidents import history_of, open_incidents
from streams.log.sink import StorePublisher
from streams.watch.incidents import apply_snooze
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    DISMISSED,
    OPEN,
    RESOLVED,
    assignee_of,
    describe_snooze,
    is_snoozed,
    set_decision,
)
from streams.watch.watching import Change, ChangeResult, Person, Watch, apply_change

HOUR = timedelta(hours=1)
ANN, BOB = Person("ann"), Person("bob")


@pytest.fixture
def store() -> Iterator[Store]:
    """Yield a store with one open incident."""
    with Store(None) as opened:
        put(opened, "incidents", [incident()])
        yield opened


def watch_over(store: Store) -> Watch:
    """Return a watch without a memory besides the store."""
    return Watch(StorePublisher(store, Policy(), lambda: END))


def changed(store: Store, person: Person, hours: int = 0, identity: str = "i1", **wanted: Any) -> ChangeResult:
    """Change the incident this many hours after the end of the history."""
    wanted |= {"assigns": True} if "assignee" in wanted else {}
    return asyncio.run(apply_change(watch_over(store), ("ops", identity), Change(**wanted), person, END + hours * HOUR))


def current_incident(store: Store, identity: str = "i1") -> Incident:
    """Return the incident as stored in the tables."""
    values = {"project": "ops", "incident": identity}
    (incident,) = query_records(store.cursor(), "incident_by_id", Incident, values)
    return incident


def review_history(store: Store) -> list[tuple[Any, ...]]:
    """Return what people did with the incident."""
    return [(entry.kind, entry.by, entry.status, entry.assignee, entry.comment) for entry in history_of(store.cursor(), "i1")]


def test_acknowledging_an_unassigned_incident_assigns_it(store: Store) -> None:
    """The person on call takes an incident with one click."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    assert current_incident(store).status == ACKNOWLEDGED
    assert current_incident(store).acknowledged_by == "ann"
    assert current_incident(store).assignee == "ann"


def test_acknowledging_keeps_the_assignee(store: Store) -> None:
    """A colleague may look at an incident first without taking it over."""
    changed(store, ANN, assignee="bob")
    changed(store, ANN, 1, decision=ACKNOWLEDGED)
    assert current_incident(store).acknowledged_by == "ann"
    assert current_incident(store).assignee == "bob"


def test_a_second_acknowledgement_takes_an_incident_over(store: Store) -> None:
    """Before there were assignees, the owner was the person who acknowledged last."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, BOB, 1, decision=ACKNOWLEDGED)
    assert current_incident(store).acknowledged_by == "bob"
    assert current_incident(store).assignee == "bob"


def test_assigning_does_not_acknowledge(store: Store) -> None:
    """Being assigned is not working on it, so the incident stays open."""
    changed(store, ANN, assignee="bob", comment="yours")
    assert current_incident(store).status == OPEN
    assert current_incident(store).acknowledged_by is None
    assert current_incident(store).assignee == "bob"
    assert current_incident(store).assigned_at == END
    changed(store, BOB, 1, assignee=None)
    assert current_incident(store).status == OPEN
    assert current_incident(store).assignee is None
    assert review_history(store) == [("assignment", "ann", None, "bob", "yours"), ("assignment", "bob", None, None, None)]


def test_unassigning_oneself_clears_the_assignee_and_reopening_keeps_it(store: Store) -> None:
    """Reopening says that the change is not over, whoever is assigned."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, ANN, 1, decision=OPEN)
    assert current_incident(store).status == OPEN
    assert current_incident(store).assignee is None
    changed(store, ANN, 2, assignee="bob")
    changed(store, ANN, 3, decision=RESOLVED)
    changed(store, ANN, 4, decision=OPEN)
    assert current_incident(store).status == OPEN
    assert current_incident(store).assignee == "bob"


def test_a_comment_changes_nothing_else(store: Store) -> None:
    """A comment makes neither a revision nor a decision, and is shown with the incident."""
    changed(store, ANN, comment="Looks like the prompt.")
    assert incident() == current_incident(store)
    assert review_history(store) == [("comment", "ann", None, None, "Looks like the prompt.")]


def test_a_decision_with_an_assignment_is_one_change_with_one_reason(store: Store) -> None:
    """The reason of a combined change is stored with its first review."""
    incident = changed(store, ANN, decision=ACKNOWLEDGED, assignee="bob", comment="prompt").incident
    assert incident == current_incident(store)
    assert sorted(review_history(store), key=lambda one: one[0] != "decision") == [
        ("decision", "ann", ACKNOWLEDGED, None, "prompt"),
        ("assignment", "ann", None, "bob", None),
    ]


def test_a_decision_without_effect_keeps_its_comment(store: Store) -> None:
    """Nothing is decided twice, but the written reason must not be lost."""
    changed(store, ANN, decision=DISMISSED, comment="noise")
    repetition = changed(store, BOB, 1, decision=DISMISSED, comment="noise, I say")
    assert repetition.problem is None
    assert repetition.incident == current_incident(store)
    assert review_history(store) == [
        ("decision", "ann", DISMISSED, None, "noise"),
        ("comment", "bob", None, None, "noise, I say"),
    ]
    changed(store, BOB, 2, assignee=None)
    assert len(review_history(store)) == 2


def test_an_impossible_change_gives_the_reason(store: Store) -> None:
    """A bulk change of a hundred incidents reports the result of each."""
    assert changed(store, ANN, identity="none", decision=RESOLVED).problem == "not_found"
    assert asyncio.run(apply_change(watch_over(store), ("web", "i1"), Change(comment="x"), ANN)).problem == "not_found"
    put(store, "incidents", [incident(incident_id="i2", status="resolved", resolved_at=END)])
    assert changed(store, ANN, identity="i2", decision=OPEN, assignee="bob").problem == "conflict"
    assert None is current_incident(store, "i2").assignee


def test_a_review_entered_for_another_person_names_both(store: Store) -> None:
    """The history shows who decided and who entered it."""
    changed(store, Person("ann", "root"), assignee="bob")
    changed(store, Person("ann", "root"), 1, comment="x")
    assert [row[1] for row in review_history(store)] == ["ann (entered by root)"] * 2


def test_checks_keep_the_assignee_and_the_comments() -> None:
    """The watch revises an incident every hour and ends it when it recovers; its assignee must stay."""
    with Store(None) as store:
        put(store, "scores", history(fallen(6), 40))
        watch = watch_over(store)
        (result,) = asyncio.run(watch.check(["ops"], END))
        (opened,) = result.opened
        which = ("ops", opened.incident_id)
        asyncio.run(apply_change(watch, which, Change(assigns=True, assignee="bob", comment="yours"), ANN, END))
        put(store, "scores", history(fallen(7), 41, end=END + timedelta(days=1)))
        (later_result,) = asyncio.run(watch_over(store).check(["ops"], END + timedelta(days=1)))
        assert [one.incident_id for one in later_result.incidents] == [opened.incident_id]
        assert current_incident(store, opened.incident_id).assignee == "bob"
        assert current_incident(store, opened.incident_id).revision == 2
        assert [entry.comment for entry in history_of(store.cursor(), opened.incident_id)] == ["yours"]


def test_a_check_completes_an_assignment_that_was_interrupted(store: Store) -> None:
    """A process that dies between the review and the revision has told the person nothing, but the review in the log counts."""
    changed(store, ANN, decision=ACKNOWLEDGED)
    changed(store, ANN, 1, assignee="bob")
    cursor = store.cursor()
    cursor.execute("DELETE FROM log.incidents WHERE revision = 2")
    assert current_incident(store).assignee == "ann"
    (pending,) = (row for row in query_rows(cursor, "incident_reviews", {"projects": None, "incident": "i1"}) if row["pending"])
    assert pending["assignee"] == "bob"
    asyncio.run(watch_over(store).check(["ops"], END + 2 * HOUR))
    assert current_incident(store).status == ACKNOWLEDGED
    assert current_incident(store).assignee == "bob"
    assert current_incident(store).assigned_at == END + HOUR
    asyncio.run(watch_over(store).check(["ops"], END + 3 * HOUR))
    assert current_incident(store).revision == 2


def test_a_snooze_ends_at_its_time_or_with_a_decision_and_only_live_incidents_have_one(store: Store) -> None:
    """A snoozed incident comes back with the reason, and an interrupted snooze is completed like a decision."""
    until = END + 48 * HOUR
    changed(store, ANN, snoozes=True, until=until, comment="after the release")
    store.cursor().execute("DELETE FROM log.incidents WHERE revision = 1")
    asyncio.run(watch_over(store).check(["ops"], END + HOUR))
    snoozed = current_incident(store)
    assert (snoozed.status, snoozed.snoozed_by, snoozed.snoozed_until) == (OPEN, "ann", until)
    assert is_snoozed(snoozed, until - HOUR)
    assert not is_snoozed(snoozed, until)
    assert describe_snooze(snoozed, until).startswith("Back from a snooze by ann")
    assert review_history(store) == [("snooze", "ann", None, None, "after the release")]
    counts = {now: open_incidents(store.cursor(), None, now).total for now in (until - HOUR, until)}
    assert counts == {until - HOUR: 0, until: 1}
    assert Outbox(store).find_unalerted(END - timedelta(days=90), until - HOUR) == []
    assert len(Outbox(store).find_unalerted(END - timedelta(days=90), until)) == 1
    changed(store, BOB, 2, snoozes=True, until=END + 2 * HOUR)
    assert describe_snooze(current_incident(store), END + 3 * HOUR) == "Back from a snooze by ann: bob ended the snooze."
    changed(store, BOB, 3, snoozes=True)
    changed(store, BOB, 4, decision=RESOLVED)
    assert current_incident(store).snoozed_at is None
    asyncio.run(watch_over(store).check(["ops"], END + 5 * HOUR))
    assert current_incident(store).status == RESOLVED
    assert changed(store, BOB, 6, snoozes=True).problem == "over"


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"size": 0.4, "numbers": Numbers(change_interval=(-0.405, -0.395))}, None),
        ({"size": 0.5, "numbers": Numbers(change_interval=(-0.65, -0.35))}, None),
        ({"size": 0.5, "numbers": Numbers(change_interval=(-0.55, -0.45))}, "certainly by more"),
        ({"size": 0.4, "severity": CRITICAL}, "critical now, no longer warning"),
    ],
)
def test_a_snoozed_incident_wakes_only_when_its_change_gets_worse(later: dict[str, Any], reason: str | None) -> None:
    """More sessions make the same change more certain, and a larger estimate may be chance: neither is worse."""
    numbers = Numbers(change_interval=(-0.6, -0.2))
    fell = finding(started_days_ago=6, rule="sequential", size=0.4, numbers=numbers)
    snoozed = apply_snooze(opened(fell), None, "ann", END)
    (revision,) = check([replace(fell, until=fell.until + timedelta(days=1), **later)], [snoozed], END + timedelta(days=1))
    assert is_snoozed(revision, END + timedelta(days=1)) is (reason is None)
    assert (reason or "") in (revision.woken_because or "")
    assert evidence_of(revision).decided_sizes == evidence_of(snoozed).decided_sizes


def test_a_check_completes_an_interrupted_decision_and_assignment_in_order(store: Store) -> None:
    """The incident must end as the later of the two left it."""
    changed(store, ANN, assignee="bob")
    changed(store, ANN, 1, decision=DISMISSED)
    store.cursor().execute("DELETE FROM log.incidents WHERE revision > 0")
    asyncio.run(watch_over(store).check(["ops"], END + 2 * HOUR))
    assert current_incident(store).status == DISMISSED
    assert current_incident(store).assignee == "bob"


@pytest.mark.parametrize("status", [ACKNOWLEDGED, RESOLVED, DISMISSED])
def test_incidents_of_older_versions_belong_to_the_person_who_acknowledged_them(status: str) -> None:
    """Their records have no assignee, and new decisions must continue from there."""
    before = incident(status=status, acknowledged_by="ann", acknowledged_at=END)
    assert assignee_of(before) == "ann"
    assert assignee_of(set_decision(before, RESOLVED, "bob", END)) == "ann"
    reopened = set_decision(before, OPEN, "bob", END)
    assert assignee_of(reopened) == (None if status == ACKNOWLEDGED else "ann")
    assert None is assignee_of(msgspec.structs.replace(before, assigned_at=END))
