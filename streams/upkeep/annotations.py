"""Annotations, which are shown beside the scores without changing them: deployments, marks of people, and reviews.

Deployments are releases as recorded by people, pipelines and traces:

1. A deployment with a time is identified by project, label, version, agent and time: sent again, it changes nothing.
2. A deployment without a time gets the present time, unless the newest deployment of the label and agent already has that version: then it
   repeats that one. So a rerun pipeline creates no second record, but a version that returns after another one does.
3. A version that first appears in a trace becomes a deployment, at the time of its exchange (`SeenVersions`). The first version of
   a label is not a change, and so not a deployment. Two versions that run side by side are deployed once each, even if they alternate
   often. Versions recorded by people or pipelines count as seen.

A mark of a person is a text at a time or a range of a project, such as "switched the prompt" (`annotation`). Each change of it, and its
deletion, is a review of its own with the same subject; the newest one counts.

A score of a person is a review of an exchange, from 1 to 5.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.agreement import HIGHEST, LOWEST
from audit.exchanges.outcomes import score_id
from audit.fingerprints import stable_id
from audit.policy import Policy, RatingScale
from audit.redaction import Redactor
from schemas.bounds import CLOCK_TOLERANCE, LABEL_NAME, MAX_LABEL, identifier_fault
from schemas.errors import InputError, PolicyError
from schemas.lazy import duckdb
from schemas.records import Deployment, DimensionPoints, Exchange, Review
from streams.sources.otlp.trace_exchanges import TracedRating

TOPIC = "deployments"
DEFAULT_LABEL = "agent_version"
MAX_LISTED = 1_000
"""Maximum number of deployments, or of annotations, in a list."""
MAX_DEPLOYMENT_COMMENT = 2_000
MAX_URL = 2_000
_URL = re.compile(r"https?://[^\s<>\"']+")
Row = Mapping[str, Any]


def deployment(
    *,
    project: str,
    version: str,
    by: str,
    now: datetime,
    redactor: Redactor,
    label: str = DEFAULT_LABEL,
    agent: str | None = None,
    at: datetime | None = None,
    comment: str | None = None,
    url: str | None = None,
) -> Deployment:
    """Return the record of a deployment, without secrets. Raises InputError, which names the invalid field."""
    if not re.fullmatch(LABEL_NAME, label):
        raise InputError(
            f"label: {label[:64]!r} is not a valid label name", hint="Use a-z, 0-9, _ and ., such as agent_version."
        )
    occurred_at = _require_past("at", at or now, now, "Record a deployment after it has happened.")
    if url is not None and (len(url) > MAX_URL or not _URL.fullmatch(url)):
        raise InputError(f"url: must be an http or https address of at most {MAX_URL} characters", hint="Leave it out.")
    if comment is not None and len(comment) > MAX_DEPLOYMENT_COMMENT:
        raise InputError(
            f"comment: has {len(comment)} characters; at most {MAX_DEPLOYMENT_COMMENT} are allowed", hint="Shorten it."
        )
    version = _redact_name("version", version, redactor)
    author = _redact_name("by", by, redactor)
    agent = None if agent is None else _redact_name("agent", agent, redactor)
    return Deployment(
        deployment_id=stable_id("deployment", project, label, version, agent or "", occurred_at.isoformat()),
        project=project,
        label=label,
        version=version,
        agent=agent,
        occurred_at=occurred_at,
        ingested_at=now,
        deployed_by=author,
        comment=None if comment is None else redactor.redact(comment)[0],
        url=None if url is None else redactor.redact(url)[0],
    )


def _require_past(field: str, moment: datetime, now: datetime, hint: str) -> datetime:
    """Return a time. Raises InputError, with the field, if it is later than clocks can differ."""
    if moment > now + CLOCK_TOLERANCE:
        raise InputError(f"{field}: lies more than a day in the future", hint=hint)
    return moment


def _redact_name(field: str, name: str, redactor: Redactor) -> str:
    """Return a name without secrets. Raises InputError, with the field, if it is not a valid name."""
    redacted, _ = redactor.redact(name)
    fault = identifier_fault(redacted, MAX_LABEL)
    if fault:
        raise InputError(f"{field}: {fault}", hint=f"Send 1 to {MAX_LABEL} characters.")
    return redacted


def find_repeated_deployment(store: Store, deployment: Deployment) -> Row | None:
    """Return the stored deployment that a deployment without a time repeats; None if it is new."""
    with contextlib.closing(store.cursor()) as cursor:
        rows = deployments(cursor, deployment.project)
    for row in rows:  # newest first
        if row["label"] == deployment.label and row["agent"] == deployment.agent:
            return row if row["version"] == deployment.version else None
    return None


def deployments(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MAX_LISTED,
) -> list[dict[str, Any]]:
    """Return the deployments of a project within a time, newest first."""
    return query_rows(cursor, "deployments", {"project": project, "since": since, "until": until, "limit": limit})


VERSIONS = ("agent_version", "prompt_version", "tool_version")
"""The labels that are versions."""
BY = "traces"
"""The author of deployments that were first seen in traces."""
MAX_PROJECTS = 1_000
"""Maximum number of projects whose versions are cached."""
_Series = tuple[str | None, str]
"""Agent and label."""


class SeenVersions:
    """The versions of each project, read from the tables when the project is first needed."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._versions_by_project: dict[str, dict[_Series, set[str]]] = {}

    def deployments(self, exchanges: Iterable[Exchange], now: datetime) -> Iterator[Deployment]:
        """Yield the deployments that exchanges reveal, and store their versions."""
        for exchange in sorted(exchanges, key=attrgetter("occurred_at")):
            versions_by_series = self._load_versions(exchange.project)
            for label in exchange.labels:
                if label.name not in VERSIONS:
                    continue
                versions = versions_by_series.setdefault((exchange.agent, label.name), set())
                if versions and label.value not in versions:
                    yield deployment(
                        project=exchange.project,
                        version=label.value,
                        by=BY,
                        now=now,
                        redactor=self._redactor,
                        label=label.name,
                        agent=exchange.agent,
                        at=exchange.occurred_at,
                    )
                versions.add(label.value)

    def _load_versions(self, project: str) -> dict[_Series, set[str]]:
        """Return the versions of a project by agent and label, from the cache or the tables."""
        if project in self._versions_by_project:
            return self._versions_by_project[project]
        if len(self._versions_by_project) >= MAX_PROJECTS:
            self._versions_by_project.clear()
        versions: dict[_Series, set[str]] = {}
        with contextlib.closing(self._store.cursor()) as cursor:
            for row in query_rows(cursor, "seen_versions", {"project": project, "labels": list(VERSIONS)}):
                versions.setdefault((row["agent"], row["label"]), set()).add(row["version"])
        self._versions_by_project[project] = versions
        return versions


ANNOTATION = "annotation"
DELETED = "deleted"
MAX_ANNOTATION = 500
"""Characters of a person's mark."""


def annotation(
    *,
    project: str,
    text: str,
    by: str,
    now: datetime,
    redactor: Redactor,
    at: datetime | None = None,
    until: datetime | None = None,
    annotation_id: str | None = None,
) -> Review:
    """Return the record of a person's mark, without secrets; with `annotation_id`, the one that replaces an earlier mark.

    Without `at` it marks the present time. The same mark, sent again with its time, is a single one. Raises InputError, which names the
    invalid field.
    """
    author = _redact_name("by", by, redactor)
    redacted = redactor.redact(text)[0].strip()
    if not redacted or len(redacted) > MAX_ANNOTATION:
        raise InputError(
            f"text: has {len(redacted)} characters", hint=f"Describe what happened in 1 to {MAX_ANNOTATION} characters."
        )
    hint = "Annotate what has happened."
    start = _require_past("at", at or now, now, hint)
    if until is not None and _require_past("until", until, now, hint) <= start:
        raise InputError("until: must be after at", hint="Leave it out to mark a moment.")
    subject = annotation_id or stable_id(
        ANNOTATION, project, redacted, author, start.isoformat(), "" if until is None else until.isoformat()
    )
    return _review_annotation(project, subject, author, now, comment=redacted, marked_from=start, marked_until=until)


def deleted_annotation(project: str, annotation_id: str, by: str, now: datetime, redactor: Redactor) -> Review:
    """Return the record that deletes a person's mark. Raises InputError for an invalid name."""
    return _review_annotation(project, annotation_id, _redact_name("by", by, redactor), now, status=DELETED)


def _review_annotation(project: str, subject: str, by: str, now: datetime, **fields: Any) -> Review:
    return Review(
        review_id=stable_id("review", subject, by, now.isoformat(), *map(str, fields.values())),
        project=project,
        kind=ANNOTATION,
        subject_id=subject,
        reviewer=by,
        occurred_at=now,
        ingested_at=now,
        **fields,
    )


HUMAN_SCORE = "human_score"
REVIEWS = "reviews"
"""Topic of human reviews."""
SWITCH_ON = "Set bidirectionalScoring: true in the policy, for the project or in its defaults."
MAX_COMMENT = 10_000
"""Characters of a comment."""


def require_human_scores(policy: Policy, project: str) -> None:
    """Raise PolicyError if the project accepts no human scores."""
    if not policy.for_project(project).settings.bidirectional_scoring:
        raise PolicyError(f"project {project} accepts no human scores: bidirectionalScoring is off", hint=SWITCH_ON)


def evaluator_score(connection: str, project: str, traced: TracedRating, scale: RatingScale, now: datetime) -> Review | None:
    """Return the record of an external evaluator's rating of an exchange, in points from 1 to 5; None if its score is off the scale.

    Its texts were redacted at intake. The same rating of the same span is a single record, however often its trace is assembled.
    """
    rating = traced.rating
    if rating.score is None or not scale.lowest <= rating.score <= scale.highest:
        return None
    share = (rating.score - scale.lowest) / (scale.highest - scale.lowest)
    subject = score_id(connection, traced.exchange_id)
    comment = ": ".join(filter(None, (rating.label, rating.explanation)))
    return Review(
        review_id=stable_id("evaluator_score", project, subject, rating.name, repr(rating.score), comment, traced.span_id),
        project=project,
        kind=HUMAN_SCORE,
        subject_id=subject,
        reviewer=rating.name,
        score=round(LOWEST + (HIGHEST - LOWEST) * share),
        comment=comment[:MAX_COMMENT] or None,
        occurred_at=traced.at,
        ingested_at=now,
    )


def human_score(
    project: str,
    subject: str,
    rater: str,
    value: int,
    comment: str | None,
    *,
    redactor: Redactor,
    now: datetime,
    queue: str | None = None,
    dimensions: Mapping[str, int] | None = None,
    exchange_at: datetime | None = None,
) -> Review:
    """Return the record of a person's score. Raises InputError for an invalid value. Secrets in the comment are replaced by markers.

    `queue` is the review queue in which it is given; None for the general one. `dimensions` are its points by dimension. The same score
    with the same time is a single record, so that it may be sent again.
    """
    points = sorted((dimensions or {}).items())
    for name, number in points:
        if not LOWEST <= number <= HIGHEST:
            raise InputError(f"dimensions.{name}: must be {LOWEST} to {HIGHEST}", hint="1 is worst and 5 is best.")
    if not LOWEST <= value <= HIGHEST:
        raise InputError(f"score: must be {LOWEST} to {HIGHEST}", hint="1 is worst and 5 is best, as in Tier 3.")
    redacted_comment = redactor.redact(comment)[0] if comment else None
    in_queue = () if queue is None else (queue, repr(points))
    return Review(
        review_id=stable_id("human_score", project, subject, rater, value, redacted_comment or "", now.isoformat(), *in_queue),
        project=project,
        kind=HUMAN_SCORE,
        subject_id=subject,
        reviewer=rater,
        score=value,
        comment=redacted_comment,
        occurred_at=now,
        ingested_at=now,
        queue=queue,
        dimensions=tuple(DimensionPoints(dimension=name, score=number) for name, number in points),
        exchange_at=exchange_at,
    )


REVIEW_QUEUE, QUEUE_ITEM = "review_queue", "queue_item"
OPEN, CLOSED, ADDED, REMOVED = "open", "closed", "added", "removed"


def review_queue(project: str, name: str, by: str, settings: str | None, *, now: datetime) -> Review:
    """Return the record that defines a review queue by the JSON of its settings, or closes it (None)."""
    status = CLOSED if settings is None else OPEN
    return Review(
        review_id=stable_id(REVIEW_QUEUE, project, name, by, settings or "", now.isoformat()),
        project=project,
        kind=REVIEW_QUEUE,
        subject_id=name,
        reviewer=by,
        status=status,
        settings=settings,
        occurred_at=now,
        ingested_at=now,
        queue=name,
    )


def queue_item(
    project: str, queue: str, subject: str, exchange_at: datetime, by: str, *, now: datetime, is_removed: bool = False
) -> Review:
    """Return the record that puts an exchange, by its score id, into a review queue, or takes it out."""
    status = REMOVED if is_removed else ADDED
    return Review(
        review_id=stable_id(QUEUE_ITEM, project, queue, subject, status, by, now.isoformat()),
        project=project,
        kind=QUEUE_ITEM,
        subject_id=subject,
        reviewer=by,
        status=status,
        occurred_at=now,
        ingested_at=now,
        queue=queue,
        exchange_at=exchange_at,
    )
