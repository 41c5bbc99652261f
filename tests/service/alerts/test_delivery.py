"""The outbox and its delivery: once, in order, again after a failure, and never with an address in what is kept."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import httpx2
import msgspec
import pytest
from support.alerting import Desk, slack, webhook
from support.builders import judgement
from support.incident_records import open_incident, publish
from support.receivers import Answer, Receiver

from audit.policy import CostCaps, Policy, ProjectSettings
from schemas.codec.single_object import encode
from schemas.records import Notice as CheckNotice
from schemas.records import ProjectCheck
from service.alerts import messages as posting
from service.alerts.delivery import MAX_ATTEMPTS
from service.alerts.notices import Notice, incident_notice
from service.setup.settings import quiet_hours_of
from streams.judges.rate_limits import MAX_UNREADABLE

HUSH = "hush-hush"


def notice(number: int = 1, severity: str = "warning", subject: str = "i1", **fields: object) -> Notice:
    """Return a notice with a distinct number."""
    values = {"title": f"Notice {number}", "text": "Something happened.", "project": "ops"} | fields
    return Notice("incident", subject, f"cause {number}", severity, **values)  # type: ignore[arg-type]


def titles(receiver: Receiver) -> list[str]:
    """Return the titles of the received alerts."""
    return [post.document["title"] for post in receiver.posts]


def test_an_alert_is_delivered_once(desk: Desk, receiver: Receiver) -> None:
    """Nobody may be paged twice for one incident."""
    desk.receivers = (webhook(receiver),)
    assert desk.tell(notice()) == 1
    for _ in range(3):
        desk.deliver()
        desk.wait(hours=1)
    assert titles(receiver) == ["Notice 1"]
    assert desk.rows() == [("webhook", "i1", "delivered", 1, None)]


def test_raising_again_or_after_a_restart_changes_nothing(desk: Desk, receiver: Receiver) -> None:
    """A repeated check, or a restarted process, raises no second alert."""
    desk.receivers = (webhook(receiver),)
    assert [desk.tell(notice(), notice()), desk.tell(notice())] == [1, 0]
    desk.deliver()
    desk.wait(days=1)
    assert [desk.tell(notice()), desk.tell(notice(2))] == [0, 1]


def test_every_channel_gets_the_alert(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """A channel that is down delays no other."""
    desk.receivers = (webhook(receiver), slack(other))
    receiver.answers = [Answer(503)]
    desk.tell(notice())
    desk.deliver()
    rows = [("slack", "i1", "delivered", 1, None), ("webhook", "i1", "waiting", 1, "the answer was 503")]
    assert rows == sorted(desk.rows())


def test_without_a_channel_no_alert_is_queued(desk: Desk) -> None:
    """Queued alerts would otherwise go to the first channel that is configured later."""
    publish(desk, open_incident(desk))
    assert desk.tell(notice()) == 0
    desk.deliver()
    assert desk.rows() == []


def test_a_failed_delivery_is_retried_with_growing_pauses(desk: Desk, receiver: Receiver) -> None:
    """A receiver that comes back gets the alerts it missed."""
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(500), Answer(429, {"retry-after": "120"}), Answer(200)]
    desk.tell(notice())
    attempt_times = []
    for _ in range(3):
        desk.deliver()
        ((status, waits),) = desk.store.cursor().execute("SELECT status, not_before FROM log.alerts").fetchall()
        attempt_times.append((status, waits - desk.now.replace(tzinfo=None)))
        desk.deliver()
        desk.now = waits.replace(tzinfo=desk.now.tzinfo)
    assert attempt_times[:2] == [("waiting", timedelta(seconds=5)), ("waiting", timedelta(seconds=120))]
    assert attempt_times[2][0] == "delivered"
    assert len(receiver.posts) == 3
    assert len({post.headers["driftline-delivery"] for post in receiver.posts}) == 1


def test_a_refused_alert_is_abandoned_with_its_reason(desk: Desk, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """A retry would not help, so the log and the list give the reason."""
    desk.receivers = (slack(receiver),)
    receiver.answers = [Answer(404, body=b"no_service")]
    desk.tell(notice())
    desk.deliver()
    assert desk.rows() == [("slack", "i1", "given_up", 1, "the answer was 404: no_service")]
    assert "gave up on alert" in caplog.text
    assert "404: no_service" in caplog.text


def test_an_alert_that_fails_for_hours_is_abandoned(desk: Desk, receiver: Receiver) -> None:
    """Otherwise the outbox would deliver old news for weeks."""
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(500)]
    desk.tell(notice())
    for _ in range(MAX_ATTEMPTS + 3):
        desk.deliver()
        desk.wait(hours=1)
    assert desk.rows() == [("webhook", "i1", "given_up", MAX_ATTEMPTS, "the answer was 500")]
    assert len(receiver.posts) == MAX_ATTEMPTS


def test_a_redirect_is_not_followed(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """An alert goes to the configured address only."""
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(307, {"location": other.url})]
    desk.tell(notice())
    desk.deliver()
    assert other.posts == []
    assert desk.rows("channel, subject_id, status, attempts") == [("webhook", "i1", "given_up", 1)]
    ((error,),) = desk.rows("last_error")
    assert "307" in str(error)


def test_a_receiver_that_never_answers_costs_one_deadline(
    desk: Desk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run delivers the other alerts, and this one waits."""
    monkeypatch.setattr(posting, "DEADLINE_SECONDS", 0.05)
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(hangs=True)]
    desk.tell(notice(1, subject="a"), notice(2, subject="b"))
    desk.deliver()
    assert sorted(row[3] for row in desk.rows()) == [0, 1]  # type: ignore[type-var]


@pytest.mark.parametrize("answer", [Answer(500), Answer(404, body=b"http://127.0.0.1/hush-hush"), Answer(200), None])
def test_an_address_is_never_stored_or_logged(
    desk: Desk, receiver: Receiver, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    """Anyone who knows Slack's address can post there."""
    caplog.set_level(logging.INFO)
    desk.receivers = (webhook(receiver, "a secret of the receiver"), slack(receiver))
    if answer is None:
        receiver.close()
    else:
        receiver.answers = [answer]
    desk.tell(notice())
    desk.deliver()
    assert len(desk.rows()) == 2
    assert HUSH not in str(desk.rows("*")) + caplog.text + repr(desk.receivers)
    assert "a secret of the receiver" not in repr(desk.receivers) + caplog.text


def test_a_connection_error_is_reported_by_its_kind(desk: Desk, receiver: Receiver) -> None:
    """A refused connection and a wrong certificate are fixed in different places."""
    desk.receivers = (webhook(receiver),)
    receiver.close()
    desk.tell(notice())
    desk.deliver()
    assert desk.rows() == [("webhook", "i1", "waiting", 1, "no connection (ConnectionRefusedError)")]


def test_an_unexpected_library_error_is_reported_by_its_type() -> None:
    """The message of a library may contain an address."""
    error = httpx2.ReadError(f"no {HUSH}")
    error.__cause__ = OSError(HUSH)
    assert posting._describe_failure(error) == "the connection was lost (OSError)"


def test_alerts_about_a_subject_keep_their_order(desk: Desk, receiver: Receiver) -> None:
    """An escalation must not precede the first alert, but other subjects need not wait."""
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(503), Answer()]
    desk.tell(notice(1))
    desk.deliver()
    desk.wait(seconds=1)
    desk.tell(notice(2, "critical"), notice(3, subject="i2"))
    desk.deliver()
    assert titles(receiver) == ["Notice 1", "Notice 3"]
    desk.wait(seconds=10)
    desk.deliver()
    assert titles(receiver) == ["Notice 1", "Notice 3", "Notice 1", "Notice 2"]


def test_many_alerts_are_one_digest(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """If a whole fleet falls silent, one message says so instead of a thousand."""
    desk.receivers = (webhook(receiver), slack(other))
    desk.tell(*(notice(number, subject=f"s{number}") for number in range(1, 131)), notice(200, "critical", "s"))
    desk.deliver()
    ((digest,), (message,)) = ([post.document for post in one.posts] for one in (receiver, other))
    assert digest["kind"] == "digest"
    assert digest["severity"] == "critical"
    assert digest["count"] == 131
    assert len(digest["alerts"]) == 100
    assert message["text"] == "Driftline: 131 alerts"
    assert message["blocks"][-1]["text"]["text"] == "and 111 more"
    assert {row[2] for row in desk.rows()} == {"delivered"}


def test_a_failed_digest_is_retried_as_a_unit(desk: Desk, receiver: Receiver) -> None:
    """It keeps its id, so that a receiver recognises it if only the answer was lost."""
    desk.receivers = (webhook(receiver),)
    receiver.answers = [Answer(500), Answer()]
    desk.tell(*(notice(number, subject=f"s{number}") for number in range(9)))
    desk.deliver()
    desk.wait(seconds=10)
    desk.deliver()
    first, second = receiver.posts
    assert first.document["id"] == second.document["id"] == second.headers["driftline-delivery"]
    assert {row[2:4] for row in desk.rows()} == {("delivered", 2)}


def test_warnings_wait_for_the_morning_and_critical_alerts_do_not(desk: Desk, receiver: Receiver) -> None:
    """Nobody is paged at night for a warning, and a critical alert does not wait for the warnings before it."""
    desk.receivers, desk.quiet = (webhook(receiver),), quiet_hours_of("11:00-13:00")
    desk.tell(notice(1))
    desk.wait(minutes=1)
    desk.tell(notice(2, "critical"))
    desk.deliver()
    assert titles(receiver) == ["Notice 2"]
    desk.wait(hours=1)
    desk.deliver()
    assert titles(receiver) == ["Notice 2", "Notice 1"]


def test_critical_alerts_can_be_set_to_wait_too(desk: Desk, receiver: Receiver) -> None:
    """Some teams have nobody on call."""
    desk.receivers, desk.quiet, desk.held = (webhook(receiver),), quiet_hours_of("11:00-13:00"), "all"
    desk.tell(notice(2, "critical"))
    desk.deliver()
    assert receiver.posts == []


def test_a_retry_does_not_fall_into_quiet_hours(desk: Desk, receiver: Receiver) -> None:
    """A failure just before ten must not page anybody just after ten."""
    desk.receivers, desk.quiet = (webhook(receiver),), quiet_hours_of("12:00-13:00")
    receiver.answers = [Answer(500)]
    desk.wait(seconds=-2)
    desk.tell(notice(1))
    desk.deliver()
    assert desk.rows("not_before") == [(datetime(2026, 10, 1, 13, 0),)]  # noqa: DTZ001 - as the table has it


def test_alerts_for_a_removed_channel_are_abandoned(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """A channel that is configured again next month must not deliver old news."""
    desk.receivers = (slack(other),)
    desk.tell(notice())
    desk.receivers = (webhook(receiver),)
    desk.deliver()
    assert desk.rows() == [("slack", "i1", "given_up", 0, "this receiver is no longer configured")]


def test_an_incident_alerts_once_and_again_when_it_becomes_critical(desk: Desk, receiver: Receiver) -> None:
    """Alerts are derived from the incidents, so a kill between finding and alerting loses none."""
    desk.receivers = (webhook(receiver),)
    for revision, severity in enumerate(["warning", "warning", "critical", "warning", "critical"]):
        publish(desk, open_incident(desk, revision=revision, severity=severity, checked_at=desk.now))
        desk.deliver()
        desk.deliver()
        desk.wait(minutes=1)
    assert [post.document["severity"] for post in receiver.posts] == ["warning", "critical"]


def test_an_incident_alerts_with_the_changes_of_the_traffic(desk: Desk, receiver: Receiver) -> None:
    """A fall while the mix of agents changes reads otherwise than one alone, and nobody should have to look that up at night."""
    desk.receivers = (webhook(receiver),)
    shares = CheckNotice(
        reason="mix_changed", subject="checkout", since=desk.now - timedelta(hours=2), before=0.2, after=0.7, count=96
    )
    check = {"project": "ops", "checked_at": desk.now, "days": 14, "baseline_days": 14, "exchanges": 0, "findings": 0}
    with desk.store.transaction() as transaction:
        transaction.set_checks([ProjectCheck(**check, notices=(shares,))])
    publish(desk, open_incident(desk))
    desk.deliver()
    assert "The mix of agents changed on 2026-10-01: checkout 20% → 70%" in receiver.posts[0].document["text"]


def test_an_alert_raised_directly_has_the_same_id(desk: Desk, receiver: Receiver) -> None:
    """Whether it is derived or raised at once, it is one alert."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk))
    desk.deliver()
    assert desk.tell(incident_notice(open_incident(desk))) == 0


def test_history_and_decided_incidents_do_not_alert(desk: Desk, receiver: Receiver) -> None:
    """Rebuilding a database from its topics must not alert anybody about last year."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk, detected_at=desk.now - timedelta(days=2)))
    publish(desk, open_incident(desk, incident_id="i2", status="dismissed"))
    desk.deliver()
    assert desk.rows() == []


def test_a_suspicion_alerts_nobody_until_it_is_confirmed(desk: Desk, receiver: Receiver) -> None:
    """A fleet of a thousand projects has a suspicion every other day."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk, confidence="suspected"))
    desk.deliver()
    assert titles(receiver) == []
    desk.wait(hours=1)
    publish(desk, open_incident(desk, revision=1, confirmed_at=desk.now, checked_at=desk.now))
    for _ in range(2):
        desk.deliver()
    assert titles(receiver) == ["Tier 2 falls"]
    assert receiver.posts[0].document["details"]["confidence"] == "confirmed"


def test_a_policy_may_enable_alerts_on_suspicions(desk: Desk, receiver: Receiver) -> None:
    """A team that watches one agent closely prefers to look twice."""
    desk.receivers, desk.policy = (
        (webhook(receiver),),
        Policy.model_validate({"projects": {"ops": {"alertOnSuspected": True}}}),
    )
    publish(desk, open_incident(desk, confidence="suspected"))
    publish(desk, open_incident(desk, incident_id="i2", project="other", confidence="suspected"))
    desk.deliver()
    assert titles(receiver) == ["Suspected: Tier 2 falls"]
    desk.wait(hours=1)
    publish(desk, open_incident(desk, revision=1, confirmed_at=desk.now, checked_at=desk.now))
    for _ in range(2):
        desk.deliver()
    assert titles(receiver) == ["Suspected: Tier 2 falls", "Tier 2 falls"]


def test_maintenance_holds_alerts_until_its_end_and_a_project_chooses_their_lowest_severity(
    desk: Desk, receiver: Receiver
) -> None:
    """Nobody is woken by an expected change, but one that outlasts the maintenance is told; and warnings may stay in the list."""
    window = {"from": desk.now.isoformat(), "until": (desk.now + timedelta(hours=2)).isoformat(), "reason": "move"}
    desk.receivers = (webhook(receiver),)
    desk.policy = Policy.model_validate(
        {"defaults": {"maintenance": (window,)}, "projects": {"ops": {"maintenance": ()}, "web": {"alertFrom": "critical"}}}
    )
    publish(desk, open_incident(desk, severity="warning"))
    publish(desk, open_incident(desk, incident_id="i2", project="web", severity="warning"))
    desk.deliver()
    desk.wait(hours=1)
    desk.deliver()
    assert titles(receiver) == []
    desk.wait(hours=1)
    for _ in range(2):
        desk.deliver()
    assert titles(receiver) == ["Tier 2 falls"]
    publish(desk, open_incident(desk, incident_id="i2", project="web", revision=1, severity="critical"))
    desk.deliver()
    assert titles(receiver) == ["Tier 2 falls"] * 2


@pytest.mark.parametrize(("status", "told"), [("acknowledged", 1), ("resolved", 0), ("dismissed", 0)])
def test_the_assignee_is_alerted_of_an_escalation_and_nobody_of_a_decision(
    desk: Desk, receiver: Receiver, status: str, told: int
) -> None:
    """A person who acknowledged a warning may have left it for later."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk))
    desk.deliver()
    publish(desk, open_incident(desk, revision=1, status=status, severity="critical"))
    desk.deliver()
    assert len(receiver.posts) == 1 + told


def judge_calls(desk: Desk, *outcomes: str) -> None:
    """Append judgements with these outcomes, one second apart."""
    records = []
    for outcome in outcomes:
        desk.wait(seconds=1)
        error = None if outcome == "answered" else f"the answer cannot be used: {HUSH}"
        records.append(judgement("s", desk.now.second, outcome=outcome, error=error, judged_at=desk.now))
        records[-1] = msgspec.structs.replace(records[-1], judgement_id=desk.now.isoformat())
    with desk.store.transaction() as transaction:
        transaction.append("judgements", [encode(record) for record in records])


def test_an_unreadable_judge_alerts_once_until_it_answers(desk: Desk, receiver: Receiver) -> None:
    """Questions wait meanwhile, so somebody has to fix the model, but needs one alert only."""
    desk.receivers = (webhook(receiver),)
    judge_calls(desk, *["invalid"] * (MAX_UNREADABLE - 1))
    desk.deliver()
    assert titles(receiver) == []
    for _ in range(3):
        judge_calls(desk, "invalid")
        desk.deliver()
        desk.wait(hours=20)
    (post,) = receiver.posts
    assert post.document["kind"] == "judge"
    assert post.document["severity"] == "warning"
    assert post.document["subject"] == "claude-haiku-4-5"
    assert post.document["project"] is None
    assert post.document["details"]["questions"] == MAX_UNREADABLE
    judge_calls(desk, "answered", *["invalid"] * MAX_UNREADABLE)
    desk.deliver()
    assert len(receiver.posts) == 2


def test_a_reached_cap_alerts_once_a_day(desk: Desk, receiver: Receiver) -> None:
    """Somebody has to know that exchanges are left out, but not for each of them."""
    desk.receivers = (webhook(receiver),)
    desk.policy = Policy(projects={"ops": ProjectSettings(cost_caps=CostCaps(day=1.0))})
    for _ in range(3):
        judge_calls(desk, "project_day_cap")
        desk.deliver()
    (post,) = receiver.posts
    assert post.document["kind"] == "cost_cap"
    assert post.document["project"] == "ops"
    assert post.document["details"]["period"] == f"{desk.now:%Y-%m-%d}"
    desk.wait(days=1)
    judge_calls(desk, "project_day_cap")
    desk.deliver()
    assert len(receiver.posts) == 2


def test_another_description_of_a_tool_alerts_once(desk: Desk, receiver: Receiver) -> None:
    """Whoever runs the tool's server may have written it, and each check finds it again; old history alerts nobody."""
    desk.receivers = (webhook(receiver),)
    values = {"reason": "description_changed", "before": 40.0, "after": 2.0, "count": 1}
    changed = CheckNotice(subject="search of checkout", since=desk.now - timedelta(hours=2), **values)
    old = CheckNotice(subject="refund of checkout", since=desk.now - timedelta(days=9), **values)
    for after in (2.0, 3.0):
        notices = (msgspec.structs.replace(changed, after=after), old)
        with desk.store.transaction() as transaction:
            check = {"project": "ops", "checked_at": desk.now, "days": 14, "baseline_days": 14, "exchanges": 0, "findings": 0}
            transaction.set_checks([ProjectCheck(**check, notices=notices)])
        desk.deliver()
        desk.wait(minutes=5)
    (post,) = receiver.posts
    assert (post.document["kind"], post.document["project"]) == ("tool", "ops")
    assert post.document["details"]["tools"] == "search of checkout"
