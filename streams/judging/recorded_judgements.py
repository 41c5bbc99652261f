"""Judgements that were recorded: what a replay answers with, and what a live worker looks up before it pays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from analytics.queries import query_records
from analytics.store.store import Store
from schemas.records import Judgement

Subject = tuple[str, str]
"""Connection and id of what is judged: an exchange or an evaluation."""
Recorded = Callable[[Sequence[Subject]], Mapping[Subject, Sequence[Judgement]]]
"""The recorded judgements of each of the subjects that has any, in the order they were recorded."""


def nothing_recorded(_subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
    """For where no judge ever was."""
    return {}


def recorded_in(store: Store) -> Recorded:
    """The judgements in a store."""

    def recorded(subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        by_subject: dict[Subject, list[Judgement]] = defaultdict(list)
        if not subjects or not store.end_of("judgements"):
            return by_subject
        wanted = [{"connection": connection, "subject_id": subject} for connection, subject in subjects]
        for judgement in query_records(store.cursor(), "judgements_of", Judgement, {"subjects": wanted}):
            by_subject[judgement.connection, judgement.subject_id].append(judgement)
        return by_subject

    return recorded
