"""What is posted when people are told, made by the same functions that make the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from reference.markdown import fenced, first_paragraph, page
from reference.model_fields import list_fields
from schemas.records import Incident
from service.alerts.messages import (
    AlertDocument,
    Message,
    opsgenie_request,
    pagerduty_event,
    signature,
    slack_message,
    teams_message,
    webhook_body,
    webhook_digest,
)
from service.alerts.notices import (
    COST_CAP,
    INCIDENT,
    JUDGE,
    RESOLVED,
    TELEMETRY,
    TEST,
    TOOL,
    Notice,
    cap_notice,
    description_notice,
    incident_notice,
    judge_notice,
    resolved_notice,
    silence_notice,
    trial_notice,
)
from service.alerts.receivers import (
    EmailReceiver,
    OpsgenieReceiver,
    PagerDutyReceiver,
    ReceiversFile,
    Selection,
    SlackReceiver,
    TeamsReceiver,
    WebhookReceiver,
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
_ENDED = {
    "alert_id": incident_notice(_INCIDENT).alert_id("webhook"), "subject_id": _INCIDENT.incident_id, "project": "shop", "severity": "critical",
    "title": _INCIDENT.title, "incident_status": "resolved", "resolution": "recovered", "resolved_at": _AT + timedelta(days=3), "resolved_by": "driftline",
}  # fmt: skip
NOTICES = {
    INCIDENT: incident_notice(_INCIDENT), RESOLVED: resolved_notice(_ENDED), TELEMETRY: silence_notice(_SILENT), JUDGE: judge_notice(_UNREADABLE),
    COST_CAP: cap_notice(_REACHED), TOOL: description_notice(_DESCRIBED), TEST: trial_notice(_AT),
}  # fmt: skip
"""One of each kind."""
_SAID = {
    INCIDENT: "When an incident is confirmed, and once more when it becomes critical; with `alertOnSuspected` in the policy also when it is suspected.",
    RESOLVED: "When an incident was resolved or dismissed, at each receiver that had its alert; `resolves` is the id of that alert, `subject` that of the incident.",
    TELEMETRY: "When a session has missed two signs of life, and when it has missed three.",
    JUDGE: "When the last answers of a judge cannot be read, once until one can be. `project` and `url` are null: it concerns all that it judges.",
    COST_CAP: "When a cap of `costCaps` has left out a question, once for its day or month. `project` is null if it is the installation's.",
    TOOL: "When an agent is sent another description of a tool, where the policy compares them (`detectors.tools.definitions`); once for each new description.",
    TEST: "What `driftline alerts test` sends.",
}


_TYPES: Mapping[str, type[Selection]] = {
    "slack": SlackReceiver, "teams": TeamsReceiver, "pagerduty": PagerDutyReceiver, "opsgenie": OpsgenieReceiver, "email": EmailReceiver,
    "webhook": WebhookReceiver,
}  # fmt: skip


def alerts() -> str:
    """Return the page."""
    bodies = {kind: _webhook(notice) for kind, notice in NOTICES.items()}
    shown = [part for kind, body in bodies.items() for part in (f"### {kind}", _SAID[kind], fenced(_indented(body), "json"))]
    incident, incident_id, end_id = (
        _document(INCIDENT),
        NOTICES[INCIDENT].alert_id("webhook"),
        NOTICES[RESOLVED].alert_id("webhook"),
    )
    open_path, open_body = opsgenie_request(incident, incident_id)
    close_path, close_body = opsgenie_request(_document(RESOLVED), end_id)
    events = [{"routing_key": "…", **pagerduty_event(_document(kind), incident_id)} for kind in (INCIDENT, RESOLVED)]
    return page(
        "Alerts",
        "What receivers of alerts get, and the file that names them. How to set them up: [Get alerts](../how-to/alerts.md).",
        "## The file of receivers",
        "`DRIFTLINE_ALERT_RECEIVERS` names it. It is YAML or JSON; an unknown name is refused with its line. It holds no secret: fields that end in `Env` name "
        "environment variables.",
        list_fields(ReceiversFile),
        "### Every receiver",
        list_fields(Selection),
        *(
            part
            for name, model in _TYPES.items()
            for part in (
                f"### type: {name}",
                first_paragraph(model.__doc__),
                list_fields(model, {"type", *Selection.model_fields}),
            )
        ),
        "## Webhook",
        "JSON with a `version`. Fields may be added; what is there keeps its meaning while the version is 1.",
        *shown,
        "### digest",
        "When more than five are due at once.",
        fenced(_indented(webhook_digest(Message("0f3a77c1", [bodies[INCIDENT], bodies[TELEMETRY]]), _AT)), "json"),
        "### Signature",
        "With a secret there is a header:",
        fenced(f"Driftline-Signature: {signature('sixteen-characters', b'{}', _AT)}"),
        "`v1` is the HMAC-SHA256, by the secret, of the seconds since 1970, a full stop and the body. A receiver compares in constant time and refuses what is "
        "older than five minutes. `Driftline-Delivery` is the alert's id: the same one may come twice.",
        "## Slack",
        fenced(_indented(slack_message(incident)), "json"),
        "## Microsoft Teams",
        fenced(_indented(teams_message(incident)), "json"),
        "## PagerDuty",
        "`POST /v2/enqueue` when an alert begins, and when it ends:",
        *(fenced(_indented(event), "json") for event in events),
        "## Opsgenie",
        f"`POST {open_path}` when an alert begins:",
        fenced(_indented(open_body), "json"),
        f"`POST {close_path}` when it ends:",
        fenced(_indented(close_body), "json"),
    )


def _webhook(notice: Notice) -> str:
    url = f"{_SERVER}{notice.path}" if notice.path else None
    return webhook_body(notice, notice.alert_id("webhook"), url, _AT)


def _document(kind: str) -> AlertDocument:
    return msgspec.json.decode(_webhook(NOTICES[kind]), type=AlertDocument)


def _indented(body: str | bytes | Mapping[str, Any]) -> str:
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else msgspec.json.encode(body)
    return msgspec.json.format(data, indent=2).decode()
