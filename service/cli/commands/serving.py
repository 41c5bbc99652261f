"""`driftline serve`, the server for agents' webhooks, the API and the pages, and `driftline worker`, which runs stages on Kafka."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

import typer

from audit.policy import Policy
from schemas.errors import SettingsError
from service.cli.commands.options import (
    ChosenJudge,
    Database,
    Expose,
    FromLake,
    Host,
    HostNames,
    Kafka,
    PolicyFile,
    Port,
    settings_of,
)
from service.cli.exit_codes import end_with
from service.cli.terminal import out
from service.server.logs import configure_logs
from service.setup.judge_setup import LIVE, NONE, SIMULATED, WORKERS, OpenedJudge, describe_judge, unpriced_note
from service.setup.kafka import collector_topics, connection_of
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from service.text.window import moment_of
from streams.kafka.topics import COLLECTOR
from streams.topology import TOPOLOGY

JUDGES = {
    NONE: "no judge: Tiers 2, 2.5 and 3 stay unscored (no_judge); `driftline rejudge` scores them later",
    LIVE: "live judge: calls cost money, up to each session's cap",
    SIMULATED: "simulated judge: it rates by simple rules, and every score is marked as simulated",
    WORKERS: "records go to Kafka: workers score them (`driftline worker`), and this server stores the topics in the database",
}


def serve(
    host: Host = None,
    port: Port = None,
    judge: ChosenJudge = None,
    name: HostNames = None,
    expose: Expose = False,
    kafka: Kafka = None,
    lake: FromLake = None,
    hot_days: Annotated[
        int | None,
        typer.Option(
            "--hot-days", metavar="N", help="With a lake: days whose details stay in the database [DRIFTLINE_HOT_DAYS, all]."
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Start the server's clock at this time, to look at old records. No drift checks run.",
        ),
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Run the server: accept exchanges and events over HTTP, score them in the background, and serve the API and the pages.

    With --kafka, the server writes records to Kafka's topics, workers score them, and the server stores the topics in the database. With
    --lake, it first reads what the lake has and the database lacks: all, if there is no database. With --hot-days, details of earlier days
    leave the database once the lake has them; sums stay.
    Press Ctrl-C or send SIGTERM to stop it.
    """
    from service.server.server_lifecycle import serve as run_server  # noqa: PLC0415 - the web framework takes half a second to load

    settings = settings_of(database, policy, host=host, port=port, judge=judge, kafka=kafka, lake=lake, hot_days=hot_days)
    start = None if as_of is None else moment_of(as_of, "--as-of", utc_now())
    configure_logs(sys.stderr, redactor_of(settings, policy_of(settings)))
    run_server(settings, names=name or [], expose=expose, announce=_announce, as_of=start)


def _announce(url: str, judge: str, notes: Sequence[str]) -> None:
    out.say(f"Driftline listens at {url} (open it in a browser; the API is documented at {url}/docs). Press Ctrl-C to stop.")
    out.say(JUDGES[judge])
    for note in notes:
        out.say(f"note: {note}")


STAGES = tuple(stage.name for stage in TOPOLOGY)
NAMES = (*STAGES, COLLECTOR)


def worker(
    stages: Annotated[
        str,
        typer.Option(
            "--stages",
            metavar="NAMES",
            help=f"Stages to run, separated by commas. `{COLLECTOR}` reads the topics of an OpenTelemetry Collector.",
        ),
    ] = ",".join(STAGES),
    processes: Annotated[int, typer.Option("--processes", "-c", metavar="N", min=1, max=256, help="Number of processes.")] = 1,
    kafka: Kafka = None,
    policy: PolicyFile = None,
    judge: ChosenJudge = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Run stages on Kafka: read topics, score, diagnose and evaluate, and write the results. Press Ctrl-C or send SIGTERM to stop."""
    settings = settings_of(None, policy, kafka=kafka, judge=judge)
    names = _parse_stages(stages)
    selected = [stage for stage in TOPOLOGY if stage.name in names]
    collected = collector_topics(settings) if COLLECTOR in names else {}
    policy_in_force = policy_of(settings)
    configure_logs(sys.stderr, redactor_of(settings, policy_in_force))
    if child:
        from service.server.worker_process import run_worker  # noqa: PLC0415 - the streaming framework takes a second to load

        end_with(run_worker(settings, selected, sys.stdin.fileno(), collected))
    from service.server.supervisor import partitions_of, supervise  # noqa: PLC0415 - children need no administration client
    from streams.kafka.producing import require_text_key  # noqa: PLC0415 - the client of Kafka takes half a second to load

    connection = connection_of(settings)
    partitions = partitions_of(connection, selected, collected)
    asyncio.run(require_text_key(connection))  # the children would end with this error, and be started again and again
    _announce_workers(processes, partitions, collected)
    if any(stage.judged for stage in selected):
        _announce_judge(describe_judge(settings, policy_in_force), policy_in_force)
    arguments: list[str] = []
    for name, value in (("--stages", stages), ("--kafka", kafka), ("--policy", policy), ("--judge", judge)):
        if value is not None:
            arguments += [name, str(value)]
    supervise(settings, [*arguments, "--child"], processes)


def _announce_workers(processes: int, partitions: Mapping[str, int], collected: Iterable[str]) -> None:
    total = sum(partitions.values())
    out.say(f"{processes} worker {'process' if processes == 1 else 'processes'}: {_describe_partitions(partitions)}")
    for name in collected:
        if not partitions[name]:
            out.say(f"note: there is no topic {name} yet; workers read it once the Collector has created it")
    if processes > total:
        out.say(f"note: {processes} processes for {total} partitions: the other processes stand by until one stops")


def _announce_judge(judge: OpenedJudge, policy: Policy) -> None:
    out.say(f"judge: {judge.name}")
    if judge.note:
        out.say(judge.note)
    unpriced = unpriced_note(policy)
    if judge.name != NONE and unpriced:
        out.say(unpriced)


def _parse_stages(names: str) -> Collection[str]:
    """Return the names of stages in the option. Raises SettingsError for an unknown one."""
    stages = {name.strip() for name in names.split(",")}
    unknown = sorted(stages - set(NAMES))
    if unknown:
        raise SettingsError(
            f"--stages: there is no stage {', '.join(map(repr, unknown))}", hint=f"Name some of {', '.join(NAMES)}."
        )
    return stages


def _describe_partitions(partitions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count} partitions)" for name, count in partitions.items())
