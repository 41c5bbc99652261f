"""`driftline alerts`: test the channels, and list the alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from analytics.store.store import ALERT_STATUSES
from schemas.errors import InputError, SettingsError
from service.alerts.delivery import Channel, Outcome, OutgoingMessage, configured_channels
from service.alerts.notices import trial_notice
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
from service.text.formats import MISSING, plain

alerts_app = typer.Typer(no_args_is_help=True, help="Test the alert channels, and list alerts.")
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
@fails_when("a channel rejects the message")
def try_channels(as_json: AsJson = False) -> None:
    """Send a test message to each configured channel, without retries."""
    channels = configured_channels(settings_of())
    if not channels:
        raise SettingsError("no alert channel is configured", hint="Set DRIFTLINE_ALERT_WEBHOOK or DRIFTLINE_ALERT_SLACK.")
    outcomes = asyncio.run(_try_each(channels))
    for channel, outcome in outcomes:
        if as_json:
            print_json({"channel": channel.name, "delivered": outcome.verdict == "delivered", "error": outcome.reason})
        else:
            out.say(f"{channel.name}: {outcome.reason or 'delivered'}")
    leave(failed=any(outcome.verdict != "delivered" for _, outcome in outcomes))


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


async def _try_each(channels: Sequence[Channel]) -> list[tuple[Channel, Outcome]]:
    from service.alerts.delivery import open_client, post  # noqa: PLC0415 - an HTTP client takes a while to load

    notice, now = trial_notice(utc_now()), utc_now()
    async with open_client() as client:
        letters = [OutgoingMessage(notice.alert_id(channel.name), channel.body(notice, now)) for channel in channels]
        tried = [post(client, channel, letter, utc_now) for channel, letter in zip(channels, letters, strict=True)]
        return list(zip(channels, await asyncio.gather(*tried), strict=True))


ALERT_KEYS = ("id", "createdAt", "channel", "severity", "kind", "subject", "project", "status", "attempts", "lastError")
"""The fields of an alert in a list."""


def _table(alerts: Sequence[AlertDelivery]) -> ListTable:
    headers = ("created", "channel", "severity", "kind", "subject", "status", "tries", "last error")
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
