"""The JSON documents: field for field what an existing webhook reads, made from what the store holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from polars import selectors
from support.builders import START, exchange, judgement, score

from analytics.queries import query_rows, run_query
from analytics.store.store import Store
from schemas.codec.arrow import rows_as_records
from schemas.codec.single_object import encode
from schemas.records import DimensionScore, Exchange, Incident, Record, Redaction, Review
from service.read.scores import ScoreFilter, project_scores, project_summary, score_by_id
from service.text.answers import document

SCORE_FIELDS = (
    "id exchangeId sessionId turnNumber exchangeTimestamp project schemaVersion judgeModel scoredAt tier1StructuralScore tier1Flags "
    "tier2SemanticScore tier2Reasoning tier2Skipped tier2_5AlignmentScore tier2_5Reasoning tier2_5Skipped tier3BehavioralScore "
    "tier3DimensionScores tier3Skipped anomalyFlag anomalyReason costUsd humanScore humanComment humanScoredAt samplingReason "
    "disposition revision createdAt"
)
"""Their names as an existing webhook knows them."""
TOPICS = {"Score": "scores", "Exchange": "exchanges", "Judgement": "judgements", "Review": "reviews", "Incident": "incidents"}
JUDGED: dict[str, Any] = {
    "disposition": "scored",
    "dropped_quotes": 1,
    "tier1_score": 0.75,
    "tier1_flags": ("silent_refusal",),
    "tier2_state": "scored",
    "tier2_reason": "always",
    "tier2_score": 0.75,
    "tier2_dimensions": (
        DimensionScore(dimension="scope_compliance", score=1.0, reasoning="On topic."),
        DimensionScore(dimension="information_completeness", score=0.5, reasoning="Some is missing."),
    ),
    "tier2_flagged": False,
    "tier2_5_state": "scored",
    "tier2_5_reason": "thinking",
    "tier2_5_alignment": 0.25,
    "tier2_5_sycophancy": True,
    "tier2_5_advocacy_suppression": False,
    "tier2_5_reasoning": "It gives in.",
    "tier3_state": "scored",
    "tier3_reason": "tier1_flags",
    "tier3_score": 3.5,
    "tier3_dimensions": (
        DimensionScore(dimension="transparency", score=5.0, reasoning="Open."),
        DimensionScore(dimension="tone_alignment", score=2.0),
    ),
    "anomaly": True,
    "anomaly_reasons": ("no response", "low alignment"),
    "judge_model": "claude-haiku-4-5-20251001",
    "simulated": True,
    "cost_usd": 0.0125,
}


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with Store(None) as opened:
        yield opened


def put(store: Store, *records: Record) -> None:
    """Append records to their topics."""
    with store.transaction() as transaction:
        for record in records:
            transaction.append(TOPICS[type(record).__name__], [encode(record)])


def review(score_id: str, value: int, comment: str | None, at: datetime) -> Review:
    """Build a person's score."""
    return Review(
        review_id=f"{score_id} {at}",
        project="ops",
        kind="human_score",
        subject_id=score_id,
        reviewer="ada",
        score=value,
        comment=comment,
        occurred_at=at,
        ingested_at=at,
    )


def only_document(store: Store) -> dict[str, Any]:
    """The document of the only score of the project ops."""
    [only] = project_scores(store.cursor(), "ops", ScoreFilter())
    return document(only)


def test_the_documented_fields_come_first_and_in_order(store: Store) -> None:
    """Webhooks read fields by name, people by their order."""
    put(store, score("s", 1))
    assert list(only_document(store))[: SCORE_FIELDS.count(" ") + 1] == SCORE_FIELDS.split(" ")


def test_a_judged_exchange_has_every_tier(store: Store) -> None:
    """A score contains each tier's finding, the judge's reasoning, and the cost."""
    later = START + timedelta(hours=1)
    put(store, score("s", 7), score("s", 7, revision=1, scored_at=later, **JUDGED), review("score s:7", 2, "Poor.", later))

    assert only_document(store) == {
        "id": "score s:7",
        "exchangeId": "s:7",
        "sessionId": "s",
        "turnNumber": 7,
        "exchangeTimestamp": "2026-10-01T09:07:00Z",
        "project": "ops",
        "schemaVersion": "1",
        "judgeModel": "claude-haiku-4-5-20251001",
        "scoredAt": "2026-10-01T10:00:00Z",
        "tier1StructuralScore": 0.75,
        "tier1Flags": ["silent_refusal"],
        "tier2SemanticScore": 0.75,
        "tier2Reasoning": "scope_compliance: On topic.\ninformation_completeness: Some is missing.",
        "tier2Skipped": False,
        "tier2_5AlignmentScore": 0.25,
        "tier2_5Reasoning": "It gives in.",
        "tier2_5Skipped": False,
        "tier3BehavioralScore": 3.5,
        "tier3DimensionScores": {
            "transparency": {"score": 5.0, "reasoning": "Open."},
            "tone_alignment": {"score": 2.0, "reasoning": None},
        },
        "tier3Skipped": False,
        "anomalyFlag": True,
        "anomalyReason": "no response; low alignment",
        "costUsd": 0.0125,
        "humanScore": 2,
        "humanComment": "Poor.",
        "humanScoredAt": "2026-10-01T10:00:00Z",
        "samplingReason": "first_turns",
        "disposition": "scored",
        "revision": 1,
        "createdAt": "2026-10-01T09:07:05Z",
        "connection": "local",
        "agent": None,
        "samplingProbability": 1.0,
        "simulated": True,
        "tier2State": "scored",
        "tier2Reason": "always",
        "tier2Flagged": False,
        "tier2FlagReason": None,
        "tier2_5State": "scored",
        "tier2_5Reason": "thinking",
        "tier2_5Sycophancy": True,
        "tier2_5AdvocacySuppression": False,
        "tier3State": "scored",
        "tier3Reason": "tier1_flags",
        "droppedQuotes": 1,
        "judgeSawAll": None,
    }


@pytest.mark.parametrize("state", ["not_applicable", "skipped_gate", "skipped_cost_cap", "skipped_sampling", "unscored"])
def test_a_tier_without_a_score_gives_the_reason(store: Store, state: str) -> None:
    """A failed tier must be visible as neither scored nor skipped."""
    states = {f"{tier}_{what}": value for tier in TIERS for what, value in (("state", state), ("reason", "because"))}
    put(store, score("s", 1, **states))
    score_document = only_document(store)

    for tier, value in TIERS.items():
        assert score_document[f"{tier}{value}"] is None
        assert score_document[f"{tier}Skipped"] is True
        assert score_document[f"{tier}State"] == state
        assert score_document[f"{tier}Reason"] == "because"
    assert score_document["tier2Reasoning"] is None
    assert score_document["anomalyReason"] is None
    assert score_document["tier3DimensionScores"] == {}


TIERS = {"tier2": "SemanticScore", "tier2_5": "AlignmentScore", "tier3": "BehavioralScore"}
"""The judged tiers and what the name of each one's score ends with."""


def test_turn_0_and_cost_0_are_not_null(store: Store) -> None:
    """Zero is a value; only an unknown cost is null."""
    put(store, score("s", 0, cost_usd=0.0), score("s", 1, cost_usd=None))
    newest, oldest = project_scores(store.cursor(), "ops", ScoreFilter())
    assert [(one.turn_number, one.cost_usd) for one in (oldest, newest)] == [(0, 0.0), (1, None)]


def test_a_score_is_found_only_in_its_own_project(store: Store) -> None:
    """The document is that of the list, and readers of one project must not guess ids of another."""
    put(store, score("s", 1, **JUDGED), score("t", 1, project="web"), review("score s:1", 4, None, START))
    [listed] = project_scores(store.cursor(), "ops", ScoreFilter())

    assert listed == score_by_id(store.cursor(), "ops", "score s:1")
    assert None is score_by_id(store.cursor(), "ops", "score t:1")


def test_a_list_respects_its_filters(store: Store) -> None:
    """`from` is inclusive, `to` is not, in any time zone, and the newest rows are kept."""
    put(store, *(score("s", number, anomaly=number % 2 == 0) for number in range(6)))
    cursor, east = store.cursor(), timezone(timedelta(hours=2))

    def turns(**asked: Any) -> list[int | None]:
        return [found.turn_number for found in project_scores(cursor, "ops", ScoreFilter(**asked))]

    assert turns() == [5, 4, 3, 2, 1, 0]
    assert turns(limit=2) == [5, 4]
    assert turns(anomalies=True) == [4, 2, 0]
    start = (START + timedelta(minutes=1)).astimezone(east)
    assert turns(start=start, end=START + timedelta(minutes=4)) == [3, 2, 1]


def test_documents_are_valid_json(store: Store) -> None:
    """Any name of a dimension or an agent must be encodable as JSON."""
    odd = DimensionScore(dimension='"quoted"\n', score=1.0, reasoning="\u202eabc")
    put(store, score("s", 1, **(JUDGED | {"tier3_dimensions": (odd,), "agent": "\0"})))
    score_document = only_document(store)

    assert json.loads(json.dumps(score_document, allow_nan=False)) == score_document
    assert score_document["tier3DimensionScores"] == {'"quoted"\n': {"score": 1.0, "reasoning": "\u202eabc"}}


def test_a_summary_describes_a_project(store: Store) -> None:
    """It has counts, means, costs and open incidents; the caller passes the baseline."""
    put(
        store,
        *(exchange("s", number) for number in range(1, 7)),
        score("s", 1, **JUDGED),
        score("s", 2, disposition="sampling_skip"),
        score("s", 3, disposition="sampling_skip"),
        score("s", 4, disposition="skipped_cost_cap"),
        score("s", 5),
        judgement("s", 1),
        judgement("s", 1, "tier3", cost_usd=0.002),
        judgement("s", 5, cost_usd=None, outcome="timeout"),
        incident("i1", "open"),
        incident("i2", "dismissed"),
    )
    assert document(project_summary(store.cursor(), "ops", {"id": "b"})) == {
        "project": "ops",
        "exchanges": {
            "total": 6,
            "scored": 1,
            "pending": 1,
            "skippedSampling": 2,
            "skippedCostCap": 1,
            "unscored": 1,
            "unscoredReasons": {"no_judge": 1},
        },
        "scores": {
            "total": 5,
            "anomalies": 1,
            "avgTier1Structural": 0.95,
            "avgTier2Semantic": 0.75,
            "avgTier2_5Alignment": 0.25,
            "avgTier3Behavioral": 3.5,
            "costUsd": 0.003,
            "unknownCosts": 1,
            "simulated": 1,
        },
        "baseline": {"id": "b"},
        "openIncidents": 1,
        "suspectedIncidents": 0,
        "coldDays": None,
    }


def test_an_unknown_cost_is_not_zero(store: Store) -> None:
    """An unknown cost must not be shown as 0."""
    put(store, exchange("s", 1), judgement("s", 1, cost_usd=None), judgement("s", 2, cost_usd=None, outcome="timeout"))
    figures = project_summary(store.cursor(), "ops").scores
    assert figures.cost_usd is None
    assert figures.unknown_costs == 2


def test_the_reasons_of_unscored_exchanges_are_counted(store: Store) -> None:
    """An exchange counts once per reason, however many of its tiers have it."""
    both = {f"{tier}_{what}": value for tier in TIERS for what, value in (("state", "unscored"), ("reason", "timeout"))}
    put(
        store,
        score("s", 1, **both),
        score("s", 2, **both | {"tier3_reason": "refused"}),
        score("s", 3, disposition="scored", tier2_state="scored", tier2_reason="always"),
    )
    counts = project_summary(store.cursor(), "ops").exchanges
    assert counts.unscored == 2
    assert counts.unscored_reasons == {"refused": 1, "timeout": 2}


def incident(incident_id: str, status: str) -> Incident:
    """An incident in a state."""
    return Incident(
        incident_id=incident_id,
        revision=0,
        project="ops",
        type="drift",
        status=status,
        severity="warning",
        title="t",
        description="d",
        metadata="{}",
        detected_at=START,
    )


def test_an_unknown_project_has_an_empty_summary(store: Store) -> None:
    """It has the same fields, so that a dashboard needs no special case."""
    put(store, exchange("s", 1))
    empty, known_summary = (document(project_summary(store.cursor(), project)) for project in ("web", "ops"))

    assert fields_of(known_summary) == fields_of(empty)
    assert empty["exchanges"].pop("unscoredReasons") == {}
    assert set(empty["exchanges"].values()) == {0}
    assert empty["baseline"] is None
    assert empty["openIncidents"] == 0
    assert empty["scores"]["costUsd"] == 0.0


def fields_of(answer: dict[str, Any]) -> list[Any]:
    """The names of the fields, nested ones included."""
    return [(name, list(value) if isinstance(value, dict) else None) for name, value in answer.items()]


def records_of(store: Store, name: str, query: str, values: dict[str, Any]) -> Sequence[Record]:
    """The rows of a query as records."""
    frame = run_query(store.cursor(), query, values)
    return list(rows_as_records(name, frame.with_columns(selectors.datetime(time_zone=None).dt.replace_time_zone("UTC"))))


def test_unscored_exchanges_can_be_read_for_rejudging(store: Store) -> None:
    """The ids lead to the exchanges, which are returned exactly as recorded."""
    original = exchange(
        "s", 1, "", turn_number=1, tags=("cron",), redactions=(Redaction(kind="token", count=2),), output_tokens=0
    )
    put(store, original, exchange("s", 2), score("s", 1), score("s", 2, disposition="scored"))
    parameters = {"project": "ops", "reason": "no_judge", "without": [], "limit": 10}
    rows = query_rows(store.cursor(), "unscored_exchanges", parameters)
    keys = [{name: row[name] for name in ("connection", "exchange_id")} for row in rows]

    records = records_of(store, "Exchange", "exchange_records", {"exchanges": keys})

    assert records == [original]
    assert [encode(record) for record in records if isinstance(record, Exchange)] == [encode(original)]


def test_judgements_are_returned_as_recorded(store: Store) -> None:
    """A replay must read exactly the judgement that the worker recorded."""
    recorded = [judgement("s", 1, attempt_errors=("429",), cost_usd=0.1), judgement("s", 1, "tier3", reservation_ids=("r",))]
    put(store, *recorded, judgement("s", 2))

    records = records_of(store, "Judgement", "judgements_of", {"subjects": [{"connection": "local", "subject_id": "s:1"}]})

    assert [msgspec.structs.asdict(one) for one in recorded] == [msgspec.structs.asdict(one) for one in records]
