"""The plugin in a real OpenClaw against a real server: each record is delivered once, despite outages and kills.

A module fixture plays one sequence: a healthy gateway with commands beside it; a server outage with many turns, in which the gateway is
killed; the return of both; and an import before and after the delivery. The tests check its results.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.invariants import rows
from support.model_apis.messages import Call, Play, Provider, Step, stand_in
from support.openclaw_host import ALLOWED, PLUGIN
from support.processes import free_port
from support.servers import Child, Home, Nursery, nursery, until

from analytics.store.store import Store
from openclaw.install import Installed
from openclaw.instance import Gateway, Instance
from openclaw.queues import Queue, identity

pytestmark = pytest.mark.slow

TOOLS = "Look into the backup"
SECOND = "And then"
OVERLOADED = "Busy now"
WAITING = "Wait for it"
BIG = "Say a lot"
COMMAND = "command"
FULL = "full"
AWAY_TURNS = 12
BIG_CALLS, BIG_STEPS = 7, 3
QUICK = {"flushMs": 100, "retryBaseMs": 100, "retryMaxMs": 1000, "heartbeatSeconds": 1}
Json = dict[str, Any]


def wrapped(tool: str, **arguments: str) -> Call:
    """Return a call of a tool of the catalog, as models make it since 2026.9."""
    return Call("tool_call", {"id": tool, "args": arguments})


PLAYS = {
    TOOLS: Play(
        [
            Step(
                "I look.",
                thinking="The log first.",
                calls=[wrapped("exec", command="ls /nowhere"), Call("read", {"path": "/no"})],
            ),
            Step(calls=[wrapped("memory_search"), wrapped("read", path="/nowhere")]),
            Step("The folder is gone."),
        ]
    ),
    SECOND: Play([Step("Then it goes on.")]),
    OVERLOADED: Play([Step("It works now.", failures=1)]),
    WAITING: Play([Step(calls=[wrapped("exec", command="echo begun")]), Step("It is over.", delay=600)]),
    BIG: Play(
        [
            *(
                Step(calls=[wrapped("no_such_tool", text=f"{step}-{call} {'x' * 60_000}") for call in range(BIG_CALLS)])
                for step in range(BIG_STEPS)
            ),
            Step("That was a lot."),
        ]
    ),
}


@dataclass
class Stage:
    """A server at one address, an OpenClaw that sends to it, and the observations of the tests."""

    children: Nursery
    home: Home
    instance: Instance
    port: int
    beside: Mapping[str, Instance] = field(default_factory=dict)
    """Other OpenClaws by session; their plugins share the folder of the queue."""
    observations: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> Queue:
        """Return the plugin's queue."""
        return Queue(self.instance.state / "driftline")

    def serve(self) -> Child:
        """Start the server at its address and wait until it accepts calls."""
        server = self.children.start(self.home, "serve", "--port", str(self.port))
        server.serving()
        return server

    def import_folders(self, home: Home, *options: str) -> Json:
        """Import the state folders and return the summary with the exit code."""
        folders = [str(instance.state) for instance in (self.instance, self.beside[COMMAND])]
        code, printed = self.children.run(home, "import", "openclaw", *folders, "--json", *options)
        summary: Json = json.loads(printed)
        return {"code": code} | summary

    def drain(self) -> None:
        """Wait until the queue is empty."""
        until(self.queue.is_empty, f"the queue to be delivered; {self.queue.count('delivered')} records were")


def configured(installed: Installed, folder: Path, provider: Provider, home: Home, port: int, **more: Any) -> Instance:
    """Return an OpenClaw with the plugin, installed as its README describes, for a server at this port."""
    config = QUICK | {"url": f"http://127.0.0.1:{port}", "token": home.connection("gateway")} | more.pop("config", {})
    entry = ALLOWED | {"enabled": True, "config": config}
    plugins = {"load": {"paths": [str(PLUGIN)]}, "allow": ["driftline"], "entries": {"driftline": entry}}
    return Instance(installed, folder, provider, plugins=plugins, **more)


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of processes."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Return the stand-in for the paid model."""
    with stand_in(PLAYS) as opened:
        yield opened


def home_in(folder: Path) -> Home:
    """Return a workspace with its own database, whose imports use the connection of the plugin."""
    folder.mkdir(parents=True)
    return Home(folder, DRIFTLINE_CONNECTION="gateway", DRIFTLINE_PROJECT="ops")


@pytest.fixture(scope="module")
def stage(newest_openclaw: Installed, children: Nursery, provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Play the sequence once and return its observations."""
    folder = tmp_path_factory.mktemp("host")
    port = free_port()
    home = home_in(folder / "home")
    instance = configured(newest_openclaw, folder / "openclaw", provider, home, port)
    shared = {"queueDir": str(instance.state / "driftline")}
    command = configured(newest_openclaw, folder / COMMAND, provider, home, port, config=shared)
    small = shared | {"queueMaxMiB": 1}
    full = configured(newest_openclaw, folder / FULL, provider, home, port, config=small, context_window=2_000_000)
    played = Stage(children, home, instance, port, {COMMAND: command, FULL: full})
    server = played.serve()
    with played.instance.gateway() as gateway:
        healthy(played, gateway)
        away(played, gateway, server)
        provider.released.set()
        server = back(played, gateway)
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        imported_first(played, gateway)
    # By then every session is idle, so an import treats its last exchange as finished.
    later = ("--as-of", (datetime.now(UTC) + timedelta(hours=2)).isoformat())
    played.observations["later"] = played.import_folders(home, *later)
    alone = home_in(folder / "alone")
    played.observations["alone"] = played.import_folders(alone, *later)
    for name, database_home in (("both", home), ("import", alone)):
        with Store(database_home.database) as store:
            played.observations[name] = {
                "events": rows(store, EVENTS),
                "exchanges": rows(store, EXCHANGES),
                "letters": rows(store, LETTERS),
            }
    return played


EVENTS = "SELECT session_id, event, payload FROM log.agent_events ORDER BY session_id, seq"
EXCHANGES = "SELECT session_id, exchange_id, user_message, agent_response, outcome FROM log.exchanges ORDER BY _offset"
LETTERS = "SELECT reason, detail FROM dead_letters"


def healthy(stage: Stage, gateway: Gateway) -> None:
    """Run turns on the gateway, and a command beside it with another state folder and the same queue folder.

    Since 2026.9, two processes of OpenClaw cannot run agents of one state folder.
    """
    with ThreadPoolExecutor(2) as pool:
        command = pool.submit(stage.beside[COMMAND].local_turn, COMMAND, TOOLS)
        for text in (TOOLS, SECOND, SECOND):
            gateway.turn("long", text)
        compaction = pool.submit(gateway.call, "sessions.compact", {"key": "agent:main:long"})
        gateway.turn("busy", OVERLOADED)
        gateway.turn("busy", SECOND)
        assert compaction.result()["compacted"], compaction.result()
        gateway.turn("long", f"{SECOND} once more")
        completed = command.result()
    assert completed.returncode == 0, completed.stderr[-2000:]
    # The next command would take over this command's lane, and drop its records first when its small queue is full.
    stage.drain()
    log_lines = plugin_log_lines(gateway.said(), completed.stderr)
    stage.observations["healthy"] = {"log_lines": log_lines, "records": stage.queue.records()}


def away(stage: Stage, gateway: Gateway, server: Child) -> None:
    """Stop the server for many turns and for a command with a small queue; then kill the gateway within a turn."""
    earlier_log_size = len(gateway.said())
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(stage.beside[FULL].local_turn, FULL, BIG)
        for number in range(AWAY_TURNS):
            gateway.turn(f"away-{number % 2}", f"{SECOND} {number}")
        full = command.result()
    assert full.returncode == 0, full.stderr[-2000:]
    stage.observations["full"] = {"log_lines": plugin_log_lines(full.stderr), "size": stage.queue.size()}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(abandoned_turn, gateway)
        until(lambda: "begun" in str(queued_events(stage.queue, "tool_output")), "a tool's result in the queue")
        gateway.kill()
    stage.observations["away"] = {
        "records": stage.queue.records(),
        "log_lines": plugin_log_lines(gateway.said()[earlier_log_size:]),
    }


def abandoned_turn(gateway: Gateway) -> None:
    """Run a turn whose gateway is killed before it answers."""
    with suppress(httpx2.HTTPError):
        gateway.turn("killed", WAITING)


def queued_events(queue: Queue, event: str) -> list[Json]:
    """Return the events of a type in a queue."""
    return [record["b"] for record in queue.records() if record["k"] == "event" and record["b"]["event"] == event]


def back(stage: Stage, gateway: Gateway) -> Child:
    """Start server and gateway again, and kill the server once more during the delivery."""
    server = stage.serve()
    earlier_calls = count_accepted_calls(server)
    gateway.start()
    until(lambda: count_accepted_calls(server) > earlier_calls, "a first call")
    server.kill()
    server = stage.serve()
    # OpenClaw continues the interrupted turn with a message of its own.
    until(lambda: "restart recovery terminal" in gateway.said(), "the interrupted turn to be taken up")
    stage.drain()
    return server


def count_accepted_calls(server: Child) -> int:
    """Return the number of calls that the server accepted, over all of its processes."""
    return server.logged.count('"status": 201')


def imported_first(stage: Stage, gateway: Gateway) -> None:
    """Run turns without a server, and import them before the plugin delivers them."""
    gateway.turn("late", TOOLS)
    gateway.turn("late", SECOND)
    gateway.turn("late", f"{SECOND} at last")
    stage.observations["first"] = stage.import_folders(stage.home)
    server = stage.serve()
    stage.drain()
    gateway.stop()
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def plugin_log_lines(*logs: str) -> list[str]:
    """Return the log lines of or about the plugin, except those of OpenClaw's normal operation."""
    lines = [line for log in logs for line in log.splitlines() if _PLUGIN.search(line)]
    return [line for line in lines if not any(message in line for message in _HOST_MESSAGES)]


_HOST_MESSAGES = ("http server listening", "forced retirement after 5000ms")
"""OpenClaw reports a forced retirement if the machine is slow; the plugin's own hooks return immediately."""

_PLUGIN = re.compile(r"(?<![\w./-])driftline(?![\w./-])")
"""The plugin's name outside of a path."""


def find_duplicates(records: Sequence[Json]) -> list[Any]:
    """Return the identities of records that occur more than once."""
    return [record_identity for record_identity, count in Counter(map(identity, records)).items() if count > 1]


def test_a_healthy_fleet_logs_nothing_about_the_plugin(stage: Stage) -> None:
    """OpenClaw loads a plugin several times per process, and processes share a folder; users need not know."""
    assert stage.observations["healthy"]["log_lines"] == []


def test_each_record_is_in_the_queue_once(stage: Stage) -> None:
    """Duplicates waste disk and network, and show that two processes write to one lane."""
    for phase in ("healthy", "away"):
        assert find_duplicates(stage.observations[phase]["records"]) == [], phase


def test_records_of_an_ended_command_are_delivered_and_none_is_refused(stage: Stage) -> None:
    """A command ends before its records are delivered, and another process takes over its lane."""
    sessions = {session for session, *_ in stage.observations["both"]["exchanges"]}
    assert {COMMAND, FULL} <= sessions
    assert stage.queue.count("refused") == 0
    assert stage.queue.refused() == []


def test_every_event_has_its_source(stage: Stage) -> None:
    """A diagnosis must know which evidence a source can provide."""
    events = [record["b"] for record in stage.observations["away"]["records"] if record["k"] == "event"]
    assert {event["source"] for event in events} == {"openclaw"}


def test_a_wrapped_call_is_recorded_once_under_the_inner_tool(stage: Stage) -> None:
    """Hooks report both the wrapper and the inner tool; tool statistics need one call with the inner name."""
    events = [json.loads(payload) for session, _, payload in stage.observations["both"]["events"] if session == COMMAND]
    tool_events = [
        (event["event"], event.get("tool"), event.get("via"), event.get("action")) for event in events if "tool" in event
    ]
    assert Counter(tool_events) == Counter(
        [
            *(("tool_call", tool, "tool_call", None) for tool in ("exec", "memory_search", "read")),
            *(("tool_output", tool, "tool_call", None) for tool in ("exec", "memory_search", "read")),
            ("memory_event", "memory_search", None, "recall_failed"),
            ("tool_call", "read", None, None),
            ("tool_output", "read", None, None),
        ]
    )


def test_nothing_is_lost_while_the_server_is_away_and_the_gateway_is_killed(stage: Stage) -> None:
    """Records wait in the queue, the log mentions it once, and they arrive in order after the outage."""
    queued = stage.observations["away"]
    delivered = stage.observations["both"]
    questions = [f"{SECOND} {number}" for number in range(AWAY_TURNS)]
    exchanges = [record["b"]["exchange"] for record in queued["records"] if record["k"] == "exchange"]

    assert len(queued["log_lines"]) == 1, queued["log_lines"]
    assert "cannot deliver, E" in queued["log_lines"][0]
    queued_questions = [exchange["user_message"]["content"] for exchange in exchanges]
    delivered_questions = [text for _, _, text, *_ in delivered["exchanges"]]
    assert [text for text in queued_questions if text in questions] == questions
    assert [text for text in delivered_questions if text in questions] == questions
    delivered_ids = Counter(json.loads(payload)["event_id"] for _, _, payload in delivered["events"])
    queued_ids = {record["b"]["event_id"] for record in queued["records"] if record["k"] == "event"}
    assert {delivered_ids[event_id] for event_id in queued_ids} == {1}


def test_import_and_plugin_count_once_in_either_order(stage: Stage) -> None:
    """Users of both must be able to trust the counts. Only failed attempts may come from the plugin alone."""
    summaries = [stage.observations[name] for name in ("first", "later", "alone")]
    both = stage.observations["both"]
    imported = stage.observations["import"]
    event_counts = Counter(kind(event) for event in both["events"] if event[0] != FULL)

    for summary in summaries:
        assert summary["code"] == 0
        assert summary["conflicts"] == 0
        assert summary["faults"] == 0
    assert both["letters"] == []
    assert imported["letters"] == []
    assert Counter(imported["exchanges"]) == Counter(exchange for exchange in both["exchanges"] if exchange[0] != FULL)
    assert Counter(map(kind, imported["events"])) - event_counts == Counter()
    only_from_plugin = event_counts - Counter(map(kind, imported["events"]))
    assert [row for row in only_from_plugin if row[1] not in {"error_event", "retry_event"}] == []


def kind(row: tuple[str, str, str]) -> tuple[Any, ...]:
    """Return the content of an event that is the same from plugin and import."""
    session, event, payload = row
    fields = json.loads(payload)
    usage = fields.get("usage", {}).get("total")
    return (session, event, *(fields.get(name) for name in ("tool", "tool_call_id", "via", "action", "is_error")), usage)


def test_a_full_queue_drops_the_oldest_records_and_reports_them(stage: Stage) -> None:
    """The log names the setting once, and the session counts its dropped records."""
    observed = stage.observations["full"]
    events = [json.loads(payload) for session, _, payload in stage.observations["both"]["events"] if session == FULL]
    warnings = [line for line in observed["log_lines"] if "the queue was full" in line]
    drop_events = [event for event in events if event["event"] == "records_dropped"]
    delivered = [event for event in events if event["event"] != "records_dropped"]

    assert observed["size"] <= 1.2 * 1024 * 1024
    assert len(warnings) == 1, observed["log_lines"]
    assert "queueMaxMiB" in warnings[0]
    assert sum(event["events"] for event in drop_events) > 0
    assert len(delivered) + sum(event["events"] for event in drop_events) == BIG_EVENTS
    assert delivered[-1]["event"] == "token_usage", "the newest record must be kept"


BIG_EVENTS = 2 * BIG_STEPS * BIG_CALLS + BIG_STEPS + 1
"""Calls, their results, and what each answer of the model used."""
