"""`driftline serve`: the server for agents' webhooks, the API and the pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.commands.options import ChosenJudge, Database, Kafka, PolicyFile, settings_of
from service.cli.terminal import out
from service.server.logs import configure_logs
from service.setup.judge_setup import LIVE, NONE, SIMULATED, WORKERS
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from service.text.window import moment_of

JUDGES = {
    NONE: "no judge: Tiers 2, 2.5 and 3 stay unscored (no_judge); `driftline rejudge` scores them later",
    LIVE: "live judge: calls cost money, up to each session's cap",
    SIMULATED: "simulated judge: it rates by simple rules, and every score is marked as simulated",
    WORKERS: "records go to Kafka: workers score them (`driftline worker`), and this server lands the topics in the database",
}


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [DRIFTLINE_HOST, 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one [DRIFTLINE_PORT, 8377].")] = None,
    judge: ChosenJudge = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="HOST", help="Host name that the server answers to; may be repeated.")
    ] = None,
    expose: Annotated[bool, typer.Option("--expose", help="Allow --host to be an address beyond loopback.")] = False,
    kafka: Kafka = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Start the clock at this time, to look at old records; nothing is checked for drift.",
        ),
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Run the server: take exchanges and events over HTTP, score them in the background, serve the API and the pages.

    With --kafka it produces records to the topics for workers to score, and stores every topic in the database. Stops at SIGTERM or
    Ctrl-C.
    """
    from service.server.server_lifecycle import serve as run_server  # noqa: PLC0415 - the web framework takes half a second to load

    settings = settings_of(database, policy, host=host, port=port, judge=judge, kafka=kafka)
    start = None if as_of is None else moment_of(as_of, "--as-of", utc_now())
    configure_logs(sys.stderr, redactor_of(settings, policy_of(settings)))
    run_server(settings, names=name or [], expose=expose, announce=_announce, as_of=start)


def _announce(url: str, judge: str, notes: Sequence[str]) -> None:
    out.say(f"Driftline listens at {url} (open it in a browser; the API is documented at {url}/docs). Ctrl-C stops it.")
    out.say(JUDGES[judge])
    for note in notes:
        out.say(f"note: {note}")
