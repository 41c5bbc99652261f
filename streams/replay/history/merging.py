# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""The parts of a replay put together to one file, in one go: there is none until all of it is there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from analytics.sandbox.attached import attached
from analytics.store.connection import connect
from analytics.store.store import Store
from analytics.store.tables import full_name, literal, quote
from audit.cost.prices import nano_of, usd_of
from schemas.errors import StoreError
from schemas.registry import schema_of
from streams.replay.digests import Digest, digests_in
from streams.replay.plan import Outcome, Plan, ReplayFiles

MERGED = ("Score", "Judgement", "Reservation", "DeadLetter")
"""Record types that a replay makes."""
_STAGE = "replay"
"""Stage of the state that says what a file is the replay of; its key is the label."""


def merge(files: ReplayFiles, plan: Plan, now: datetime) -> Outcome:
    """Put the parts together and remove them; answers what came of the replay. Doing so again after a kill changes nothing."""
    files.unfinished.unlink(missing_ok=True)
    files.unfinished.with_suffix(".duckdb.wal").unlink(missing_ok=True)
    with Store(files.unfinished):
        pass
    with connect(files.unfinished) as connection:
        for part in plan.parts:
            # Partition and offset tell the part, and the order in it.
            connection.execute(f"ATTACH {literal(str(files.part(part.number)))} AS part (READ_ONLY)")
            for name in MERGED:
                table = schema_of(name).table
                columns = (
                    f"SELECT * REPLACE ({part.number}::INTEGER AS _partition) FROM part.log.{quote(table)} ORDER BY _offset"
                )
                connection.execute(f"INSERT INTO {full_name(schema_of(name))} BY NAME {columns}")
            connection.execute("DETACH part")
    made, live = digests_in([files.digests(part.number) for part in plan.parts], only_made=bool(plan.range))
    outcome = _outcome(files.unfinished, plan, made, live, now)
    with Store(files.unfinished) as store:
        with store.transaction() as transaction:
            transaction.set_states(_STAGE, {plan.label: msgspec.json.encode(outcome)}, 0)
        store.checkpoint()
    files.unfinished.replace(files.result)
    shutil.rmtree(files.parts)
    return outcome


def outcome_in(path: Path) -> Outcome:
    """Read the outcome of the replay that a file holds; StoreError if it holds none."""
    with attached({"replay": path}) as connection:
        rows = connection.execute(f"SELECT state FROM replay.log.stage_state WHERE stage = '{_STAGE}'").fetchall()
    if not rows:
        raise StoreError(
            f"{path}: this is not a replay", hint="Move it away: this folder is for the files of `driftline replay`."
        )
    try:
        return msgspec.json.decode(rows[0][0], type=Outcome)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: its plan cannot be read: {error}", hint="Remove it and replay again.") from error


def _outcome(path: Path, plan: Plan, made: Digest, live: Digest, now: datetime) -> Outcome:
    with connect(path) as connection:
        rows = connection.execute("SELECT disposition, count(*) FROM main.scores GROUP BY ALL ORDER BY ALL").fetchall()
        dispositions = dict(rows)
        asked = connection.execute("SELECT outcome, cost_usd FROM log.judgements").fetchall()
        letters = len(connection.execute("SELECT 1 FROM log.dead_letters").fetchall())
    calls: dict[str, int] = {}
    for outcome, _ in asked:
        calls[outcome] = calls.get(outcome, 0) + 1
    return Outcome(
        plan=plan,
        finished_at=now,
        exchanges=sum(dispositions.values()),
        scores=made.scores,
        dispositions=dispositions,
        calls=_sorted(calls),
        cost_usd=usd_of(sum(nano_of(cost) for _, cost in asked if cost is not None)),
        unknown_price=sum(cost is None for _, cost in asked),
        dead_letters=letters,
        digest=made.sha256,
        live_scores=live.scores,
        live_digest=live.sha256,
    )


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
