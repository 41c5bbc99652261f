"""Judgements that were recorded: what a replay answers with, and what a live worker looks up before it pays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from analytics.queries import query_records
from analytics.store import Store
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.records import Judgement, ScoringTask

Subject = tuple[str, str]
"""Connection and id of an exchange."""
Recorded = Callable[[Sequence[Subject]], Mapping[Subject, Sequence[Judgement]]]
"""The recorded judgements of each of the subjects that has any, in the order they were recorded."""


def nothing_recorded(_subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
    """For where no judge ever was."""
    return {}


def recorded_in(store: Store) -> Recorded:
    """The judgements in a store."""

    def recorded(subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        found: dict[Subject, list[Judgement]] = defaultdict(list)
        if not subjects or not store.end_of("judgements"):
            return found
        wanted = [{"connection": connection, "subject_id": subject} for connection, subject in subjects]
        for judgement in query_records(store.cursor(), "judgements_of", Judgement, {"subjects": wanted}):
            found[judgement.connection, judgement.subject_id].append(judgement)
        return found

    return recorded


def subject_of(task: ScoringTask) -> Subject:
    """The exchange that a task is about."""
    return task.connection, task.exchange_id


def known_of(task: ScoringTask, found: Sequence[Judgement]) -> list[Judgement]:
    """What is known of a task's exchange up to its revision: what the task carries and what was found elsewhere, each once.

    RecordError when the task carries something that is no judgement of its exchange.
    """
    carried = [_carried(task, message) for message in task.earlier_judgements]
    known = {one.judgement_id: one for one in (*carried, *found)}
    return [one for one in known.values() if one.subject_revision <= task.revision]


def _carried(task: ScoringTask, message: bytes) -> Judgement:
    record = decode(message)
    if not isinstance(record, Judgement) or (record.connection, record.subject_id) != subject_of(task):
        raise RecordError(
            f"ScoringTask.earlier_judgements: exchange {task.exchange_id!r} carries what is no judgement of it",
            hint="Ask for the exchange to be judged again: driftline rejudge fills the field.",
        )
    return record
