# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""The plan of a replay, fixed before it starts (rule 1 of `README.md`), and its result: the parts merged atomically into one file.

Two digests of scores are equal if every score, in every revision, is equal byte by byte, in any order of the scores.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from analytics.store.connection import attach_files, connect
from analytics.store.store import Store
from analytics.store.tables import full_name, literal, quote
from audit.cost import nano_of, usd_of
from schemas.bounds import NAME
from schemas.codec.single_object import encode_fields
from schemas.errors import SettingsError, StoreError
from schemas.lazy import pl
from schemas.registry import schema_of

LIVE = "live"
"""The label of the database's own scores beside those of replays."""


class JudgeMode(StrEnum):
    """The source of answers: recorded ones, recorded ones and the judge for the rest (`BATCH`: at half the price), or none."""

    RECORDED = "recorded"
    LIVE = "live"
    BATCH = "batch"
    NONE = "none"

    @property
    def pays(self) -> bool:
        """True if a judge may be asked."""
        return self in {JudgeMode.LIVE, JudgeMode.BATCH}


class Scope(msgspec.Struct, frozen=True):
    """The exchanges to score: those of a project, from `since` on and before `until`."""

    project: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def holds(self, project: str, occurred_at: datetime) -> bool:
        """Return whether an exchange is to be scored."""
        return (
            (self.project is None or self.project == project)
            and (self.since is None or self.since <= occurred_at)
            and (self.until is None or occurred_at < self.until)
        )


class Origin(msgspec.Struct, frozen=True):
    """The location of the history."""

    kind: str
    """tables, parquet or topics."""
    place: str
    """The database, the folder, or the cluster with the prefix of its topics."""
    state: str = ""
    """A text that identifies the content, if it must not change."""


class Segment(msgspec.Struct, frozen=True):
    """Consecutive offsets of one partition of a topic: from `start`, before `end`."""

    partition: int
    start: int
    end: int


class Part(msgspec.Struct, frozen=True):
    """The share of one process: in these segments, the sessions whose key's hash leaves the remainder.

    A position counts through the segments one after another, from 0.
    """

    number: int
    segments: tuple[Segment, ...] = ()
    divisor: int = 1
    remainder: int = 0
    judgements: Mapping[int, int] = {}
    """The end of each partition of the topic judgements; later judgements are ignored."""
    scores: Mapping[int, int] = {}
    """The ends of the topic scores, if the source is Kafka."""

    @property
    def positions(self) -> int:
        """The number of positions."""
        return sum(segment.end - segment.start for segment in self.segments)

    def remaining_segment(self, position: int) -> tuple[Segment, int]:
        """Return the rest of the segment in which a position lies, and the position of offset 0 in it.

        Raises IndexError for a position after the last segment.
        """
        base = 0
        for segment in self.segments:
            size = segment.end - segment.start
            if position < base + size:
                return Segment(segment.partition, segment.start + position - base, segment.end), base - segment.start
            base += size
        raise IndexError(position)


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A replay's source, scope and policy, and the source of its answers."""

    label: str
    origin: Origin
    scope: Scope
    policy_digest: str
    asking: JudgeMode
    range: str = ""
    """The offsets of the topics, as given on the command line."""
    parts: tuple[Part, ...] = ()
    started_at: datetime | None = None

    def differs_from(self, other: ReplayPlan) -> list[str]:
        """Return the names of the options that differ."""
        other_options = other._options()
        return [name for name, value in self._options().items() if other_options[name] != value]

    def _options(self) -> dict[str, Any]:
        return {
            "--from": self.origin,
            "--project": self.scope.project,
            "--since": self.scope.since,
            "--until": self.scope.until,
            "--policy": self.policy_digest,
            "--judge": self.asking,
            "--from-offset and --to-offset": self.range,
        }


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay, stored in its file beside the scores."""

    plan: ReplayPlan
    finished_at: datetime
    exchanges: int
    """Exchanges that have a score."""
    scores: int
    """Scores, all revisions."""
    dispositions: Mapping[str, int]
    """Exchanges by the disposition of their last revision."""
    calls: Mapping[str, int]
    """Questions asked for this replay, by outcome."""
    cost_usd: float
    """The cost of these questions in USD, without questions whose cost is unknown."""
    unknown_price: int
    """Questions asked whose cost is unknown."""
    dead_letters: int
    digest: str
    live_scores: int
    """The number of the source's scores of the same exchanges."""
    live_digest: str

    @property
    def is_equal(self) -> bool:
        """True if the scores equal those of the source, byte by byte."""
        return self.digest == self.live_digest


class ReplayFiles:
    """The files of a replay: its result, its parts and its plan."""

    def __init__(self, database: Path, label: str) -> None:
        """Raise SettingsError if the label is invalid."""
        if not re.fullmatch(NAME, label) or label == LIVE:
            raise SettingsError(
                f"--label: {label[:64]!r} is not a valid label",
                hint=f"A label has a-z, 0-9, _ . - and at most 63 characters, and is not {LIVE}.",
            )
        folder = folder_of(database)
        self.result = folder / f"{label}.duckdb"
        self.parts = folder / f"{label}.parts"
        self.unfinished = self.parts / "result.duckdb"
        """The result during the merge."""
        self.lock = self.parts / "lock"
        self._plan = self.parts / "plan.json"

    def part(self, number: int) -> Path:
        """Return the path of a part's file."""
        return self.parts / f"part-{number}.duckdb"

    def copied(self, number: int) -> Path:
        """Return the path of a part's judgements and scores, copied from Kafka once."""
        return self.parts / f"topics-{number}.duckdb"

    def digests(self, number: int) -> Path:
        """Return the path of the digests of a part's scores and of the source's scores; the file exists when the part is done."""
        return self.parts / f"digests-{number}.parquet"

    def journal(self, number: int) -> Path:
        """Return the path of the journal of a part's batches."""
        return self.parts / f"batches-{number}.jsonl"

    def plan(self) -> ReplayPlan | None:
        """Return the plan of an unfinished replay, or None. Raises StoreError if it cannot be read."""
        if not self._plan.exists():
            return None
        try:
            return msgspec.json.decode(self._plan.read_bytes(), type=ReplayPlan)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{self._plan}: this is not the plan of a replay: {error}", hint=f"Remove {self.parts} to start again."
            ) from error

    def write_plan(self, plan: ReplayPlan) -> None:
        """Write the plan, durable on return."""
        self.parts.mkdir(parents=True, exist_ok=True)
        temporary = self._plan.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(plan))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._plan)


def folder_of(database: Path) -> Path:
    """Return the folder of a database's replays, with a file per label."""
    return database.with_name(f"{database.name}.replays")


def default_label(plan: ReplayPlan) -> str:
    """Return a label from the policy, the judge and the source."""
    return f"{plan.policy_digest[:8]}-{plan.asking}-{plan.origin.kind}"


_REPLAYED_TYPES = ("Score", "Judgement", "Reservation", "DeadLetter")
"""Record types that a replay writes."""
_STAGE = "replay"
"""Stage of the state that describes a file's replay; its key is the label."""
_KEY = ["score_id", "revision"]


class Digest(NamedTuple):
    """The number of scores, and SHA-256 over the digests of all of them, ordered by id and revision."""

    scores: int
    sha256: str


def write_digests(path: Path, replayed: Iterable[pl.DataFrame], live: Iterable[pl.DataFrame]) -> None:
    """Write the digests of a part's scores and of the source's scores, atomically."""
    columns = {"score_id": pl.String, "revision": pl.Int64, "sha256": pl.Binary, "is_live": pl.Boolean}
    digests = [_digests(frame, is_live=False) for frame in replayed]
    digests += [_digests(frame, is_live=True) for frame in live]
    temporary = path.with_suffix(".new")
    pl.concat([pl.DataFrame(schema=columns), *digests], how="vertical_relaxed").write_parquet(temporary)
    temporary.replace(path)


def _digests(scores: pl.DataFrame, *, is_live: bool) -> pl.DataFrame:
    """Return id, revision and SHA-256 of the single-object encoding of each score."""
    rows = scores.select(field["name"] for field in schema_of("Score").fields).iter_rows(named=True)
    digests = [hashlib.sha256(encode_fields("Score", row)).digest() for row in rows]
    return scores.select(_KEY).with_columns(pl.Series("sha256", digests, dtype=pl.Binary), is_live=is_live)


def read_digests(paths: Sequence[Path], *, only_replayed: bool) -> tuple[Digest, Digest]:
    """Return the digest of the parts' scores and that of the source's scores; `only_replayed` ignores the source's scores of other exchanges."""
    digests = pl.concat([pl.read_parquet(path) for path in paths])
    replayed = digests.filter(~pl.col("is_live"))
    live = digests.filter("is_live")
    if only_replayed:
        live = live.join(replayed, on="score_id", how="semi")
    return _digest(replayed), _digest(live)


def _digest(digests: pl.DataFrame) -> Digest:
    return Digest(digests.height, hashlib.sha256(b"".join(digests.sort(_KEY)["sha256"].to_list())).hexdigest())


def merge(files: ReplayFiles, plan: ReplayPlan, now: datetime) -> Outcome:
    """Merge the parts into the result, remove them, and return the outcome. It may be repeated after a kill."""
    files.unfinished.unlink(missing_ok=True)
    files.unfinished.with_suffix(".duckdb.wal").unlink(missing_ok=True)
    with Store(files.unfinished):
        pass
    with connect(files.unfinished) as connection:
        for part in plan.parts:
            # Partition and offset give the part, and the order in it.
            connection.execute(f"ATTACH {literal(str(files.part(part.number)))} AS part (READ_ONLY)")
            for schema in map(schema_of, _REPLAYED_TYPES):
                connection.execute(
                    f"INSERT INTO {full_name(schema)} BY NAME SELECT * REPLACE ({part.number}::INTEGER AS _partition) "
                    f"FROM part.log.{quote(schema.table)} ORDER BY _offset"
                )
            connection.execute("DETACH part")
    replayed, live = read_digests([files.digests(part.number) for part in plan.parts], only_replayed=bool(plan.range))
    outcome = _read_outcome(files.unfinished, plan, replayed, live, now)
    with Store(files.unfinished) as store:
        with store.transaction() as transaction:
            transaction.set_states(_STAGE, {plan.label: msgspec.json.encode(outcome)}, 0)
        store.checkpoint()
    files.unfinished.replace(files.result)
    shutil.rmtree(files.parts)
    return outcome


def outcome_in(path: Path) -> Outcome:
    """Read the outcome of the replay in a file. Raises StoreError if the file is not a replay's."""
    with attach_files({"replay": path}) as connection:
        rows = connection.execute(f"SELECT state FROM replay.log.stage_state WHERE stage = '{_STAGE}'").fetchall()
    if not rows:
        raise StoreError(
            f"{path}: this is not a replay", hint="Move it to another folder: this one is for the files of `driftline replay`."
        )
    try:
        return msgspec.json.decode(rows[0][0], type=Outcome)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: its plan cannot be read: {error}", hint="Remove it and replay again.") from error


def _read_outcome(path: Path, plan: ReplayPlan, replayed: Digest, live: Digest, now: datetime) -> Outcome:
    with connect(path) as connection:
        counts = connection.execute("SELECT disposition, count(*) FROM main.scores GROUP BY ALL ORDER BY ALL").fetchall()
        calls = connection.execute("SELECT outcome, cost_usd FROM log.judgements").fetchall()
        ((dead_letters,),) = connection.execute("SELECT count(*) FROM log.dead_letters").fetchall()
    return Outcome(
        plan=plan,
        finished_at=now,
        exchanges=sum(count for _, count in counts),
        scores=replayed.scores,
        dispositions=dict(counts),
        calls=dict(sorted(Counter(outcome for outcome, _ in calls).items())),
        cost_usd=usd_of(sum(nano_of(cost) for _, cost in calls if cost is not None)),
        unknown_price=sum(cost is None for _, cost in calls),
        dead_letters=dead_letters,
        digest=replayed.sha256,
        live_scores=live.scores,
        live_digest=live.sha256,
    )
