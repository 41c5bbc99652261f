"""Reviews as records: a person's score from 1 to 5, which is shown beside the judge's score and does not change it."""

from __future__ import annotations

from datetime import datetime

from audit.agreement import HIGHEST, LOWEST
from audit.exchanges.outcomes import score_id
from audit.fingerprints import stable_id
from audit.policy import Policy, RatingScale
from audit.redaction import Redactor
from schemas.errors import InputError, PolicyError
from schemas.records import Review
from streams.sources.otlp.trace_exchanges import TracedRating

HUMAN_SCORE = "human_score"
REVIEWS = "reviews"
"""Topic of human reviews."""
SWITCH_ON = "Set bidirectionalScoring: true in the policy, for the project or in its defaults."
MAX_COMMENT = 10_000
"""Characters of a comment."""


def require_human_scores(policy: Policy, project: str) -> None:
    """PolicyError if the project accepts no human scores."""
    if not policy.for_project(project).settings.bidirectional_scoring:
        raise PolicyError(f"project {project} takes no human scores: bidirectionalScoring is off", hint=SWITCH_ON)


def evaluator_score(connection: str, project: str, traced: TracedRating, scale: RatingScale, now: datetime) -> Review | None:
    """The record of an external evaluator's rating of an exchange, in points from 1 to 5; None if its score is off the scale.

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
    """The record of a person's score; InputError for an invalid value. Secrets in the comment are replaced by markers.

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
