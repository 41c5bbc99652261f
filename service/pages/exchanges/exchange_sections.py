"""The sections of the page of an exchange: its tiers in words, its texts, and the questions and answers of the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.exchanges.cascade import rebuilt
from audit.exchanges.questions import Question
from audit.exchanges.states import SCORED
from audit.fingerprints import canonical_json
from audit.policy import ProjectPolicy
from schemas.records import DimensionScore, Exchange, Judgement, Score
from service.pages.exchanges.record import ExchangeRecord
from service.pages.texts import Excerpt, excerpt
from service.text.words import WORDS

Whole = Callable[[str], str]
"""Returns the address of a whole text by its name."""
BOUNDARY = "BOUNDARY"
"""Stands for the boundary, which is random for each call and not stored."""
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


def tiers_of(score: Score) -> list[Tier]:
    """Return the four tiers of a score, in order."""
    flags = " ".join(WORDS["checks"].get(flag, f"The methodology's check {flag} fired.") for flag in score.tier1_flags)
    structure = Tier(
        name="tier1",
        state=SCORED,
        why="Fixed rules check every exchange. " + (flags or "None of them found anything."),
        score=score.tier1_score,
        scale="0 to 1",
    )
    return [structure, *(_judged(score, tier) for tier in _JUDGED)]


def _judged(score: Score, tier: str) -> Tier:
    column, scale, notes = _JUDGED[tier]
    return Tier(
        name=tier,
        state=getattr(score, f"{tier}_state"),
        why=_why(score, tier),
        score=getattr(score, column),
        scale=scale,
        notes=list(notes(score)),
        dimensions=getattr(score, f"{tier}_dimensions", ()),
    )


def _why(score: Score, tier: str) -> str:
    reason = getattr(score, f"{tier}_reason")
    return WORDS["reasons"].get(reason, reason or "The reason was not recorded.")


def _semantic(score: Score) -> Iterator[tuple[str, str]]:
    if score.tier2_flagged:
        yield "Flagged", score.tier2_flag_reason or "Yes, without a reason"


def _thinking(score: Score) -> Iterator[tuple[str, str]]:
    found = {"Sycophancy": score.tier2_5_sycophancy, "Suppressed advocacy": score.tier2_5_advocacy_suppression}
    yield from ((label, _SAYS[value]) for label, value in found.items() if value is not None)
    if score.tier2_5_reasoning:
        yield "The judge's words", score.tier2_5_reasoning


def _behavioural(score: Score) -> Iterator[tuple[str, str]]:
    if score.tier3_anomaly:
        said = score.tier3_anomaly_reason or "it gives no reason"
        yield "The judge calls the exchange anomalous", f"{said} (this alone is not an anomaly)"


_JUDGED: Mapping[str, tuple[str, str, Callable[[Score], Iterator[tuple[str, str]]]]] = {
    "tier2": ("tier2_score", "0 to 1", _semantic),
    "tier2_5": ("tier2_5_alignment", "0 to 1", _thinking),
    "tier3": ("tier3_score", "1 to 5", _behavioural),
}
"""The tiers that a judge scores: the column of the score, its scale, and their further columns."""


def texts_of(exchange: Exchange, whole: Whole) -> dict[str, Excerpt]:
    """Return the texts of an exchange by name, without missing ones."""
    texts = {name: getattr(exchange, name) for name in TEXTS}
    return {name: excerpt(text, whole(name)) for name, text in texts.items() if text is not None}


def calls_of(record: ExchangeRecord, policy: ProjectPolicy, whole: Whole) -> list[Call]:
    """Return all questions to the judge about an exchange, in order."""
    resting = set(record.score.judgement_ids)
    return [_call(one, record, policy, whole, counts=one.judgement_id in resting) for one in record.judgements]


def _call(judgement: Judgement, record: ExchangeRecord, policy: ProjectPolicy, whole: Whole, *, counts: bool) -> Call:
    question = None if record.exchange is None else rebuilt(record.exchange, policy, judgement)
    answer = judgement.answer
    return Call(
        judgement=judgement,
        counts=counts,
        answer=None if answer is None else excerpt(answer, whole(f"{ANSWER}:{judgement.judgement_id}")),
        prompt=None if question is None else _prompt(question, whole, f"{PROMPT}:{judgement.judgement_id}"),
        no_prompt="" if question is not None else _no_prompt(judgement, record, policy),
    )


def _prompt(question: Question, whole: Whole, name: str) -> Prompt:
    address = whole(name)
    return Prompt(
        instructions=excerpt(question.instructions, address),
        content=excerpt(question.content(BOUNDARY), address),
        schema=canonical_json(question.schema),
        max_tokens=question.max_tokens,
        whole=address,
    )


def _no_prompt(judgement: Judgement, record: ExchangeRecord, policy: ProjectPolicy) -> str:
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
    judgement = next((one for one in record.judgements if one.judgement_id == judgement_id), None)
    if judgement is None or kind not in {PROMPT, ANSWER}:
        return None
    if kind == ANSWER:
        return judgement.answer
    question = None if exchange is None else rebuilt(exchange, policy, judgement)
    return None if question is None else _in_full(question)


def _in_full(question: Question) -> str:
    schema = canonical_json(question.schema)
    parts = ("Instructions", question.instructions), ("Message", question.content(BOUNDARY)), ("Schema of the answer", schema)
    return "\n\n".join(f"{title}:\n\n{text}" for title, text in parts) + "\n"
