"""The OpenClaw plugin against a real server: what its hooks are told arrives once, whatever breaks on the way, and is scored and diagnosed."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.clients import bearer
from support.invariants import rows
from support.openclaw_host import ALLOWED, NODE, PLUGIN, Host, entries, host, written
from support.servers import PATIENCE, ROOT, Home, Nursery, nursery, until

from analytics.store.store import Store
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.records import AgentEvent, Exchange, Record
from streams.sources.openclaw.reader import read_transcript
from streams.sources.source import ReadingContext
from streams.stage_batches import StageBatch

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")
CORPUS = ROOT / "tests" / "corpus" / "openclaw"
TRANSCRIPTS = ("plain", "memory", "aborted", "wrapped_text", "redacted_thinking", "missing_usage", "noise", "sub_agent")
EXCHANGES = 23
"""Exchanges in the transcripts."""
UNTOLD = 1
"""Events in them that OpenClaw tells no plugin of: the model with which a session begins."""
TURNS = 24
WRONG = "dl_0123456789abcdef_this_is_no_token_of_ours"
CONNECTIONS = ("story", "twin", "down", "wrong", "full", "private", "hooked")
Json = dict[str, Any]
Told = dict[str, Any]
"""What a story noted on the way."""


@dataclass
class Stage:
    """A server with what is needed to tell it something, and what came of it once it has stopped."""

    home: Home
    url: str
    folder: Path
    store: Store | None = None
    told: dict[str, Told] = field(default_factory=dict)

    def config(self, connection: str, **fields: Any) -> Json:
        """The plugin's configuration for a connection of its own."""
        return {"url": self.url, "token": self.home.tokens[connection], "queueDir": str(self.folder / connection)} | fields

    def count(self, connection: str, what: str) -> int:
        """How many scores or runs the server has of a connection, which has a project of its own."""
        headers = bearer(self.home.operator())
        answer = httpx2.get(f"{self.url}/api/audit/{connection}/{what}", headers=headers, timeout=PATIENCE)
        found: int = answer.json()["count"]
        return found

    def exchanges(self, connection: str) -> list[Exchange]:
        """The exchanges of a connection, in the order in which they came."""
        return [one for one in self._records("exchanges") if isinstance(one, Exchange) and one.connection == connection]

    def events(self, connection: str) -> list[Json]:
        """The payloads of a connection's events, by session, in their order."""
        found = [one for one in self._records("agent-events") if isinstance(one, AgentEvent) and one.connection == connection]
        return [json.loads(one.payload) for one in sorted(found, key=lambda one: (one.session_id, one.seq))]

    def _records(self, topic: str) -> Iterator[Record]:
        assert self.store is not None
        frames = self.store.read(topic, 0, self.store.end_of(topic))
        return (record for _, _, record in StageBatch.of(topic, frames).records())


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Where servers come from."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def stage(children: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One life of a server in which every story was told, each by a connection of its own; tests look at what is in its database."""
    home = Home(tmp_path_factory.mktemp("plugin"))
    home.operator()
    for name in CONNECTIONS:
        home.connection(name, name)
    server = children.serve(home)
    played = Stage(home, server.serving(), tmp_path_factory.mktemp("queues"))
    for name in CONNECTIONS:
        played.told[name] = STORIES[name](played)
    until(lambda: played.count("story", "runs") > 0, "the diagnosis")
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    with Store(home.database) as played.store:
        yield played


def backup(number: int, minutes: int = 0, *, words: str = "No: /backup is full.") -> list[Json]:
    """The messages of a turn in which a tool is called and fails."""
    began = datetime.now(UTC) - timedelta(hours=1) + timedelta(minutes=minutes, seconds=number)
    at = [int((began + timedelta(milliseconds=step)).timestamp() * 1000) for step in range(4)]
    model = {"provider": "anthropic", "model": "claude-sonnet-5-5"}
    call = {"type": "toolCall", "id": f"toolu_{number}", "name": "exec", "arguments": {"command": "tail backup.log"}}
    return [
        {"role": "user", "content": [{"type": "text", "text": f"Is backup {number} healthy?"}], "timestamp": at[0]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Check the log first."}, call],
            "usage": {"input": 900, "output": 61, "cacheRead": 0, "cacheWrite": 4200},
            "stopReason": "toolUse",
            "timestamp": at[1],
        }
        | model,
        {
            "role": "toolResult",
            "toolCallId": f"toolu_{number}",
            "toolName": "exec",
            "content": [{"type": "text", "text": "ERROR: disk full on /backup"}],
            "details": {"status": "completed", "exitCode": 1},
            "isError": True,
            "timestamp": at[2],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": words}],
            "usage": {"input": 1000, "output": 30, "cacheRead": 4200, "cacheWrite": 0},
            "stopReason": "stop",
            "timestamp": at[3],
        }
        | model,
    ]


def story(stage: Stage) -> Told:
    """A session with a failed call, a compaction, a failed run, and an end."""
    with host(stage.config("story")) as openclaw:
        openclaw.hook("session_start", {"sessionId": "s"}, "s")
        openclaw.turn("s", backup(1))
        openclaw.hook("before_compaction", {"messageCount": 4, "tokenCount": 41250}, "s")
        openclaw.hook("after_compaction", {"messageCount": 1, "compactedCount": 3, "tokenCount": 900}, "s")
        failed = [*backup(2)[:1], backup(2)[3] | {"content": [], "usage": {}, "stopReason": "error", "errorMessage": "529"}]
        openclaw.turn("s", [*backup(1), *failed], "run-2", success=False, error="529")
        openclaw.hook("session_end", {"sessionId": "s", "messageCount": 6, "reason": "new"}, "s")
        return {"status": openclaw.do("drained"), "slowest": openclaw.slowest}


def twin(stage: Stage) -> Told:
    """Transcripts that can be imported, too; half of them as OpenClaw told of them when they were files."""
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    wrote = {name: written(CORPUS / f"{name}.jsonl", f"s-{name}", began) for name in TRANSCRIPTS}
    with host(stage.config("twin"), has_transcripts=True) as openclaw:
        for number, (name, lines) in enumerate(wrote.items()):
            openclaw.live(f"s-{name}", lines, of_file=number % 2 == 0)
        return {"status": openclaw.do("drained"), "wrote": wrote}


def down(stage: Stage) -> Told:
    """Two lives of a gateway beside a server that is away, each ended by a kill, then a kill in the middle of delivery."""
    for life in range(2):
        openclaw = Host(stage.config("down", url=f"http://127.0.0.1:{free_port()}"))
        for number in range(4):
            openclaw.turn("s", backup(4 * life + number), f"run-{life}-{number}")
        assert openclaw.do("kept")["delivered"] == 0
        openclaw.kill()
    openclaw = Host(stage.config("down"))
    until(lambda: stage.count("down", "scores") > 0, "the first exchange")
    openclaw.kill()
    with host(stage.config("down")) as openclaw:
        return {"status": openclaw.do("drained")}


def wrong(stage: Stage) -> Told:
    """A gateway with a wrong token, which is mended."""
    with host(stage.config("wrong", token=WRONG)) as openclaw:
        openclaw.turn("s", backup(1))
        until(lambda: openclaw.do("kept")["trouble"] is not None, "the refusal")
        status = openclaw.do("kept")
    files = "".join(path.read_text() for path in (stage.folder / "wrong").rglob("*") if path.is_file())
    with host(stage.config("wrong")) as mended:
        mended.do("drained")
    return {"status": status, "files": files, "logged": openclaw.logged}


def full(stage: Stage) -> Told:
    """More than the queue may hold, beside a server that is away for a while."""
    with host(stage.config("full", queueMaxMiB=1, fsync=False, url=f"http://127.0.0.1:{free_port()}")) as openclaw:
        for number in range(TURNS):
            openclaw.turn("s", backup(number, words=f"{number} " + "x" * 60_000), f"run-{number}")
            openclaw.do("kept")
        status = openclaw.do("kept")
    size = sum(path.stat().st_size for path in (stage.folder / "full").rglob("*.jsonl"))
    with host(stage.config("full", queueMaxMiB=1)) as later:
        later.do("drained")
    return {"status": status, "size": size, "logged": openclaw.logged}


def private(stage: Stage) -> Told:
    """Equal calls in two turns, with thinking and what tools were given and gave kept back."""
    with host(stage.config("private", sendThinking=False, sendToolData=False)) as openclaw:
        openclaw.turn("s", backup(1))
        openclaw.turn("s", backup(2), "run-2")
        return {"status": openclaw.do("drained")}


def hooked(stage: Stage) -> Told:
    """A user who did not allow the plugin to read conversations."""
    with host(stage.config("hooked"), entry={}, has_transcripts=True) as openclaw:
        openclaw.live("s", entries(CORPUS / "plain.jsonl"))
        return {"status": openclaw.do("drained")}


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


STORIES: dict[str, Callable[[Stage], Told]] = {one.__name__: one for one in (story, twin, down, wrong, full, private, hooked)}


def test_a_session_is_sent_scored_and_diagnosed(stage: Stage) -> None:
    """This is what the plugin is for: texts, thinking, usage and model of each exchange, each runtime event, and a verdict."""
    assert stage.store is not None
    one, two = stage.exchanges("story")
    expected = {"delivered": 9, "dropped": 0, "refused": 0, "queuedBytes": 0, "unattributed": 0, "trouble": None}

    assert stage.told["story"]["status"] == expected
    assert one.user_message == "Is backup 1 healthy?"
    assert one.agent_response == "No: /backup is full."
    assert one.agent == "main"
    assert one.agent_thinking == "Check the log first."
    assert one.agent_model == "claude-sonnet-5-5"
    assert one.input_tokens == 10300
    assert one.output_tokens == 91
    assert two.user_message == "Is backup 2 healthy?"
    assert two.agent_response == ""
    assert two.outcome == "error"
    kinds = ["tool_call", "tool_output", "token_usage", "token_usage", "context_event", "error_event"]
    assert kinds == [event["event"] for event in stage.events("story")]
    output = stage.events("story")[1]
    assert output["tool"] == "exec"
    assert output["tool_call_id"] == "toolu_1"
    assert output["is_error"] is True
    assert output["exit_code"] == 1
    assert stage.events("story")[4]["tokens_before"] == 41250
    assert rows(stage.store, "SELECT session_id, event_count FROM diagnoses WHERE connection = 'story'") == [("s", 6)]
    assert len(rows(stage.store, "SELECT exchange_id FROM scores WHERE connection = 'story'")) == 2
    assert stage.told["story"]["slowest"] < 250, "hooks return at once"


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_exchanges_and_events_are_those_of_the_import(stage: Stage, tmp_path: Path, name: str) -> None:
    """A transcript that is imported after it was sent must meet what was sent, and not count for a second time."""
    path = tmp_path / "t.jsonl"
    saved(path, stage.told["twin"]["wrote"][name])
    redactor = Redactor(RedactionSettings())
    context = ReadingContext("twin", "twin", None, datetime.now(UTC), timedelta(minutes=30), redactor)
    imported = read_transcript(path, context)
    sent = [one for one in stage.exchanges("twin") if one.session_id == f"s-{name}"]
    expected = [event for event in (json.loads(one.payload) for one in imported.events) if event["event"] in TOLD]
    events = [event for event in stage.events("twin") if event["exchange_id"].startswith(f"s-{name}:")]

    assert list(map(said, imported.exchanges)) == list(map(said, sent))
    assert Counter(map(kind, events)) == Counter(map(kind, expected))
    assert [event["event_id"] for event in expected if not of_result(event)] == [
        event["event_id"] for event in events if not of_result(event)
    ]


TOLD = {"tool_call", "tool_output", "memory_event", "token_usage", "error_event", "retry_event"}
"""Events of messages: of what OpenClaw writes besides, such as the first model of a session, plugins are not told."""


def said(one: Exchange) -> tuple[Any, ...]:
    """What an exchange says, whoever brought it."""
    texts = (one.user_message, one.agent_response, one.agent_thinking, one.raw_user_message)
    answer = (one.agent_model, one.input_tokens, one.output_tokens, one.stop_reason, one.outcome)
    return (one.exchange_id, *texts, *answer, one.multi_user)


def kind(event: Json) -> tuple[Any, ...]:
    """What an event says, whoever brought it."""
    names = ("event", "action", "tool", "tool_call_id", "is_error", "result", "exchange_id")
    return tuple(event.get(name) for name in names)


def of_result(event: Json) -> bool:
    """Whether it is of a tool's result, whose entry OpenClaw tells no plugin."""
    return event["event"] in ("tool_output", "memory_event")


def saved(path: Path, lines: Sequence[Json]) -> Path:
    """A transcript as a file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("is_imported_first", [False, True], ids=["sent first", "imported first"])
def test_what_comes_in_both_ways_is_there_once(children: Nursery, tmp_path: Path, *, is_imported_first: bool) -> None:
    """Whoever turns the plugin on has a folder of transcripts, and imports it, one day or the other: nothing counts twice."""
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home", DRIFTLINE_CONNECTION="north", DRIFTLINE_PROJECT="ops")
    config = {"token": home.connection("north"), "queueDir": str(tmp_path / "queue")}
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    wrote = {f"s-{name}": written(CORPUS / f"{name}.jsonl", f"s-{name}", began) for name in TRANSCRIPTS}
    folder = tmp_path / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    for session, lines in wrote.items():
        saved(folder / f"{session}.jsonl", lines)

    def send() -> Told:
        server = children.serve(home)
        with host(config | {"url": server.serving()}, has_transcripts=True) as openclaw:
            for session, lines in wrote.items():
                openclaw.live(session, lines)
            status = openclaw.do("drained")
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        return status

    def take() -> Told:
        code, printed = children.run(home, "import", "openclaw", str(folder), "--json")
        assert code == 0
        summary: Told = json.loads(printed)
        return summary

    first, second = (take(), send()) if is_imported_first else (send(), take())
    with Store(home.database) as store:
        told = rows(store, "SELECT count(*), count(DISTINCT exchange_id) FROM log.exchanges")
        events = Counter(rows(store, DISTINCT_EVENTS))
        letters = rows(store, "SELECT reason, detail FROM dead_letters")
    assert letters == []
    assert told == [(EXCHANGES, EXCHANGES)]
    assert [event for event, count in events.items() if count > 1] == [], "a call, a result or a step counts twice"
    if is_imported_first:
        assert first["exchanges"] == EXCHANGES
        assert {name: second[name] for name in ("refused", "dropped")} == {"refused": 0, "dropped": 0}
    else:
        assert second["exchanges"] == 0
        assert second["conflicts"] == 0
        assert second["faults"] == 0
        assert second["events"] == UNTOLD, "only what OpenClaw tells no plugin is new"


DISTINCT_EVENTS = """
SELECT session_id, event, payload->>'action', payload->>'tool_call_id', payload->>'usage', payload->>'model',
    CASE WHEN event IN ('token_usage', 'error_event', 'retry_event') THEN event_id END
FROM log.agent_events
"""


def test_what_differs_is_set_aside_with_the_fields_that_differ(children: Nursery, tmp_path: Path) -> None:
    """An answer that was changed in the file afterwards is evidence: the log keeps what it has, and says what differs."""
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home", DRIFTLINE_CONNECTION="north", DRIFTLINE_PROJECT="ops")
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    lines = written(CORPUS / "plain.jsonl", "s", began)
    token, server = home.connection("north"), children.serve(home)
    config = {"token": token, "queueDir": str(tmp_path / "queue"), "url": server.serving()}
    with host(config, has_transcripts=True) as openclaw:
        openclaw.live("s", lines)
        openclaw.do("drained")
    server.kill()
    lines[5]["message"]["content"][1]["text"] = "Yes, all is well."
    code, printed = children.run(home, "import", "openclaw", str(saved(tmp_path / "t.jsonl", lines)), "--json")

    assert code == 1
    assert json.loads(printed)["conflicts"] == 1
    with Store(home.database) as store:
        ((detail,),) = rows(store, "SELECT detail FROM dead_letters")
    assert "exchange_id 's:u1': " in detail
    assert "differs in agent_response" in detail


def test_kills_of_node_and_a_server_that_is_away_lose_and_double_nothing(stage: Stage) -> None:
    """Gateways are killed, and servers are down for a while. What was kept before arrives afterwards, once, in its order."""
    assert stage.store is not None
    ids = [event["event_id"] for event in stage.events("down")]
    calls = [event["tool_call_id"] for event in stage.events("down") if event["event"] == "tool_call"]

    assert [one.user_message for one in stage.exchanges("down")] == [f"Is backup {number} healthy?" for number in range(8)]
    assert len(ids) == len(set(ids)) == 8 * 4
    assert calls == [f"toolu_{number}" for number in range(8)]
    assert rows(stage.store, "SELECT reason, detail FROM dead_letters") == []


def test_a_wrong_token_keeps_what_was_recorded_until_it_is_mended(stage: Stage) -> None:
    """A token is mistyped, or was revoked: that must cost no record, must be told, and must not tell the token."""
    noted = stage.told["wrong"]

    assert "401" in noted["status"]["trouble"]
    assert any("the token is not let in (401)" in line for line in noted["logged"])
    assert WRONG not in noted["files"] + "".join(noted["logged"])
    assert len(stage.exchanges("wrong")) == 1


def test_a_full_queue_drops_the_oldest_and_says_so(stage: Stage) -> None:
    """A disk is not without end. What is lost is counted, and the session that lost it says so in the audit."""
    noted, arrived = stage.told["full"], stage.exchanges("full")
    lost = [event for event in stage.events("full") if event["event"] == "records_dropped"]

    assert noted["status"]["dropped"] > 0
    assert noted["size"] <= 1.2 * 1024 * 1024
    assert any("the queue was full" in line for line in noted["logged"])
    assert arrived[-1].user_message == f"Is backup {TURNS - 1} healthy?"
    assert len(arrived) + sum(event["exchanges"] for event in lost) == TURNS


def test_what_is_not_allowed_or_not_wanted_is_not_sent(stage: Stage) -> None:
    """Conversations are read only where the user allowed it, and what was switched off stays where it is."""
    first, second = (event for event in stage.events("private") if event["event"] == "tool_call")

    assert stage.exchanges("hooked") == []
    assert [event["event"] for event in stage.events("hooked")] == ["tool_call", "tool_output"]
    assert [one.agent_thinking for one in stage.exchanges("private")] == [None, None]
    assert "disk full" not in json.dumps(stage.events("private"))
    assert "tail" not in json.dumps(stage.events("private"))
    assert first["arguments"] == second["arguments"], "equal calls stay equal, so that repetitions are found"


def test_every_field_of_the_configuration_is_documented() -> None:
    """A field that nobody can look up is set by guessing, or not at all."""
    manifest = json.loads((PLUGIN / "openclaw.plugin.json").read_text("utf-8"))
    section = (PLUGIN / "README.md").read_text("utf-8").split("\n## Configure\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))

    assert set(manifest["configSchema"]["properties"]) == documented


def test_every_hook_and_permission_is_documented() -> None:
    """Who installs it has to know what it listens to, and what OpenClaw wants to be told for that."""
    readme = (PLUGIN / "README.md").read_text("utf-8")
    hooks = re.findall(r"^  ([a-z]+_[a-z_]+): \"\w+\",$", (PLUGIN / "index.js").read_text("utf-8"), re.MULTILINE)

    assert len(hooks) == 8
    assert [name for name in [*hooks, "gateway_stop", *ALLOWED["hooks"]] if f"`{name}`" not in readme] == []


def test_the_unit_tests_of_the_plugin_pass() -> None:
    """They run where the plugin is: with node, and without anything that would have to be installed."""
    assert NODE is not None
    done = subprocess.run([NODE, "--test"], cwd=PLUGIN, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.returncode == 0, done.stdout[-4000:]
