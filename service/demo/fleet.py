"""A synthetic fleet: weeks of transcripts of several agents, with known faults in known places.

It serves demos, tests and measurements. Every session is marked as synthetic (`cwd` is `/synthetic`, and there is a README), and the
same seed always gives the same bytes. Faults are planted in turn; one agent gets worse from a known day on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from random import Random

import msgspec

from audit.fingerprints import stable_id
from service.demo.days import SCRIPT_END, moment_before, moved_by
from service.demo.fleet_events import EVENTS_FILE, write_events
from service.demo.fleet_faults import FAULTS, SECRETS, PlannedSession
from service.demo.fleet_session import SessionWriter
from service.demo.texts import Task, fleet_texts

DEGRADED_AGENT = "support-desk"
"""The agent that gets worse."""
DEGRADED_DAYS = 9
"""Days on which it is worse: the last ones."""

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
    written = files = 0
    while written < megabytes * 1_000_000:
        name = stable_id("synthetic", "load", files)
        day = date(2026, 1, 1) + timedelta(days=files % 300)
        body = model.replace(b"SESSION", name.encode()).replace(b"2026-10-01", day.isoformat().encode())
        (folder / f"{name}.jsonl").write_bytes(body)
        written += len(body)
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
    at = random.randrange(1, turns)
    for turn in range(turns):
        for name in faults if turn == at else ():
            FAULTS[name].plant(writer, planned)
            planned.planted.append(name)
            planned.failures |= FAULTS[name].failures
        worse = random.choice(fleet_texts().worse) if is_worse and random.random() < _WORSE_SHARE else None
        _exchange(writer, random, agent, number * 100 + turn, worse=worse, planned=planned)
    return planned, writer.lines


def _faults_in_turn(agent: str, number: int) -> list[str]:
    """Return the fault of an agent's session: at intervals the next of all, each agent beginning at another one."""
    rounds, rest = divmod(number + 1, _FAULT_EVERY[agent])
    return [list(FAULTS)[(rounds + 3 * list(fleet_texts().domains).index(agent)) % len(FAULTS)]] if rest == 0 else []


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
