"""Review queues of a project: their definitions, their exchanges, and how far they are reviewed.

A queue has the exchanges that people add and, if it has a rule, those that the rule matches: of the last MAX_DAYS days, at most `per_day`
of each UTC day, chosen by a hash of queue and exchange. So the same exchanges are in it on every machine and after every replay.
Neither are a random sample of the project, so labels of a queue count only in the agreement of that queue.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from analytics.queries import query_rows
from audit.policy import ProjectPolicy
from schemas.bounds import LATEST
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.read.sessions import TurnRange, find_sessions, session_turns
from service.text.answers import Answer, Moment

QUEUE_NAME = r"\w[\w .-]{0,62}"
MAX_QUEUES = 20
"""Open review queues of a project."""
MAX_DAYS = 30
"""Days before now whose exchanges the rule of a queue matches."""
MAX_PER_DAY = 100
MAX_ITEMS = 2_000
"""Exchanges of a queue; the newest count."""
MAX_ADDED = 100
"""Exchanges that are added at once."""
MAX_REVIEWS = 5
MAX_RUBRIC = 4_000
MAX_NAMES = 20
"""Dimensions of a queue, and people it is assigned to."""
Tier = Literal["tier1", "tier2", "tier2_5", "tier3"]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class QueueRule(Answer, frozen=True):
    """The exchanges that come into a review queue by themselves; each condition that is not null must hold."""

    agent: _Name | None = None
    version: Annotated[_Name | None, Meta(description="Of the agent, from its label.")] = None
    tool: Annotated[_Name | None, Meta(description="Called in the exchange.")] = None
    tool_error: Annotated[bool, Meta(description="Only with a failed tool call, of `tool` if that is given.")] = False
    anomaly: Annotated[bool, Meta(description="Only with an anomaly.")] = False
    reason: Annotated[_Name | None, Meta(description="Part of an anomaly reason or a flag of Tier 1.")] = None
    failure: Annotated[_Name | None, Meta(description="Primary failure of the session's run.")] = None
    tier: Annotated[Tier, Meta(description="Tier of `most`.")] = "tier2"
    most: Annotated[float | None, Meta(description="Only with at most this score.")] = None
    share: Annotated[float, Meta(gt=0, le=1, description="Share of the matching exchanges, drawn by hash.")] = 1.0
    per_day: Annotated[int, Meta(ge=1, le=MAX_PER_DAY, description="At most so many per UTC day, drawn by hash.")] = 20


class QueueSettings(Answer, frozen=True):
    """The definition of a review queue."""

    rubric: Annotated[str, Meta(max_length=MAX_RUBRIC, description="What reviewers are to look at.")] = ""
    dimensions: Annotated[
        list[str], Meta(max_length=MAX_NAMES, description="Dimensions of the judge to score, besides the whole.")
    ] = msgspec.field(default_factory=list)
    assignees: Annotated[
        list[str], Meta(max_length=MAX_NAMES, description="Names of the operators who review it; empty for anyone.")
    ] = msgspec.field(default_factory=list)
    reviews: Annotated[int, Meta(ge=1, le=MAX_REVIEWS, description="People who are to score each exchange.")] = 1
    rule: Annotated[QueueRule | None, Meta(description="null: only exchanges that people add.")] = None


class ReviewQueue(Answer, frozen=True):
    """A review queue and its progress."""

    name: str
    settings: QueueSettings
    defined_by: str
    defined_at: Moment
    items: Annotated[int, Meta(description="Exchanges in it.")] = 0
    done: Annotated[int, Meta(description="Exchanges that as many people as `reviews` have scored in it.")] = 0
    mine: Annotated[int, Meta(description="Exchanges that the reviewer has scored in it.")] = 0
    waiting: Annotated[int, Meta(description="Exchanges that wait for the reviewer.")] = 0
    reviewers: Annotated[dict[str, int], Meta(description="Exchanges scored in it, by reviewer.")] = msgspec.field(
        default_factory=dict
    )
    disputed: Annotated[int, Meta(description="Exchanges whose reviewers differ by more than one point.")] = 0


class ReviewQueues(Answer, frozen=True):
    """The open review queues of a project, by name."""

    queues: list[ReviewQueue]
    count: int


class ChangedItems(Answer, frozen=True):
    """A change of the exchanges in a review queue."""

    queue: str
    changed: Annotated[int, Meta(description="Exchanges added or taken out.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """An exchange in a review queue."""

    score_id: str
    connection: str
    exchange_id: str
    session_id: str
    exchange_at: datetime
    source: str
    """hand, rule or scored."""
    added_by: str | None
    reviewers: Sequence[str]
    agrees: bool | None


def scores_of_session(
    cursor: duckdb.DuckDBPyConnection, project: str, session: str, connection: str | None
) -> list[tuple[str, datetime | None]]:
    """Return the ids of the first MAX_ADDED scores of a session, with the times of their exchanges."""
    for header in find_sessions(cursor, session, [project], connection):
        rows = session_turns(cursor, header, TurnRange(limit=MAX_ADDED, max_text_length=0))
        return [(row["score_id"], row["said_at"]) for row in rows if row["score_id"] is not None]
    return []


def parse_settings(document: object, policy: ProjectPolicy) -> QueueSettings:
    """Return the settings of a queue from a JSON object. Raises InputError, which names the invalid field."""
    try:
        settings = msgspec.convert(document, QueueSettings)
    except msgspec.ValidationError as error:
        raise InputError(f"settings: {error}", hint="GET …/review/queues shows valid settings.") from None
    known = dimensions_of(policy)
    for name in settings.dimensions:
        if name not in known:
            raise InputError(
                f"dimensions: {name[:64]!r} is not a dimension of the judge", hint=f"Choose of {', '.join(known)}."
            )
    return settings


def dimensions_of(policy: ProjectPolicy) -> dict[str, str]:
    """Return the descriptions of the judge's dimensions in a project, by id."""
    return {dimension.id: dimension.description for dimension in (*policy.methodology.tier2, *policy.methodology.tier3)}


def dump_settings(settings: QueueSettings) -> str:
    """Return the JSON of settings, as records have it."""
    return msgspec.json.encode(settings, order="sorted").decode()


def review_queues(cursor: duckdb.DuckDBPyConnection, project: str, rater: str, now: datetime) -> list[ReviewQueue]:
    """Return the open queues of a project with their progress, which `mine` and `waiting` count for a reviewer."""
    return [count_progress(queue, queue_items(cursor, project, queue, now), rater) for queue in read_queues(cursor, project)]


def read_queues(cursor: duckdb.DuckDBPyConnection, project: str) -> list[ReviewQueue]:
    """Return the open queues of a project without their progress."""
    return [
        ReviewQueue(
            name=row["name"],
            settings=msgspec.json.decode(row["settings"], type=QueueSettings),
            defined_by=row["defined_by"],
            defined_at=row["defined_at"],
        )
        for row in query_rows(cursor, "review_queues", {"project": project})
    ]


def queue_items(cursor: duckdb.DuckDBPyConnection, project: str, queue: ReviewQueue, now: datetime) -> list[QueueItem]:
    """Return the exchanges of a queue, newest first."""
    rule = queue.settings.rule or QueueRule()
    params = {
        "project": project,
        "queue": queue.name,
        "has_rule": queue.settings.rule is not None,
        # Whole days, so that the exchanges of the first day stay those drawn from all of it.
        "since": (now - timedelta(days=MAX_DAYS - 1)).replace(hour=0, minute=0, second=0, microsecond=0),
        "until": LATEST,
        "agent": rule.agent,
        "version": rule.version,
        "tool": rule.tool,
        "tool_error": rule.tool_error or None,
        "anomalies": rule.anomaly or None,
        "reason": rule.reason,
        "failure": rule.failure,
        "tier": rule.tier,
        "most": rule.most,
        "share": rule.share,
        "per_day": rule.per_day,
        "limit": MAX_ITEMS,
    }
    return [QueueItem(**row) for row in query_rows(cursor, "queue_items", params)]


def next_item(queue: ReviewQueue, items: Sequence[QueueItem], rater: str, skip: Collection[str]) -> QueueItem | None:
    """Return the next exchange for a reviewer; None if none waits.

    The order is a hash of reviewer and exchange, so that two people who review at the same time seldom get the same exchange.
    """
    waiting = [item for item in items if _waits(queue, item, rater) and item.score_id not in skip]
    return min(
        waiting,
        key=lambda item: hashlib.md5(f"{rater}\n{item.score_id}".encode(), usedforsecurity=False).digest(),
        default=None,
    )


def _waits(queue: ReviewQueue, item: QueueItem, rater: str) -> bool:
    return len(item.reviewers) < queue.settings.reviews and rater not in item.reviewers


def count_progress(queue: ReviewQueue, items: Sequence[QueueItem], rater: str) -> ReviewQueue:
    """Return a queue with its progress, which `mine` and `waiting` count for a reviewer."""
    reviewers: Mapping[str, int] = Counter(name for item in items for name in item.reviewers)
    return msgspec.structs.replace(
        queue,
        items=len(items),
        done=sum(len(item.reviewers) >= queue.settings.reviews for item in items),
        mine=sum(rater in item.reviewers for item in items),
        waiting=sum(_waits(queue, item, rater) for item in items),
        reviewers=dict(sorted(reviewers.items())),
        disputed=sum(item.agrees is False for item in items),
    )
