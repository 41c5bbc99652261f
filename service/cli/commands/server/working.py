"""`driftline worker`: the stages on Kafka."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Annotated

import typer

from schemas.errors import SettingsError
from service.cli.commands.options import ChosenJudge, Kafka, PolicyFile, settings_of
from service.cli.entry.exit_codes import end_with
from service.cli.terminal import out
from service.server.logs import configure_logs
from service.setup.judge_setup import unpriced_note, who_judges
from service.setup.kafka import collector_topics, connection_of
from service.setup.wiring import policy_of, redactor_of
from streams.kafka.topics import COLLECTOR
from streams.topology import TOPOLOGY

STAGES = tuple(stage.name for stage in TOPOLOGY)
NAMES = (*STAGES, COLLECTOR)


def worker(
    stages: Annotated[
        str,
        typer.Option(
            "--stages",
            metavar="NAMES",
            help=f"Stages to run, separated by commas; `{COLLECTOR}` reads the topics of an OpenTelemetry Collector "
            f"[{','.join(STAGES)}].",
        ),
    ] = ",".join(STAGES),
    processes: Annotated[int, typer.Option("--processes", "-c", metavar="N", min=1, max=256, help="Processes to run [1].")] = 1,
    kafka: Kafka = None,
    policy: PolicyFile = None,
    judge: ChosenJudge = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Run stages on Kafka: read their topics, score, diagnose and evaluate, produce the results. Stops at SIGTERM or Ctrl-C."""
    settings = settings_of(None, policy, kafka=kafka, judge=judge)
    names = _named(stages)
    wanted = [stage for stage in TOPOLOGY if stage.name in names]
    collected = collector_topics(settings) if COLLECTOR in names else {}
    in_force = policy_of(settings)
    configure_logs(sys.stderr, redactor_of(settings, in_force))
    if child:
        from service.server.worker_process import run_worker  # noqa: PLC0415 - the streaming framework takes a second to load

        end_with(run_worker(settings, wanted, sys.stdin.fileno(), collected))
    from service.server.supervisor import partitions_of, supervise  # noqa: PLC0415 - whoever works needs no client of administration

    partitions = partitions_of(connection_of(settings), wanted, collected)
    out.say(f"{processes} worker {'process' if processes == 1 else 'processes'}: {_told(partitions)}")
    for name in collected:
        if not partitions[name]:
            out.say(f"note: there is no topic {name} yet; it is read as soon as the Collector has made it")
    if processes > sum(partitions.values()):
        note = f"note: {processes} processes for {sum(partitions.values())} partitions: the rest stand by until one stops"
        out.say(note)
    if any(stage.judged for stage in wanted):
        opened = who_judges(settings, in_force)
        for note in (f"judge: {opened.name}", opened.note, unpriced_note(in_force) if opened.name != "none" else ""):
            if note:
                out.say(note)
    given = {"--stages": stages, "--kafka": kafka, "--policy": policy, "--judge": judge}
    arguments = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    supervise(settings, [*arguments, "--child"], processes)


def _named(names: str) -> Collection[str]:
    """Return the names of stages; SettingsError for an unknown one."""
    wanted = {name.strip() for name in names.split(",")}
    unknown = sorted(wanted - set(NAMES))
    if unknown:
        raise SettingsError(
            f"--stages: there is no stage {', '.join(map(repr, unknown))}", hint=f"Name some of {', '.join(NAMES)}."
        )
    return wanted


def _told(partitions: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count} partitions)" for name, count in partitions.items())
