"""Receivers: who gets which alert and its end, over the APIs as documented, and a file that names no secret."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.alerting import API_KEY, ROUTING_KEY, Desk, opsgenie, pagerduty, slack, teams, webhook
from support.incident_records import open_incident, publish
from support.mail_servers import PASSWORD, USER, mail_server
from support.on_call import ACCEPTED, Opsgenie, PagerDuty, check_card
from support.receivers import Answer, Receiver

from audit.policy import Policy
from schemas.errors import PolicyError
from service.alerts.notices import Notice
from service.alerts.receivers import EmailReceiver, load_receivers
from service.alerts.receivers import Receiver as AlertReceiver
from service.setup.settings import Secret, SecretAddress, Settings, quiet_hours_of
from streams.watch.lifecycle import DISMISSED, RECOVERED, RESOLVED, resolve_automatically, set_decision

HUSH = "hush-hush"


def end(desk: Desk, **fields: object) -> None:
    """Let the incident recover."""
    ended = resolve_automatically(open_incident(desk, **fields), RECOVERED, desk.now, None)
    publish(desk, msgspec.structs.replace(ended, revision=9))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, {"warned", "critical", "judge"}),
        ({"projects": ("ops",)}, {"warned"}),
        ({"projects": ("o*", "w?b")}, {"warned", "critical"}),
        ({"alert_from": "critical"}, {"critical"}),
        ({"alert_from": "warning"}, {"warned", "quiet", "critical", "judge"}),
        ({"alert_on_suspected": True}, {"warned", "suspected", "critical", "judge"}),
        ({"projects": ("nobody-*",)}, set()),
    ],
)
def test_a_receiver_gets_the_alerts_that_it_chooses(desk: Desk, receiver: Receiver, choice: Any, expected: set[str]) -> None:
    """The team of a project is called for its project only, and at night for what is critical only."""
    desk.policy = Policy.model_validate({"projects": {"calm": {"alertFrom": "critical"}}})
    desk.receivers = (webhook(receiver, **choice),)
    publish(desk, open_incident(desk, incident_id="1", title="warned"))
    publish(desk, open_incident(desk, incident_id="2", title="suspected", confidence="suspected"))
    publish(desk, open_incident(desk, incident_id="3", title="quiet", project="calm"))
    publish(desk, open_incident(desk, incident_id="4", title="critical", project="web", severity="critical"))
    desk.tell(Notice("judge", "a model", "c", "warning", "judge", "Unreadable."))
    desk.deliver()
    assert {post.document["title"].removeprefix("Suspected: ") for post in receiver.posts} == expected


def test_the_end_of_an_incident_goes_to_each_receiver_that_had_its_alert(
    desk: Desk, receiver: Receiver, other: Receiver
) -> None:
    """Whoever was called learns that it is over, and nobody else; an on-call service closes exactly what it opened."""
    service = receiver.api = PagerDuty()
    desk.receivers = (pagerduty(receiver), slack(other, projects=("web",)))
    publish(desk, open_incident(desk))
    desk.deliver()
    publish(desk, open_incident(desk, revision=1, severity="critical"))
    desk.deliver()
    assert [payload["severity"] for payload in service.open.values()] == ["warning", "critical"]
    desk.wait(hours=1)
    end(desk)
    for _ in range(2):
        desk.deliver()
    assert (service.open, len(service.opened), len(receiver.posts)) == ({}, 2, 4)
    assert other.posts == []


@pytest.mark.parametrize("decision", [RESOLVED, DISMISSED, "new_normal"])
def test_a_decision_ends_the_alert_and_a_reopened_incident_alerts_again(desk: Desk, receiver: Receiver, decision: str) -> None:
    """The state of the on-call service follows that of the incident."""
    service = receiver.api = Opsgenie()
    desk.receivers = (opsgenie(receiver),)
    incident = open_incident(desk)
    for status in (None, decision, "open", decision):
        desk.wait(minutes=1)
        if status is not None:
            incident = msgspec.structs.replace(set_decision(incident, status, "ada", desk.now), revision=incident.revision + 1)
        publish(desk, incident)
        for _ in range(2):
            desk.deliver()
        assert len(service.open) == (status in (None, "open"))
    assert len(set(service.opened)) == len(service.opened) == 2
    assert "ada" in receiver.posts[-1].document["note"]


def test_an_alert_that_quiet_hours_hold_is_dropped_with_its_end(desk: Desk, receiver: Receiver) -> None:
    """In the morning nobody is called for what began and ended at night."""
    receiver.api = PagerDuty()
    desk.receivers, desk.quiet = (pagerduty(receiver),), quiet_hours_of("11:00-13:00")
    publish(desk, open_incident(desk))
    desk.deliver()
    desk.wait(minutes=10)
    end(desk)
    desk.deliver()
    desk.wait(hours=2)
    desk.deliver()
    assert receiver.posts == []
    assert desk.rows() == [("pagerduty", "i1", "given_up", 0, "the incident ended before it was sent")]


def test_an_alert_that_may_have_arrived_is_closed_and_not_sent_again(desk: Desk, receiver: Receiver) -> None:
    """A lost answer, or a kill before the record, leaves open whether it was opened; a late page about a past incident helps nobody."""
    service = PagerDuty()
    outcomes = [Answer(503)]

    def accept_but_fail_once(post: Any) -> Answer:
        answer = service(post)
        return outcomes.pop() if outcomes else answer

    receiver.api = accept_but_fail_once
    desk.receivers = (pagerduty(receiver),)
    publish(desk, open_incident(desk))
    desk.deliver()
    assert len(service.open) == 1
    desk.wait(seconds=1)
    end(desk)
    desk.deliver()
    assert (service.open, len(receiver.posts)) == ({}, 2)
    assert {row[2] for row in desk.rows()} == {"given_up", "delivered"}


def test_an_end_of_long_ago_is_not_told(desk: Desk, receiver: Receiver) -> None:
    """An upgrade must not report last month's incidents as over."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk))
    desk.deliver()
    ended = resolve_automatically(open_incident(desk), RECOVERED, desk.now, None)
    desk.wait(days=2)
    publish(desk, ended)
    desk.deliver()
    assert [post.document["kind"] for post in receiver.posts] == ["incident"]


def test_an_end_is_told_during_maintenance(desk: Desk, receiver: Receiver) -> None:
    """Those who were called before it began would otherwise never hear of the end."""
    desk.receivers = (webhook(receiver),)
    publish(desk, open_incident(desk))
    desk.deliver()
    window = {"from": desk.now.isoformat(), "until": (desk.now + timedelta(hours=2)).isoformat(), "reason": "move"}
    desk.policy = Policy.model_validate({"defaults": {"maintenance": (window,)}})
    desk.wait(minutes=1)
    end(desk)
    desk.deliver()
    first, last = (post.document for post in receiver.posts)
    assert (last["kind"], last["resolves"], last["details"]["resolution"]) == ("resolved", first["id"], "recovered")


def test_repetitions_open_no_second_alert(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """After a kill between delivery and record, the alert is sent again under the same key."""
    services = receiver.api, other.api = PagerDuty(), Opsgenie()
    desk.receivers = (pagerduty(receiver), opsgenie(other))
    desk.tell(Notice("incident", "i1", "c", "critical", "Tier 2 falls", "Since noon.", "ops"))
    for _ in range(2):
        desk.deliver()
        with desk.store.transaction() as transaction:
            transaction.connection.execute("UPDATE log.alerts SET status = 'waiting', settled_at = NULL")
    assert [len(service.opened) for service in services] == [1, 1]
    assert [len(one.posts) for one in (receiver, other)] == [2, 2]


def test_many_alerts_are_one_card_but_single_events(desk: Desk, receiver: Receiver, other: Receiver) -> None:
    """A channel is not flooded, while an on-call service groups by its own rules and closes each alert."""
    service = receiver.api = PagerDuty()
    other.answers = [ACCEPTED]
    desk.receivers = (pagerduty(receiver), teams(other))
    desk.tell(*(Notice("telemetry", f"s{number}", "c", "warning", f"S {number}", "Silent.", "ops") for number in range(30)))
    desk.deliver()
    assert len(service.open) == 30
    (post,) = other.posts
    texts = check_card(post.body)
    assert (texts[0], texts[-1], len(texts)) == ("Driftline: 30 alerts", "and 10 more", 22)


@pytest.mark.parametrize("answer", [None, Answer(400, body=b"hush-hush"), Answer(500), Answer(202)])
def test_a_key_is_never_stored_or_logged(
    desk: Desk, receiver: Receiver, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    """Anyone who has the key can call people at night."""
    caplog.set_level("DEBUG")
    desk.receivers = (pagerduty(receiver), opsgenie(receiver))
    if answer is None:
        receiver.close()
    else:
        receiver.answers = [answer]
    desk.tell(Notice("incident", "i1", "c", "warning", "T", "B", "ops"))
    desk.deliver()
    seen = str(desk.rows("*")) + caplog.text + repr(desk.receivers) + repr([one.answer for one in desk.receivers])
    assert HUSH not in seen


@pytest.fixture
def mail_desk(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield a desk whose receiver is a mail server, and the server."""
    with mail_server(tmp_path) as (server, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        entry = EmailReceiver(
            type="email", host="127.0.0.1", port=server.port, username=USER, key_env="PASSWORD", sender="audit@example.com",
            to=("ada@example.com", "ben@example.com"),
        )  # fmt: skip
        desk.receivers = (AlertReceiver("mail", entry, key=Secret(PASSWORD)),)
        yield desk, server


def test_mail_arrives_encrypted_and_its_end_answers_it(mail_desk: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Mail programs show both as one conversation, and drop a repetition with the same id."""
    caplog.set_level("DEBUG")
    desk, server = mail_desk
    publish(desk, open_incident(desk, title="Tier 2 falls: Größe\r\nBcc: everybody@example.com"))
    desk.deliver()
    desk.wait(hours=1)
    end(desk)
    desk.deliver()
    first, last = server.mails
    assert first["Subject"] == "[warning] Tier 2 falls: Größe Bcc: everybody@example.com"
    assert (first["To"], first["Bcc"]) == ("ada@example.com, ben@example.com", None)
    assert "https://audit.example/driftline/" in first.get_content()
    assert last["In-Reply-To"] == first["Message-ID"] != last["Message-ID"]
    assert {row[2] for row in desk.rows()} == {"delivered"}
    assert HUSH not in caplog.text


@pytest.mark.parametrize(
    ("replies", "status", "error"),
    [
        ({"ada@example.com": "550 no such user"}, "delivered", "the server refused 1 of 2 recipients"),
        ({"ada@example.com": "550 no", "ben@example.com": "550 no"}, "given_up", "the server refused every recipient with 550"),
        (
            {"ada@example.com": "450 later", "ben@example.com": "550 no"},
            "waiting",
            "the server refused every recipient with 450",
        ),
    ],
)
def test_a_refused_recipient_is_reported(mail_desk: Any, replies: dict[str, str], status: str, error: str) -> None:
    """A temporary refusal is retried, and a wrong address is named by its number only."""
    desk, server = mail_desk
    server.replies = replies
    desk.tell(Notice("incident", "i1", "c", "warning", "T", "B", "ops"))
    desk.deliver()
    assert desk.rows("status, last_error") == [(status, error)]


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"key": Secret("wrong")}, "given_up", "the server answered 535 (SMTPAuthenticationError)"),
        ({"encryption": "tls"}, "waiting", "SSLError"),
        ({"SSL_CERT_FILE": None}, "waiting", "SSLCertVerificationError"),
        ({"port": 1}, "waiting", "no connection (ConnectionRefusedError)"),
    ],
)
def test_mail_that_cannot_be_sent_says_why(
    mail_desk: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], status: str, error: str
) -> None:
    """A wrong password, an unknown certificate and a wrong port are fixed in different places."""
    desk, server = mail_desk
    (mail,) = desk.receivers
    if "SSL_CERT_FILE" in change:
        monkeypatch.delenv("SSL_CERT_FILE")
    fields = {name: value for name, value in change.items() if name in EmailReceiver.model_fields}
    desk.receivers = (AlertReceiver("mail", mail.settings.model_copy(update=fields), key=change.get("key", mail.key)),)
    desk.tell(Notice("incident", "i1", "c", "warning", "T", "B", "ops"))
    desk.deliver()
    ((actual_status, reason),) = desk.rows("status, last_error")
    assert actual_status == status
    assert error in str(reason)
    assert server.mails == []


FILE = """version: 1
receivers:
  oncall: {type: pagerduty, keyEnv: PAGER_KEY, projects: ["shop", "web-*"], alertFrom: critical}
  team: {type: teams, urlEnv: TEAMS_URL, alertOnSuspected: true}
  hook: {type: webhook, urlEnv: HOOK_URL, keyEnv: HOOK_KEY}
  mail: {type: email, host: mail.example, from: a@example.com, to: [b@example.com]}
"""
ENVIRONMENT = {
    "PAGER_KEY": f"{ROUTING_KEY}\n",
    "TEAMS_URL": "https://teams.example/hush-hush",
    "HOOK_URL": "https://hook.example/hush-hush",
    "HOOK_KEY": "hush-hush-0123456789",
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., tuple[AlertReceiver, ...]]:
    """Return a function that loads a file with an environment."""

    def load_text(text: str = FILE, **environment: str) -> tuple[AlertReceiver, ...]:
        path = tmp_path / "receivers.yaml"
        path.write_text(text)
        hook = SecretAddress("https://hooks.example/hush-hush")
        return load_receivers(Settings(alert_receivers=path, alert_slack=hook), ENVIRONMENT | environment)

    return load_text


def test_the_receivers_of_file_and_settings_are_alike(load: Callable[..., tuple[AlertReceiver, ...]]) -> None:
    """There is one mechanism; the settings are two receivers that get everything."""
    receivers = load()
    assert [(one.name, one.settings.type) for one in receivers] == [
        ("slack", "slack"), ("oncall", "pagerduty"), ("team", "teams"), ("hook", "webhook"), ("mail", "email"),
    ]  # fmt: skip
    assert receivers[1].key == Secret(ROUTING_KEY)
    assert receivers[3].url is not None
    assert HUSH not in repr(receivers)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("keyEnv: PAGER_KEY", "keyEnv: PAGER_KEY_2", ":3: receivers.oncall.keyEnv: the environment variable PAGER_KEY_2 is not set"),
        ("urlEnv: TEAMS_URL", "urlEnv: PAGER_KEY", ":4: receivers.team.urlEnv: the environment variable PAGER_KEY must be an address"),
        ("keyEnv: HOOK_KEY", "keyEnv: SHORT", ":5: receivers.hook.keyEnv: the environment variable SHORT must have 16"),
        ("urlEnv: TEAMS_URL", "urlEnv: https://teams.example/hush-hush", ":4: receivers.team.urlEnv: must be of the form"),
        ("urlEnv: TEAMS_URL", "url: https://teams.example/hush-hush", ":4: receivers.team.url: unknown field"),
        ("type: teams", "type: team", ":4: receivers.team.type: there is no type 'team'; did you mean teams?"),
        ("  team:", "  slack:", ":4: receivers.slack: is already the receiver of DRIFTLINE_ALERT_SLACK"),
        ("host: mail.example,", "host: mail.example, username: ada,", ":6: receivers.mail: username and keyEnv are needed together"),
        ("host: mail.example,", "host: mail.example, username: ada, keyEnv: K, encryption: none,", ":6: receivers.mail: encryption"),
        ("b@example.com", '"b@example.com\\r\\nBcc: c@example.com"', ":6: receivers.mail.to[0]: must be of the form"),
        ('["shop"', '["Shop"', ":3: receivers.oncall.projects[0]: must be of the form"),
        ("version: 1", "version: 2", ":1: version:"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_line_and_without_its_value(
    load: Callable[..., tuple[AlertReceiver, ...]], old: str, new: str, message: str
) -> None:
    """It is refused at the start instead of at the first incident, and the value may be a secret in the wrong place."""
    with pytest.raises(PolicyError) as refused:
        load(FILE.replace(old, new), SHORT="hush", K=API_KEY)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)
