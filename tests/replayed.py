"""A fleet's past for tests of replays: scored live by a judge in several moods, closed, judged again, told twice and out of order."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from engines import Clock, MoodyJudge, engine_over
from histories import history

from analytics.deletion.retention import forget_withdrawn
from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest, Record, Score
from service.simulator.scoring import simulated_answer
from streams.judges.protocol import Judge
from streams.judging.revising import revise
from streams.stage_batches import StageBatch

Command = Callable[..., tuple[int, str, str]]
TABLES = ("exchanges", "session_closings", "judging_requests", "scoring_tasks", "scores", "judgements", "reservations")
SESSIONS = 9


def past(seed: int = 1, sessions: int = SESSIONS) -> list[Record]:
    """What was said and closed, in the order it came: of two projects, the same session always of the same."""
    said = history(seed, sessions).exchanges
    return [msgspec.structs.replace(one, project="shop") if int(one.session_id[1:]) % 3 == 0 else one for one in said]  # type: ignore[attr-defined,type-var]


def scored_live(path: Path, judge: Judge | None = None, records: Sequence[Record] | None = None) -> Path:
    """A database in which all of it was scored as it came, and what stayed unscored asked for again."""

    async def live(store: Store) -> None:
        async with engine_over(store, Policy(), judge or MoodyJudge(3, answer), Clock()) as engine:
            await engine.publish("exchanges", past() if records is None else records)
            await engine.drained()
            await engine.rejudge(None, None, 40)
            await engine.drained()
            if records is None:
                await engine.publish("exchanges", revised(store, engine.now()))
                await engine.drained()
                await engine.flush()
                forget_withdrawn(store)

    with Store(path) as store:
        asyncio.run(asyncio.wait_for(live(store), 600))
    return path


def revised(store: Store, now: datetime) -> list[Exchange | JudgingRequest]:
    """Further revisions of every seventh exchange, and the withdrawal of some others."""
    rows = query_rows(store.cursor(), "named_exchanges", {"project": "ops", "exchanges": _ids(store), "connection": None})
    stored = list(query_records(store.cursor(), "exchange_records", Exchange, {"exchanges": rows}))
    told = [
        msgspec.structs.replace(
            one, agent_response=f"{one.agent_response} And it was checked.", content_digest="e" * 16, ingested_at=now
        )
        for one in stored[::7]
    ]
    gone = [msgspec.structs.replace(one, withdrawn=True) for one in stored[3::11] if one not in stored[::7]]
    revisions = revise(store, Policy(), [*told, *gone], now)
    assert len(told) > 5 < len(gone)
    assert len(told) + len(gone) == revisions.revised
    return revisions.records


def _ids(store: Store) -> list[str]:
    return [name for (name,) in store.cursor().execute("SELECT exchange_id FROM exchanges").fetchall()]


def answer(question: Question) -> str:
    """What the simulated judge says."""
    return canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))


def scores_in(path: Path, keep: Callable[[Score], bool] = lambda _: True) -> list[bytes]:
    """The scores of a file as bytes, all revisions, in an order of their own."""
    with Store(path) as store:
        records = StageBatch.of("scores", store.read("scores", 0, store.end_of("scores"))).records()
        return sorted(encode(one) for _, _, one in records if isinstance(one, Score) and keep(one))


def merged_scores_in(path: Path) -> list[bytes]:
    """The same of a replay's file, whose partitions count their offsets each for itself."""
    with Store(path) as store:
        frames = [store.read("scores", 0, store.end_of("scores"))]
        return sorted(encode(one) for frame in frames for _, _, one in StageBatch.of("scores", frame).records())


def result(database: Path, label: str) -> Path:
    """The file of a replay."""
    return database.with_name(f"{database.name}.replays") / f"{label}.duckdb"


def replay(driftline: Command, *arguments: str) -> dict[str, Any]:
    """Run a replay that must come to its end; what it says of it."""
    code, out, err = driftline("replay", "--json", *arguments)
    assert 0 == code, err
    document: dict[str, Any] = json.loads(out)
    return document


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the live tables."""
    with Store(path) as store:
        return {table: store.cursor().execute(f"SELECT * FROM log.{table} ORDER BY ALL").fetchall() for table in TABLES}


def clean_environment() -> list[str]:
    """The names of settings in our environment that a test must not see."""
    return [name for name in os.environ if name.startswith(("DRIFTLINE_", "ANTHROPIC_"))]
