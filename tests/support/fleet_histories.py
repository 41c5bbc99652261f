"""Histories of a fleet: what its topics hold after weeks of retries and late senders, and databases scored from them for replays."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from support import builders as build
from support.clocks import TickingClock
from support.engines import MoodyJudge, engine_over

from analytics.deletion.retention import delete_withdrawn_scores
from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy import Policy
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Exchange, JudgingRequest, Record, Score
from streams.judges.protocol import Judge
from streams.judging.rejudging import revise
from streams.stage_batches import StageBatch

EXCHANGES, EVENTS, REQUESTS = "exchanges", "agent-events", "evaluation-requests"
RESPONSES = (
    "It is done.",
    "I disagree: the backup of last night is not healthy.",
    "You are absolutely right, what a brilliant question! Everything is perfect.",
    "I cannot help with that.",
    "",
)
TOOLS = ("exec", "read", "search")


@dataclass(frozen=True)
class History:
    """The records of the input topics, in the order in which they were produced."""

    exchanges: Sequence[Record]
    events: Sequence[Record]
    requests: Sequence[Record] = ()
    """For evaluations."""

    @property
    def topics(self) -> dict[str, Sequence[Record]]:
        """Return the records by topic."""
        topics = {EXCHANGES: self.exchanges, EVENTS: self.events, REQUESTS: self.requests}
        return {name: records for name, records in topics.items() if records}


def history(seed: int, sessions: int = 24) -> History:
    """Return a history of this many concurrent sessions, without evaluations; the same seed gives the same history."""
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(sessions)]
    return History(
        _mixed(chance, [_told_again(chance, _conversation(chance, name)) for name in names]),
        _mixed(chance, [*(_told_again(chance, _run(chance, name)) for name in names), *_ends_without_events()]),
    )


def _conversation(chance: random.Random, session: str) -> list[Record]:
    """Return a session's exchanges and its end; some sessions continue after their end."""
    turns = chance.randrange(1, 40)
    records: list[Record] = [_exchange(chance, session, turn) for turn in range(1, turns + 1)]
    for _ in range(turns // 8):
        index = chance.randrange(len(records) - 1)
        records[index], records[index + 1] = records[index + 1], records[index]
    records.append(build.closing(session, turns))
    if chance.random() < 0.3:
        records += [_exchange(chance, session, turns + more) for more in range(1, 4)]
        records.append(build.closing(session, turns + 10))
    return records


def _exchange(chance: random.Random, session: str, turn: int) -> Exchange:
    fields: dict[str, object] = {"content_digest": f"{turn:016x}"}
    if chance.random() < 0.3:
        fields["agent_thinking"] = "The log says so."
    if chance.random() < 0.1:
        fields["turn_number"] = turn
    if chance.random() < 0.1:
        fields["occurred_at"] = build.START - timedelta(hours=chance.randrange(1, 50))
    return build.exchange(session, turn, chance.choice(RESPONSES), **fields)


def _run(chance: random.Random, session: str) -> list[Record]:
    """Return a session's events and its end, given by an event or by a record."""
    count = chance.randrange(3, 120)
    events: list[Record] = [
        build.event(session, number, event="tool_call", tool=chance.choice(TOOLS), tokens=chance.randrange(500))
        for number in range(count)
    ]
    if chance.random() < 0.5:
        events.append(build.event(session, count, event="session_end"))
    events.append(build.closing(session, count))
    if chance.random() < 0.3:
        events += [build.event(session, count + more, event="tool_call", tool="exec") for more in range(1, 4)]
        events.append(build.closing(session, count + 10))
    return events


def _ends_without_events() -> list[list[Record]]:
    """Return ends of sessions that have only exchanges: one ends twice, one repeats its end, one has events after its end."""
    late = [build.event("talk-2", number, event="tool_call", tool="exec") for number in range(4)]
    return [
        [build.closing("talk-0", 1), build.closing("talk-0", 2)],
        [build.closing("talk-1", 1), build.closing("talk-1", 1)],
        [msgspec.structs.replace(build.closing("talk-2", 1), agent="talker"), *late, build.closing("talk-2", 9)],
    ]


def _told_again(chance: random.Random, records: Sequence[Record]) -> list[Record]:
    """Return the records with some of them repeated at once or later, and some ids with different content."""
    repeated: list[Record] = []
    for record in records:
        repeated.append(record)
        if chance.random() < 0.15:
            repeated.append(chance.choice(repeated[-30:]))
        if chance.random() < 0.03:
            repeated.append(_with_other_content(record))
    return repeated


def _with_other_content(record: Record) -> Record:
    if isinstance(record, Exchange):
        return msgspec.structs.replace(record, agent_response="Something else.", content_digest="f" * 16)
    if isinstance(record, AgentEvent):
        return msgspec.structs.replace(record, payload='{"event":"other"}')
    return record


def _mixed(chance: random.Random, sessions: Sequence[Sequence[Record]]) -> list[Record]:
    """Interleave the sessions, keeping the order of each session's records."""
    remaining: list[Iterator[Record]] = [iter(records) for records in sessions]
    mixed = []
    while remaining:
        session = chance.choice(remaining)
        record = next(session, None)
        if record is None:
            remaining.remove(session)
        else:
            mixed.append(record)
    return mixed


Command = Callable[..., tuple[int, str, str]]
TABLES = ("exchanges", "session_closings", "judging_requests", "scoring_tasks", "scores", "judgements", "reservations")
SESSIONS = 9


def past(seed: int = 1, sessions: int = SESSIONS) -> list[Record]:
    """Return the exchanges and closings of two projects in order of arrival; each session stays in one project."""
    exchanges = history(seed, sessions).exchanges
    return [msgspec.structs.replace(one, project="shop") if int(one.session_id[1:]) % 3 == 0 else one for one in exchanges]  # type: ignore[attr-defined,type-var]


def scored_live(path: Path, judge: Judge | None = None, records: Sequence[Record] | None = None) -> Path:
    """Return a database in which every record was scored on arrival, and unscored exchanges were requested again."""

    async def live(store: Store) -> None:
        async with engine_over(store, Policy(), judge or MoodyJudge(3, answer), TickingClock()) as engine:
            await engine.publish("exchanges", past() if records is None else records)
            await engine.wait_until_drained()
            await engine.rejudge(None, None, 40)
            await engine.wait_until_drained()
            if records is None:
                await engine.publish("exchanges", revised(store, engine.now()))
                await engine.wait_until_drained()
                await engine.flush()
                delete_withdrawn_scores(store)

    with Store(path) as store:
        asyncio.run(asyncio.wait_for(live(store), 600))
    return path


def revised(store: Store, now: datetime) -> list[Exchange | JudgingRequest]:
    """Return further revisions of every seventh exchange, and retractions of some others."""
    rows = query_rows(store.cursor(), "named_exchanges", {"project": "ops", "exchanges": _ids(store), "connection": None})
    stored = list(query_records(store.cursor(), "exchange_records", Exchange, {"exchanges": rows}))
    revised_exchanges = [
        msgspec.structs.replace(
            one, agent_response=f"{one.agent_response} And it was checked.", content_digest="e" * 16, ingested_at=now
        )
        for one in stored[::7]
    ]
    gone = [msgspec.structs.replace(one, withdrawn=True) for one in stored[3::11] if one not in stored[::7]]
    revisions = revise(store, Policy(), [*revised_exchanges, *gone], now)
    assert len(revised_exchanges) > 5
    assert len(gone) > 5
    assert revisions.revised == len(revised_exchanges) + len(gone)
    return revisions.records


def _ids(store: Store) -> list[str]:
    return [name for (name,) in store.cursor().execute("SELECT exchange_id FROM exchanges").fetchall()]


def answer(question: Question) -> str:
    """Return the answer of the simulated judge."""
    return canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))


def scores_in(path: Path, keep: Callable[[Score], bool] = lambda _: True) -> list[bytes]:
    """Return the scores of a file as bytes: all revisions, sorted."""
    with Store(path) as store:
        records = StageBatch.of("scores", store.read("scores", 0, store.end_of("scores"))).records()
        return sorted(encode(one) for _, _, one in records if isinstance(one, Score) and keep(one))


def merged_scores_in(path: Path) -> list[bytes]:
    """Return the scores of a replay's file like `scores_in`; each partition has its own offsets."""
    with Store(path) as store:
        frames = [store.read("scores", 0, store.end_of("scores"))]
        return sorted(encode(one) for frame in frames for _, _, one in StageBatch.of("scores", frame).records())


def result(database: Path, label: str) -> Path:
    """Return the output file of a replay."""
    return database.with_name(f"{database.name}.replays") / f"{label}.duckdb"


def replay(driftline: Command, *arguments: str) -> dict[str, Any]:
    """Run a replay that must succeed and return its output."""
    code, out, err = driftline("replay", "--json", *arguments)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the live tables."""
    with Store(path) as store:
        return {table: store.cursor().execute(f"SELECT * FROM log.{table} ORDER BY ALL").fetchall() for table in TABLES}


def settings_in_environment() -> list[str]:
    """Return the variables of the environment that configure Driftline or a judge."""
    return [name for name in os.environ if name.startswith(("DRIFTLINE_", "ANTHROPIC_", "OPENAI_"))]
