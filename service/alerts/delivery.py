"""Raising and delivering alerts: each notice becomes an outbox entry per channel, and a periodic task delivers the entries.

1. Each run queries for live incidents that have no alert yet and whose project wants one. So a crash between an incident and its alert
   loses no alert.
2. A few due alerts are sent one by one. Many are sent as one digest, for example after quiet hours or when a whole fleet falls silent.
3. An alert is delivered at least once: after a crash between the delivery and its record, it is sent again with the same id.
4. A judge with unreadable answers raises one alert until its answers are readable again. A cap of a project or of the installation
   raises one alert for each day or month in which it leaves out questions. A description of a tool that changed raises one alert.
5. A failing receiver is skipped for the rest of the run, and does not delay other channels. A failed alert is retried later, or given up.
6. The addresses of channels are secrets, because anyone who knows Slack's address can post there. Error messages omit them.

Webhooks get JSON, signed if there is a secret. The document has a version, and fields may be added to it. In the header
`Driftline-Signature: t=SECONDS,v1=HEX`, HEX is the HMAC-SHA256, with the secret as key, of the Unix time, a full stop and the body.
A receiver verifies it and rejects old times, so that messages cannot be replayed.

Slack: parts of the text come from agents, which may be hostile. They are sent as plain text, which Slack does not interpret. Slack
interprets the notification line as mrkdwn. So `&`, `<` and `>` are escaped in it, which prevents links and mentions, and mentions of
everybody are broken up.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

import msgspec

from analytics.queries import query_rows
from analytics.store.store import DELIVERED, GIVEN_UP, WAITING, Outbox, Store
from audit.drift.watched_series import is_more_severe
from audit.fingerprints import stable_id
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.lazy import httpx2
from schemas.records import Alert, Incident
from service.alerts.notices import Notice, cap_notice, description_notice, incident_notice, judge_notice
from service.read.caps import SharedCap, reached_caps
from service.read.judges import UnreadableJudge, unreadable_judges
from service.setup.settings import QuietHours, Secret, Settings, quiet_hours_of
from service.setup.workspace import Clock
from service.text.formats import MISSING, counted, plain
from streams.engine.record_intake import RecordIntake
from streams.judges.rate_limits import retry_after
from streams.watch.checking import DESCRIPTION_CHANGED
from streams.watch.lifecycle import CONFIRMED

FIRST_RETRY_SECONDS = 5.0
MAX_RETRY_SECONDS = 3600.0
MAX_REQUESTED_WAIT_SECONDS = 6 * 3600.0
"""The longest wait between attempts that a receiver can request."""
MAX_ATTEMPTS = 15
"""Attempts until an alert is given up, which takes about five hours unless the receiver requests waits."""
INTERVAL_SECONDS = 5.0
MAX_INCIDENT_AGE = timedelta(days=1)
"""Older incidents raise no alert, so that importing history does not raise alerts."""
MAX_SINGLE_ALERTS = 5
"""Maximum number of due alerts that are sent one by one; more form a digest."""
Chance = Callable[[], float]
SYSTEM_CHANCE: Chance = random.SystemRandom().random
HeldSeverity = Literal["warning", "all"]
"""The alerts that are held until the end of the quiet hours: only warnings, or all."""
DEADLINE_SECONDS = 10.0
"""Seconds for a request and its complete response."""
MAX_RESPONSE_BYTES = 256
"""Bytes of a response that are read."""
SLACK_ERROR_PATTERN = re.compile(r"[a-z_]{1,40}")
"""Matches Slack's error codes, such as `no_service`. Other responses are not shown, because they may contain anything."""
RETRIED_STATUSES = frozenset({408, 425, 429})
"""Statuses below 500 after which an alert is retried."""
MAX_HEADER_LENGTH = 150
"""Characters in a header; Slack's limit."""
MAX_TEXT_LENGTH = 2_900
"""Characters in a section, for which Slack's limit is 3000."""
MAX_LINE_LENGTH = 300
MAX_DIGEST_LINES = 20
"""Alerts that a Slack digest shows; further ones are counted."""
SEVERITY_MARKS = {"critical": "🔴", "warning": "🟡"}
MASS_MENTIONS = re.compile(r"@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
WEBHOOK_VERSION = 1
DIGEST = "digest"
MAX_DIGEST_ALERTS = 100
"""Alerts in a webhook's digest; further ones are counted."""
WEBHOOK, SLACK = "webhook", "slack"
ID_HEADER = "Driftline-Delivery"
SIGNATURE_HEADER = "Driftline-Signature"
Verdict = Literal["delivered", "later", "never"]
log = logging.getLogger(__name__)


class Delivery:
    """The periodic task `alerts`. `chance` returns random numbers from 0 to 1."""

    name = "alerts"
    interval = INTERVAL_SECONDS

    def __init__(self, alerts: Alerts, chance: Chance = SYSTEM_CHANCE) -> None:
        self._alerts = alerts
        self._chance = chance
        self._judgements = 0
        """The end of the topic `judgements` at the last check of judges."""

    async def run(self) -> None:
        """Raise alerts about new incidents, then deliver due alerts."""
        if not self._alerts.channels:
            return
        await self._raise_incident_alerts()
        await self._raise_judge_alerts()
        await self._raise_description_alerts()
        due = await asyncio.to_thread(self._alerts.outbox.due, self._alerts.now())
        if not due:
            return
        await self._give_up_orphans(due)
        async with open_client() as client:
            channels = self._alerts.channels
            await asyncio.gather(
                *(
                    self._deliver(client, channel, [alert for alert in due if alert.channel == channel.name])
                    for channel in channels
                )
            )

    async def _raise_incident_alerts(self) -> None:
        now = self._alerts.now()
        incidents = await asyncio.to_thread(self._alerts.outbox.find_unalerted, now - MAX_INCIDENT_AGE, now)
        wanted = [incident for incident in incidents if self._alerts.wants(incident)]
        if not wanted:
            return
        traffic: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in await asyncio.to_thread(self._read_notices):
            traffic[row["project"]].append(row)
        await self._alerts.raise_alerts([incident_notice(incident, traffic[incident.project]) for incident in wanted])

    async def _raise_judge_alerts(self) -> None:
        end = self._alerts.store.end_of("judgements")
        if end != self._judgements:
            judges = await asyncio.to_thread(self._read_unreadable_judges)
            caps = await asyncio.to_thread(self._read_reached_caps)
            notices = [*map(judge_notice, judges), *map(cap_notice, caps)]
            await self._alerts.raise_alerts(notices)
            self._judgements = end

    async def _raise_description_alerts(self) -> None:
        since = self._alerts.now() - MAX_INCIDENT_AGE
        notices = await asyncio.to_thread(self._read_notices)
        changed = [row for row in notices if row["reason"] == DESCRIPTION_CHANGED and row["since"] >= since]
        await self._alerts.raise_alerts([description_notice(row) for row in changed])

    def _read_notices(self) -> list[dict[str, Any]]:
        with closing(self._alerts.store.cursor()) as cursor:
            return list(query_rows(cursor, "notices", {"project": None}))

    def _read_unreadable_judges(self) -> tuple[UnreadableJudge, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return unreadable_judges(cursor, None, self._alerts.now())

    def _read_reached_caps(self) -> tuple[SharedCap, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return reached_caps(cursor, self._alerts.policy, None, self._alerts.now())

    async def _give_up_orphans(self, due: Sequence[Alert]) -> None:
        """Give up the alerts of channels that are no longer configured."""
        names = {channel.name for channel in self._alerts.channels}
        orphans = [alert for alert in due if alert.channel not in names]
        if orphans:
            outcome = Outcome("never", "this channel is no longer configured")
            await asyncio.to_thread(self._record_outcome, orphans, outcome, tried=False)

    async def _deliver(self, client: httpx2.AsyncClient, channel: Channel, due: Sequence[Alert]) -> None:
        for alerts in _group_alerts(due):
            message = channel.message(alerts, self._alerts.now())
            outcome = await post(client, channel, message, self._alerts.now)
            await asyncio.to_thread(self._record_outcome, alerts, outcome)
            if outcome.verdict == "later":
                return

    def _record_outcome(self, alerts: Sequence[Alert], outcome: Outcome, *, tried: bool = True) -> None:
        """Record the outcome of an attempt to deliver alerts."""
        now = self._alerts.now()
        settled = [self._apply_outcome(alert, outcome, now, tried=tried) for alert in alerts]
        self._alerts.outbox.settle(settled)
        given_up = [alert for alert in settled if alert.status == GIVEN_UP]
        for alert in given_up[:MAX_SINGLE_ALERTS]:
            log.error("gave up on alert %s after %d attempts: %s", alert.alert_id, alert.attempts, alert.last_error)
        if len(given_up) > MAX_SINGLE_ALERTS:
            log.error("gave up on %d more alerts as well", len(given_up) - MAX_SINGLE_ALERTS)

    def _apply_outcome(self, alert: Alert, outcome: Outcome, now: datetime, *, tried: bool) -> Alert:
        attempts = alert.attempts + tried
        tried_alert = msgspec.structs.replace(alert, attempts=attempts, last_error=outcome.reason)
        if outcome.verdict == "delivered":
            return msgspec.structs.replace(tried_alert, status=DELIVERED, settled_at=now)
        if outcome.verdict == "never" or attempts >= MAX_ATTEMPTS:
            return msgspec.structs.replace(tried_alert, status=GIVEN_UP, settled_at=now)
        retry_at = now + timedelta(seconds=retry_delay(attempts, self._chance(), outcome.retry_after))
        return msgspec.structs.replace(tried_alert, not_before=self._alerts.not_before(alert.severity, retry_at))


def _group_alerts(due: Sequence[Alert]) -> Iterator[Sequence[Alert]]:
    """Group due alerts into messages."""
    if len(due) > MAX_SINGLE_ALERTS:
        yield due
    else:
        yield from ([alert] for alert in due)


def retry_delay(attempts: int, chance: float, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, given the number of attempts so far.

    The delay doubles from FIRST_RETRY_SECONDS to MAX_RETRY_SECONDS. `chance`, a random number from 0 to 1, shortens it by up to half, so
    that deliveries that failed together are not retried together. The delay is never shorter than the receiver requested.
    """
    max_delay = min(FIRST_RETRY_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), MAX_RETRY_SECONDS)
    return max(max_delay * (0.5 + chance / 2), min(retry_after or 0.0, MAX_REQUESTED_WAIT_SECONDS))


class Alerts:
    """Turns notices into entries of the outbox. Without a channel it does nothing."""

    def __init__(
        self,
        store: Store,
        channels: Sequence[Channel],
        redactor: Redactor,
        now: Clock,
        *,
        quiet: QuietHours | None = None,
        held: HeldSeverity = "warning",
        policy: Policy | None = None,
    ) -> None:
        self.channels = tuple(channels)
        self.store = store
        self.outbox = Outbox(store)
        self.now = now
        self._redactor = redactor
        self._quiet = quiet
        self._held = held
        self.policy = policy or Policy()

    async def raise_alerts(self, notices: Sequence[Notice]) -> int:
        """Add alerts to the outbox durably, and return the number of new entries. Alerts that were raised before are skipped.

        Those about a project under maintenance are not added. An incident that is still live afterwards raises its alert then.
        """
        now = self.now()
        notices = [
            notice for notice in notices if notice.project is None or self.policy.maintenance_at(notice.project, now) is None
        ]
        if not self.channels or not notices:
            return 0
        return await asyncio.to_thread(lambda: self.outbox.put(self._build_entries(notices)))

    def wants(self, incident: Incident) -> bool:
        """Return whether an incident raises an alert by the project's policy: its severity, its confidence, and no maintenance."""
        settings = self.policy.for_project(incident.project).settings
        if is_more_severe(settings.alert_from, incident.severity):
            return False
        return incident.confidence == CONFIRMED or settings.alert_on_suspected

    def not_before(self, severity: str, moment: datetime) -> datetime:
        """Return the earliest delivery time of an alert that is due at a moment: that moment, or the end of the quiet hours."""
        if self._quiet is None or (self._held == "warning" and severity == "critical"):
            return moment
        return self._quiet.over(moment)

    def _build_entries(self, notices: Sequence[Notice]) -> list[Alert]:
        now = self.now()
        clean = [self._redact(notice) for notice in notices]
        return [self._build_entry(notice, channel, now) for notice in clean for channel in self.channels]

    def _redact(self, notice: Notice) -> Notice:
        """Redact the secrets in a notice, because its texts come from agents and leave the installation."""
        (title, text), _ = self._redactor.redact_json([notice.title, notice.text])
        details, _ = self._redactor.redact_json(dict(notice.details))
        return replace(notice, title=title, text=text, details=details)

    def _build_entry(self, notice: Notice, channel: Channel, now: datetime) -> Alert:
        return Alert(
            alert_id=notice.alert_id(channel.name),
            channel=channel.name,
            kind=notice.kind,
            subject_id=notice.subject,
            project=notice.project,
            severity=notice.severity,
            body=channel.body(notice, now),
            created_at=now,
            not_before=self.not_before(notice.severity, now),
            attempts=0,
            status=WAITING,
        )


def open_alerts(engine: RecordIntake, settings: Settings) -> Alerts:
    """Open the alerts of an engine's store with the channels from the settings."""
    quiet = None if settings.quiet_hours is None else quiet_hours_of(settings.quiet_hours)
    channels = configured_channels(settings)
    return Alerts(
        engine.store, channels, engine.redactor, engine.now, quiet=quiet, held=settings.quiet_for, policy=engine.policy
    )


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to post: its id, by which a receiver recognises duplicates, and its JSON body."""

    message_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A receiver of alerts. `url` and `secret` are never shown."""

    name: str
    url: Secret
    secret: Secret | None = None
    public_url: str | None = None
    """The server's address for people, used in links."""

    def body(self, notice: Notice, now: datetime) -> str:
        """Return the notice in the channel's format."""
        url = None if self.public_url is None or notice.path is None else self.public_url.rstrip("/") + notice.path
        if self.name == SLACK:
            return slack_body(notice, url)
        return webhook_body(notice, notice.alert_id(self.name), url, now)

    def message(self, alerts: Sequence[Alert], now: datetime) -> OutgoingMessage:
        """Return the message for alerts: a single alert unchanged, several as a digest."""
        if len(alerts) == 1:
            return OutgoingMessage(alerts[0].alert_id, alerts[0].body)
        title = f"Driftline: {counted(len(alerts), 'alert')}"
        digest_id = stable_id("alert digest", *(alert.alert_id for alert in alerts))
        if self.name == SLACK:
            return OutgoingMessage(digest_id, slack_digest(alerts, title))
        return OutgoingMessage(digest_id, webhook_digest(alerts, digest_id, title, now))

    def headers(self, message: OutgoingMessage, now: datetime) -> Mapping[str, str]:
        """Return the headers of a message: its id, and a signature if there is a secret."""
        headers = {"Content-Type": "application/json", ID_HEADER: message.message_id}
        if self.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self.secret.reveal(), message.body.encode(), now)
        return headers


def configured_channels(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels in the settings."""
    channels: list[Channel] = []
    if settings.alert_webhook is not None:
        channels.append(Channel(WEBHOOK, settings.alert_webhook, settings.alert_secret, settings.public_url))
    if settings.alert_slack is not None:
        channels.append(Channel(SLACK, settings.alert_slack, None, settings.public_url))
    return tuple(channels)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt to deliver a message."""

    verdict: Verdict
    reason: str | None = None
    """The reason why it was not delivered."""
    retry_after: float | None = None
    """The wait in seconds that the receiver requests."""


def classify_status(status: int) -> Verdict:
    """Return whether a message with this HTTP status was delivered, and if not, whether to retry it."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in RETRIED_STATUSES or status >= 500 else "never"


def open_client() -> httpx2.AsyncClient:
    """Open a client that follows no redirects: messages go only to the address in the settings."""
    # At INFO, httpx2 logs every address it calls, and the addresses are secrets.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS, headers={"Accept-Encoding": "identity"})


async def post(client: httpx2.AsyncClient, channel: Channel, message: OutgoingMessage, now: Clock) -> Outcome:
    """Post a message once, and return the outcome."""
    url, content, headers = channel.url.reveal(), message.body.encode(), channel.headers(message, now())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), client.stream("POST", url, content=content, headers=headers) as response:
            return _build_outcome(response, await _read_beginning(response))
    except (httpx2.HTTPError, TimeoutError) as error:
        return Outcome("later", _describe_failure(error))
    except httpx2.InvalidURL:
        return Outcome("never", "the address is not a URL")


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
        (httpx2.ProxyError, "the proxy did not forward it"),
        (httpx2.TransportError, "the connection was lost"),
    )


def webhook_body(notice: Notice, alert_id: str, url: str | None, created_at: datetime) -> str:
    """Return one alert as a JSON document."""
    return _encode_json(
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
        }
    )


def webhook_digest(alerts: Sequence[Alert], digest_id: str, title: str, created_at: datetime) -> str:
    """Return alerts as one JSON document, oldest first."""
    severities = {alert.severity for alert in alerts}
    return _encode_json(
        {
            "version": WEBHOOK_VERSION,
            "id": digest_id,
            "kind": DIGEST,
            "severity": "critical" if "critical" in severities else "warning",
            "title": title,
            "createdAt": created_at.isoformat(),
            "count": len(alerts),
            "alerts": [msgspec.json.decode(alert.body) for alert in alerts[:MAX_DIGEST_ALERTS]],
        }
    )


def signature(secret: str, body: bytes, at: datetime) -> str:
    """Return the value of the header Driftline-Signature."""
    seconds = int(at.timestamp())
    signed = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256)
    return f"t={seconds},v1={signed.hexdigest()}"


def _encode_json(document: Mapping[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


def slack_body(notice: Notice, url: str | None) -> str:
    """Return one alert as a Slack message."""
    context = f"project {notice.project}, {notice.kind}, {notice.severity}" if notice.project else notice.kind
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain_text(f"{SEVERITY_MARKS[notice.severity]} {notice.title}", MAX_HEADER_LENGTH)},
        {"type": "section", "text": _plain_text(notice.text or notice.title, MAX_TEXT_LENGTH)},
        {"type": "context", "elements": [_plain_text(context, MAX_LINE_LENGTH)]},
    ]
    if url is not None:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{escape(url)}|Open>", "verbatim": True}})
    return _build_slack_message(f"{SEVERITY_MARKS[notice.severity]} {context}: {notice.title}", blocks)


def slack_digest(alerts: Sequence[Alert], title: str) -> str:
    """Return alerts as one Slack message, oldest first."""
    lines = [msgspec.json.decode(alert.body)["text"] for alert in alerts[:MAX_DIGEST_LINES]]
    remaining = len(alerts) - len(lines)
    if remaining:
        lines.append(f"and {remaining} more")
    header = {"type": "header", "text": _plain_text(title, MAX_HEADER_LENGTH)}
    # The lines were escaped when the alerts were raised.
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": line, "verbatim": True}} for line in lines]
    return _build_slack_message(title, [header, *blocks])


def escape(text: str) -> str:
    """Escape a text for mrkdwn, so that it contains no link and no mention."""
    return text.translate(_ESCAPES)


def _plain_text(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _make_visible(text, limit), "emoji": False}


def _make_visible(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with invisible and direction characters replaced by their code points."""
    lines = (plain(line, limit) for line in MASS_MENTIONS.sub("@ ", text[:limit]).splitlines())
    # Slack rejects an empty text.
    visible = "\n".join(lines).strip() or MISSING
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def _build_slack_message(line: str, blocks: list[dict[str, Any]]) -> str:
    text = escape(_make_visible(line.replace("\n", " "), MAX_LINE_LENGTH))
    return msgspec.json.encode({"text": text, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}).decode()
