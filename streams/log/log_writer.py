"""The one writer of an embedded log: what callers submit, and what intake decides on it, is committed together."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analytics.identity.identity_index import KnownIdentities
from analytics.store.store import Appended, Store, Transaction
from schemas.codec.arrow import INDEX
from schemas.records import Record, Score, ScoringTask
from schemas.registry import topics
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import SCORING, JudgedStage
from streams.judging.judged_state import STATE
from streams.judging.recorded_judgements import Subject
from streams.log.admission import Accepted
from streams.stage_batches import StageBatch, session_key
from streams.topology import stage_named

INTAKE = stage_named("intake")
DIAGNOSIS = stage_named("diagnosis")
log = logging.getLogger(__name__)
WRITTEN, KNOWN, CONFLICT = "written", "known", "conflict"


@dataclass(frozen=True)
class Submission:
    """What a caller wants to have committed: records from outside, of which known ones are left out, or what a stage made."""

    outside: Accepted = field(default_factory=Accepted)
    made: Accepted = field(default_factory=Accepted)
    stage: JudgedStage[Any] | None = None
    """Whose states and watermark move."""
    states: Mapping[str, bytes] = field(default_factory=dict)
    """States of the stage that changed."""
    watermark: int = 0
    """Where the stage reads next."""


@dataclass(frozen=True)
class Committed:
    """What became of a submission."""

    fates: Mapping[str, Sequence[str]]
    """For each topic and each of its records from outside: written, known (the log has it) or conflict (with other content)."""
    decisions: Mapping[Subject, ScoringTask | Score]
    """What intake decided on exchanges of the whole group: judged (a task) or left out (a score)."""
    spent: Mapping[str, int]
    """Nano-USD that the sessions of the tasks have spent, by session key, where they have spent anything."""


class LogWriter:
    """Commits submissions; its `commit` and `rest` are for `streams.log.group_commit.GroupCommit`."""

    def __init__(self, store: Store, runner: EmbeddedRunner) -> None:
        self._store = store
        self._runner = runner
        self._seen = KnownIdentities()
        self._diagnosed = -1

    def catch_up(self) -> None:
        """Let intake and diagnosis take up what was committed but not read when the last process ended.

        Where that was an import or a rebuild, the judged stages, too: no one has said that they may be paid for.
        """
        if self._runner.finish():
            log.warning("an import or a rebuild was cut short: it is finished first, without asking a judge")
        for stage in (INTAKE, DIAGNOSIS):
            while self._runner.advance(stage):
                pass

    def commit(self, group: Sequence[Submission]) -> list[Committed]:
        """Commit all of the group, or nothing when an exception leaves."""
        try:
            return self._commit(group)
        except BaseException:
            self._seen.rewind({topic: self._store.end_of(topic) for topic in topics()})
            raise

    def _commit(self, group: Sequence[Submission]) -> list[Committed]:
        with self._store.transaction() as transaction:
            made = _merged(one.made for one in group)
            for topic, messages in made.messages.items():
                transaction.append(topic, messages)
            outside = _merged(one.outside for one in group)
            appended = {
                topic: transaction.append(topic, messages, skip_known=True, seen=self._seen)
                for topic, messages in outside.messages.items()
            }
            self._move(transaction, group)
            decisions = self._decide(transaction, appended.get(INTAKE.source))
            spent = _spent(transaction, decisions.values())
        for topic, done in appended.items():
            self._seen.add(topic, done.frames)
        fates = {topic: iter(_fates(appended[topic], len(messages))) for topic, messages in outside.messages.items()}
        return [
            Committed(
                {
                    topic: list(itertools.islice(fates[topic], len(messages)))
                    for topic, messages in one.outside.messages.items()
                },
                decisions,
                spent,
            )
            for one in group
        ]

    def rest(self) -> bool:
        """Let diagnosis take up its next batch; answers whether there was one."""
        end = self._store.end_of(DIAGNOSIS.source)
        if end == self._diagnosed:
            return False
        if self._runner.advance(DIAGNOSIS):
            return True
        self._diagnosed = end
        return False

    def _move(self, transaction: Transaction, group: Sequence[Submission]) -> None:
        """Move the states of stages, and each one's watermark to the farthest that one of the group has."""
        for stage in {one.stage for one in group if one.stage is not None}:
            theirs = [one for one in group if one.stage is stage]
            states = {key: state for one in theirs for key, state in one.states.items()}
            mark = max(transaction.watermark(stage.name, stage.source), *(one.watermark for one in theirs))
            transaction.set_states(stage.name, states, mark)
            transaction.set_watermark(stage.name, stage.source, mark)

    def _decide(self, transaction: Transaction, appended: Appended | None) -> dict[Subject, ScoringTask | Score]:
        """Let intake decide on what was just appended, in the same transaction."""
        if appended is None or not appended.frames:
            return {}
        frames = {name: frame.drop(INDEX) for name, frame in appended.frames.items()}
        end = 1 + max(int(frame["_offset"][-1]) for frame in frames.values())
        outcome = self._runner.attend(transaction, INTAKE, StageBatch.of(INTAKE.source, frames), end)
        return {(record.connection, record.exchange_id): record for record in _decisions(outcome.records)}


def _spent(transaction: Transaction, decisions: Iterable[ScoringTask | Score]) -> dict[str, int]:
    keys = {session_key(one) for one in decisions if isinstance(one, ScoringTask)}
    states = transaction.states(SCORING.name, list(keys)) if keys else {}
    return {key: STATE.decode(state).spent for key, state in states.items()}


def _decisions(records: Sequence[tuple[str, Record]]) -> Iterator[ScoringTask | Score]:
    # What is made of exchanges that came earlier is no news of those that came now.
    return (record for _, record in records if isinstance(record, ScoringTask | Score) and not record.revision)


def _merged(parts: Iterator[Accepted]) -> Accepted:
    whole = Accepted()
    for part in parts:
        whole.extend(part)
    return whole


def _fates(appended: Appended, count: int) -> list[str]:
    fates = [KNOWN] * count
    for frame in appended.frames.values():
        for place in frame[INDEX].to_list():
            fates[place] = WRITTEN
    for place in appended.conflicts:
        fates[place] = CONFLICT
    return fates
