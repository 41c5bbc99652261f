"""Scored databases to replay, the replays of them, and the scores of both."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from support.clocks import TickingClock
from support.engines import MoodyJudge, engine_over
from support.fleet_histories import two_project_exchanges

from analytics.deletion.retention import delete_withdrawn_scores
from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy import Policy
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest, Record, Score
from streams.judges.protocol import Judge
from streams.judging.rejudging import revise
from streams.stage_batches import StageBatch

Command = Callable[..., tuple[int, str, str]]
TABLES = ("exchanges", "session_closings", "judging_requests", "scoring_tasks", "scores", "judgements", "reservations")
TIMEOUT_SECONDS = 600
REJUDGED_EXCHANGES = 40
MIN_REVISIONS = 5
"""A database with fewer revised or withdrawn exchanges would hardly test their replay."""


def create_scored_database(path: Path, judge: Judge | None = None, records: Sequence[Record] | None = None) -> Path:
    """Score `records` on arrival, judge the unscored exchanges again, and return the database.

    Without `records`, the database holds two projects, and some of their exchanges are revised or withdrawn afterwards.
    """

    async def score(store: Store) -> None:
        async with engine_over(store, Policy(), judge or MoodyJudge(3, answer_question), TickingClock()) as engine:
            await engine.publish("exchanges", two_project_exchanges() if records is None else records)
            await engine.wait_until_drained()
            await engine.rejudge(None, None, REJUDGED_EXCHANGES)
            await engine.wait_until_drained()
            if records is None:
                await engine.publish("exchanges", build_revisions(store, engine.now()))
                await engine.wait_until_drained()
                await engine.flush()
                delete_withdrawn_scores(store)

    with Store(path) as store:
        asyncio.run(asyncio.wait_for(score(store), TIMEOUT_SECONDS))
    return path


def build_revisions(store: Store, now: datetime) -> list[Exchange | JudgingRequest]:
    """Return further revisions of every seventh exchange of the project "ops", and withdrawals of some others."""
    exchange_ids = [exchange_id for (exchange_id,) in store.cursor().execute("SELECT exchange_id FROM exchanges").fetchall()]
    parameters = {"project": "ops", "exchanges": exchange_ids, "connection": None}
    rows = query_rows(store.cursor(), "named_exchanges", parameters)
    exchanges = list(query_records(store.cursor(), "exchange_records", Exchange, {"exchanges": rows}))
    revised = [
        msgspec.structs.replace(
            exchange,
            agent_response=f"{exchange.agent_response} And it was checked.",
            content_digest="e" * 16,
            ingested_at=now,
        )
        for exchange in exchanges[::7]
    ]
    withdrawn = [
        msgspec.structs.replace(exchange, withdrawn=True) for exchange in exchanges[3::11] if exchange not in exchanges[::7]
    ]
    assert len(revised) > MIN_REVISIONS
    assert len(withdrawn) > MIN_REVISIONS
    revisions = revise(store, Policy(), [*revised, *withdrawn], now)
    assert revisions.revised == len(revised) + len(withdrawn)
    return revisions.records


def answer_question(question: Question) -> str:
    """Return the simulated judge's answer."""
    materials = {material.name: material.literal for material in question.materials}
    return canonical_json(simulated_answer(question.schema, materials))


def configured_variables() -> list[str]:
    """Return the environment variables that configure Driftline or a judge."""
    return [name for name in os.environ if name.startswith(("DRIFTLINE_", "ANTHROPIC_", "OPENAI_"))]


def run_replay(driftline: Command, *arguments: str) -> dict[str, Any]:
    """Run a replay that must succeed and return its output."""
    code, out, err = driftline("replay", "--json", *arguments)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def replay_path(database: Path, label: str) -> Path:
    """Return the path of a replay's database."""
    return database.with_name(f"{database.name}.replays") / f"{label}.duckdb"


def read_tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the live tables."""
    with Store(path) as store:
        return {table: store.cursor().execute(f"SELECT * FROM log.{table} ORDER BY ALL").fetchall() for table in TABLES}


def read_scores(path: Path, keep: Callable[[Score], bool] = lambda _: True) -> list[bytes]:
    """Return the encoded scores of a database, all revisions, sorted."""
    with Store(path) as store:
        batch = StageBatch.of("scores", store.read("scores", 0, store.end_of("scores")))
        scores = [record for _, _, record in batch.records() if isinstance(record, Score)]
        return sorted(encode(score) for score in scores if keep(score))
