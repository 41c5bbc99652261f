"""The process that maps spans beside a server, as tests start, find, freeze and kill it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from servers import LONG

from audit.redaction.redactor import Redactor
from service.otlp.mapping import MappingTask, ProcessAnswer, ProcessTask, Redaction
from service.otlp.mapping_process import MODULE, MappingLimits, MappingProcess
from streams.sources.otlp.kept_spans import SpanOwner

AT_ONCE = MappingLimits(large=0, many=1, busy=LONG, idle=LONG, starting=LONG, patience=LONG, again=0.0)
"""Limits of a process that every request goes to, from the first on, with patience on a machine however busy."""
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
LABELS = {"agent_version": ("gen_ai.agent.version", "service.version")}


def mapping_process(limits: MappingLimits = AT_ONCE, cores: int = 2) -> MappingProcess:
    """One that has not started."""
    return MappingProcess(limits, cores=cores)


async def ready(process: MappingProcess) -> int:
    """Ask until there is a process; its id."""
    async with asyncio.timeout(LONG):
        while process.process_id is None:
            await process.ask(b"", b"")
            await asyncio.sleep(0.01)
    return process.process_id


async def answered(process: MappingProcess, task: MappingTask, body: bytes, redactor: Redactor) -> ProcessAnswer:
    """What the process says of a request."""
    told = await process.ask(msgspec.msgpack.encode(ProcessTask(task, Redaction.of(redactor))), body)
    assert told is not None
    return msgspec.msgpack.decode(told, type=ProcessAnswer)


def task_of(signal: str = "traces", *, is_json: bool = True, is_packed: bool = False) -> MappingTask:
    """A request of the connection north."""
    return MappingTask(signal, is_json, is_packed, SpanOwner("north", "ops"), LABELS, NOW)


def processes_of(parent: int) -> list[int]:
    """The processes beside a server that run, by its process id."""
    children = [one for file in Path(f"/proc/{parent}/task").glob("*/children") for one in map(int, file.read_text().split())]
    return [pid for pid in children if is_running(pid) and MODULE in command_of(pid)]


def command_of(pid: int) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def is_running(pid: int) -> bool:
    """Whether a process runs; one that was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
