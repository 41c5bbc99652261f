# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""The result of a replay: its parts merged atomically into one file, and the digest of its scores.

Two digests are equal if every score, in every revision, is equal byte by byte, in whatever order the scores came.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from analytics.store.connection import attached, connect
from analytics.store.store import Store
from analytics.store.tables import full_name, literal, quote
from audit.cost import nano_of, usd_of
from schemas.codec.single_object import encode_fields
from schemas.errors import StoreError
from schemas.lazy import pl
from schemas.registry import schema_of
from streams.replay.plan import Outcome, Plan, ReplayFiles

_MADE = ("Score", "Judgement", "Reservation", "DeadLetter")
"""Record types that a replay makes."""
_STAGE = "replay"
"""Stage of the state that describes a file's replay; its key is the label."""
_KEY = ["score_id", "revision"]


class Digest(NamedTuple):
    """The number of scores, and SHA-256 over the digests of all of them, ordered by id and revision."""

    scores: int
    sha256: str


def write_digests(path: Path, made: Iterable[pl.DataFrame], live: Iterable[pl.DataFrame]) -> None:
    """Write the digests of a part's scores and of the source's scores, atomically."""
    columns = {"score_id": pl.String, "revision": pl.Int64, "sha256": pl.Binary, "is_live": pl.Boolean}
    digests = [_digests(frame, is_live=is_live) for is_live, frames in ((False, made), (True, live)) for frame in frames]
    written = path.with_suffix(".new")
    pl.concat([pl.DataFrame(schema=columns), *digests], how="vertical_relaxed").write_parquet(written)
    written.replace(path)


def _digests(scores: pl.DataFrame, *, is_live: bool) -> pl.DataFrame:
    """Id, revision and SHA-256 of the single-object encoding of each score."""
    rows = scores.select(field["name"] for field in schema_of("Score").fields).iter_rows(named=True)
    digests = [hashlib.sha256(encode_fields("Score", row)).digest() for row in rows]
    return scores.select(_KEY).with_columns(pl.Series("sha256", digests, dtype=pl.Binary), is_live=is_live)


def read_digests(paths: Sequence[Path], *, only_made: bool) -> tuple[Digest, Digest]:
    """The digest of all scores of the parts, and that of the source's scores; `only_made` ignores exchanges that were not scored."""
    digests = pl.concat([pl.read_parquet(path) for path in paths])
    made, live = digests.filter(~pl.col("is_live")), digests.filter("is_live")
    if only_made:
        live = live.join(made, on="score_id", how="semi")
    return _digest(made), _digest(live)


def _digest(digests: pl.DataFrame) -> Digest:
    return Digest(digests.height, hashlib.sha256(b"".join(digests.sort(_KEY)["sha256"].to_list())).hexdigest())


def merge(files: ReplayFiles, plan: Plan, now: datetime) -> Outcome:
    """Merge the parts and remove them; returns the outcome. Repeating it after a kill is safe."""
    files.unfinished.unlink(missing_ok=True)
    files.unfinished.with_suffix(".duckdb.wal").unlink(missing_ok=True)
    with Store(files.unfinished):
        pass
    with connect(files.unfinished) as connection:
        for part in plan.parts:
            # Partition and offset give the part, and the order in it.
            connection.execute(f"ATTACH {literal(str(files.part(part.number)))} AS part (READ_ONLY)")
            for schema in map(schema_of, _MADE):
                connection.execute(
                    f"INSERT INTO {full_name(schema)} BY NAME SELECT * REPLACE ({part.number}::INTEGER AS _partition) "
                    f"FROM part.log.{quote(schema.table)} ORDER BY _offset"
                )
            connection.execute("DETACH part")
    made, live = read_digests([files.digests(part.number) for part in plan.parts], only_made=bool(plan.range))
    outcome = _outcome(files.unfinished, plan, made, live, now)
    with Store(files.unfinished) as store:
        with store.transaction() as transaction:
            transaction.set_states(_STAGE, {plan.label: msgspec.json.encode(outcome)}, 0)
        store.checkpoint()
    files.unfinished.replace(files.result)
    shutil.rmtree(files.parts)
    return outcome


def outcome_in(path: Path) -> Outcome:
    """Read the outcome of the replay in a file; StoreError if the file is not a replay's."""
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
        counts = connection.execute("SELECT disposition, count(*) FROM main.scores GROUP BY ALL ORDER BY ALL").fetchall()
        calls = connection.execute("SELECT outcome, cost_usd FROM log.judgements").fetchall()
        letters = len(connection.execute("SELECT 1 FROM log.dead_letters").fetchall())
    return Outcome(
        plan=plan,
        finished_at=now,
        exchanges=sum(count for _, count in counts),
        scores=made.scores,
        dispositions=dict(counts),
        calls=dict(sorted(Counter(outcome for outcome, _ in calls).items())),
        cost_usd=usd_of(sum(nano_of(cost) for _, cost in calls if cost is not None)),
        unknown_price=sum(cost is None for _, cost in calls),
        dead_letters=letters,
        digest=made.sha256,
        live_scores=live.scores,
        live_digest=live.sha256,
    )
