"""The outbox and its delivery: once, in order, again after a failure, and never with an address in what is kept."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import httpx2
import pytest
from alerting import Desk, slack, webhook
from receivers import Answer, Receiver

from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Incident
from service.alerts import posting
from service.alerts.notices import Notice, incident_notice
from service.alerts.quiet import quiet_hours_of
from service.alerts.retrying import MOST_ATTEMPTS

HUSH = "hush-hush"


def notice(number: int = 1, severity: str = "warning", subject: str = "i1", **fields: object) -> Notice:
    """A notice that no other number has."""
    values = {"title": f"Notice {number}", "text": "Something happened.", "project": "ops"} | fields
    return Notice("incident", subject, f"cause {number}", severity, **values)  # type: ignore[arg-type]


def incident(query_pool: Desk, **fields: object) -> Incident:
    """An open incident that a check has just seen."""
    values: dict[str, object] = {
        "incident_id": "i1",
        "revision": 0,
        "project": "ops",
        "type": "drift",
        "tier": "tier2",
        "direction": "down",
        "status": "open",
        "severity": "warning",
        "title": "Tier 2 falls",
        "description": "Three days below the baseline.",
        "metadata": "{}",
        "detected_at": query_pool.now,
    }
    return Incident(**(values | fields))  # type: ignore[arg-type]


def publish(query_pool: Desk, record: Incident) -> None:
    """Append an incident to its topic."""
    with query_pool.store.transaction() as transaction:
        transaction.append("incidents", [encode(record)])


def titles(receiver: Receiver) -> list[str]:
    """The titles of what a receiver got."""
    return [post.document["title"] for post in receiver.posts]


def test_an_alert_is_delivered_once(query_pool: Desk, receiver: Receiver) -> None:
    """Nobody is woken twice for one thing."""
    query_pool.channels = (webhook(receiver),)
    assert 1 == query_pool.tell(notice())
    for _ in range(3):
        query_pool.deliver()
        query_pool.wait(hours=1)
    assert ["Notice 1"] == titles(receiver)
    assert [("webhook", "i1", "delivered", 1, None)] == query_pool.rows()


def test_raising_twice_or_after_a_restart_changes_nothing(query_pool: Desk, receiver: Receiver) -> None:
    """A check that sees the same thing again, or a process that forgot, raises no second alert."""
    query_pool.channels = (webhook(receiver),)
    assert [1, 0] == [query_pool.tell(notice(), notice()), query_pool.tell(notice())]
    query_pool.deliver()
    query_pool.wait(days=1)
    assert [0, 1] == [query_pool.tell(notice()), query_pool.tell(notice(2))]


def test_every_channel_is_told(query_pool: Desk, receiver: Receiver, other: Receiver) -> None:
    """One that is down keeps nobody else from hearing of it."""
    query_pool.channels = (webhook(receiver), slack(other))
    receiver.answers = [Answer(503)]
    query_pool.tell(notice())
    query_pool.deliver()
    rows = [("slack", "i1", "delivered", 1, None), ("webhook", "i1", "waiting", 1, "the answer was 503")]
    assert rows == sorted(query_pool.rows())


def test_without_a_channel_nothing_is_queued(query_pool: Desk) -> None:
    """There is nobody to tell, and what waits for nobody would be sent to whoever comes first."""
    publish(query_pool, incident(query_pool))
    assert 0 == query_pool.tell(notice())
    query_pool.deliver()
    assert [] == query_pool.rows()


def test_a_failure_is_tried_again_later_and_later(query_pool: Desk, receiver: Receiver) -> None:
    """A receiver that comes back gets what it missed."""
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(500), Answer(429, {"retry-after": "120"}), Answer(200)]
    query_pool.tell(notice())
    seen = []
    for _ in range(3):
        query_pool.deliver()
        ((status, waits),) = query_pool.store.cursor().execute("SELECT status, not_before FROM log.alerts").fetchall()
        seen.append((status, waits - query_pool.now.replace(tzinfo=None)))
        query_pool.deliver()
        query_pool.now = waits.replace(tzinfo=query_pool.now.tzinfo)
    assert [("waiting", timedelta(seconds=5)), ("waiting", timedelta(seconds=120))] == seen[:2]
    assert ("delivered", 3) == (seen[2][0], len(receiver.posts))
    assert 1 == len({post.headers["driftline-delivery"] for post in receiver.posts})


def test_what_is_refused_is_given_up_with_its_reason(
    query_pool: Desk, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Asking again would not help; the log and the list say why."""
    query_pool.channels = (slack(receiver),)
    receiver.answers = [Answer(404, body=b"no_service")]
    query_pool.tell(notice())
    query_pool.deliver()
    assert [("slack", "i1", "given_up", 1, "the answer was 404: no_service")] == query_pool.rows()
    assert "was given up after 1 tries: the answer was 404: no_service" in caplog.text


def test_what_fails_for_hours_is_given_up(query_pool: Desk, receiver: Receiver) -> None:
    """An outbox that is never emptied would deliver old news for weeks."""
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(500)]
    query_pool.tell(notice())
    for _ in range(MOST_ATTEMPTS + 3):
        query_pool.deliver()
        query_pool.wait(hours=1)
    assert [("webhook", "i1", "given_up", MOST_ATTEMPTS, "the answer was 500")] == query_pool.rows()
    assert MOST_ATTEMPTS == len(receiver.posts)


def test_a_redirect_is_not_followed(query_pool: Desk, receiver: Receiver, other: Receiver) -> None:
    """What an alert says goes where the settings say, and nowhere else."""
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(307, {"location": other.url})]
    query_pool.tell(notice())
    query_pool.deliver()
    assert [] == other.posts
    assert [("webhook", "i1", "given_up", 1, "the answer was 307, and redirects are not followed")] == query_pool.rows()


def test_a_receiver_that_never_answers_costs_one_deadline(
    query_pool: Desk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run tries the next alert; this one waits."""
    monkeypatch.setattr(posting, "DEADLINE_SECONDS", 0.05)
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(hangs=True)]
    query_pool.tell(notice(1, subject="a"), notice(2, subject="b"))
    query_pool.deliver()
    assert [0, 1] == sorted(row[3] for row in query_pool.rows())  # type: ignore[type-var]


@pytest.mark.parametrize("answer", [Answer(500), Answer(404, body=b"http://127.0.0.1/hush-hush"), Answer(200), None])
def test_an_address_is_nowhere(
    query_pool: Desk, receiver: Receiver, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    """Whoever knows Slack's address can post there: it is in no table and in no line of the log."""
    caplog.set_level(logging.INFO)
    query_pool.channels = (webhook(receiver, "a secret of the receiver"), slack(receiver))
    if answer is None:
        receiver.close()
    else:
        receiver.answers = [answer]
    query_pool.tell(notice())
    query_pool.deliver()
    assert len(query_pool.rows()) == 2
    assert HUSH not in str(query_pool.rows("*")) + caplog.text + repr(query_pool.channels)
    assert "a secret of the receiver" not in repr(query_pool.channels) + caplog.text


def test_no_answer_is_told_by_its_kind(query_pool: Desk, receiver: Receiver) -> None:
    """A refused connection and a wrong certificate are mended in different places."""
    query_pool.channels = (webhook(receiver),)
    receiver.close()
    query_pool.tell(notice())
    query_pool.deliver()
    assert [("webhook", "i1", "waiting", 1, "no connection (ConnectionRefusedError)")] == query_pool.rows()


def test_what_fails_in_a_library_names_only_types() -> None:
    """The words of a library may hold an address."""
    error = httpx2.ReadError(f"no {HUSH}")
    error.__cause__ = OSError(HUSH)
    assert "the connection broke (OSError)" == posting._in_words(error)


def test_alerts_on_a_subject_keep_their_order(query_pool: Desk, receiver: Receiver) -> None:
    """That it got worse must not be told before that it is bad; another subject does not wait."""
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(503), Answer()]
    query_pool.tell(notice(1))
    query_pool.deliver()
    query_pool.wait(seconds=1)
    query_pool.tell(notice(2, "critical"), notice(3, subject="i2"))
    query_pool.deliver()
    assert ["Notice 1", "Notice 3"] == titles(receiver)
    query_pool.wait(seconds=10)
    query_pool.deliver()
    assert ["Notice 1", "Notice 3", "Notice 1", "Notice 2"] == titles(receiver)


def test_many_alerts_are_one_digest(query_pool: Desk, receiver: Receiver, other: Receiver) -> None:
    """When a fleet falls silent, one message says so, and not a thousand."""
    query_pool.channels = (webhook(receiver), slack(other))
    query_pool.tell(*(notice(number, subject=f"s{number}") for number in range(1, 131)), notice(200, "critical", "s"))
    query_pool.deliver()
    ((digest,), (message,)) = ([post.document for post in one.posts] for one in (receiver, other))
    assert ("digest", "critical", 131, 100) == (
        digest["kind"], digest["severity"], digest["count"], len(digest["alerts"])
    )  # fmt: skip
    assert "Driftline: 131 alerts" == message["text"]
    assert "and 111 more" == message["blocks"][-1]["text"]["text"]
    assert {"delivered"} == {row[2] for row in query_pool.rows()}


def test_a_digest_that_fails_is_tried_again_whole(query_pool: Desk, receiver: Receiver) -> None:
    """Under the same id, so that a receiver knows it when the answer was lost."""
    query_pool.channels = (webhook(receiver),)
    receiver.answers = [Answer(500), Answer()]
    query_pool.tell(*(notice(number, subject=f"s{number}") for number in range(9)))
    query_pool.deliver()
    query_pool.wait(seconds=10)
    query_pool.deliver()
    first, second = receiver.posts
    assert first.document["id"] == second.document["id"] == second.headers["driftline-delivery"]
    assert {("delivered", 2)} == {row[2:4] for row in query_pool.rows()}


def test_warnings_wait_for_the_morning_and_critical_alerts_do_not(query_pool: Desk, receiver: Receiver) -> None:
    """Nobody is woken for what can wait; what cannot, wakes somebody, whatever waits before it."""
    query_pool.channels, query_pool.quiet = (webhook(receiver),), quiet_hours_of("11:00-13:00")
    query_pool.tell(notice(1))
    query_pool.wait(minutes=1)
    query_pool.tell(notice(2, "critical"))
    query_pool.deliver()
    assert ["Notice 2"] == titles(receiver)
    query_pool.wait(hours=1)
    query_pool.deliver()
    assert ["Notice 2", "Notice 1"] == titles(receiver)


def test_critical_alerts_wait_too_where_that_is_wanted(query_pool: Desk, receiver: Receiver) -> None:
    """Some teams have nobody to wake."""
    query_pool.channels, query_pool.quiet, query_pool.held = (webhook(receiver),), quiet_hours_of("11:00-13:00"), "all"
    query_pool.tell(notice(2, "critical"))
    query_pool.deliver()
    assert [] == receiver.posts


def test_another_try_does_not_fall_into_quiet_hours(query_pool: Desk, receiver: Receiver) -> None:
    """A failure just before ten is no reason to ring just after."""
    query_pool.channels, query_pool.quiet = (webhook(receiver),), quiet_hours_of("12:00-13:00")
    receiver.answers = [Answer(500)]
    query_pool.wait(seconds=-2)
    query_pool.tell(notice(1))
    query_pool.deliver()
    assert [(datetime(2026, 10, 1, 13, 0),)] == query_pool.rows("not_before")  # noqa: DTZ001 - as the table has it


def test_what_was_meant_for_a_channel_that_is_gone_is_given_up(query_pool: Desk, receiver: Receiver, other: Receiver) -> None:
    """A channel that comes back next month must not tell old news."""
    query_pool.channels = (slack(other),)
    query_pool.tell(notice())
    query_pool.channels = (webhook(receiver),)
    query_pool.deliver()
    assert [("slack", "i1", "given_up", 0, "the settings name no such channel any more")] == query_pool.rows()


def test_an_incident_is_told_once_and_again_when_it_is_critical(query_pool: Desk, receiver: Receiver) -> None:
    """By looking at the incidents: none is lost to a kill between finding and telling."""
    query_pool.channels = (webhook(receiver),)
    for revision, severity in enumerate(["warning", "warning", "critical", "warning", "critical"]):
        publish(query_pool, incident(query_pool, revision=revision, severity=severity, checked_at=query_pool.now))
        query_pool.deliver()
        query_pool.deliver()
        query_pool.wait(minutes=1)
    assert ["warning", "critical"] == [post.document["severity"] for post in receiver.posts]


def test_what_raises_an_incident_itself_raises_it_under_the_same_id(query_pool: Desk, receiver: Receiver) -> None:
    """Whether it is found by looking or told at once, it is one alert."""
    query_pool.channels = (webhook(receiver),)
    publish(query_pool, incident(query_pool))
    query_pool.deliver()
    assert 0 == query_pool.tell(incident_notice(incident(query_pool)))


def test_history_and_what_people_decided_is_not_told(query_pool: Desk, receiver: Receiver) -> None:
    """A database that is filled anew from its topics tells nobody of last year."""
    query_pool.channels = (webhook(receiver),)
    publish(query_pool, incident(query_pool, detected_at=query_pool.now - timedelta(days=2)))
    publish(query_pool, incident(query_pool, incident_id="i2", status="dismissed"))
    query_pool.deliver()
    assert [] == query_pool.rows()


def test_a_suspicion_wakes_nobody_until_it_is_confirmed(query_pool: Desk, receiver: Receiver) -> None:
    """A fleet of a thousand projects suspects something every other day."""
    query_pool.channels = (webhook(receiver),)
    publish(query_pool, incident(query_pool, confidence="suspected"))
    query_pool.deliver()
    assert [] == titles(receiver)
    query_pool.wait(hours=1)
    publish(query_pool, incident(query_pool, revision=1, confirmed_at=query_pool.now, checked_at=query_pool.now))
    for _ in range(2):
        query_pool.deliver()
    assert ["Tier 2 falls"] == titles(receiver)
    assert "confirmed" == receiver.posts[0].document["details"]["confidence"]


def test_a_policy_that_wants_suspicions_is_told_of_them_and_again_once_they_are_confirmed(
    query_pool: Desk, receiver: Receiver
) -> None:
    """Whoever watches one agent closely would rather look twice."""
    query_pool.channels, query_pool.policy = (
        (webhook(receiver),),
        Policy.model_validate({"projects": {"ops": {"alertOnSuspected": True}}}),
    )
    publish(query_pool, incident(query_pool, confidence="suspected"))
    publish(query_pool, incident(query_pool, incident_id="i2", project="other", confidence="suspected"))
    query_pool.deliver()
    assert ["Suspected: Tier 2 falls"] == titles(receiver)
    query_pool.wait(hours=1)
    publish(query_pool, incident(query_pool, revision=1, confirmed_at=query_pool.now, checked_at=query_pool.now))
    for _ in range(2):
        query_pool.deliver()
    assert ["Suspected: Tier 2 falls", "Tier 2 falls"] == titles(receiver)


@pytest.mark.parametrize(("status", "told"), [("acknowledged", 1), ("resolved", 0), ("dismissed", 0)])
def test_who_has_it_is_told_that_it_is_critical_now_and_nobody_of_what_is_decided(
    query_pool: Desk, receiver: Receiver, status: str, told: int
) -> None:
    """Having taken it on as a warning, they may be doing something else."""
    query_pool.channels = (webhook(receiver),)
    publish(query_pool, incident(query_pool))
    query_pool.deliver()
    publish(query_pool, incident(query_pool, revision=1, status=status, severity="critical"))
    query_pool.deliver()
    assert 1 + told == len(receiver.posts)
