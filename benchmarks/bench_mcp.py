"""MCP: how often a script that follows the tools' answers names the version or the tool at fault.

Ten projects get worse because of a version of an agent or a tool; others change for another reason, or not at all. The script knows the name
of a project and the form of a call. It asks what got worse there, makes the first call that the answer names, and takes the line `Suspect:`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from msgspec.structs import replace

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.policy import Policy
from benchmarks.drift.lines import EXCHANGE, RUN, SCORE
from benchmarks.measure import print_table
from schemas.codec.single_object import encode
from schemas.records import Label, Record, ToolCall
from service.mcp.answers import MAX_BYTES
from streams.log.sink import StorePublisher
from streams.watch.watching import Watch

END = datetime(2026, 11, 1, tzinfo=UTC)
DAYS = 42
SESSIONS_A_DAY = 20
REGIONS = ("eu", "us", "apac")
BAR = 8


class Planted(NamedTuple):
    """A project, and what is at fault in it."""

    project: str
    fault: str
    """The words that name it in the line `Suspect:`; empty: nothing got worse because of a version or tool."""
    days: int = 6
    """Days ago on which the change began."""
    drop: float = 0.0
    """The loss of a score of the new version."""
    share: float = 1.0
    """The new version's share of the sessions."""
    errors: float = 0.02
    """The share of failed calls of the tool at fault since the change."""
    everywhere: float = 0.0
    """The loss of every score since the change."""


PLANTED = (
    Planted("version-large", "agent_version 7", drop=0.35),
    Planted("version-half", "agent_version 7", drop=0.3, share=0.5),
    Planted("version-third", "agent_version 7", drop=0.35, share=0.33),
    Planted("version-small-drop", "agent_version 7", days=10, drop=0.12),
    Planted("version-recent", "agent_version 7", days=3, drop=0.35),
    Planted("version-canary", "agent_version 7", days=14, drop=0.4, share=0.1),
    Planted("tool-search", "tool search", errors=0.25),
    Planted("tool-refund", "tool refund", days=4, errors=0.3),
    Planted("tool-lookup", "tool lookup", days=10, errors=0.15),
    Planted("tool-calendar", "tool calendar", days=3, errors=0.5),
    Planted("other-everything", "", everywhere=0.25),
    Planted("other-same", "", drop=0.0),
    Planted("other-quiet", "", days=0),
)


def main() -> None:
    """Plant the incidents, follow the answers, and print what was named."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "d.duckdb"
        _plant(database)
        rows, largest = anyio.run(_follow_all, database)
    print_table(("project", "at fault", "named", "calls", "right"), rows)
    right = sum(row[4] == "yes" for row in rows[: sum(bool(planted.fault) for planted in PLANTED)])
    wrong = sum(row[4] == "no" for row in rows[sum(bool(planted.fault) for planted in PLANTED) :])
    faults = sum(bool(planted.fault) for planted in PLANTED)
    print(
        f"\n{right} of {faults} named right (bar: {BAR}); {wrong} of {len(PLANTED) - faults} others blamed on a version or tool."
    )
    print(f"The largest answer has {largest} bytes of {MAX_BYTES}.")


def _plant(database: Path) -> None:
    chance = random.Random(41)
    with Store(database) as store:
        for planted in PLANTED:
            topics: dict[str, list[bytes]] = {}
            for topic, record in _records_of(planted, chance):
                topics.setdefault(topic, []).append(encode(record))
            with store.transaction() as transaction:
                for topic, messages in topics.items():
                    transaction.append(topic, messages)
        refresh_daily(store)
        for back in range(16, -1, -1):
            watch = Watch(StorePublisher(store, Policy(), lambda at=END - timedelta(days=back): at))  # type: ignore[misc]
            anyio.run(watch.check, [planted.project for planted in PLANTED])


def _records_of(planted: Planted, chance: random.Random) -> Iterator[tuple[str, Record]]:
    """Draw the sessions of two agents, of which the first has the fault, with labels that have nothing to do with it."""
    tool = planted.fault.removeprefix("tool ") if planted.fault.startswith("tool ") else "search"
    for day in range(DAYS, 0, -1):
        for number in range(SESSIONS_A_DAY):
            at = END - timedelta(days=day) + timedelta(minutes=60 * number + chance.randrange(50))
            agent = ("desk", "scout")[number % 2]
            has_changed = day <= planted.days
            is_new = (
                agent == "desk" and has_changed and not planted.fault.startswith("tool") and chance.random() < planted.share
            )
            level = 0.85 - planted.drop * is_new - planted.everywhere * has_changed
            labels = {"agent_version": "7" if is_new else "6", "region": chance.choice(REGIONS)}
            session = f"{planted.project}-{day}-{number}"
            identity = {
                "project": planted.project,
                "session_id": session,
                "exchange_id": session,
                "agent": agent,
                "labels": tuple(Label(name=name, value=value) for name, value in labels.items()),
            }
            errors = planted.errors if agent == "desk" and has_changed else 0.02
            yield from _session(identity, at, _draw_calls(tool, errors, chance), chance.gauss(level, 0.1))


def _draw_calls(tool: str, errors: float, chance: random.Random) -> tuple[ToolCall, ...]:
    names = [*[tool] * 6, *["read", "write"] * 2]
    shares = [errors] * 6 + [0.02] * 4
    return tuple(
        ToolCall(name=name, arguments=f"{chance.random()}", result="", outcome="error" if chance.random() < share else "ok")
        for name, share in zip(names, shares, strict=True)
    )


def _session(identity: dict[str, Any], at: datetime, calls: tuple[ToolCall, ...], value: float) -> Iterator[tuple[str, Record]]:
    """Build the records of a session of one exchange."""
    exchange = replace(
        EXCHANGE,
        **identity,
        turn_number=1,
        occurred_at=at,
        ingested_at=at,
        tool_calls=calls,
        input_tokens=300,
        output_tokens=80,
    )
    judged = {"tier2_score": min(1.0, max(0.0, value)), "judge_model": "judge"}
    yield "exchanges", exchange
    yield "scores", replace(SCORE, **identity, score_id=exchange.exchange_id, exchange_at=at, scored_at=at, **judged)
    run = {name: identity[name] for name in ("project", "session_id", "agent")}
    yield "diagnoses", replace(RUN, **run, ended_at=at, closed_at=at)


async def _follow_all(database: Path) -> tuple[list[tuple[str, ...]], int]:
    command = StdioServerParameters(command=sys.executable, args=["-m", "service.cli.main", "mcp", "--db", str(database)])
    rows, largest = [], 0
    async with Client(stdio_client(command)) as client:
        for planted in PLANTED:
            answers = await _follow(client, planted.project)
            largest = max(largest, *(len(answer.encode()) for answer in answers))
            named = next(
                (line.removeprefix("Suspect: ") for line in answers[-1].splitlines() if line.startswith("Suspect: ")), ""
            )
            rows.append(
                (planted.project, planted.fault or "-", named or "no incident", f"{len(answers)}", _judge(planted, named))
            )
    return rows, largest


async def _follow(client: Client, project: str) -> list[str]:
    """Return the answers to the question what got worse in a project, and to the first call that this answer names."""
    answers = [await _call(client, "what_got_worse", {"project": project})]
    following = next((line for line in answers[0].splitlines() if line.startswith("Next: explain_incident ")), None)
    if following is not None:
        arguments, _ = json.JSONDecoder().raw_decode(following.removeprefix("Next: explain_incident "))
        answers.append(await _call(client, "explain_incident", arguments))
    return answers


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(tool, arguments)
    return "\n".join(part.text for part in result.content if part.type == "text")


def _judge(planted: Planted, named: str) -> str:
    """Return whether the fault was named, or, without one, whether no version and no tool was."""
    named = named.replace(": ", " ")
    if planted.fault:
        return "yes" if named.startswith(planted.fault) else "no"
    return "no" if named.startswith(("agent_version", "tool")) else "yes"
