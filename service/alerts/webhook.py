"""Alerts as JSON for programs, signed if there is a secret. The form has a version; fields may be added to it.

`Driftline-Signature: t=SECONDS,v1=HEX`: HEX is the HMAC-SHA256, by the secret, of the seconds since 1970, a full stop and the body.
A receiver checks it and refuses old times, so that no message can be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from schemas.records import Alert
from service.alerts.notices import Notice

VERSION = 1
DIGEST = "digest"
MOST_IN_DIGEST = 100
"""Alerts that a digest holds in full; it counts them all."""


def webhook_body(notice: Notice, alert_id: str, url: str | None, created_at: datetime) -> str:
    """Return one alert as a JSON document."""
    return _json(
        {
            "version": VERSION,
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
            "version": VERSION,
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
