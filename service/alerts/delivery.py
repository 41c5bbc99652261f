"""Raising and delivering alerts: a notice becomes one entry of the outbox per channel; a periodic task raises and posts alerts.

1. Each run queries for live incidents that have no alert yet and whose project wants one, so a kill between incident and alert
   loses none.
2. A few due alerts are sent one by one; many are sent as one digest, for instance after quiet hours or when a whole fleet falls silent.
3. An alert is delivered at least once: after a kill between the post and its record, it is sent again under the same id.
4. A judge whose answers cannot be read raises one alert until it answers again.
5. A failing receiver is skipped for the rest of the run and delays no other channel. A failed alert is retried later, or given up.
6. Addresses of channels are secrets: anyone who knows Slack's can post there. Error messages omit them.

Webhooks send JSON, signed if there is a secret; the form has a version, and fields may be added to it.
`Driftline-Signature: t=SECONDS,v1=HEX`: HEX is the HMAC-SHA256, by the secret, of the seconds since 1970, a full stop and the body.
A receiver verifies it and refuses old times, so that messages cannot be replayed.

Slack: parts of the text come from agents, which may be hostile. They are sent as plain text, in which Slack interprets nothing. The
notification line is interpreted as mrkdwn, so `&`, `<` and `>` are escaped, which leaves no links or mentions, and mentions of
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

import msgspec

from analytics.store.store import DELIVERED, GIVEN_UP, WAITING, Outbox, Store
from audit.fingerprints import stable_id
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.lazy import httpx2
from schemas.records import Alert, Incident
from service.alerts.notices import Notice, incident_notice, judge_notice
from service.read.judges import UnreadableJudge, unreadable_judges
from service.setup.settings import QuietHours, Secret, Settings, quiet_hours_of
from service.setup.workspace import Clock
from service.text.formats import MISSING, counted, plain
from streams.engine.record_intake import RecordIntake
from streams.judges.rate_limits import retry_after
from streams.watch.lifecycle import CONFIRMED

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 3600.0
LONGEST_WAIT_SECONDS = 6 * 3600.0
"""The longest wait that a receiver can request."""
MOST_ATTEMPTS = 15
"""Attempts before an alert is given up: over about five hours, unless the receiver asks for pauses."""
INTERVAL_SECONDS = 5.0
RECENT = timedelta(days=1)
"""Older incidents raise no alert, so that refilling a database does not raise alerts about history."""
MOST_SINGLE = 5
"""Maximum number of due alerts that are sent one by one; more form a digest."""
Chance = Callable[[], float]
SYSTEM_CHANCE: Chance = random.SystemRandom().random
Held = Literal["warning", "all"]
"""Alerts held until the end of the quiet hours: only warnings, or all."""
DEADLINE_SECONDS = 10.0
"""Seconds for the receiver's whole answer."""
MOST_READ = 256
"""Bytes of an answer that are read."""
SLACK_WORD = re.compile(r"[a-z_]{1,40}")
"""Matches Slack's one-word answers, such as `no_service`; other answers are not repeated."""
RETRIED_STATUSES = frozenset({408, 425, 429})
"""Statuses below 500 after which the call may be retried."""
MAX_HEADER = 150
"""Characters that Slack takes in a header."""
MAX_TEXT = 2_900
"""Of the 3000 that Slack takes in a section."""
MAX_LINE = 300
MOST_LINES = 20
"""Alerts that a digest shows; it counts them all."""
SEVERITY_MARKS = {"critical": "🔴", "warning": "🟡"}
MASS_MENTIONS = re.compile(r"@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
WEBHOOK_VERSION = 1
DIGEST = "digest"
MOST_IN_DIGEST = 100
"""Alerts that a digest holds in full; it counts them all."""
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
        await self._tell_of_incidents()
        await self._tell_of_judges()
        due = await asyncio.to_thread(self._alerts.outbox.due, self._alerts.now())
        if not due:
            return
        await self._give_up_orphans(due)
        async with open_client() as client:
            channels = self._alerts.channels
            await asyncio.gather(
                *(self._deliver(client, channel, [a for a in due if a.channel == channel.name]) for channel in channels)
            )

    async def _tell_of_incidents(self) -> None:
        since = self._alerts.now() - RECENT
        incidents = await asyncio.to_thread(self._alerts.outbox.find_unalerted, since)
        await self._alerts.raise_alerts([incident_notice(incident) for incident in incidents if self._alerts.wants(incident)])

    async def _tell_of_judges(self) -> None:
        end = self._alerts.store.end_of("judgements")
        if end != self._judgements:
            await self._alerts.raise_alerts([judge_notice(judge) for judge in await asyncio.to_thread(self._unreadable_judges)])
            self._judgements = end

    def _unreadable_judges(self) -> tuple[UnreadableJudge, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return unreadable_judges(cursor, None, self._alerts.now())

    async def _give_up_orphans(self, due: Sequence[Alert]) -> None:
        """Settle alerts for channels that are no longer in the settings."""
        names = {channel.name for channel in self._alerts.channels}
        orphans = [alert for alert in due if alert.channel not in names]
        if orphans:
            outcome = Outcome("never", "this channel is no longer configured")
            await asyncio.to_thread(self._note, orphans, outcome, tried=False)

    async def _deliver(self, client: httpx2.AsyncClient, channel: Channel, due: Sequence[Alert]) -> None:
        for alerts in _group_alerts(due):
            letter = channel.letter(alerts, self._alerts.now())
            outcome = await post(client, channel, letter, self._alerts.now)
            await asyncio.to_thread(self._note, alerts, outcome)
            if outcome.verdict == "later":
                return

    def _note(self, alerts: Sequence[Alert], outcome: Outcome, *, tried: bool = True) -> None:
        """Record the result of an attempt at these alerts."""
        now = self._alerts.now()
        noted = [self._noted(alert, outcome, now, tried=tried) for alert in alerts]
        self._alerts.outbox.settle(noted)
        given_up = [alert for alert in noted if alert.status == GIVEN_UP]
        for alert in given_up[:MOST_SINGLE]:
            log.error("gave up on alert %s after %d attempts: %s", alert.alert_id, alert.attempts, alert.last_error)
        if len(given_up) > MOST_SINGLE:
            log.error("gave up on %d more alerts as well", len(given_up) - MOST_SINGLE)

    def _noted(self, alert: Alert, outcome: Outcome, now: datetime, *, tried: bool) -> Alert:
        attempts = alert.attempts + tried
        changed = msgspec.structs.replace(alert, attempts=attempts, last_error=outcome.reason)
        if outcome.verdict == "delivered":
            return msgspec.structs.replace(changed, status=DELIVERED, settled_at=now)
        if outcome.verdict == "never" or attempts >= MOST_ATTEMPTS:
            return msgspec.structs.replace(changed, status=GIVEN_UP, settled_at=now)
        again = now + timedelta(seconds=pause(attempts, self._chance(), outcome.retry_after))
        return msgspec.structs.replace(changed, not_before=self._alerts.not_before(alert.severity, again))


def _group_alerts(due: Sequence[Alert]) -> Iterator[Sequence[Alert]]:
    """Group due alerts into messages."""
    if len(due) > MOST_SINGLE:
        yield due
    else:
        yield from ([alert] for alert in due)


def pause(attempts: int, chance: float, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, after a number of attempts.

    They double from FIRST_SECONDS to LONGEST_SECONDS. `chance`, from 0 to 1, subtracts up to half, so that deliveries that failed together
    are not retried together. The pause is never shorter than the receiver requested.
    """
    grown = min(FIRST_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), LONGEST_SECONDS)
    return max(grown * (0.5 + chance / 2), min(retry_after or 0.0, LONGEST_WAIT_SECONDS))


class Alerts:
    """Puts notices into the outbox. Without a channel it does nothing."""

    def __init__(
        self,
        store: Store,
        channels: Sequence[Channel],
        redactor: Redactor,
        now: Clock,
        *,
        quiet: QuietHours | None = None,
        held: Held = "warning",
        policy: Policy | None = None,
    ) -> None:
        self.channels = tuple(channels)
        self.store = store
        self.outbox = Outbox(store)
        self.now = now
        self._redactor = redactor
        self._quiet = quiet
        self._held = held
        self._policy = policy

    async def raise_alerts(self, notices: Sequence[Notice]) -> int:
        """Queue these alerts; durable on return. Repeated alerts are left out, so that raising twice changes nothing.

        Returns the number of new entries in the outbox.
        """
        if not self.channels or not notices:
            return 0
        return await asyncio.to_thread(lambda: self.outbox.put(self._entries(notices)))

    def wants(self, incident: Incident) -> bool:
        """Tell whether an incident raises an alert: if confirmed, or if suspected and the project's policy says so."""
        if incident.confidence == CONFIRMED:
            return True
        return self._policy is not None and self._policy.for_project(incident.project).settings.alert_on_suspected

    def not_before(self, severity: str, moment: datetime) -> datetime:
        """Return the earliest delivery time of an alert: its own time, or the end of the quiet hours."""
        if self._quiet is None or (self._held == "warning" and severity == "critical"):
            return moment
        return self._quiet.over(moment)

    def _entries(self, notices: Sequence[Notice]) -> list[Alert]:
        now = self.now()
        clean = [self._redacted(notice) for notice in notices]
        return [self._entry(notice, channel, now) for notice in clean for channel in self.channels]

    def _redacted(self, notice: Notice) -> Notice:
        """Return the notice without secrets, because it may carry agents' texts out of the installation."""
        (title, text), _ = self._redactor.redact_json([notice.title, notice.text])
        details, _ = self._redactor.redact_json(dict(notice.details))
        return replace(notice, title=title, text=text, details=details)

    def _entry(self, notice: Notice, channel: Channel, now: datetime) -> Alert:
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
    channels = channels_of(settings)
    return Alerts(
        engine.store, channels, engine.redactor, engine.now, quiet=quiet, held=settings.quiet_for, policy=engine.policy
    )


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to post: its id, by which a receiver recognises repetitions, and its JSON body."""

    letter_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A receiver of alerts. `url` and `secret` are never shown."""

    name: str
    url: Secret
    secret: Secret | None = None
    public_url: str | None = None
    """Address under which people reach the server, for links."""

    def body(self, notice: Notice, now: datetime) -> str:
        """Return the notice in the channel's form."""
        url = None if self.public_url is None or notice.path is None else self.public_url.rstrip("/") + notice.path
        if self.name == SLACK:
            return slack_body(notice, url)
        return webhook_body(notice, notice.alert_id(self.name), url, now)

    def letter(self, alerts: Sequence[Alert], now: datetime) -> Letter:
        """Return the message for these alerts: a single alert as it is, several as a digest."""
        if len(alerts) == 1:
            return Letter(alerts[0].alert_id, alerts[0].body)
        title = f"Driftline: {counted(len(alerts), 'alert')}"
        digest_id = stable_id("alert digest", *(alert.alert_id for alert in alerts))
        if self.name == SLACK:
            return Letter(digest_id, slack_digest(alerts, title))
        return Letter(digest_id, webhook_digest(alerts, digest_id, title, now))

    def headers(self, letter: Letter, now: datetime) -> Mapping[str, str]:
        """Return the headers of a message: its id, and a signature if there is a secret."""
        headers = {"Content-Type": "application/json", ID_HEADER: letter.letter_id}
        if self.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self.secret.reveal(), letter.body.encode(), now)
        return headers


def channels_of(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels that the settings name."""
    secrets = {SLACK: None, WEBHOOK: settings.alert_secret}
    addresses = {WEBHOOK: settings.alert_webhook, SLACK: settings.alert_slack}
    return tuple(Channel(name, url, secrets[name], settings.public_url) for name, url in addresses.items() if url is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt: the reason if it was not delivered, and the wait in seconds that the receiver requested."""

    verdict: Verdict
    reason: str | None = None
    retry_after: float | None = None


def verdict_of(status: int) -> Verdict:
    """Return the outcome of a delivery by its HTTP status."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in RETRIED_STATUSES or status >= 500 else "never"


def open_client() -> httpx2.AsyncClient:
    """Open a client that follows no redirects: messages go only to the address in the settings."""
    # At INFO, httpx2 logs every address it calls, and the addresses are secrets.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS, headers={"Accept-Encoding": "identity"})


async def post(client: httpx2.AsyncClient, channel: Channel, letter: Letter, now: Clock) -> Outcome:
    """Post a message once, and return the outcome."""
    url, content, headers = channel.url.reveal(), letter.body.encode(), channel.headers(letter, now())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), client.stream("POST", url, content=content, headers=headers) as response:
            return _build_outcome(response, await _read_beginning(response))
    except (httpx2.HTTPError, TimeoutError) as error:
        return Outcome("later", _describe_failure(error))
    except httpx2.InvalidURL:
        return Outcome("never", "the address is no URL")


async def _read_beginning(response: httpx2.Response) -> str:
    """Return the first bytes of an answer as text."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk[:MOST_READ]
        if len(body) >= MOST_READ:
            break
    return body[:MOST_READ].decode("ascii", "replace")


def _build_outcome(response: httpx2.Response, body: str) -> Outcome:
    verdict = verdict_of(response.status_code)
    if verdict == "delivered":
        return Outcome(verdict)
    word = f": {body}" if SLACK_WORD.fullmatch(body) else ""
    reason = f"the answer was {response.status_code}{word}"
    if response.is_redirect:
        reason += ", and redirects are not followed"
    return Outcome(verdict, reason, retry_after(response.headers, time.time))


def _describe_failure(error: BaseException) -> str:
    """Describe why there was no answer, by the exception's type only, because its message may contain the address."""
    message = next((message for kind, message in _failure_messages() if isinstance(error, kind)), "the call failed")
    root = error
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return f"{message} ({type(root).__name__})"


@cache
def _failure_messages() -> tuple[tuple[type[Exception], str], ...]:
    """Return the message for each kind of failure, most specific first."""
    late = f"no answer within {DEADLINE_SECONDS:g} s"
    return (
        (httpx2.TimeoutException, late),
        (TimeoutError, late),
        (httpx2.ConnectError, "no connection"),
        (httpx2.ProxyError, "the proxy did not forward it"),
        (httpx2.TransportError, "the connection was lost"),
    )


def webhook_body(notice: Notice, alert_id: str, url: str | None, created_at: datetime) -> str:
    """Return one alert as a JSON document."""
    return _json(
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
    """Return several alerts as one JSON document, oldest first."""
    severities = {alert.severity for alert in alerts}
    return _json(
        {
            "version": WEBHOOK_VERSION,
            "id": digest_id,
            "kind": DIGEST,
            "severity": "critical" if "critical" in severities else "warning",
            "title": title,
            "createdAt": created_at.isoformat(),
            "count": len(alerts),
            "alerts": [msgspec.json.decode(alert.body) for alert in alerts[:MOST_IN_DIGEST]],
        }
    )


def signature(secret: str, body: bytes, at: datetime) -> str:
    """Return the value of the header Driftline-Signature."""
    seconds = int(at.timestamp())
    signed = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256)
    return f"t={seconds},v1={signed.hexdigest()}"


def _json(document: Mapping[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


def slack_body(notice: Notice, url: str | None) -> str:
    """Return one alert as a message."""
    where = f"project {notice.project}, {notice.kind}, {notice.severity}" if notice.project else notice.kind
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(f"{SEVERITY_MARKS[notice.severity]} {notice.title}", MAX_HEADER)},
        {"type": "section", "text": _plain(notice.text or notice.title, MAX_TEXT)},
        {"type": "context", "elements": [_plain(where, MAX_LINE)]},
    ]
    if url is not None:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{escaped(url)}|Open>", "verbatim": True}})
    return _message(f"{SEVERITY_MARKS[notice.severity]} {where}: {notice.title}", blocks)


def slack_digest(alerts: Sequence[Alert], title: str) -> str:
    """Return several alerts as one message, oldest first."""
    lines = [msgspec.json.decode(alert.body)["text"] for alert in alerts[:MOST_LINES]]
    more = len(alerts) - len(lines)
    if more:
        lines.append(f"and {more} more")
    header = {"type": "header", "text": _plain(title, MAX_HEADER)}
    # The lines are already escaped. One block per line would exceed Slack's limit.
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": line, "verbatim": True}} for line in lines]
    return _message(title, [header, *blocks])


def escaped(text: str) -> str:
    """Escape a text for mrkdwn, so that it contains no link and no mention."""
    return text.translate(_ESCAPES)


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _visible(text, limit), "emoji": False}


def _visible(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text; invisible and direction characters are shown as their code points."""
    lines = (plain(line, limit) for line in MASS_MENTIONS.sub("@ ", text[:limit]).splitlines())
    # Slack refuses an empty text.
    shown = "\n".join(lines).strip() or MISSING
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _message(line: str, blocks: list[dict[str, Any]]) -> str:
    text = escaped(_visible(line.replace("\n", " "), MAX_LINE))
    return msgspec.json.encode({"text": text, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}).decode()
