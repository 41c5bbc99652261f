"""Annotations, which are shown beside the scores without changing them: deployments and reviews.

Deployments are releases as recorded by people, pipelines and traces:

1. A deployment with a time is identified by project, label, version, agent and time: sent again, it changes nothing.
2. A deployment without a time gets the present time, unless the newest deployment of the label and agent already has that version: then it
   repeats that one. So a rerun pipeline makes no second record, while a version that returns after another one does.
3. A version that first appears in a trace becomes a deployment, at the time of its exchange (`SeenVersions`). The first version ever seen
   of a label is not a change, and so not a deployment. Two versions that run side by side are deployed once each, however often they
   alternate. Versions recorded by people or pipelines count as seen.

A review is a person's score of an exchange, from 1 to 5.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
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
from schemas.records import Deployment, Exchange, Review
from streams.sources.otlp.trace_exchanges import TracedRating

TOPIC = "deployments"
DEFAULT_LABEL = "agent_version"
MOST = 1_000
"""Deployments that are listed at once."""
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
    """Return the record of a deployment, without secrets; InputError names a field that is invalid."""
    if not re.fullmatch(LABEL_NAME, label):
        raise InputError(
            f"label: {label[:64]!r} is not a valid label name", hint="Use a-z, 0-9, _ and ., such as agent_version."
        )
    if at is not None and at > now + CLOCK_TOLERANCE:
        raise InputError("at: lies more than a day in the future", hint="Record a deployment after it has happened.")
    if url is not None and (len(url) > MAX_URL or not _URL.fullmatch(url)):
        raise InputError(f"url: must be an http or https address of at most {MAX_URL} characters", hint="Leave it out.")
    if comment is not None and len(comment) > MAX_DEPLOYMENT_COMMENT:
        raise InputError(
            f"comment: has {len(comment)} characters; at most {MAX_DEPLOYMENT_COMMENT} are allowed", hint="Shorten it."
        )
    version, by = _clean("version", version, redactor), _clean("by", by, redactor)
    agent = None if agent is None else _clean("agent", agent, redactor)
    when = at or now
    return Deployment(
        deployment_id=stable_id("deployment", project, label, version, agent or "", when.isoformat()),
        project=project,
        label=label,
        version=version,
        agent=agent,
        occurred_at=when,
        ingested_at=now,
        deployed_by=by,
        comment=None if comment is None else redactor.redact(comment)[0],
        url=None if url is None else redactor.redact(url)[0],
    )


def _clean(name: str, text: str, redactor: Redactor) -> str:
    clean, _ = redactor.redact(text)
    if fault := identifier_fault(clean, MAX_LABEL):
        raise InputError(f"{name}: {fault}", hint=f"Send 1 to {MAX_LABEL} characters.")
    return clean


def known_already(store: Store, wanted: Deployment) -> Row | None:
    """Return the deployment that a deployment without a time repeats; None if it is new."""
    with contextlib.closing(store.cursor()) as cursor:
        rows = deployments(cursor, wanted.project)
    same = (row for row in rows if (row["label"], row["agent"]) == (wanted.label, wanted.agent))
    newest = next(same, None)
    return newest if newest is not None and newest["version"] == wanted.version else None


def deployments(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MOST,
) -> list[dict[str, Any]]:
    """Return the deployments of a project within a time, newest first."""
    return query_rows(cursor, "deployments", {"project": project, "since": since, "until": until, "limit": limit})


VERSIONS = ("agent_version", "prompt_version", "tool_version")
"""The labels that are versions."""
BY = "traces"
"""The author of deployments that were first seen in traces."""
MAX_PROJECTS = 1_000
"""Projects whose versions are cached."""
_Series = tuple[str | None, str]
"""Agent and label."""


class SeenVersions:
    """The versions of each project, read from the tables when the project is first needed."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._seen: dict[str, dict[_Series, set[str]]] = {}

    def deployments(self, exchanges: Iterable[Exchange], now: datetime) -> Iterator[Deployment]:
        """Yield the deployments that exchanges reveal, and store their versions."""
        for exchange in sorted(exchanges, key=lambda one: one.occurred_at):
            versions = self._versions(exchange.project)
            for label in exchange.labels:
                if label.name not in VERSIONS:
                    continue
                known = versions.setdefault((exchange.agent, label.name), set())
                if known and label.value not in known:
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
                known.add(label.value)

    def _versions(self, project: str) -> dict[_Series, set[str]]:
        found = self._seen.get(project)
        if found is None:
            if len(self._seen) >= MAX_PROJECTS:
                self._seen.clear()
            found = self._seen[project] = {}
            with contextlib.closing(self._store.cursor()) as cursor:
                for row in query_rows(cursor, "seen_versions", {"project": project, "labels": list(VERSIONS)}):
                    found.setdefault((row["agent"], row["label"]), set()).add(row["version"])
        return found


HUMAN_SCORE = "human_score"
REVIEWS = "reviews"
"""Topic of human reviews."""
SWITCH_ON = "Set bidirectionalScoring: true in the policy, for the project or in its defaults."
MAX_COMMENT = 10_000
"""Characters of a comment."""


def require_human_scores(policy: Policy, project: str) -> None:
    """Raise PolicyError if the project accepts no human scores."""
    if not policy.for_project(project).settings.bidirectional_scoring:
        raise PolicyError(f"project {project} takes no human scores: bidirectionalScoring is off", hint=SWITCH_ON)


def evaluator_score(connection: str, project: str, traced: TracedRating, scale: RatingScale, now: datetime) -> Review | None:
    """Return the record of an external evaluator's rating of an exchange, in points from 1 to 5; None if its score is off the scale.

    Its texts were redacted at intake. The same rating of the same span is a single record, however often its trace is assembled.
    """
    rating = traced.rating
    if rating.score is None or not scale.lowest <= rating.score <= scale.highest:
        return None
    share = (rating.score - scale.lowest) / (scale.highest - scale.lowest)
    subject = score_id(connection, traced.exchange_id)
    said = ": ".join(filter(None, (rating.label, rating.explanation)))
    return Review(
        review_id=stable_id("evaluator_score", project, subject, rating.name, repr(rating.score), said, traced.span_id),
        project=project,
        kind=HUMAN_SCORE,
        subject_id=subject,
        reviewer=rating.name,
        score=round(LOWEST + (HIGHEST - LOWEST) * share),
        comment=said[:MAX_COMMENT] or None,
        occurred_at=traced.at,
        ingested_at=now,
    )


def human_score(
    project: str, subject: str, rater: str, value: int, comment: str | None, *, redactor: Redactor, now: datetime
) -> Review:
    """Return the record of a person's score. Raises InputError for an invalid value. Secrets in the comment are replaced by markers.

    The same score with the same time is a single record, so that it may be sent again.
    """
    if not LOWEST <= value <= HIGHEST:
        raise InputError(f"score: must be {LOWEST} to {HIGHEST}", hint="1 is worst and 5 is best, as in Tier 3.")
    said = redactor.redact(comment)[0] if comment else None
    return Review(
        review_id=stable_id("human_score", project, subject, rater, value, said or "", now.isoformat()),
        project=project,
        kind=HUMAN_SCORE,
        subject_id=subject,
        reviewer=rater,
        score=value,
        comment=said,
        occurred_at=now,
        ingested_at=now,
    )
