"""What is posted when people are told, made by the same functions that make the real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from reference.markdown import fenced, page
from schemas.records import Alert, Incident
from service.alerts.delivery import signature, slack_body, webhook_body, webhook_digest
from service.alerts.notices import (
    COST_CAP,
    INCIDENT,
    JUDGE,
    TELEMETRY,
    TEST,
    TOOL,
    Notice,
    cap_notice,
    description_notice,
    incident_notice,
    judge_notice,
    silence_notice,
    trial_notice,
)
from service.read.caps import SharedCap
from service.read.judges import UnreadableJudge
from service.read.telemetry import OpenSession

_AT = datetime(2026, 10, 28, 9, 0, tzinfo=UTC)
_SERVER = "https://audit.example.com"
_INCIDENT = Incident(
    incident_id="1a2b3c4d", revision=0, project="shop", type="drift", tier="tier2", direction="down", status="open", severity="critical",
    title="shop: answer quality halved (0.90 → 0.47) since 28 October 2026", description="Between 2026-10-27 and 2026-10-28.", metadata="{}", detected_at=_AT,
    rule="sequential", cause="agent",
)  # fmt: skip
_INTERVAL = timedelta(minutes=5)
_SILENT = OpenSession(
    connection="checkout-agent",
    session_id="s-17",
    project="shop",
    status="red",
    last_received=_AT,
    missed_intervals=3,
    elapsed_ms=901_000,
    interval_ms=300_000,
)
_UNREADABLE = UnreadableJudge(
    "claude-haiku-4-5", 6, _AT, _AT + timedelta(minutes=1), "unreadable answer: JSON is malformed: invalid character (byte 0)"
)
_REACHED = SharedCap("project_day_cap", "shop", "2026-10-28", 5.0, 4.99, _AT, 12)
_DESCRIBED = {
    "project": "shop", "reason": "description_changed", "subject": "search of checkout-agent", "since": _AT, "before": 230.0, "after": 14.0,
    "count": 1,
}  # fmt: skip
NOTICES = {
    INCIDENT: incident_notice(_INCIDENT), TELEMETRY: silence_notice(_SILENT), JUDGE: judge_notice(_UNREADABLE),
    COST_CAP: cap_notice(_REACHED), TOOL: description_notice(_DESCRIBED), TEST: trial_notice(_AT),
}  # fmt: skip
"""One of each kind."""
_SAID = {
    INCIDENT: "When an incident is confirmed, and once more when it becomes critical; with `alertOnSuspected` in the policy also when it is suspected.",
    TELEMETRY: "When a session has missed two signs of life, and when it has missed three.",
    JUDGE: "When the last answers of a judge cannot be read, once until one can be. `project` and `url` are null: it concerns all that it judges.",
    COST_CAP: "When a cap of `costCaps` has left out a question, once for its day or month. `project` is null if it is the installation's.",
    TOOL: "When an agent is sent another description of a tool, where the policy compares them (`detectors.tools.definitions`); once for each new description.",
    TEST: "What `driftline alerts test` sends.",
}


def alerts() -> str:
    """Return the page."""
    bodies = {kind: _webhook(notice) for kind, notice in NOTICES.items()}
    shown = [part for kind, body in bodies.items() for part in (f"## {kind}", _SAID[kind], fenced(_indented(body), "json"))]
    return page(
        "Alerts",
        "Alerts post to `DRIFTLINE_ALERT_WEBHOOK` as JSON with a `version`. Fields may be added; what is there keeps its meaning while the version is 1. How to set "
        "them up: [Be told](../how-to/alerts.md).",
        *shown,
        "## digest",
        "When more than five are due at once.",
        fenced(_indented(webhook_digest([_alert(bodies[INCIDENT])], "0f3a77c1", "1 alert", _AT)), "json"),
        "## Signature",
        "With `DRIFTLINE_ALERT_SECRET` there is a header:",
        fenced(f"Driftline-Signature: {signature('sixteen-characters', b'{}', _AT)}"),
        "`v1` is the HMAC-SHA256, by the secret, of the seconds since 1970, a full stop and the body. A receiver compares in constant time and refuses what is "
        "older than five minutes. `Driftline-Delivery` is the alert's id: the same one may come twice.",
        "## Slack",
        "Posts to `DRIFTLINE_ALERT_SLACK`:",
        fenced(_indented(slack_body(NOTICES[INCIDENT], _SERVER + str(NOTICES[INCIDENT].path))), "json"),
    )


def _webhook(notice: Notice) -> str:
    url = f"{_SERVER}{notice.path}" if notice.path else None
    return webhook_body(notice, notice.alert_id("webhook"), url, _AT)


def _alert(body: str) -> Alert:
    notice = NOTICES[INCIDENT]
    return Alert(
        alert_id=notice.alert_id("webhook"), channel="webhook", kind=notice.kind, subject_id=notice.subject, project=notice.project,
        severity=notice.severity, body=body, created_at=_AT, not_before=_AT, attempts=0, status="waiting",
    )  # fmt: skip


def _indented(body: str) -> str:
    return msgspec.json.format(body.encode(), indent=2).decode()
