"""Anchors: exchanges that are judged again on a schedule, to distinguish "the judge changed" from "the agent changed".

1. A round consists of ordinary exchanges: a copy of each anchor, on the connection `anchors`, in a project of its own and in one session.
   So the cascade judges the round, in this process or in workers, under the cap of a single session.
2. A copy has an id of its own, so no answer recorded for another round is reused for it.
3. A round is named by its starting minute: two starts within a minute are the same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.anchors import (
    ANCHORS,
    Attribution,
    IncidentChange,
    JudgeChange,
    JudgeShift,
    Verdict,
    anchor_project,
    attribute,
    is_reserved,
    judge_change,
    measure_judge_shift,
)
from audit.drift.watched_series import SESSION
from audit.fingerprints import stable_id
from schemas.codec.single_object import decode, encode
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Anchor, Exchange, SessionClosed
from streams.engine.record_intake import RecordIntake
from streams.log.sink import Publisher
from streams.upkeep.closing import EXPLICIT

TIERS: Mapping[str, tuple[str, float, float]] = {
    "tier2": ("tier2_score", 0.0, 1.0),
    "tier2_5": ("tier2_5_alignment", 0.0, 1.0),
    "tier3": ("tier3_score", 1.0, 5.0),
}
"""The tiers that a judge scores: the column, and the ends of its scale."""
LOOK_BACK = timedelta(days=90)
"""Rounds older than this are ignored for a change today."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was started."""

    at: datetime
    exchanges: int
    """Number of anchors in the round; 0 if the round had already started."""


def anchors_of(cursor: duckdb.DuckDBPyConnection, project: str) -> list[Anchor]:
    """Return the anchors of a project, the withdrawn ones last."""
    return list(query_records(cursor, "project_anchors", Anchor, {"project": project}))


def candidates(cursor: duckdb.DuckDBPyConnection, project: str, count: int) -> list[tuple[str, str]]:
    """Return connection and id of up to `count` judged exchanges, spread over the range of the judge's scores."""
    rows = query_rows(cursor, "anchor_candidates", {"project": project, "count": count})
    return [(row["connection"], row["exchange_id"]) for row in rows]


def find_exchanges(
    cursor: duckdb.DuckDBPyConnection, project: str, exchanges: Sequence[str], connection: str | None
) -> list[tuple[str, str]]:
    """Return connection and id of a project's exchanges with these ids. Raises InputError for an id that is missing or that two connections have."""
    values = {"project": project, "exchanges": list(exchanges), "connection": connection}
    connections: dict[str, list[str]] = defaultdict(list)
    for row in query_rows(cursor, "named_exchanges", values):
        connections[row["exchange_id"]].append(row["connection"])
    for exchange_id in exchanges:
        if not connections[exchange_id]:
            raise InputError(
                f"exchange {exchange_id!r}: the project has no exchange with this id", hint="`driftline scores` lists them."
            )
        if len(connections[exchange_id]) > 1:
            raise InputError(
                f"exchange {exchange_id!r}: connections {', '.join(connections[exchange_id])} have one",
                hint="Name the connection.",
            )
    return [(connections[exchange_id][0], exchange_id) for exchange_id in dict.fromkeys(exchanges)]


async def choose(publisher: Publisher, project: str, chosen: Sequence[tuple[str, str]], who: str) -> list[Anchor]:
    """Make exchanges anchors, by connection and id; existing anchors stay. Durable on return.

    Raises InputError for a project that is itself made of anchor rounds.
    """
    if is_reserved(project):
        raise InputError(f"project {project} consists of anchor rounds", hint="Choose anchors among the exchanges of an agent.")
    existing = {anchor.anchor_id: anchor for anchor in await _read_anchors(publisher, project)}
    exchanges = await asyncio.to_thread(_read_exchanges, publisher.store, chosen)
    anchors = [_build_anchor(exchange, project, existing, who, publisher.now()) for exchange in exchanges]
    await publisher.publish(ANCHORS, [anchor for anchor in anchors if anchor != existing.get(anchor.anchor_id)])
    return anchors


async def withdraw(publisher: Publisher, project: str, anchor_id: str, who: str) -> Anchor | None:
    """Withdraw an anchor, so that it is no longer judged; None if the project has no anchor with this id."""
    anchors = await _read_anchors(publisher, project)
    anchor = next((anchor for anchor in anchors if anchor.anchor_id == anchor_id), None)
    if anchor is None or not anchor.active:
        return anchor
    withdrawn = msgspec.structs.replace(
        anchor,
        revision=anchor.revision + 1,
        active=False,
        chosen_by=who,
        occurred_at=publisher.now(),
        ingested_at=publisher.now(),
    )
    await publisher.publish(ANCHORS, [withdrawn])
    return withdrawn


async def run_round(engine: RecordIntake, project: str) -> Round:
    """Start a round, in which the anchors of a project are judged again. Its exchanges are published on return; scores follow later."""
    active = [anchor for anchor in await _read_anchors(engine, project) if anchor.active]
    at = engine.now().replace(second=0, microsecond=0)
    if not active:
        return Round(at, 0)
    published = await engine.publish("exchanges", list(_copy_anchors(active, project, at, engine.now())))
    return Round(at, max(published.written - 1, 0))


def changes(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime | None = None) -> dict[str, JudgeChange]:
    """Return the changes of the judge that the anchors of a project show, by tier."""
    rows = rounds_of(cursor, project, start)
    return {tier: judge_change(_build_verdicts(rows, tier)) for tier in TIERS}


def rounds_of(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime | None = None) -> list[dict[str, Any]]:
    """Return the verdicts on the anchors of a project from `start` on, one row per anchor and round."""
    return query_rows(cursor, "anchor_scores", {"judged_as": anchor_project(project), "from": start})


def judge_shift(rows: Sequence[Mapping[str, Any]], tier: str, earlier: str, later: str) -> JudgeShift | None:
    """Return how far apart two judges are in a tier by rows of `rounds_of`, on the tier's own scale; None with too few rounds or anchors.

    Judges have the names that `name_judge` gives them.
    """
    _, lowest, highest = TIERS[tier]
    shift = measure_judge_shift(_build_verdicts(rows, tier), earlier, later)
    return None if shift is None else shift.scaled(highest - lowest)


def name_judge(judge_model: str | None, *, simulated: bool | None) -> str:
    """Return the name of the judge of a score: a simulated one is another judge, even under the same name."""
    return (judge_model or "") + (" (simulated)" if simulated else "")


def cause_of(store: Store, project: str, tier: str | None, change: IncidentChange | None) -> Attribution:
    """Return the cause of a change in a tier of a project: agent or judge, or the reason why it is unknown.

    `change` is the size of the change on the tier's own scale.

    Tier 1 and the diagnosis of runs are rules, which do not change by themselves: there the cause is the agent.
    """
    if tier is not None and tier.startswith(SESSION):
        return Attribution(cause=None, reason="not_anchored")
    if tier is not None and tier not in TIERS:
        return Attribution(cause="agent", reason="rules")
    if tier is None or change is None or not change.size > 0:
        return Attribution(cause=None, reason="no_size")
    _, lowest, highest = TIERS[tier]
    scale = highest - lowest
    start = datetime.combine(change.earliest, time(), UTC) - LOOK_BACK
    with contextlib.closing(store.cursor()) as cursor:
        rows = rounds_of(cursor, project, start)
    share = dataclasses.replace(change, size=change.size / scale, error=change.error / scale)
    attribution = attribute(_build_verdicts(rows, tier), share)
    if attribution.judge is None or attribution.low is None or attribution.high is None:
        return attribution
    return dataclasses.replace(
        attribution, judge=attribution.judge * scale, low=attribution.low * scale, high=attribution.high * scale
    )


async def _read_anchors(publisher: Publisher, project: str) -> list[Anchor]:
    def read() -> list[Anchor]:
        with contextlib.closing(publisher.store.cursor()) as cursor:
            return anchors_of(cursor, project)

    return await asyncio.to_thread(read)


def _read_exchanges(store: Store, chosen: Sequence[tuple[str, str]]) -> list[Exchange]:
    subjects = [{"connection": connection, "exchange_id": exchange} for connection, exchange in chosen]
    with contextlib.closing(store.cursor()) as cursor:
        return list(query_records(cursor, "exchange_records", Exchange, {"exchanges": subjects}))


def _build_anchor(exchange: Exchange, project: str, existing: Mapping[str, Anchor], who: str, now: datetime) -> Anchor:
    anchor_id = stable_id("anchor", project, exchange.connection, exchange.exchange_id)
    earlier = existing.get(anchor_id)
    if earlier is not None and earlier.active:
        return earlier
    return Anchor(
        anchor_id=anchor_id,
        revision=0 if earlier is None else earlier.revision + 1,
        project=project,
        connection=exchange.connection,
        exchange_id=exchange.exchange_id,
        exchange=encode(exchange),
        active=True,
        chosen_by=who,
        occurred_at=now,
        ingested_at=now,
    )


def _copy_anchors(anchors: Sequence[Anchor], project: str, at: datetime, now: datetime) -> Iterator[Exchange | SessionClosed]:
    """Yield the exchanges of a round, in the order of their anchors' ids, and the end of its session."""
    judged_as = anchor_project(project)
    stamp = f"{at:%Y-%m-%dT%H:%MZ}"
    session = f"{project}@{stamp}"
    for anchor in sorted(anchors, key=lambda anchor: anchor.anchor_id):
        exchange = decode(anchor.exchange)
        if isinstance(exchange, Exchange):
            yield msgspec.structs.replace(
                exchange,
                exchange_id=f"{anchor.anchor_id}@{stamp}",
                connection=ANCHORS,
                project=judged_as,
                session_id=session,
                occurred_at=at,
                ingested_at=now,
            )
    yield SessionClosed(
        connection=ANCHORS, project=judged_as, session_id=session, closed_at=at, ingested_at=now, reason=EXPLICIT
    )


def _build_verdicts(rows: Sequence[Mapping[str, Any]], tier: str) -> list[Verdict]:
    column, lowest, highest = TIERS[tier]
    return [
        Verdict(
            row["anchor_id"],
            row["round_at"],
            (row[column] - lowest) / (highest - lowest),
            name_judge(row["judge_model"], simulated=row["simulated"]),
        )
        for row in rows
        if row[column] is not None
    ]


log = logging.getLogger(__name__)


class AnchorRounds:
    """Starts the rounds of projects when their policies' intervals have passed; a `streams.upkeep.periodic_tasks.PeriodicTask`.

    The time of the last round is read from the tables, so that a restart starts no round too early; rounds started here count before the
    tables show them. Without a judge no round starts.
    """

    name = "anchor rounds"
    interval = 600.0

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine
        self._started: dict[str, datetime] = {}

    async def run(self) -> None:
        """Start the due rounds."""
        if not self._engine.has_judge:
            return
        for row in await asyncio.to_thread(self._read_rows):
            if self._is_due(row["project"], row["last_round"]):
                await self._start_round(row["project"])

    async def _start_round(self, project: str) -> None:
        """Start a round; a failure affects no other project, and the next run tries again."""
        try:
            started = await run_round(self._engine, project)
        except Exception:
            log.exception("the anchors of %s could not be judged again", project)
            return
        self._started[project] = started.at
        log.info("judging %d anchors of %s again", started.exchanges, project)

    def _is_due(self, project: str, last: datetime | None) -> bool:
        settings = self._engine.policy.for_project(project).settings
        if not settings.enabled or not settings.anchors.enabled:
            return False
        rounds = [at for at in (last, self._started.get(project)) if at is not None]
        return not rounds or self._engine.now() - max(rounds) >= timedelta(hours=settings.anchors.interval_hours)

    def _read_rows(self) -> list[dict[str, Any]]:
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            return query_rows(cursor, "anchor_rounds")
