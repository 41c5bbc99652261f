"""`driftline serve`: the server that takes a fleet's webhooks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.commands.options import Database, PolicyFile, settings_of
from service.cli.commands.records.topics import Kafka
from service.cli.terminal import out
from service.judge_setup import LIVE, NONE, SIMULATED, WORKERS
from service.supervisor.logs import configure_logs
from service.wiring import policy_of, redactor_of

JUDGES = {
    NONE: "no judge: everything but Tier 1 stays unscored (no_judge); `driftline rejudge` takes it up later",
    LIVE: "live judge: calls are paid for, under each session's cap",
    SIMULATED: "simulated judge: it rates by simple rules, and everything it scores says so",
    WORKERS: "records go to Kafka: workers score them (`driftline worker`), and what is on the topics lands in the database here",
}


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [DRIFTLINE_HOST, 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one [DRIFTLINE_PORT, 8377].")] = None,
    judge: Annotated[
        str | None, typer.Option(help="live, none, or auto: live where there is a key [DRIFTLINE_JUDGE, auto].")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="HOST", help="A name the server may be called by; may be repeated.")
    ] = None,
    expose: Annotated[bool, typer.Option("--expose", help="Listen beyond loopback, where --host says so.")] = False,
    kafka: Kafka = None,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Take exchanges and events over HTTP, score them in the background, answer what was found. Stops at SIGTERM or Ctrl-C.

    With --kafka it produces them to the topics, for workers to score, and lands every topic in the database.
    """
    from service.supervisor.server_lifecycle import serve as run_server  # noqa: PLC0415 - the web framework takes half a second to load

    settings = settings_of(database, policy, host=host, port=port, judge=judge, kafka=kafka)
    configure_logs(sys.stderr, redactor_of(settings, policy_of(settings)))
    run_server(settings, names=name or [], expose=expose, announce=_announce)


def _announce(url: str, judge: str, notes: Sequence[str]) -> None:
    out.say(f"Driftline listens at {url} (open it in a browser; the API's description is at {url}/docs). Ctrl-C stops it.")
    out.say(JUDGES[judge])
    for note in notes:
        out.say(f"note: {note}")
