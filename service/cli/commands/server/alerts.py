"""`driftline alerts`: test the channels, and list the alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from analytics.store.outbox import STATUSES, Outbox
from schemas.errors import InputError, SettingsError
from service.alerts.channels import Channel, Letter, channels_of
from service.alerts.notices import trial_notice
from service.alerts.retrying import Outcome
from service.cli.commands.options import AsJson, Database, Row, print_json, settings_of, show_rows
from service.cli.terminal import MISSING, out, table
from service.workspace import open_workspace, utc_now

alerts_app = typer.Typer(no_args_is_help=True, help="Test the alert channels, and list alerts.")
Status = Annotated[
    str | None, typer.Option("--status", metavar="STATUS", help=f"Only alerts with this status: {', '.join(STATUSES)}.")
]


@alerts_app.command("test")
def try_channels(as_json: AsJson = False) -> None:
    """Send a test message to each configured channel, without retries. Exit 1 if one refuses it."""
    channels = channels_of(settings_of())
    if not channels:
        raise SettingsError("no alert channel is configured", hint="Set DRIFTLINE_ALERT_WEBHOOK or DRIFTLINE_ALERT_SLACK.")
    outcomes = asyncio.run(_try_each(channels))
    for channel, outcome in outcomes:
        if as_json:
            print_json({"channel": channel.name, "delivered": outcome.verdict == "delivered", "error": outcome.reason})
        else:
            out.say(f"{channel.name}: {outcome.reason or 'delivered'}")
    raise typer.Exit(0 if all(outcome.verdict == "delivered" for _, outcome in outcomes) else 1)


@alerts_app.command("list")
def list_alerts(
    status: Status = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number, newest first.")] = 20,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List alerts and their delivery, newest first."""
    if status is not None and status not in STATUSES:
        raise InputError("--status: unknown status", hint=f"Use one of {', '.join(STATUSES)}.")
    with open_workspace(settings_of(database)) as workspace:
        rows = Outbox(workspace.store).listed(status, limit)
    show_rows(rows, _table, as_json=as_json, none="no alert")


async def _try_each(channels: Sequence[Channel]) -> list[tuple[Channel, Outcome]]:
    from service.alerts.posting import open_client, post  # noqa: PLC0415 - an HTTP client takes a while to load

    notice, now = trial_notice(utc_now()), utc_now()
    async with open_client() as client:
        letters = [Letter(notice.alert_id(channel.name), channel.body(notice, now)) for channel in channels]
        tried = [post(client, channel, letter, utc_now) for channel, letter in zip(channels, letters, strict=True)]
        return list(zip(channels, await asyncio.gather(*tried), strict=True))


def _table(rows: Sequence[Row]) -> Table:
    headers = ("CREATED", "CHANNEL", "SEVERITY", "KIND", "SUBJECT", "STATUS", "TRIES", "LAST ERROR")
    cells = [
        (
            f"{row['created_at']:%Y-%m-%d %H:%M}",
            row["channel"],
            row["severity"],
            row["kind"],
            row["subject_id"],
            row["status"],
            row["attempts"],
            row["last_error"] or MISSING,
        )
        for row in rows
    ]
    return table(headers, cells, right=("TRIES",))
