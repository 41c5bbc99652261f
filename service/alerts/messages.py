"""Messages: alerts in the form of each kind of receiver, and how they are sent.

An alert is stored as the JSON document that webhooks get. The message is made from it when it is sent, so keys and addresses are stored
nowhere. Parts of the texts come from agents, which may be hostile:

- Slack gets plain text, which it does not interpret. It interprets the notification line as mrkdwn. So `&`, `<` and `>` are escaped in it,
  which prevents links and mentions, and mentions of everybody are broken up.
- Teams gets text runs, in which Markdown has no meaning, unlike in text blocks.
- Mail is plain text, and its headers hold single lines.
- PagerDuty and Opsgenie get single lines and text, which they show as they are.

Invisible characters and those that change the direction of text are replaced by their code points everywhere.

Webhooks get JSON, signed if there is a secret. The document has a version, and fields may be added to it. In the header
`Driftline-Signature: t=SECONDS,v1=HEX`, HEX is the HMAC-SHA256, with the secret as key, of the Unix time, a full stop and the body.
A receiver verifies it and rejects old times, so that messages cannot be replayed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from functools import cache
from typing import Any, Literal

import msgspec

from audit.fingerprints import stable_id
from schemas.lazy import httpx2
from schemas.records import Alert
from service.alerts.notices import RESOLVED, Notice
from service.alerts.receivers import (
    EmailReceiver,
    OpsgenieReceiver,
    PagerDutyReceiver,
    Receiver,
    SlackReceiver,
    TeamsReceiver,
    WebhookReceiver,
)
from service.setup.settings import Secret
from service.setup.workspace import Clock
from service.text.formats import MISSING, counted, plain
from streams.judges.rate_limits import retry_after

DEADLINE_SECONDS = 10.0
"""Seconds for a request and its complete response, and for each step of a conversation with a mail server."""
MAX_RESPONSE_BYTES = 256
"""Bytes of a response that are read."""
SLACK_ERROR_PATTERN = re.compile(r"[a-z_]{1,40}")
"""Matches Slack's error codes, such as `no_service`. Other responses are not shown, because they may contain anything."""
RETRIED_STATUSES = frozenset({408, 425, 429})
"""Statuses below 500 after which an alert is retried."""
MAX_HEADER_LENGTH = 150
"""Characters in a header; Slack's limit."""
MAX_TEXT_LENGTH = 2_900
"""Characters in a section, for which Slack's limit is 3000. Teams' limit is 28 KB for the whole message."""
MAX_LINE_LENGTH = 300
MAX_DIGEST_LINES = 20
"""Alerts that a digest for people shows; further ones are counted."""
MAX_SUMMARY_LENGTH = 1024
"""Characters in the summary of an event; PagerDuty's limit."""
MAX_MESSAGE_LENGTH = 130
"""Characters in the message of an alert; Opsgenie's limit."""
SEVERITY_MARKS = {"critical": "🔴", "warning": "🟡"}
RESOLVED_MARK = "🟢"
SEVERITY_COLORS = {"critical": "attention", "warning": "warning"}
"""The colors of an Adaptive Card."""
PRIORITIES = {"critical": "P1", "warning": "P3"}
"""The priorities of Opsgenie."""
MASS_MENTIONS = re.compile(r"@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
WEBHOOK_VERSION = 1
DIGEST = "digest"
MAX_DIGEST_ALERTS = 100
"""Alerts in a webhook's digest; further ones are counted."""
ID_HEADER = "Driftline-Delivery"
SIGNATURE_HEADER = "Driftline-Signature"
MAIL_DOMAIN = "alerts.driftline"
"""The domain of the ids of mails."""
Verdict = Literal["delivered", "later", "never"]


class AlertDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of a stored alert that messages show. Alerts of earlier versions may have only a text."""

    title: str = ""
    text: str = ""
    kind: str = ""
    severity: str = "warning"
    project: str | None = None
    url: str | None = None
    created_at: str | None = None
    resolves: str | None = None
    details: dict[str, Any] = {}

    @property
    def mark(self) -> str:
        """A colored circle for the severity, or for the end."""
        return RESOLVED_MARK if self.kind == RESOLVED else SEVERITY_MARKS[self.severity]

    @property
    def origin(self) -> str:
        """The project, kind and severity, on one line."""
        return f"project {self.project}, {self.kind}, {self.severity}" if self.project else self.kind

    @property
    def line(self) -> str:
        """The alert on one line."""
        return f"{self.mark} {self.origin}: {self.title or self.text}"


@dataclass(frozen=True, slots=True)
class Message:
    """One or more alerts to send together. A receiver recognizes repetitions by the id."""

    message_id: str
    bodies: Sequence[str]
    """The stored documents, oldest first."""

    @classmethod
    def of(cls, alerts: Sequence[Alert]) -> Message:
        """Return the message for alerts: a single alert keeps its id."""
        ids = [alert.alert_id for alert in alerts]
        return cls(ids[0] if len(ids) == 1 else stable_id("alert digest", *ids), [alert.body for alert in alerts])

    @property
    def alert(self) -> AlertDocument | None:
        """The only alert; None for a digest."""
        return _decode(self.bodies[0]) if len(self.bodies) == 1 else None

    @property
    def title(self) -> str:
        """The title of a digest."""
        return f"Driftline: {counted(len(self.bodies), 'alert')}"

    @property
    def lines(self) -> list[str]:
        """The alerts of a digest, a line for each."""
        lines = [_make_line(_decode(body).line) for body in self.bodies[:MAX_DIGEST_LINES]]
        remaining = len(self.bodies) - len(lines)
        return [*lines, f"and {remaining} more"] if remaining else lines


@dataclass(frozen=True, slots=True)
class Request:
    """A message as an HTTP request."""

    url: Secret
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt to deliver a message."""

    verdict: Verdict
    reason: str | None = None
    """The reason why it was not delivered, or not to everybody."""
    retry_after: float | None = None
    """The wait in seconds that the receiver requests."""


def open_client() -> httpx2.AsyncClient:
    """Open a client that follows no redirects: messages go only to the configured address."""
    # At INFO, httpx2 logs every address it calls, and the addresses are secrets.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS, headers={"Accept-Encoding": "identity"})


async def send(client: httpx2.AsyncClient, receiver: Receiver, message: Message, now: Clock) -> Outcome:
    """Send a message once, and return the outcome."""
    if isinstance(receiver.settings, EmailReceiver):
        return await asyncio.to_thread(_send_mail, receiver, receiver.settings, build_mail(receiver.settings, message, now()))
    request = build_request(receiver, message, now())
    headers = {"Content-Type": "application/json", ID_HEADER: message.message_id, **request.headers}
    try:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            client.stream("POST", request.url.reveal(), content=request.body, headers=headers) as response,
        ):
            return _build_outcome(response, await _read_beginning(response))
    except (httpx2.HTTPError, TimeoutError) as error:
        return Outcome("later", _describe_failure(error))
    except httpx2.InvalidURL:
        return Outcome("never", "the address is not a URL")


def classify_status(status: int) -> Verdict:
    """Return whether a message with this HTTP status was delivered, and if not, whether to retry it."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in RETRIED_STATUSES or status >= 500 else "never"


async def _read_beginning(response: httpx2.Response) -> str:
    """Return the first bytes of a response as text."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk[:MAX_RESPONSE_BYTES]
        if len(body) >= MAX_RESPONSE_BYTES:
            break
    return body[:MAX_RESPONSE_BYTES].decode("ascii", "replace")


def _build_outcome(response: httpx2.Response, body: str) -> Outcome:
    verdict = classify_status(response.status_code)
    if verdict == "delivered":
        return Outcome(verdict)
    error_code = f": {body}" if SLACK_ERROR_PATTERN.fullmatch(body) else ""
    reason = f"the answer was {response.status_code}{error_code}"
    if response.is_redirect:
        reason += ", and redirects are not followed"
    return Outcome(verdict, reason, retry_after(response.headers, time.time))


def _describe_failure(error: BaseException) -> str:
    """Describe a failed request by the type of its exception only, because the message may contain the address."""
    matches = (text for error_type, text in _failure_texts() if isinstance(error, error_type))
    description = next(matches, "the call failed")
    root = error
    while True:
        cause = root.__cause__ or root.__context__
        if cause is None:
            return f"{description} ({type(root).__name__})"
        root = cause


@cache
def _failure_texts() -> tuple[tuple[type[Exception], str], ...]:
    """Return the description of each type of exception, most specific first."""
    timeout = f"no answer within {DEADLINE_SECONDS:g} s"
    return (
        (httpx2.TimeoutException, timeout),
        (TimeoutError, timeout),
        (httpx2.ConnectError, "no connection"),
        (ConnectionRefusedError, "no connection"),
        (httpx2.ProxyError, "the proxy did not forward it"),
        (httpx2.TransportError, "the connection was lost"),
    )


def build_request(receiver: Receiver, message: Message, now: datetime) -> Request:
    """Return a message as the request that the API of the receiver documents."""
    settings, key = receiver.settings, "" if receiver.key is None else receiver.key.reveal()
    alert = message.alert
    if isinstance(settings, PagerDutyReceiver) and alert is not None:
        event = {"routing_key": key, **pagerduty_event(alert, message.message_id)}
        return Request(Secret(f"{settings.base_url.rstrip('/')}/v2/enqueue"), _encode(event))
    if isinstance(settings, OpsgenieReceiver) and alert is not None:
        path, fields = opsgenie_request(alert, message.message_id)
        return Request(Secret(settings.base_url.rstrip("/") + path), _encode(fields), {"Authorization": f"GenieKey {key}"})
    if receiver.url is None:
        raise AssertionError(receiver)
    if isinstance(settings, WebhookReceiver):
        body = message.bodies[0].encode() if alert is not None else webhook_digest(message, now)
        return Request(receiver.url, body, {SIGNATURE_HEADER: signature(key, body, now)} if key else {})
    if isinstance(settings, TeamsReceiver):
        return Request(receiver.url, _encode(teams_digest(message) if alert is None else teams_message(alert)))
    if isinstance(settings, SlackReceiver):
        return Request(receiver.url, _encode(slack_digest(message) if alert is None else slack_message(alert)))
    raise AssertionError(receiver)


def webhook_body(notice: Notice, alert_id: str, url: str | None, created_at: datetime) -> str:
    """Return one alert as a JSON document."""
    return _encode(
        {
            "version": WEBHOOK_VERSION,
            "id": alert_id,
            "kind": notice.kind,
            "severity": notice.severity,
            "project": notice.project,
            "subject": notice.subject,
            "title": notice.title,
            "text": notice.text,
            "url": url,
            "createdAt": created_at.isoformat(),
            "details": notice.details,
            "resolves": notice.resolves,
        }
    ).decode()


def webhook_digest(message: Message, created_at: datetime) -> bytes:
    """Return alerts as one JSON document, oldest first."""
    severities = {_decode(body).severity for body in message.bodies}
    return _encode(
        {
            "version": WEBHOOK_VERSION,
            "id": message.message_id,
            "kind": DIGEST,
            "severity": "critical" if "critical" in severities else "warning",
            "title": message.title,
            "createdAt": created_at.isoformat(),
            "count": len(message.bodies),
            "alerts": [msgspec.json.decode(body) for body in message.bodies[:MAX_DIGEST_ALERTS]],
        }
    )


def signature(secret: str, body: bytes, at: datetime) -> str:
    """Return the value of the header Driftline-Signature."""
    seconds = int(at.timestamp())
    signed = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256)
    return f"t={seconds},v1={signed.hexdigest()}"


def slack_message(alert: AlertDocument) -> Mapping[str, Any]:
    """Return one alert as a Slack message."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain_text(f"{alert.mark} {alert.title}", MAX_HEADER_LENGTH)},
        {"type": "section", "text": _plain_text(alert.text or alert.title, MAX_TEXT_LENGTH)},
        {"type": "context", "elements": [_plain_text(alert.origin, MAX_LINE_LENGTH)]},
    ]
    if alert.url is not None:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{escape(alert.url)}|Open>", "verbatim": True}})
    return _build_slack_message(alert.line, blocks)


def slack_digest(message: Message) -> Mapping[str, Any]:
    """Return alerts as one Slack message, oldest first."""
    header = {"type": "header", "text": _plain_text(message.title, MAX_HEADER_LENGTH)}
    blocks = [{"type": "section", "text": _plain_text(line, MAX_TEXT_LENGTH)} for line in message.lines]
    return _build_slack_message(message.title, [header, *blocks])


def escape(text: str) -> str:
    """Escape a text for mrkdwn, so that it contains no link and no mention."""
    return text.translate(_ESCAPES)


def _plain_text(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _make_visible(text, limit), "emoji": False}


def _build_slack_message(line: str, blocks: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {"text": escape(_make_line(line)), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def teams_message(alert: AlertDocument) -> Mapping[str, Any]:
    """Return one alert as an Adaptive Card."""
    color = "good" if alert.kind == RESOLVED else SEVERITY_COLORS[alert.severity]
    paragraphs = _make_visible(alert.text or alert.title, MAX_TEXT_LENGTH).splitlines()
    body = [
        _text_run(_make_visible(f"{alert.mark} {alert.title}", MAX_LINE_LENGTH), weight="bolder", size="medium", color=color),
        *(_text_run(paragraph) for paragraph in paragraphs if paragraph),
        _text_run(_make_line(alert.origin), isSubtle=True),
    ]
    return _build_card(body, alert.url)


def teams_digest(message: Message) -> Mapping[str, Any]:
    """Return alerts as one Adaptive Card, oldest first."""
    return _build_card(
        [_text_run(message.title, weight="bolder", size="medium"), *(_text_run(line) for line in message.lines)], None
    )


def _text_run(text: str, **style: Any) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


def _build_card(body: list[dict[str, Any]], url: str | None) -> Mapping[str, Any]:
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
        "actions": [] if url is None else [{"type": "Action.OpenUrl", "title": "Open", "url": url}],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def pagerduty_event(alert: AlertDocument, alert_id: str) -> Mapping[str, Any]:
    """Return one alert as an event of PagerDuty's Events API v2, without the integration key.

    The key of an alert is its id, so that a repetition opens no second one, and its end closes it.
    """
    if alert.resolves is not None:
        return {"event_action": "resolve", "dedup_key": alert.resolves}
    links = {} if alert.url is None else {"client_url": alert.url, "links": [{"href": alert.url, "text": "Open in Driftline"}]}
    return {
        "event_action": "trigger",
        "dedup_key": alert_id,
        "client": "Driftline",
        **links,
        "payload": {
            "summary": _make_line(alert.title, MAX_SUMMARY_LENGTH),
            "source": alert.project or "driftline",
            "severity": alert.severity,
            "timestamp": alert.created_at,
            "class": alert.kind,
            "custom_details": {"text": _make_visible(alert.text, MAX_TEXT_LENGTH), **alert.details},
        },
    }


def opsgenie_request(alert: AlertDocument, alert_id: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path and body of a request to Opsgenie's Alert API that opens or closes one alert. Its alias is the alert's id."""
    if alert.resolves is not None:
        note = _make_visible(alert.text, MAX_TEXT_LENGTH)
        return f"/v2/alerts/{alert.resolves}/close?identifierType=alias", {"source": "Driftline", "note": note}
    return "/v2/alerts", {
        "message": _make_line(alert.title, MAX_MESSAGE_LENGTH),
        "alias": alert_id,
        "description": _make_visible(alert.text or alert.title, MAX_TEXT_LENGTH),
        "source": "Driftline",
        "entity": alert.project or "driftline",
        "priority": PRIORITIES[alert.severity],
        "tags": [alert.kind, alert.severity],
        "details": {} if alert.url is None else {"url": alert.url},
    }


def build_mail(settings: EmailReceiver, message: Message, now: datetime) -> EmailMessage:
    """Return a message as a mail. Its id stays the same in repetitions, and the mail of an end answers that of the alert."""
    mail = EmailMessage()
    alert = message.alert
    mail["Subject"] = _make_line(message.title if alert is None else f"[{alert.severity}] {alert.title or alert.text}")
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = now
    mail["Message-ID"] = f"<{message.message_id}@{MAIL_DOMAIN}>"
    mail["Auto-Submitted"] = "auto-generated"
    if alert is None:
        mail.set_content("\n".join(message.lines) + "\n")
        return mail
    if alert.resolves is not None:
        mail["In-Reply-To"] = mail["References"] = f"<{alert.resolves}@{MAIL_DOMAIN}>"
    parts = (_make_visible(alert.text or alert.title, MAX_TEXT_LENGTH), alert.url, _make_line(alert.origin))
    mail.set_content("\n\n".join(part for part in parts if part) + "\n")
    return mail


def _send_mail(receiver: Receiver, settings: EmailReceiver, mail: EmailMessage) -> Outcome:
    """Hand a mail to the server. Its answers are shown by their codes only, because they may contain anything."""
    import smtplib  # noqa: PLC0415 - most installations send no mail
    import ssl  # noqa: PLC0415 - as above

    context = ssl.create_default_context()
    try:
        with (
            smtplib.SMTP_SSL(settings.host, settings.port, timeout=DEADLINE_SECONDS, context=context)
            if settings.encryption == "tls"
            else smtplib.SMTP(settings.host, settings.port, timeout=DEADLINE_SECONDS)
        ) as server:
            if settings.encryption == "starttls":
                server.starttls(context=context)
            if settings.username is not None and receiver.key is not None:
                server.login(settings.username, receiver.key.reveal())
            refused = server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        return Outcome(_classify_reply(min(codes)), f"the server refused every recipient with {min(codes)}")
    except smtplib.SMTPResponseException as error:
        return Outcome(_classify_reply(error.smtp_code), f"the server answered {error.smtp_code} ({type(error).__name__})")
    except smtplib.SMTPNotSupportedError:
        return Outcome("never", "the server offers no STARTTLS, or no way to sign in")
    except (smtplib.SMTPException, OSError) as error:
        return Outcome("later", _describe_failure(error))
    reason = f"the server refused {len(refused)} of {len(settings.to)} recipients" if refused else None
    return Outcome("delivered", reason)


def _classify_reply(code: int) -> Verdict:
    """Return whether to retry a mail after this reply: 4xx is a temporary refusal."""
    return "never" if code >= 500 else "later"


def _decode(body: str) -> AlertDocument:
    return msgspec.json.decode(body, type=AlertDocument)


def _encode(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(document)


def _make_line(text: str, limit: int = MAX_LINE_LENGTH) -> str:
    return _make_visible(" ".join(text.split()), limit)


def _make_visible(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with invisible and direction characters replaced by their code points."""
    lines = (plain(line, limit) for line in MASS_MENTIONS.sub("@ ", text[:limit]).splitlines())
    # Slack rejects an empty text.
    visible = "\n".join(lines).strip() or MISSING
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"
