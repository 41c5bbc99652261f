"""The plugin in a real OpenClaw against a real server: what agents say and do arrives once, whatever breaks on the way.

One story is told of one state folder: a healthy fleet of a gateway and commands beside it, a server that is away while many turns
come and the gateway is killed, both back, and an import before and after. Tests look at what is left of it.
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

TOOLS, SECOND, OVERLOADED, WAITING, BIG = "Look into the backup", "And then", "Busy now", "Wait for it", "Say a lot"
COMMAND, FULL = "command", "full"
AWAY_TURNS = 12
BIG_CALLS, BIG_STEPS = 7, 3
QUICK = {"flushMs": 100, "retryBaseMs": 100, "retryMaxMs": 1000, "heartbeatSeconds": 1}
Json = dict[str, Any]


def wrapped(tool: str, **arguments: str) -> Call:
    """A call of a catalogued tool, as models make it since 2026.9."""
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
    """A server at one address, an OpenClaw that sends to it, and what was noted on the way."""

    children: Nursery
    home: Home
    instance: Instance
    port: int
    beside: Mapping[str, Instance] = field(default_factory=dict)
    """Further OpenClaws, by their sessions; their plugin shares the folder of the queue."""
    noted: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> Queue:
        """The plugin's queue."""
        return Queue(self.instance.state / "driftline")

    def serve(self) -> Child:
        """Start the server at its address; it takes calls when this returns."""
        server = self.children.start(self.home, "serve", "--port", str(self.port))
        server.serving()
        return server

    def take(self, home: Home, *options: str) -> Json:
        """Import the state folders; what came of it, with the exit code."""
        folders = [str(one.state) for one in (self.instance, self.beside[COMMAND])]
        code, printed = self.children.run(home, "import", "openclaw", *folders, "--json", *options)
        summary: Json = json.loads(printed)
        return {"code": code} | summary

    def drain(self) -> None:
        """Wait until everything was delivered."""
        until(self.queue.is_empty, f"the queue to be delivered: {self.queue.count('delivered')} were")


def configured(installed: Installed, folder: Path, provider: Provider, home: Home, port: int, **more: Any) -> Instance:
    """An OpenClaw with the plugin, installed as its README says, for a server at a port."""
    config = QUICK | {"url": f"http://127.0.0.1:{port}", "token": home.connection("gateway")} | more.pop("config", {})
    entry = ALLOWED | {"enabled": True, "config": config}
    plugins = {"load": {"paths": [str(PLUGIN)]}, "allow": ["driftline"], "entries": {"driftline": entry}}
    return Instance(installed, folder, provider, plugins=plugins, **more)


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Where servers come from."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """The stand-in for the paid model."""
    with stand_in(PLAYS) as opened:
        yield opened


def home_in(folder: Path) -> Home:
    """A database of its own, into which transcripts are imported under the connection that the plugin delivers by."""
    folder.mkdir(parents=True)
    return Home(folder, DRIFTLINE_CONNECTION="gateway", DRIFTLINE_PROJECT="ops")


@pytest.fixture(scope="module")
def stage(newest_openclaw: Installed, children: Nursery, provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The whole story, told once."""
    folder, port = tmp_path_factory.mktemp("host"), free_port()
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
    # Every session has fallen idle then, so that its last exchange is over to an import, too.
    later = ("--as-of", (datetime.now(UTC) + timedelta(hours=2)).isoformat())
    played.noted["later"] = played.take(home, *later)
    alone = home_in(folder / "alone")
    played.noted["alone"] = played.take(alone, *later)
    for name, one in (("both", home), ("import", alone)):
        with Store(one.database) as store:
            played.noted[name] = {
                "events": rows(store, EVENTS),
                "exchanges": rows(store, EXCHANGES),
                "letters": rows(store, LETTERS),
            }
    return played


EVENTS = "SELECT session_id, event, payload FROM log.agent_events ORDER BY session_id, seq"
EXCHANGES = "SELECT session_id, exchange_id, user_message, agent_response, outcome FROM log.exchanges ORDER BY _offset"
LETTERS = "SELECT reason, detail FROM dead_letters"


def healthy(stage: Stage, gateway: Gateway) -> None:
    """A gateway at work, and beside it a command that runs an agent of another state folder and shares the queue's.

    Since 2026.9 OpenClaw lets no two processes run agents of one state folder.
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
        done = command.result()
    assert done.returncode == 0, done.stderr[-2000:]
    # Those of the command, too: the next command would take its lane over, and drop them first when its small queue is full.
    stage.drain()
    said = words_of_plugin(gateway.said(), done.stderr)
    stage.noted["healthy"] = {"said": said, "records": stage.queue.records()}


def away(stage: Stage, gateway: Gateway, server: Child) -> None:
    """No server for many turns, and for a command whose queue is small; then the gateway is killed in the middle of a turn."""
    said = len(gateway.said())
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(stage.beside[FULL].local_turn, FULL, BIG)
        for number in range(AWAY_TURNS):
            gateway.turn(f"away-{number % 2}", f"{SECOND} {number}")
        full = command.result()
    assert full.returncode == 0, full.stderr[-2000:]
    stage.noted["full"] = {"said": words_of_plugin(full.stderr), "size": stage.queue.size()}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(abandoned_turn, gateway)
        until(lambda: "begun" in str(told_of(stage.queue, "tool_output")), "a tool's result in the queue")
        gateway.kill()
    stage.noted["away"] = {"records": stage.queue.records(), "said": words_of_plugin(gateway.said()[said:])}


def abandoned_turn(gateway: Gateway) -> None:
    """A turn whose gateway is killed before it answers."""
    with suppress(httpx2.HTTPError):
        gateway.turn("killed", WAITING)


def told_of(queue: Queue, event: str) -> list[Json]:
    """The events of a kind that are in a queue."""
    return [record["b"] for record in queue.records() if record["k"] == "event" and record["b"]["event"] == event]


def back(stage: Stage, gateway: Gateway) -> Child:
    """Server and gateway are there again; the server is killed once more in the middle of the delivery."""
    server = stage.serve()
    before = taken_by(server)
    gateway.start()
    until(lambda: taken_by(server) > before, "a first call")
    server.kill()
    server = stage.serve()
    # OpenClaw goes on with the turn that the kill interrupted, in its own words.
    until(lambda: "restart recovery terminal" in gateway.said(), "the interrupted turn to be taken up")
    stage.drain()
    return server


def taken_by(server: Child) -> int:
    """How many calls the plugin's server has taken, over all its lives."""
    return server.logged.count('"status": 201')


def imported_first(stage: Stage, gateway: Gateway) -> None:
    """The server is away again; what comes then is imported before the plugin delivers it."""
    gateway.turn("late", TOOLS)
    gateway.turn("late", SECOND)
    gateway.turn("late", f"{SECOND} at last")
    stage.noted["first"] = stage.take(stage.home)
    server = stage.serve()
    stage.drain()
    gateway.stop()
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def words_of_plugin(*logs: str) -> list[str]:
    """What the plugin said, and what OpenClaw said of it, besides that it has it."""
    lines = [line for log in logs for line in log.splitlines() if _PLUGIN.search(line)]
    return [line for line in lines if not any(words in line for words in _OF_THE_HOST)]


_OF_THE_HOST = ("http server listening", "forced retirement after 5000ms")
"""The plugin's hooks return at once: a copy of it that is still busy after five seconds waits for OpenClaw, on a machine that is."""

_PLUGIN = re.compile(r"(?<![\w./-])driftline(?![\w./-])")
"""The plugin's name, and no part of a path."""


def twice(records: Sequence[Json]) -> list[Any]:
    """Records that are there more than once."""
    return [one for one, count in Counter(map(identity, records)).items() if count > 1]


def test_a_healthy_fleet_is_recorded_without_a_word(stage: Stage) -> None:
    """OpenClaw loads a plugin several times in a process, and several processes share a folder: nobody has to read of that."""
    assert stage.noted["healthy"]["said"] == []


def test_each_record_is_in_the_queue_once(stage: Stage) -> None:
    """Copies of a record cost disk and network for nothing, and show that two write one lane."""
    for time in ("healthy", "away"):
        assert twice(stage.noted[time]["records"]) == [], time


def test_nothing_is_refused_and_what_a_command_left_is_delivered(stage: Stage) -> None:
    """A command ends before all is delivered: another process takes its lane over."""
    sessions = {session for session, *_ in stage.noted["both"]["exchanges"]}
    assert {COMMAND, FULL} <= sessions
    assert stage.queue.count("refused") == 0
    assert stage.queue.refused() == []


def test_every_event_says_where_it_comes_from(stage: Stage) -> None:
    """A diagnosis has to know which evidence a source can give."""
    events = [record["b"] for record in stage.noted["away"]["records"] if record["k"] == "event"]
    assert {event["source"] for event in events} == {"openclaw"}


def test_a_wrapped_call_is_that_of_the_tool_inside(stage: Stage) -> None:
    """Hooks tell of the wrapper and of the tool inside it; a list of tools that are called needs one, and by its name."""
    events = [json.loads(payload) for session, _, payload in stage.noted["both"]["events"] if session == COMMAND]
    told = [(event["event"], event.get("tool"), event.get("via"), event.get("action")) for event in events if "tool" in event]
    assert Counter(told) == Counter(
        [
            *(("tool_call", tool, "tool_call", None) for tool in ("exec", "memory_search", "read")),
            *(("tool_output", tool, "tool_call", None) for tool in ("exec", "memory_search", "read")),
            ("memory_event", "memory_search", None, "recall_failed"),
            ("tool_call", "read", None, None),
            ("tool_output", "read", None, None),
        ]
    )


def test_nothing_is_lost_while_the_server_is_away_and_the_gateway_is_killed(stage: Stage) -> None:
    """What was recorded waits, is said once to wait, and arrives in its order when both are back, whatever is killed meanwhile."""
    waited, arrived = stage.noted["away"], stage.noted["both"]
    asked = [f"{SECOND} {number}" for number in range(AWAY_TURNS)]
    exchanges = [record["b"]["exchange"] for record in waited["records"] if record["k"] == "exchange"]

    assert len(waited["said"]) == 1, waited["said"]
    assert "cannot deliver, E" in waited["said"][0]
    assert asked == [
        exchange["user_message"]["content"] for exchange in exchanges if exchange["user_message"]["content"] in asked
    ]
    assert asked == [text for _, _, text, *_ in arrived["exchanges"] if text in asked]
    ids = Counter(json.loads(payload)["event_id"] for _, _, payload in arrived["events"])
    told = {record["b"]["event_id"] for record in waited["records"] if record["k"] == "event"}
    assert {ids[one] for one in told} == {1}


def test_import_and_plugin_count_once_in_either_order(stage: Stage) -> None:
    """Whoever uses both has to be able to trust the counts: only failed attempts may be the plugin's own, because it alone sees each."""
    first, later, alone = (stage.noted[name] for name in ("first", "later", "alone"))
    both, imported = stage.noted["both"], stage.noted["import"]
    counted = Counter(kind(event) for event in both["events"] if event[0] != FULL)

    assert [one["code"] for one in (first, later, alone)] == [0, 0, 0]
    assert [one["conflicts"] + one["faults"] for one in (first, later, alone)] == [0, 0, 0]
    assert both["letters"] == imported["letters"] == []
    assert Counter(imported["exchanges"]) == Counter(exchange for exchange in both["exchanges"] if exchange[0] != FULL)
    assert Counter(map(kind, imported["events"])) - counted == Counter()
    attempts = counted - Counter(map(kind, imported["events"]))
    assert [row for row in attempts if row[1] not in {"error_event", "retry_event"}] == []


def kind(row: tuple[str, str, str]) -> tuple[Any, ...]:
    """What an event says, whoever brought it."""
    session, event, payload = row
    told = json.loads(payload)
    usage = told.get("usage", {}).get("total")
    return (session, event, *(told.get(name) for name in ("tool", "tool_call_id", "via", "action", "is_error")), usage)


def test_a_full_queue_drops_the_oldest_and_the_session_knows(stage: Stage) -> None:
    """A disk is not without end. What is lost is said once, in words that say what to do, and counted in the session that lost it."""
    noted = stage.noted["full"]
    events = [json.loads(payload) for session, _, payload in stage.noted["both"]["events"] if session == FULL]
    warned = [line for line in noted["said"] if "the queue was full" in line]
    lost = [event for event in events if event["event"] == "records_dropped"]
    arrived = [event for event in events if event["event"] != "records_dropped"]

    assert noted["size"] <= 1.2 * 1024 * 1024
    assert len(warned) == 1, noted["said"]
    assert "queueMaxMiB" in warned[0]
    assert sum(event["events"] for event in lost) > 0
    assert len(arrived) + sum(event["events"] for event in lost) == BIG_EVENTS
    assert arrived[-1]["event"] == "token_usage", "the newest is kept"


BIG_EVENTS = 2 * BIG_STEPS * BIG_CALLS + BIG_STEPS + 1
"""Calls, their results, and what each answer of the model used."""
