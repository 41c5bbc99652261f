"""`driftline alerts`: test the receivers, and list the alerts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from analytics.store.store import ALERT_STATUSES
from schemas.errors import InputError, SettingsError
from service.alerts.receivers import load_receivers
from service.cli.commands.listing import describe_filters, of_project
from service.cli.commands.options import (
    AsJson,
    Project,
    ViewOptions,
    print_json,
    settings_of,
    with_option_group,
)
from service.cli.completion import completed
from service.cli.exit_codes import fails_when, leave
from service.cli.list_views import ListView, printed
from service.cli.terminal import ListTable, out
from service.read.telemetry import AlertDelivery, alert_deliveries
from service.setup.workspace import Workspace, utc_now
from service.text.answers import document
from service.text.formats import MISSING, plain

alerts_app = typer.Typer(no_args_is_help=True, help="Test the receivers of alerts, and list alerts.")
Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Only alerts with this status: {', '.join(ALERT_STATUSES)}.",
        autocompletion=completed(ALERT_STATUSES),
    ),
]


@alerts_app.command("test")
@fails_when("a receiver rejects the message")
def try_alerts(
    name: Annotated[str | None, typer.Argument(metavar="[RECEIVER]", help="The receiver; by default all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a test message to each configured receiver, or to one, without retries.

    PagerDuty and Opsgenie get an alert that is closed at once.
    """
    from service.alerts.delivery import try_receivers  # noqa: PLC0415 - an HTTP client takes a while to load

    receivers = load_receivers(settings_of(), os.environ)
    if not receivers:
        hint = "Set DRIFTLINE_ALERT_RECEIVERS to a file of receivers, or DRIFTLINE_ALERT_SLACK or DRIFTLINE_ALERT_WEBHOOK."
        raise SettingsError("no receiver of alerts is configured", hint=hint)
    chosen = [receiver for receiver in receivers if name in (None, receiver.name)]
    if not chosen:
        names = ", ".join(receiver.name for receiver in receivers)
        raise InputError(f"there is no receiver {plain(name, 64)}", hint=f"There are {names}.")
    tried = asyncio.run(try_receivers(chosen, utc_now))
    for outcome in tried:
        if as_json:
            print_json(document(outcome))
        else:
            out.say(f"{outcome.receiver}: {outcome.error or 'delivered'}")
    leave(failed=not all(outcome.delivered for outcome in tried))


@with_option_group
def list_alerts(project: Project = None, status: Status = None, *, options: ViewOptions) -> ListView[AlertDelivery]:
    """List alerts and their delivery, newest first."""
    if status is not None and status not in ALERT_STATUSES:
        raise InputError(f"--status {plain(status, 40)} is not a status", hint=f"Use one of {', '.join(ALERT_STATUSES)}.")

    def read(workspace: Workspace, first: datetime | None) -> list[AlertDelivery]:
        before = None if options.end is None else (options.end, "")
        alerts = alert_deliveries(workspace.store.cursor(), options.limit + 1, status=status, project=project, before=before)
        return [alert for alert in alerts if first is None or alert.created_at >= first]

    return ListView(
        read=read,
        table=_table,
        keys=ALERT_KEYS,
        identify=lambda alert: alert.id,
        options=options,
        none=f"no alerts{of_project(project)}{describe_filters(options, status)}",
        project=project,
        time_of=lambda alert: alert.created_at,
    )


alerts_app.command("list")(printed(list_alerts))


ALERT_KEYS = ("id", "createdAt", "channel", "severity", "kind", "subject", "project", "status", "attempts", "lastError")
"""The fields of an alert in a list."""


def _table(alerts: Sequence[AlertDelivery]) -> ListTable:
    headers = ("created", "receiver", "severity", "kind", "subject", "status", "tries", "last error")
    cells = [
        (
            f"{alert.created_at:%Y-%m-%d %H:%M}",
            alert.channel,
            alert.severity,
            alert.kind,
            alert.subject,
            alert.status,
            alert.attempts,
            alert.last_error or MISSING,
        )
        for alert in alerts
    ]
    return ListTable(headers, cells, right=["tries"], whole=["created"], optional=["kind", "severity"])
