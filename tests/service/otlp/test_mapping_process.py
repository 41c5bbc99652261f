"""The process beside the server: there while it is worth its memory, and whatever becomes of it costs no span and no request."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from api_server import Call, Tokens
from clients import bearer
from fastapi import FastAPI
from mapping_processes import (
    AT_ONCE,
    answered,
    command_of,
    is_running,
    mapping_process,
    processes_of,
    ready,
    task_of,
)
from otlp.captured import Captured, Json
from otlp.spans import agent, body, request, span, tool
from servers import LONG, Home, Nursery, nursery, until

from analytics.store.store import Store
from audit.policy.policy_fields import RedactionSettings
from audit.redaction.redactor import Redactor
from service.http.bounds import TRACES
from service.otlp.mapping_process import MappingLimits, MappingProcess, granted_cores

PLAIN = Redactor(RedactionSettings())
KEY = "a-redaction-key-of-this-test"
Logs = pytest.LogCaptureFixture


@pytest.fixture
def children() -> Iterator[Nursery]:
    """Where servers come from."""
    with nursery() as opened:
        yield opened


def spans_of(number: int, count: int = 2) -> Captured:
    """A request of its own trace."""
    trace = f"{number + 1:032x}"
    return request(agent(0, trace=trace), *(tool(place, 0, trace=trace) for place in range(1, count)))


async def mapped_ids(process: MappingProcess, number: int) -> tuple[int, set[str]]:
    """The traces that a request's answer has; none if the server has to map it."""
    given = task_of()
    try:
        answer = await answered(process, given, spans_of(number).as_json, PLAIN)
    except AssertionError:
        return number, set()
    return number, {record.trace_id for record in answer.spans.records}


async def gone(pid: int) -> None:
    """Return when a process runs no more."""
    async with asyncio.timeout(LONG):
        while is_running(pid):  # noqa: ASYNC110 - the end of a process that is not ours to wait for sets no event
            await asyncio.sleep(0.005)


async def waiting(process: MappingProcess, count: int) -> list[asyncio.Task[tuple[int, set[str]]]]:
    """Requests that a frozen process has and does not answer."""
    tasks = [asyncio.create_task(mapped_ids(process, number)) for number in range(count)]
    await asyncio.sleep(0)
    return tasks


def test_a_few_requests_start_no_process() -> None:
    """An installation that is sent a request now and then pays nothing for one."""

    async def asked() -> list[set[int]]:
        before, found = set(processes_of(os.getpid())), []
        for limits, cores in ((MappingLimits(large=0, many=4), 8), (MappingLimits(large=0, many=3, busy=0.0), 8), (AT_ONCE, 1)):
            process = mapping_process(limits, cores)
            for _ in range(3):
                assert await process.ask(b"", b"") is None
            await asyncio.sleep(0)
            found.append(set(processes_of(os.getpid())) - before)
            await process.close()
        return found

    assert [set(), set(), set()] == asyncio.run(asked())


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 4), ("100000 100000", 1), ("50000 100000", 1), ("250000 100000", 2), ("", 4), (None, 4)]
)
def test_a_container_has_the_cores_that_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, count: int
) -> None:
    """A second process gains nothing where both share the time of one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert count == granted_cores(tmp_path / "cpu.max")


def test_size_decides_and_a_packed_request_counts_more() -> None:
    """What it unpacks to takes the time."""
    process = mapping_process(MappingLimits(large=1_000, packed=8))
    sizes = [process.is_large(bytes(size), is_packed=packed) for size in (124, 125, 999, 1_000) for packed in (False, True)]
    assert [False, False, False, True, False, True, True, True] == sizes


def test_requests_do_not_wait_for_the_start() -> None:
    """They are mapped in the server until the process is ready."""

    async def asked() -> bool:
        process = mapping_process()
        async with asyncio.timeout(LONG):
            told = await process.ask(b"", b"")
        is_ready = process.process_id is not None
        await process.close()
        return is_ready or told is not None

    assert not asyncio.run(asked())


def test_closing_while_it_starts_leaves_no_process() -> None:
    """At any moment of the start."""

    async def closed() -> set[int]:
        before = set(processes_of(os.getpid()))
        for turns in range(12):
            process = mapping_process()
            await process.ask(b"", b"")
            for _ in range(turns):
                await asyncio.sleep(0)
            await process.close()
        return set(processes_of(os.getpid())) - before

    assert set() == asyncio.run(closed())
    gc.collect()  # where a process was not waited for, Python warns of it now


def test_each_request_gets_its_own_answer() -> None:
    """Also if the caller of one before it has gone away."""

    async def asked() -> list[tuple[int, set[str]]]:
        process = mapping_process()
        await ready(process)
        tasks = [asyncio.create_task(mapped_ids(process, number)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        await process.close()
        return [one for one in told if not isinstance(one, BaseException)]

    told = asyncio.run(asked())
    assert 13 == len(told)
    assert [(number, {f"{number + 1:032x}"}) for number, _ in told] == told


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_leaves_its_requests_to_the_server(caplog: Logs, number: signal.Signals) -> None:
    """All that it had and all that waited for it; it is counted and logged once, and another one starts."""
    failures = []

    async def asked() -> Sequence[tuple[int, set[str]]]:
        process = MappingProcess(AT_ONCE, cores=2, on_failure=lambda: failures.append(1))
        pid = await ready(process)
        os.kill(pid, signal.SIGSTOP)
        tasks = await waiting(process, 6)
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(LONG):
            told = await asyncio.gather(*tasks)
        assert pid != await ready(process)
        again = await mapped_ids(process, 7)
        await process.close()
        return [*told, again]

    *lost, again = asyncio.run(asked())
    assert [(place, set()) for place in range(6)] == lost
    assert (7, {f"{8:032x}"}) == again
    assert [1] == failures
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"ended with {-number}" in line


def test_a_process_that_died_while_idle_costs_no_request(caplog: Logs) -> None:
    """Its death is noticed with the next one."""

    async def asked() -> tuple[int, set[str]]:
        process = mapping_process()
        pid = await ready(process)
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        async with asyncio.timeout(LONG):
            told = await mapped_ids(process, 0)
        await process.close()
        return told

    assert (0, set()) == asyncio.run(asked())
    assert "ended with -9" in caplog.text


def test_a_hanging_process_is_ended_and_holds_up_no_request(caplog: Logs) -> None:
    """Its requests are mapped in the server when its time is over."""

    async def asked() -> tuple[list[tuple[int, set[str]]], bool]:
        process = mapping_process(AT_ONCE._replace(patience=0.2, again=LONG))
        pid = await ready(process)
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(LONG):
            told = await asyncio.gather(*(mapped_ids(process, number) for number in range(5)))
            await gone(pid)
        await process.ask(b"", b"")
        is_again = process.process_id is not None
        await process.close()
        return list(told), is_again

    told, is_again = asyncio.run(asked())
    assert [(number, set()) for number in range(5)] == told
    assert not is_again, "another one starts at once"
    assert 1 == caplog.text.count("did not answer within")


def test_an_idle_process_ends_and_another_one_starts(caplog: Logs) -> None:
    """At rest a server has one process; that is no failure."""

    async def asked() -> tuple[int, set[str]]:
        process = mapping_process(AT_ONCE._replace(idle=0.05))
        await gone(await ready(process))
        process = mapping_process()
        await ready(process)
        told = await mapped_ids(process, 3)
        await process.close()
        return told

    assert (3, {f"{4:032x}"}) == asyncio.run(asked())
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_closing_ends_the_process_and_answers_its_callers() -> None:
    """A server that stops waits for nobody."""

    async def asked() -> list[tuple[int, set[str]]]:
        process = mapping_process()
        pid = await ready(process)
        os.kill(pid, signal.SIGSTOP)
        tasks = await waiting(process, 4)
        async with asyncio.timeout(LONG):
            await process.close()
            told = await asyncio.gather(*tasks)
        assert not is_running(pid)
        assert await process.ask(b"", b"") is None
        return told

    assert [(number, set()) for number in range(4)] == asyncio.run(asked())


@pytest.fixture
def post(call: Call, app: FastAPI, tokens: Tokens, loop: asyncio.Runner) -> Callable[[Json], Any]:
    """Posts spans to an application that hands every request to a process, which is ready."""
    failed = app.state.context.metrics.mapping_failed
    app.state.context.mapping = process = MappingProcess(AT_ONCE, cores=2, on_failure=failed)
    loop.run(ready(process))
    return lambda sent: call("POST", TRACES, tokens.ops, json=sent)


def stored(store: Store) -> list[tuple[str, str, str]]:
    """The spans that the log holds."""
    return store.cursor().execute("SELECT trace_id, span_id, content FROM log.spans ORDER BY ALL").fetchall()


def test_over_http_a_kill_loses_and_doubles_no_span(post: Callable[[Json], Any], app: FastAPI, store: Store) -> None:
    """The request whose process is killed is answered as if there had been none; a repetition is known, whoever mapped it."""
    first, second = spans_of(0).request, spans_of(1).request
    assert 200 == post(first).status_code
    process = app.state.context.mapping
    os.kill(process.process_id, signal.SIGKILL)
    assert [200, 200, 200] == [post(sent).status_code for sent in (second, first, second)]
    assert 4 == len(stored(store))
    assert 'driftline_ingested_spans_total{outcome="known"} 4.0' in app.state.context.metrics.text(_state(app)).decode()
    assert "driftline_mapping_process_failures_total 1.0" in app.state.context.metrics.text(_state(app)).decode()


def _state(app: FastAPI) -> Any:
    return app.state.context.engine.state()


def test_over_http_the_answer_is_the_one_without_a_process(
    post: Callable[[Json], Any], call: Call, app: FastAPI, tokens: Tokens, store: Store
) -> None:
    """Bad spans, conflicts and problems of the whole, in the same words; and the same records."""
    good, bad, other = agent(0), {**tool(1), "traceId": "00"}, agent(0, question="Another one?")
    beside = [post(body(sent)).json() for sent in ([good, bad], [other], [span(9)] * 3)]
    big = gzip.compress(bytes(65 * 1024 * 1024))
    refused = [call("POST", TRACES, tokens.ops, content=content, headers=_PACKED).json() for content in (big, b"x")]
    rows = stored(store)
    assert app.state.context.mapping.process_id is not None
    app.state.context.mapping = mapping_process(MappingLimits(large=1 << 40))
    store.cursor().execute("SELECT 1")
    inside = [call("POST", TRACES, tokens.web, json=body(sent)).json() for sent in ([good, bad], [other], [span(9)] * 3)]
    assert inside == beside
    assert refused == [call("POST", TRACES, tokens.web, content=one, headers=_PACKED).json() for one in (big, b"x")]
    assert "is known with other content" in beside[1]["partialSuccess"]["errorMessage"]
    assert [row[:2] for row in rows] == sorted({row[:2] for row in stored(store)})


def test_over_http_an_answer_that_cannot_be_read_costs_no_span(
    post: Callable[[Json], Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts after an upgrade in place is of another version than the server."""

    async def other(_process: MappingProcess, _task: bytes, _body: bytes) -> bytes:
        return msgspec.msgpack.encode({"later": 1})

    monkeypatch.setattr(MappingProcess, "ask", other)
    assert 200 == post(spans_of(0).request).status_code
    assert 2 == len(stored(store))


_PACKED = {"content-type": "application/json", "content-encoding": "gzip"}


_TWO_CORES = "import service.otlp.mapping_process as patched; patched.granted_cores = lambda: 2"
"""Run before a server: the process starts on a machine with one core, too."""


def flooded(url: str, token: str, parent: int) -> list[int]:
    """Post large requests until the server has a process beside it; its process ids."""
    large = "Is it well? " * 4_000
    sent = [request(agent(0, trace=f"{number + 1:032x}", question=large)).as_protobuf for number in range(200)]
    with httpx2.Client(
        base_url=url, headers=bearer(token) | {"content-type": "application/x-protobuf"}, timeout=LONG
    ) as client:
        for content in sent:
            client.post(TRACES, content=content).raise_for_status()
            if found := processes_of(parent):
                return found
    raise AssertionError("no process was started")


def test_a_killed_server_leaves_no_orphan_and_a_stopped_one_waits_for_none(children: Nursery, tmp_path: Path) -> None:
    """Nor does the process have anything of the server's: no key, no token, in its command line or its environment."""
    home = Home(tmp_path, DRIFTLINE_REDACTION_KEY=KEY)
    token = home.connection("north")
    for number in (signal.SIGKILL, signal.SIGTERM):
        server = children.serve(home, before=_TWO_CORES)
        [pid] = flooded(server.serving(), token, server.pid)
        told = Path(f"/proc/{pid}/environ").read_text() + "\n".join(command_of(pid))
        assert "PYTHONPATH" in told
        assert not [word for word in (KEY, token, "DRIFTLINE_") if word in told]
        server.send(number)
        server.wait()
        until(lambda pid=pid: not is_running(pid), "the process beside the server to end")  # type: ignore[misc]
    assert msgspec.json.decode(server.logged.splitlines()[-1])["level"] == "INFO"
    assert "the process beside it" not in server.logged
