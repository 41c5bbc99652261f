"""What is posted: the documented JSON with its signature, and messages in which hostile text means nothing."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.alerting import API_KEY, PUBLIC_URL, ROUTING_KEY, Desk, slack, webhook
from support.incident_evidence import build_count, build_incident
from support.on_call import Opsgenie, PagerDuty, check_card
from support.receivers import Post, Receiver

from service.alerts.messages import (
    AlertDocument,
    Message,
    build_mail,
    opsgenie_request,
    pagerduty_event,
    slack_digest,
    slack_message,
    teams_digest,
    teams_message,
    webhook_body,
)
from service.alerts.notices import Notice, incident_notice, silence_notice
from service.alerts.receivers import EmailReceiver
from service.read.incidents import incident_answer
from service.read.telemetry import OpenSession
from service.text.answers import document

SECRET = "a secret of the receiver"
AT = datetime(2026, 10, 1, 11, 40, tzinfo=UTC)
HOSTILE = "<!channel> @here & <https://evil.example|Open the incident> \u202egnp.exe *b*"


def session(**fields: object) -> OpenSession:
    """Return a session that has stopped."""
    values: dict[str, Any] = {
        "connection": "north",
        "session_id": "deploy-1",
        "project": "ops",
        "last_received": AT,
        "interval_ms": 300_000,
        "elapsed_ms": 960_000,
        "missed_intervals": 3,
        "status": "red",
    }
    return OpenSession(**(values | fields))


def texts_of(value: Any) -> list[dict[str, Any]]:
    """Return every text object of a message."""
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value.get("text"), str) and "type" in value else []
    return own + [text for one in value.values() for text in texts_of(one)]


def test_a_webhook_has_the_documented_fields(desk: Desk, receiver: Receiver) -> None:
    """Programs of users read them, so a renamed field would break them."""
    desk.receivers = (webhook(receiver),)
    desk.tell(silence_notice(session()))
    desk.deliver()
    ((post,), ((alert_id,),)) = receiver.posts, desk.rows("alert_id")
    assert post.headers["content-type"] == "application/json"
    document = post.document
    assert "16 min (3 missed intervals of 5 min)" in document.pop("text")
    assert document == {
        "version": 1,
        "id": alert_id,
        "kind": "telemetry",
        "severity": "critical",
        "project": "ops",
        "subject": "north/deploy-1",
        "title": "Session deploy-1 has stopped",
        "url": f"{PUBLIC_URL}api/audit/telemetry?project=ops",
        "createdAt": "2026-10-01T12:00:00+00:00",
        "resolves": None,
        "details": {
            "connection": "north",
            "sessionId": "deploy-1",
            "lastReceived": "2026-10-01T11:40:00+00:00",
            "missedIntervals": 3,
            "intervalMs": 300_000,
            "status": "red",
        },
    }


def test_a_signature_covers_the_time_and_the_body(desk: Desk, receiver: Receiver) -> None:
    """Receivers check it as the documentation says."""
    desk.receivers = (webhook(receiver, SECRET),)
    desk.tell(silence_notice(session()))
    desk.deliver()
    (post,) = receiver.posts
    fields = dict(part.split("=", 1) for part in post.headers["driftline-signature"].split(","))
    signed = f"{fields['t']}.".encode() + post.body
    assert hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest() == fields["v1"]
    assert int(desk.now.timestamp()) == int(fields["t"])


def test_without_a_secret_there_is_no_signature(desk: Desk, receiver: Receiver) -> None:
    """A signature with an empty secret would look like protection."""
    desk.receivers = (webhook(receiver), slack(receiver))
    desk.tell(silence_notice(session()))
    desk.deliver()
    assert len(receiver.posts) == 2
    assert not any("driftline-signature" in post.headers for post in receiver.posts)


def test_a_secret_written_by_an_agent_is_redacted(desk: Desk, receiver: Receiver) -> None:
    """Alerts leave the company's systems."""
    desk.receivers = (webhook(receiver), slack(receiver))
    planted = "sk-ant-api03-" + "A1b2C3d4" * 12
    desk.tell(Notice("incident", "i1", "c", "warning", f"Title {planted}", f"Text {planted}", details={"said": planted}))
    desk.deliver()
    assert len(receiver.posts) == 2
    assert not any(planted.encode() in post.body for post in receiver.posts)


def document_of(notice: Notice, url: str | None = None) -> AlertDocument:
    """Return a notice as messages are made from it."""
    return msgspec.json.decode(webhook_body(notice, "a1", url, AT), type=AlertDocument)


HOSTILE_ALERT = document_of(
    Notice("incident", "i1", "c", "critical", HOSTILE, HOSTILE, HOSTILE, "/api"), "https://audit.example/"
)


def test_hostile_text_has_no_effect_in_slack() -> None:
    """An agent must not notify everybody, or pass its link off as ours."""
    message = slack_message(HOSTILE_ALERT)
    texts = texts_of(message["blocks"])
    marked = [text for text in texts if text["type"] == "mrkdwn"]
    assert marked == [{"type": "mrkdwn", "text": "<https://audit.example/|Open>", "verbatim": True}]
    assert all(text["emoji"] is False for text in texts if text["type"] == "plain_text")
    assert not any("\u202e" in text["text"] or "@here" in text["text"] for text in texts)
    assert not {"<", ">", "\u202e"} & set(message["text"])
    assert "@here" not in message["text"]
    assert "&lt;!channel&gt;" in message["text"]


def test_hostile_text_has_no_effect_in_teams() -> None:
    """Text runs have no Markdown, so a link in them is only text; the only address to open is ours."""
    message = teams_message(HOSTILE_ALERT)
    texts = check_card(msgspec.json.encode(message))
    assert not any("\u202e" in text or "@here" in text for text in texts)
    (action,) = message["attachments"][0]["content"]["actions"]
    assert action["url"] == "https://audit.example/"


@given(title=st.text(max_size=300), text=st.text(max_size=300), newline=st.sampled_from(["\r\n", "\n", "\r", "\u2028", "\x85"]))
def test_hostile_text_adds_no_header_to_a_mail(title: str, text: str, newline: str) -> None:
    """A title with a line break must not add a recipient, and the text must not end the mail."""
    hostile = f"{title}{newline}Bcc: everybody@example.com{newline}{newline}.{newline}{text}"
    notice = Notice("incident", "i1", "c", "critical", hostile, hostile, "ops")
    entry = EmailReceiver(type="email", host="mail.example", sender="a@example.com", to=("b@example.com",))
    mail = build_mail(entry, Message("a1", [webhook_body(notice, "a1", None, AT)]), AT)
    parsed = message_from_bytes(mail.as_bytes(policy=policy.SMTP), policy=policy.default)
    assert sorted(parsed.keys()) == sorted(mail.keys())
    assert "Bcc" not in parsed
    assert parsed["To"] == "b@example.com"
    assert not {"\r", "\n"} & set(parsed["Subject"])


@given(title=st.text(max_size=500), text=st.text(max_size=8000), count=st.integers(2, 60))
def test_a_message_never_exceeds_the_limits_of_its_receiver(title: str, text: str, count: int) -> None:
    """One character too many, and the receiver rejects the alert."""
    notice = Notice("incident", "i", "c", "warning", title, text, "ops")
    alert, many = document_of(notice), Message("d", [webhook_body(notice, "a1", None, AT)] * count)
    for message in (slack_message(alert), slack_digest(many)):
        assert len(message["blocks"]) <= 50
        assert len(message["text"]) <= 3000
        for block in message["blocks"]:
            limit = 150 if block["type"] == "header" else 3000
            assert all(1 <= len(one["text"]) <= limit for one in texts_of(block))
    for card in (teams_message(alert), teams_digest(many)):
        assert check_card(msgspec.json.encode(card))
    event = msgspec.json.encode({"routing_key": ROUTING_KEY, **pagerduty_event(alert, "a1")})
    assert PagerDuty()(Post("/v2/enqueue", {}, event)).status == 202
    path, body = opsgenie_request(alert, "a1")
    assert Opsgenie()(Post(path, {"authorization": f"GenieKey {API_KEY}"}, msgspec.json.encode(body))).status == 202


def test_each_level_of_each_silence_is_its_own_notice() -> None:
    """One silence alerts once per level, and the next silence alerts again."""
    warned = session(elapsed_ms=660_000, missed_intervals=2, status="yellow")
    later = session(elapsed_ms=2_640_000, missed_intervals=8)
    next_silence = session(last_received=AT + timedelta(hours=1))
    ids = [silence_notice(one).alert_id("slack") for one in (warned, session(), later, next_silence)]
    assert len(set(ids)) == 3
    assert ids[1] == ids[2]
    assert ids[0] != silence_notice(warned).alert_id("webhook")


def test_an_alert_begins_with_the_reason() -> None:
    """It is read on a phone, so the figures of the rule come after the problem."""
    flags = [build_count("constraint_disclosure", 0, 149, 11, 32, label="flag")]
    notice = incident_notice(build_incident({"flags": flags}, description="Tier 2 fell by 0.4."))
    flagged, fell = notice.text.split("\n\n")
    assert "11 unexplained refusals in 32 exchanges" in flagged
    assert fell == "Tier 2 fell by 0.4."
    assert notice.text.startswith(notice.details["why"])
    message = slack_message(document_of(notice))
    assert any("11 unexplained refusals" in text["text"] for text in texts_of(message["blocks"]))


def test_an_alert_without_a_reason_omits_it() -> None:
    """Missing evidence is no news for a phone."""
    notice = incident_notice(build_incident({}, description="Tier 2 fell by 0.4."))
    assert notice.text == "Tier 2 fell by 0.4."
    assert notice.details["why"] is None


def test_an_alert_has_every_field_of_the_incident_except_its_evidence() -> None:
    """A field added to incidents reaches the alerted person."""
    incident = build_incident({}, description="Tier 2 fell by 0.4.")
    missing = document(incident_answer(incident)).keys() - incident_notice(incident).details.keys()
    assert missing == {"id", "project", "severity", "title", "description", "metadata"}
