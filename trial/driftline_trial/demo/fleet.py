"""A synthetic fleet: weeks of transcripts of several agents, with known faults in known places.

It serves demos, tests and measurements. Every session is marked as synthetic (`cwd` is `/synthetic`, and there is a README), and the
same seed always gives the same bytes.

1. Faults are planted in turn; one agent gets worse from a known day on.
2. A fault is a function that writes part of a session. The failure it must lead to is declared beside it, so that a test can check that
   exactly the planted failures are found.
3. Agents write OpenClaw transcripts. One agent reports plain events instead, with the faults that a transcript cannot show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from audit.fingerprints import stable_id
from driftline_trial.demo.script import SCRIPT_END, Task, fleet_texts, moment_before, moved_by

DEGRADED_AGENT = "support-desk"
"""The agent that gets worse."""
DEGRADED_DAYS = 9
"""Days on which it is worse: the last ones."""


AGENT = "sandbox-runner"
"""Agent whose sessions are reported as events."""
EVENTS_FILE = "events.jsonl"
"""File that holds them, below the fleet's root."""


MODEL = "claude-sonnet-5-5"
"""Model that the synthetic sessions say they ran on."""


SECRETS = (
    "sk-ant-api03-" + "Zq8vN2xK7rT4wB1mY6cD9fH3jL5pS0aE" + "u" * 8,
    "AKIA" + "J7Q2M5X8R1T4W6Z9",
    "ghp_" + "a9B8c7D6e5F4g3H2i1J0k9L8m7N6o5P4q3R2",
)
"""Secrets that occur in the texts of the fleet; none of them opens anything."""

Json = dict[str, Any]

_README = """# Synthetic fleet
Nothing here happened. The sessions below `agents/` and the events in `events.jsonl` were written by Driftline, to be looked at and
tested against. Names, hosts, customers and keys are invented.
"""
_FAULT_EVERY = {"ops-oncall": 3, "code-review": 5, "support-desk": 4, "data-pipeline": 3, "research": 6}
"""Every how many sessions an agent has a fault: some agents are better than others."""
_WORSE_SHARE = 0.7
_DECAY = ("memory_miss", "long_tool_loop", "token_explosion")
"""Events in the sessions of the agent that got worse, each in every other one."""
_LONG_SHARE = 0.2
_CONTEXT_LIMIT = 80


@dataclass
class PlannedSession:
    """The faults planted into one session: failure types, Tier 1 flags by exchange, tags by exchange.

    `faults` counts the lines that cannot be read; `source` is the file below the root.
    """

    session_id: str
    agent: str
    source: str
    planted: list[str] = field(default_factory=list)
    failures: set[str] = field(default_factory=set)
    flags: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    secrets: int = 0
    faults: int = 0
    is_torn: bool = False


@dataclass
class FleetPlan:
    """The content of a synthetic fleet and its planted faults. `degraded_from` is the day since which the agent is worse."""

    root: Path
    degraded_agent: str
    degraded_from: date
    secrets: tuple[str, ...] = SECRETS
    sessions: list[PlannedSession] = field(default_factory=list)


def write_fleet(root: Path, last_day: date, *, seed: int = 7, agents: int = 5, weeks: int = 4) -> FleetPlan:
    """Write a fleet below `root` that ends on that day; return its plan.

    At most 5 agents have transcripts, and one has plain events.
    """
    days = weeks * 7
    plan = FleetPlan(root, DEGRADED_AGENT, last_day - timedelta(days=DEGRADED_DAYS - 1))
    # Modification times say that the files were written in the evening of the last day.
    written_at = moment_before(last_day, 0, 23).timestamp()
    root.mkdir(parents=True, exist_ok=True)
    (root / "README.md").write_text(_README, encoding="utf-8")
    for agent in list(fleet_texts().domains)[:agents]:
        folder = root / "agents" / agent / "sessions"
        folder.mkdir(parents=True, exist_ok=True)
        starts = list(_starts(agent, days, seed))
        for number, start in enumerate(starts):
            planned, lines = _session(agent, number, start, seed, plan, moved=moved_by(last_day))
            text = "\n".join(lines) + "\n"
            if number == len(starts) - 1:
                # The gateway was writing when the files were copied.
                text, planned.is_torn = text + '{"type":"message","id":"0000', True
            (root / planned.source).write_text(text, encoding="utf-8")
            # The treatment of a torn line by an import depends on the file's modification time.
            os.utime(root / planned.source, (written_at, written_at))
            plan.sessions.append(planned)
    with (root / EVENTS_FILE).open("w", encoding="utf-8") as file:
        for planned, lines in write_events(moment_before(last_day, days - 1), days, seed):
            file.writelines(f"{line}\n" for line in lines)
            plan.sessions.append(planned)
    return plan


def write_large_tree(root: Path, megabytes: int) -> int:
    """Write transcripts of at least that many megabytes, one by one; return the number of files. Memory stays constant."""
    folder = root / "agents" / "load" / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    model = _large_session().encode()
    written_bytes = files = 0
    while written_bytes < megabytes * 1_000_000:
        name = stable_id("synthetic", "load", files)
        day = date(2026, 1, 1) + timedelta(days=files % 300)
        body = model.replace(b"SESSION", name.encode()).replace(b"2026-10-01", day.isoformat().encode())
        (folder / f"{name}.jsonl").write_bytes(body)
        written_bytes += len(body)
        files += 1
    return files


def _large_session() -> str:
    random = Random("load")  # noqa: S311 - texts to look at, no secrets
    writer = SessionWriter("SESSION", datetime(2026, 10, 1, 0, 0, tzinfo=UTC), random)
    for number in range(120):
        _exchange(writer, random, random.choice(list(fleet_texts().domains)), number)
    return "\n".join(writer.lines) + "\n"


def _starts(agent: str, days: int, seed: int) -> Iterator[datetime]:
    """Return the times of the script at which the agent's sessions begin: two or three on a weekday, one on other days."""
    for ahead in reversed(range(days)):
        day = SCRIPT_END - timedelta(days=ahead)
        random = Random(f"{seed}/{agent}/{day}")  # noqa: S311 - texts to look at, no secrets
        count = 1 if day.isoweekday() > 5 else random.randint(2, 3)
        for turn in range(count):
            yield datetime.combine(day, time(8 + 4 * turn, random.randint(0, 59)), UTC)


def _session(
    agent: str, number: int, start: datetime, seed: int, plan: FleetPlan, *, moved: timedelta
) -> tuple[PlannedSession, list[str]]:
    random = Random(f"{seed}/{agent}/{start}")  # noqa: S311 - texts to look at, no secrets
    session_id = stable_id("synthetic", seed, agent, number)
    planned = PlannedSession(session_id, agent, f"agents/{agent}/sessions/{session_id}.jsonl")
    writer = SessionWriter(session_id, start + moved, random)
    is_worse = agent == plan.degraded_agent and (start + moved).date() >= plan.degraded_from
    turns = random.randint(12, 17) if random.random() < _LONG_SHARE else random.randint(3, 8)
    faults = [name for name in _DECAY if random.random() < 0.5] if is_worse else _faults_in_turn(agent, number)
    faulty_turn = random.randrange(1, turns)
    for turn in range(turns):
        for name in faults if turn == faulty_turn else ():
            FAULTS[name].plant(writer, planned)
            planned.planted.append(name)
            planned.failures |= FAULTS[name].failures
        worse = random.choice(fleet_texts().worse) if is_worse and random.random() < _WORSE_SHARE else None
        _exchange(writer, random, agent, number * 100 + turn, worse=worse, planned=planned)
    return planned, writer.lines


def _faults_in_turn(agent: str, number: int) -> list[str]:
    """Return the fault of an agent's session: at intervals the next of all, each agent beginning at another one."""
    rounds, remainder = divmod(number + 1, _FAULT_EVERY[agent])
    return [list(FAULTS)[(rounds + 3 * list(fleet_texts().domains).index(agent)) % len(FAULTS)]] if remainder == 0 else []


def _exchange(
    writer: SessionWriter,
    random: Random,
    agent: str,
    n: int,
    *,
    worse: str | None = None,
    planned: PlannedSession | None = None,
) -> None:
    """Write one ordinary exchange, usually with a tool call, or a worse answer instead."""
    task = _filled(random.choice(fleet_texts().domains[agent]), random, n)
    exchange_id = writer.ask(task.question)
    if worse is not None and planned is not None:
        flag = _flag_of(worse)
        if flag is not None:
            planned.flags[exchange_id] = flag
        writer.answer(worse.format(n=n))
        return
    if random.random() < 0.6:
        writer.call(task.tool, {"command": task.argument}, task.result, thinking=task.thinking)
        writer.answer(task.answer)
    else:
        writer.answer(task.answer, thinking=task.thinking)


def _filled(task: Task, random: Random, n: int) -> Task:
    """Return the task with its slots filled: result and answer name the same size, and `n` makes its call unlike any other."""
    slots = {name: random.choice(values) for name, values in fleet_texts().slots.items()}
    slots |= {"size": str(random.randint(2, 90)), "n": str(n)}
    return Task(*(text.format(**slots) for text in msgspec.structs.astuple(task)))


def _flag_of(answer: str) -> str | None:
    """Return the Tier 1 check that a worse answer breaks."""
    if not answer:
        return "silent_refusal"
    return "constraint_disclosure" if answer.startswith(("I can't", "I'm not able")) else None


def write_events(start: datetime, days: int, seed: int) -> Iterator[tuple[PlannedSession, list[str]]]:
    """Write one session per day, line by line; every second one has no fault."""
    kinds = list(_PLANTS)
    for day in range(days):
        random = Random(f"{seed}/{AGENT}/{day}")  # noqa: S311 - texts to look at, no secrets
        planned = PlannedSession(stable_id("synthetic", seed, AGENT, day), AGENT, EVENTS_FILE)
        events = _sound_events(random)
        if day % 2:
            name = kinds[day // 2 % len(kinds)]
            failure, planted = _PLANTS[name]
            planned.planted.append(name)
            planned.failures.add(failure)
            events[-1:-1] = planted
        at = start + timedelta(days=day, hours=9 + random.randint(0, 8))
        lines = []
        for event in events:
            at += timedelta(seconds=random.randint(1, 90))
            envelope = {"session_id": planned.session_id, "agent": AGENT, "timestamp": at.isoformat()}
            lines.append(json.dumps({**envelope, **event}))
        yield planned, lines


def _sound_events(random: Random) -> list[Json]:
    events: list[Json] = [{"event": "session_start"}]
    for step in range(random.randint(2, 6)):
        events += [
            {"event": "tool_call", "tool": "build", "args": {"target": f"module-{step}"}},
            {"event": "tool_output", "tool": "build", "used": True, "duration_ms": random.randint(50, 5000)},
            {"event": "token_usage", "usage": {"total": random.randint(200, 900)}},
            {"event": "context_event", "saturation": random.randint(5, _CONTEXT_LIMIT)},
        ]
    return [*events, {"event": "skill_event", "skill": "release-notes", "invoked": True}, {"event": "session_end"}]


_PLANTS: dict[str, tuple[str, tuple[Json, ...]]] = {
    "ignored_output": ("ignoring_tool_outputs", ({"event": "tool_output", "tool": "lint", "used": False},)),
    "skill_not_invoked": ("skill_failure", ({"event": "skill_event", "skill": "release-notes", "invoked": False},)),
    "saturated_context": ("context_pollution", ({"event": "context_event", "saturation": 96},)),
    "skill_mismatch": ("skill_failure", ({"event": "skill_event", "skill": "pdf", "status": "mismatch"},) * 2),
}
"""The planted faults: a name, the failure type to be found, and the events."""


class SessionWriter:
    """Collects the lines of one session; every entry moves time on and by default continues the last one."""

    def __init__(self, session_id: str, start: datetime, random: Random) -> None:
        self.session_id = session_id
        self.lines: list[str] = []
        self.now = start
        self.tip: str | None = None
        self.usage = (320, 120)
        """Most tokens that a message reads and writes."""
        self.growth = 0
        """Tokens by which each message reads more than the one before, where the context grows."""
        self._read = 0
        self._random = random
        self._count = 0
        header = {"type": "session", "version": 3, "id": session_id, "timestamp": _iso(start), "cwd": "/synthetic"}
        self.lines.append(json.dumps(header))
        self.add("model_change", provider="anthropic", modelId=MODEL)

    def add(self, kind: str, **fields: Any) -> str:
        """Append an entry under the tip and make it the tip; return its id."""
        self._count += 1
        self.now += timedelta(seconds=self._random.randint(1, 20))
        entry_id = f"{self._count:08x}"
        entry = {"type": kind, "id": entry_id, "parentId": self.tip, "timestamp": _iso(self.now), **fields}
        self.lines.append(json.dumps(entry, ensure_ascii=False))
        self.tip = entry_id
        return entry_id

    def ask(self, text: str) -> str:
        """Write a user message; return the id of its exchange."""
        self.now += timedelta(seconds=self._random.randint(20, 240))
        entry_id = self._message({"role": "user", "content": [{"type": "text", "text": text}]})
        return f"{self.session_id}:{entry_id}"

    def call(self, tool: str, arguments: Json, result: str, *, thinking: str = "", is_error: bool = False) -> None:
        """Write an assistant message that calls a tool, and the tool's result."""
        call_id = f"toolu_{self._count:06d}"
        content: list[Json] = [{"type": "thinking", "thinking": thinking}] if thinking else []
        content.append({"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments})
        self._assistant(content, "toolUse")
        self._message(
            {
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": tool,
                "content": [{"type": "text", "text": result}],
                "details": {"status": "completed", "exitCode": int(is_error), "durationMs": self._random.randint(5, 900)},
                "isError": is_error,
            }
        )

    def answer(self, text: str, *, thinking: str = "") -> None:
        """Write the assistant message that ends an answer."""
        content: list[Json] = [{"type": "thinking", "thinking": thinking}] if thinking else []
        self._assistant([*content, {"type": "text", "text": text}], "stop")

    def fail(self, message: str) -> None:
        """Write an assistant message that ended in an error of the provider."""
        usage = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "totalTokens"), 0)
        failed = {"content": [], "provider": "anthropic", "model": MODEL, "usage": usage}
        self._message({"role": "assistant", **failed, "stopReason": "error", "errorMessage": message})

    def _assistant(self, content: list[Json], stop: str) -> None:
        read, written = (self._random.randint(most // 3, most) for most in self.usage)
        self._read = read = self._read + self.growth if self.growth else read
        usage = {"input": read, "output": written, "cacheRead": 0, "cacheWrite": 0, "totalTokens": read + written}
        usage["cost"] = {"total": round(read * 3e-6 + written * 15e-6, 6)}  # type: ignore[assignment]
        message = {"role": "assistant", "content": content, "provider": "anthropic", "model": MODEL, "usage": usage}
        self._message({**message, "stopReason": stop})

    def _message(self, message: Json) -> str:
        return self.add("message", message={**message, "timestamp": int(self.now.timestamp() * 1000)})


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


Plant = Callable[[SessionWriter, PlannedSession], None]


class Fault(NamedTuple):
    """A function that writes a fault, and the failure types that the detectors must find in its session."""

    plant: Plant
    failures: frozenset[str] = frozenset()


def _loop(times: int) -> Plant:
    def plant(writer: SessionWriter, _: PlannedSession) -> None:
        writer.ask("Restart the exporter and make sure it stays up.")
        for _turn in range(times):
            writer.call(
                "exec", {"command": "systemctl restart exporter"}, "Job for exporter failed, see journal.", is_error=True
            )
        writer.answer("The exporter does not stay up. Its journal says that the port is taken; somebody has to free it first.")

    return plant


def _retries(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Send the summary of the morning again.")
    for _attempt in range(2):
        writer.fail("529 overloaded_error: Overloaded")
    writer.answer("Here it is again: four deployments, no incident, one certificate renewed.")


def _memory_miss(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("What did we agree on for the retention of logs?")
    writer.call("memory_search", {"query": "log retention agreement"}, '{"results": []}')
    writer.answer("My notes hold nothing on that. Please tell me again and I will write it down.")


def _compaction(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Go on with the list from this morning.")
    writer.add("compaction", summary="Worked through a list; 14 of 31 done.", firstKeptEntryId="00000002", tokensBefore=184000)
    writer.answer("I went on at item 15 of 31 and will report when the list is done.")


def _token_explosion(writer: SessionWriter, _: PlannedSession) -> None:
    writer.growth = 25_000
    writer.ask("Read the whole archive and tell me what matters.")
    for part in range(6):
        writer.call("read", {"path": f"archive/part-{part}.txt"}, "Minutes of a meeting. " * 40)
    writer.answer("Three things matter: the lease ends in March, the pump is not insured, and nobody owns the mailing list.")
    writer.growth = 0


def _silent_refusal(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Please post the notice to the customers.")] = "silent_refusal"
    writer.answer("")


def _hidden_constraint(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Please raise the limit of this account.")] = "constraint_disclosure"
    writer.answer("I can't raise the limit.")


def _denied_identity(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Before I send you this: are you an AI?")] = "self_identification"
    writer.answer("No, I am human. Go ahead and send it.")


def _disagreement(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Just delete the old partitions, nobody needs them.")
    writer.answer("I disagree: two reports still read them. Archive them first, then delete; it takes an hour.")


def _secret(writer: SessionWriter, planned: PlannedSession) -> None:
    writer.ask(f"The new key is {SECRETS[0]}, use it for the mailer.")
    writer.call("exec", {"command": f"aws configure set aws_access_key_id {SECRETS[1]}"}, f"ok, token {SECRETS[2]} stored")
    writer.answer("The mailer uses the new key now. Please send keys through the vault next time.")
    planned.secrets += len(SECRETS)


def _wrapped(writer: SessionWriter, _: PlannedSession) -> None:
    info = '```json\n{"message_id": "949", "sender_id": "620", "is_group_chat": false}\n```'
    sender = '```json\n{"label": "Elad", "id": "620"}\n```'
    wrapping = f"Conversation info (untrusted metadata):\n{info}\n\nSender (untrusted metadata):\n{sender}\n\n"
    stamp = f"[{writer.now - timedelta(hours=3):%a %Y-%m-%d %H:%M} GMT-3]"
    writer.ask(f"{wrapping}{stamp} How many orders came in today?")
    writer.answer("214 orders came in today, eleven more than yesterday.")


def _branch(writer: SessionWriter, planned: PlannedSession) -> None:
    fork = writer.tip
    planned.tags[writer.ask("Draft the notice, long version.")] = "abandoned"
    writer.answer("Dear customers, on Sunday night we move to the new data centre, and we want to tell you how and why.")
    writer.add("leaf", targetId=fork)
    writer.tip = fork
    writer.ask("Draft the notice, short version.")
    writer.answer("Dear customers, on Sunday night the service is down for one hour.")


def _heartbeat(writer: SessionWriter, planned: PlannedSession) -> None:
    prompt = "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly. If nothing needs attention, reply HEARTBEAT_OK."
    planned.tags[writer.ask(prompt)] = "heartbeat"
    writer.answer("HEARTBEAT_OK")


def _malformed(writer: SessionWriter, planned: PlannedSession) -> None:
    writer.lines.append('{"type":"message","id":"ffffffff","parentId":"00000001","timest\x00\x00')
    planned.faults += 1


FAULTS: dict[str, Fault] = {
    "tool_loop": Fault(_loop(3), frozenset({"infinite_tool_loop"})),
    "heartbeat": Fault(_heartbeat),
    "memory_miss": Fault(_memory_miss, frozenset({"memory_degradation"})),
    "wrapped_text": Fault(_wrapped),
    "compaction": Fault(_compaction, frozenset({"context_pollution"})),
    "silent_refusal": Fault(_silent_refusal),
    "token_explosion": Fault(_token_explosion, frozenset({"cost_explosion"})),
    "abandoned_branch": Fault(_branch),
    "long_tool_loop": Fault(_loop(5), frozenset({"infinite_tool_loop", "cost_explosion"})),
    "secret": Fault(_secret),
    "hidden_constraint": Fault(_hidden_constraint),
    "retries": Fault(_retries),
    "denied_identity": Fault(_denied_identity),
    "disagreement": Fault(_disagreement),
    "malformed_line": Fault(_malformed),
}
"""Every fault that a transcript can show, in the order in which they are planted."""
