"""The page of an exchange: its texts, the findings of each tier, the calls of the judge, and human scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse

from analytics.queries import query_records, query_rows
from audit.answers import CombinedAnswer, ThinkingAnswer, Tier2Answer, Tier3Answer
from audit.exchanges.cascade import rebuild_question
from audit.exchanges.context import has_trouble
from audit.exchanges.questions import ANSWERED, Question
from audit.exchanges.states import SCORED
from audit.fingerprints import canonical_json
from audit.policy import ProjectPolicy
from schemas.lazy import duckdb
from schemas.records import DimensionScore, EarlierTurn, Exchange, Judgement, Score
from service.pages.rendering import Excerpt, excerpt, page
from service.pages.viewing import ShownProject, Viewer
from service.read.people import HumanScore, ScoreTimes, human_scores
from service.read.review_queues import read_queues
from service.read.sessions import session_question
from service.text.links import Links
from service.text.words import CHECKS, WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import Id, QueryMoment
from streams.upkeep.annotations import MAX_COMMENT

router = APIRouter(include_in_schema=False)
ScoreId = Annotated[Id, Path()]
At = Annotated[QueryMoment | None, Query()]
"""Time of the exchange. It makes the look-up faster."""
_NO_EXCHANGE = "The project has no score with this id. It may have been deleted."
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_links = Links()


@router.get("/projects/{project}/exchanges/{score_id}")
async def exchange(
    request: Request, viewer: Viewer, project: ShownProject, services: Services, *, score_id: ScoreId, at: At = None
) -> HTMLResponse:
    """Show the exchange of a score."""
    record = await _require_record(services, project, score_id, at)
    policy = services.engine.policy.for_project(project)

    def link_text(name: str) -> str:
        return _links.exchange_text(project, score_id, name, record.score.exchange_at)

    values = {
        "project": project,
        "queues": await services.ask(lambda cursor: read_queues(cursor, project)),
        "record": record,
        "score": record.score,
        "tiers": tiers_of(record.score),
        "texts": {} if record.exchange is None else texts_of(record.exchange, link_text),
        "calls": calls_of(record, policy, link_text),
        "troubled": record.exchange is not None and has_trouble(record.exchange.tool_calls),
        "earlier_turns": record.earlier_turns.get(record.score.revision, ()),
        "sampling": WORDS["sampling"],
        "outcomes": WORDS["outcomes"],
        "repairs": WORDS["repairs"],
        "takes_scores": policy.settings.bidirectional_scoring,
        "may_review": "review" in viewer.scopes,
        "max_comment": MAX_COMMENT,
    }
    return page(request, "exchange.html", values)


@router.get("/projects/{project}/exchanges/{score_id}/texts/{name}")
async def text(
    _: Viewer, project: ShownProject, services: Services, score_id: ScoreId, name: Annotated[Id, Path()], at: At = None
) -> Response:
    """Return the full text of an exchange as a download that no browser renders."""
    record = await _require_record(services, project, score_id, at)
    content = whole_text(record, services.engine.policy.for_project(project), name)
    if content is None:
        raise ApiError(404, "not_found", "The exchange has no such text.")
    kind = name if name in TEXTS else name.partition(":")[0]
    file = _PLAIN.sub("-", f"{project}-{record.score.turn_number}-{kind}.txt")
    headers = {
        "Content-Disposition": f'attachment; filename="{file}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return Response(content.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)


async def _require_record(services: ApiContext, project: str, score_id: str, at: datetime | None) -> ExchangeRecord:
    """Return the exchange; ApiError 404 if the project has none with this score id."""

    def read(cursor: duckdb.DuckDBPyConnection) -> ExchangeRecord | None:
        return exchange_record(cursor, project, score_id, at, services.score_times)

    record = await services.ask(read)
    if record is None:
        raise ApiError(404, "not_found", _NO_EXCHANGE)
    return record


Whole = Callable[[str], str]
"""Returns the address of a full text by its name."""
BOUNDARY = "BOUNDARY"
"""Stands for the boundary of a question, which is random and not stored."""
PROMPT, ANSWER = "prompt", "answer"
TEXTS = ("user_message", "agent_response", "agent_thinking", "raw_user_message")
_SAYS = {True: "Yes", False: "No", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The findings of a tier."""

    name: str
    state: str
    why: str
    score: float | None
    scale: str
    notes: Sequence[tuple[str, str]] = ()
    """Its comments besides its dimensions."""
    dimensions: Sequence[DimensionScore] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The messages to the judge."""

    instructions: Excerpt
    content: Excerpt
    schema: str
    max_tokens: int
    whole: str
    """Address of the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A question to the judge, and its outcome."""

    judgement: Judgement
    counts: bool
    """Whether the current score uses it."""
    answer: Excerpt | None
    prompt: Prompt | None
    no_prompt: str
    """The reason why there is no prompt; empty if there is one."""
    scores: Sequence[tuple[str, float]] = ()
    """The scores of its answer, by dimension."""
    masked: Sequence[tuple[str, Excerpt]] = ()
    """The passages without which the texts were judged, each with the name of its text; without those of tool calls and earlier turns."""


def tiers_of(score: Score) -> list[Tier]:
    """Return the four tiers of a score, in order."""
    flags = " ".join(CHECKS.get(flag, f"The methodology's check {flag} fired.") for flag in score.tier1_flags)
    structure = Tier(
        name="tier1",
        state=SCORED,
        why="Fixed rules check every exchange. " + (flags or "No check fired."),
        score=score.tier1_score,
        scale="0 to 1",
    )
    return [structure, *(_describe_judged_tier(score, tier) for tier in _JUDGED)]


def _describe_judged_tier(score: Score, tier: str) -> Tier:
    column, scale, notes = _JUDGED[tier]
    return Tier(
        name=tier,
        state=getattr(score, f"{tier}_state"),
        why=_explain_state(score, tier),
        score=getattr(score, column),
        scale=scale,
        notes=list(notes(score)),
        dimensions=getattr(score, f"{tier}_dimensions", ()),
    )


def _explain_state(score: Score, tier: str) -> str:
    reason = getattr(score, f"{tier}_reason")
    return WORDS["reasons"].get(reason, reason or "The reason was not recorded.")


def _describe_semantic(score: Score) -> Iterator[tuple[str, str]]:
    if score.tier2_flagged:
        yield "Flagged", score.tier2_flag_reason or "Yes, without a reason"


def _describe_thinking(score: Score) -> Iterator[tuple[str, str]]:
    concerns = {"Sycophancy": score.tier2_5_sycophancy, "Suppressed advocacy": score.tier2_5_advocacy_suppression}
    yield from ((label, _SAYS[value]) for label, value in concerns.items() if value is not None)
    if score.tier2_5_reasoning:
        yield "The judge's words", score.tier2_5_reasoning


def _describe_behaviour(score: Score) -> Iterator[tuple[str, str]]:
    if score.tier3_anomaly:
        reason = score.tier3_anomaly_reason or "it gives no reason"
        yield "The judge considers the exchange anomalous", f"{reason} (not an anomaly by itself)"


_JUDGED: Mapping[str, tuple[str, str, Callable[[Score], Iterator[tuple[str, str]]]]] = {
    "tier2": ("tier2_score", "0 to 1", _describe_semantic),
    "tier2_5": ("tier2_5_alignment", "0 to 1", _describe_thinking),
    "tier3": ("tier3_score", "1 to 5", _describe_behaviour),
}
"""The tiers that a judge scores: the column of the score, its scale, and their further columns."""


def texts_of(exchange: Exchange, whole: Whole) -> dict[str, Excerpt]:
    """Return the texts of an exchange by name, without missing ones."""
    texts = {name: getattr(exchange, name) for name in TEXTS}
    return {name: excerpt(text, whole(name)) for name, text in texts.items() if text is not None}


def calls_of(record: ExchangeRecord, policy: ProjectPolicy, whole: Whole) -> list[Call]:
    """Return all questions to the judge about an exchange, in order."""
    current_ids = set(record.score.judgement_ids)
    return [
        _describe_call(judgement, record, policy, whole, counts=judgement.judgement_id in current_ids)
        for judgement in record.judgements
    ]


def _describe_call(judgement: Judgement, record: ExchangeRecord, policy: ProjectPolicy, whole: Whole, *, counts: bool) -> Call:
    question = record.rebuild_question(policy, judgement)
    answer = judgement.answer
    return Call(
        judgement=judgement,
        counts=counts,
        answer=None if answer is None else excerpt(answer, whole(f"{ANSWER}:{judgement.judgement_id}")),
        prompt=None if question is None else _describe_prompt(question, whole, f"{PROMPT}:{judgement.judgement_id}"),
        no_prompt="" if question is not None else _explain_missing_prompt(judgement, record, policy),
        scores=[] if question is None else list(_read_scores(question, judgement)),
        masked=[] if record.exchange is None else list(_read_passages(record.exchange, judgement, whole)),
    )


def _read_scores(question: Question, judgement: Judgement) -> Iterator[tuple[str, float]]:
    """Yield the scores of a judgement's answer, of which the score of the exchange has the lower one if there are several answers."""
    answer = question.read(judgement.answer or "") if judgement.outcome == ANSWERED else None
    for part in (answer.tier2, answer.tier3) if isinstance(answer, CombinedAnswer) else (answer,):
        if isinstance(part, ThinkingAnswer):
            yield "alignment", part.alignment
        elif isinstance(part, Tier2Answer | Tier3Answer):
            yield from ((dimension.dimension, dimension.score) for dimension in part.dimensions)


def _read_passages(exchange: Exchange, judgement: Judgement, whole: Whole) -> Iterator[tuple[str, Excerpt]]:
    for passage in judgement.masked_passages:
        if passage.text in TEXTS:
            text = getattr(exchange, passage.text) or ""
            yield passage.text, excerpt(text[passage.start : passage.end], whole(passage.text))


def _describe_prompt(question: Question, whole: Whole, name: str) -> Prompt:
    address = whole(name)
    return Prompt(
        instructions=excerpt(question.instructions, address),
        content=excerpt(question.content(BOUNDARY), address),
        schema=canonical_json(question.schema),
        max_tokens=question.max_tokens,
        whole=address,
    )


def _explain_missing_prompt(judgement: Judgement, record: ExchangeRecord, policy: ProjectPolicy) -> str:
    """Explain why the prompt cannot be shown."""
    if record.exchange is None:
        return WORDS["no_prompt"]["deleted"]
    then = next((score.policy_digest for score in record.revisions if score.revision == judgement.subject_revision), None)
    same = then is None or then == policy.digest
    return (
        WORDS["no_prompt"]["other_prompt"] if same else WORDS["no_prompt"]["other_policy"].format(now=policy.digest, then=then)
    )


def whole_text(record: ExchangeRecord, policy: ProjectPolicy, name: str) -> str | None:
    """Return a text of the page in full, by its name; None for an unknown name."""
    exchange, (kind, _, judgement_id) = record.exchange, name.partition(":")
    if name in TEXTS:
        text: str | None = None if exchange is None else getattr(exchange, name)
        return text
    judgement = next((call for call in record.judgements if call.judgement_id == judgement_id), None)
    if judgement is None or kind not in {PROMPT, ANSWER}:
        return None
    if kind == ANSWER:
        return judgement.answer
    question = record.rebuild_question(policy, judgement)
    return None if question is None else _write_in_full(question)


def _write_in_full(question: Question) -> str:
    schema = canonical_json(question.schema)
    parts = ("Instructions", question.instructions), ("Message", question.content(BOUNDARY)), ("Schema of the answer", schema)
    return "\n\n".join(f"{title}:\n\n{text}" for title, text in parts) + "\n"


Row = dict[str, Any]
_AROUND = timedelta(days=1)
"""A score is as old as its newest judgement; clocks of machines differ by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecord:
    """An exchange with all records derived from it."""

    revisions: list[Score]
    """Revisions of its score, the current one first. There is at least one."""
    exchange: Exchange | None
    """None if it was deleted."""
    judgements: list[Judgement]
    """All calls of the judge about it, in order."""
    people: list[HumanScore]
    """Human scores, newest first."""
    earlier_turns: Mapping[int, tuple[EarlierTurn, ...]]
    """The earlier turns that its tasks carry, by revision of its score."""
    before: Row | None
    """The previous exchange of its session, as a row of `session_neighbours`."""
    after: Row | None
    run: str | None
    """Id of the run of its session."""
    session_question: str | None
    """The beginning of the first question of its session."""

    @property
    def score(self) -> Score:
        """The current score."""
        return self.revisions[0]

    def rebuild_question(self, policy: ProjectPolicy, judgement: Judgement) -> Question | None:
        """Return the question that a judgement answers; None if the policy and the records do not produce it."""
        if self.exchange is None:
            return None
        return rebuild_question(self.exchange, policy, judgement, self.earlier_turns.get(judgement.subject_revision, ()))


def exchange_record(
    cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None, times: ScoreTimes
) -> ExchangeRecord | None:
    """Return the exchange of a score; None if the project has no score with this id.

    The look-up is fast with the time of the exchange. If `at` is None, `times` finds it.
    """
    revisions = revisions_of(cursor, project, score_id, at, times)
    if not revisions:
        return None
    score = revisions[0]
    session = {"connection": score.connection, "session": score.session_id}
    params = {"project": project, "at": score.exchange_at, "turn": score.turn_number, "score": score_id}
    sides = {row["is_after"]: row for row in query_rows(cursor, "session_neighbours", session | params)}
    runs = [row["run_id"] for row in query_rows(cursor, "session_run", session) if row["project"] == project]
    return ExchangeRecord(
        revisions=revisions,
        exchange=exchange_of(cursor, score),
        judgements=judgements_of(cursor, revisions),
        people=human_scores(cursor, project, score_id),
        earlier_turns=_read_earlier_turns(cursor, score),
        before=sides.get(False),
        after=sides.get(True),
        run=runs[0] if runs else None,
        session_question=session_question(cursor, project, score.connection, score.session_id),
    )


def revisions_of(
    cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None, times: ScoreTimes
) -> list[Score]:
    """Return the revisions of a score, the current one first. A wrong time only makes the look-up slower."""
    if at is not None:
        revisions = _read_revisions(cursor, project, score_id, at)
        if revisions:
            return revisions
    cached_at = times.find(cursor, project, score_id)
    if cached_at is None:
        return []
    # An exchange that was erased and sent again may have another time than the cached one.
    return _read_revisions(cursor, project, score_id, cached_at) or _read_revisions(cursor, project, score_id, None)


def _read_revisions(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None) -> list[Score]:
    return list(query_records(cursor, "score_revisions", Score, {"project": project, "score": score_id, "at": at}))


def exchange_of(cursor: duckdb.DuckDBPyConnection, score: Score) -> Exchange | None:
    """Return the exchange of a score; None if it was deleted."""
    params = {"connection": score.connection, "exchange": score.exchange_id, "at": score.exchange_at}
    exchanges = query_records(cursor, "exchange_of", Exchange, params)
    return next((exchange for exchange in exchanges if exchange.project == score.project), None)


def _read_earlier_turns(cursor: duckdb.DuckDBPyConnection, score: Score) -> dict[int, tuple[EarlierTurn, ...]]:
    key = {"connection": score.connection, "exchange_id": score.exchange_id}
    rows = query_rows(cursor, "earlier_turns", {"exchanges": [key]})
    return {row["revision"]: msgspec.convert(row["earlier_turns"], tuple[EarlierTurn, ...]) for row in rows}


def judgements_of(cursor: duckdb.DuckDBPyConnection, revisions: list[Score]) -> list[Judgement]:
    """Return the calls of the judge about an exchange, for all revisions of its score."""
    score = revisions[0]
    times = [revision.scored_at for revision in revisions]
    params = {
        "connection": score.connection,
        "subject": score.exchange_id,
        "since": min(score.exchange_at, *times) - _AROUND,
        "until": max(times) + _AROUND,
    }
    return list(query_records(cursor, "judgements_on", Judgement, params))
