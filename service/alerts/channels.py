"""Channels of alerts from the settings. Their addresses are secrets: Slack's is all that is needed to post there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from audit.fingerprints import stable_id
from schemas.records import Alert
from service.alerts.notices import Notice
from service.alerts.slack import slack_body, slack_digest
from service.alerts.webhook import signature, webhook_body, webhook_digest
from service.setup.access.secret_values import Secret
from service.setup.settings import Settings
from service.text.plain import counted

WEBHOOK, SLACK = "webhook", "slack"
ID_HEADER = "Driftline-Delivery"
SIGNATURE_HEADER = "Driftline-Signature"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to post: its id, by which a receiver recognises repetitions, and its body, JSON."""

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
        """Return the message of these alerts: one as it is, several as a digest."""
        if len(alerts) == 1:
            return Letter(alerts[0].alert_id, alerts[0].body)
        title = f"Driftline: {counted(len(alerts), 'alert')}"
        digest_id = stable_id("alert digest", *(alert.alert_id for alert in alerts))
        if self.name == SLACK:
            return Letter(digest_id, slack_digest(alerts, title))
        return Letter(digest_id, webhook_digest(alerts, digest_id, title, now))

    def headers(self, letter: Letter, now: datetime) -> Mapping[str, str]:
        """Return the headers of a message: its id, and the signature if there is a secret."""
        headers = {"Content-Type": "application/json", ID_HEADER: letter.letter_id}
        if self.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self.secret.reveal(), letter.body.encode(), now)
        return headers


def channels_of(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels that the settings name."""
    secrets = {SLACK: None, WEBHOOK: settings.alert_secret}
    addresses = {WEBHOOK: settings.alert_webhook, SLACK: settings.alert_slack}
    return tuple(Channel(name, url, secrets[name], settings.public_url) for name, url in addresses.items() if url is not None)
