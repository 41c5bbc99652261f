"""The cascade: which tiers judge an exchange, and the resulting score. A generator that yields questions and receives replies; no I/O.

1. Tier 2 is always asked. If the policy combines the tiers and the gate of Tier 3 is open before any answer, the same question asks
   about Tier 3, so that one call answers both. It is not combined if a flag of Tier 2 could make more dimensions of Tier 3 apply, or
   if Tier 2 was answered for an earlier revision.
2. Tier 2.5 is asked if there is thinking and the policy enables its analysis.
3. Tier 3 is asked about the dimensions that apply, if its gate is open.
4. The gate is open if the policy disables the gate, for a flag of Tier 1 or 2, for a text that may address the judge, for sycophancy or
   suppressed advocacy in Tier 2.5, for an early turn, for trouble with tools, and for an exchange that was sampled for a specific reason
   rather than by routine.
5. If nothing opens the gate while an earlier tier has no score, the gate is undecided and Tier 3 gets that tier's state.
6. If the judge is unavailable, it is not asked again for this exchange: the remaining tiers get the same state, unless an answer is
   recorded for them. An unusable answer does not stop the cascade.
7. If the rules recognize an attempt to sway the judge, or an answer says that a text addresses it, each tier that has an answer is
   asked once more without these passages (`audit.exchanges.masking`). The lower of both verdicts is valid, score by score. A tier whose
   second question gets no answer has no score: a verdict that may have been swayed is not one.
8. A text that is too long for one question is judged in two: the second shows the middle that the first leaves out, and again the lower
   verdict is valid. If it gets no answer, the first verdict is, and the score says that the judge did not see all.

A judgement stores the fingerprint of its question, not the prompt. `rebuild_question` builds the question again from the exchange and a
policy; if the fingerprints are equal, it is exactly the question that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from audit.answers import CombinedAnswer, ThinkingAnswer, Tier2Answer, Tier3Answer, UsableDimensions, lower_verdict
from audit.exchanges.context import has_trouble
from audit.exchanges.masking import TEXTS, find_passages, leaves_nothing
from audit.exchanges.outcomes import (
    NO_DIMENSION,
    NOTHING_FOUND,
    RULE_VERSION,
    JudgedTiers,
    TierState,
    score_of,
    thinking_state,
)
from audit.exchanges.prompts import ExchangeQuestions
from audit.exchanges.questions import ANSWERED, PARTIAL, Invalid, Question, Reply
from audit.exchanges.sampling import (
    DISAGREEMENT_REASON,
    FIRST_TURNS,
    JUDGE_TAMPERING,
    LAST_TURNS,
    TIER1_FLAGS,
    TOOL_TROUBLE,
    is_disagreement,
)
from audit.exchanges.states import NOT_APPLICABLE, SCORED, SKIPPED_GATE, TIER2, TIER2_5, TIER3, UNSCORED
from audit.injection import tamper_reasons
from audit.patterns import Pattern, compile_pattern
from audit.policy import BehaviouralDimension, ProjectPolicy, When
from schemas.records import EarlierTurn, Exchange, Judgement, MaskedPassage, Score, ScoringTask

ResultT = TypeVar("ResultT")
BuildQuestion = Callable[[ExchangeQuestions], Question]
OpeningReason = Literal[
    "gate_off",
    "tier1_flags",
    "tier2_flagged",
    "judge_tampering",
    "sycophancy",
    "advocacy_suppression",
    "early_turn",
    "first_turns",
    "last_turns",
    "tool_trouble",
    "disagreement",
]
"""The reasons that open the gate of Tier 3, in the order of `_find_opening_reason`."""
PARTS = (1, 2)
"""The parts in which a long text is judged; see `Question.part`."""
EARLY_TURNS = 5
"""Turns at the start of a session that are never routine."""
ALWAYS = TierState(SCORED, "always")
"""The state of Tier 2 once it is answered."""
THINKING = TierState(SCORED, "thinking")
"""The state of Tier 2.5 once it is answered."""
ROUTINE = TierState(SKIPPED_GATE, "routine")
"""The state of Tier 3 if nothing opens its gate."""
INVALID = TierState(UNSCORED, "invalid")
"""The state of a tier whose answer cannot be used."""
_QUESTION_FAILURES = frozenset({"refused", "invalid", "partial", "cut_off"})
"""Failures that concern one question only, so that the judge can be asked the next one."""

_EXECUTION_VERBS = "please|can you|could you|do|make|write|fix|add|create|update|implement"


def _match_start(verbs: str) -> Pattern:
    spaced = verbs.replace(" ", r"\s+")
    return compile_pattern(rf"\A\s*(?:{spaced})\b", where="task")


_EXECUTION = _match_start(_EXECUTION_VERBS)
_IMPLEMENTATION = _match_start(f"{_EXECUTION_VERBS}|build|refactor")
_CODE = compile_pattern(
    r"(?m)^[ \t>]*(?:```|~~~)"  # a fenced block
    r"|^(?:diff --git |@@ -[0-9])"  # a diff
    r"|^[ \t]*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:({]|(?:export\s+)?(?:async\s+)?function\s+\w+\s*\("
    r"|from\s+[\w.]+\s+import\s|import\s+[\w.{]+[^\n]*;|#include\s*[<\"]|(?:const|let|var)\s+\w+\s*=|func\s+\w+\s*\()",
    where="code_change",
    ignore_case=False,
)


def cascade(
    task: ScoringTask,
    exchange: Exchange,
    policy: ProjectPolicy,
    recorded: Sequence[Judgement] = (),
) -> Generator[Question, Reply, Score]:
    """Judge the exchange of a task: yield the questions one by one, receive a reply to each, and return the score.

    `recorded` are all judgements of the exchange up to this revision of its score. They were paid for, so the score includes their cost.
    Raises ValueError for a reply that is neither a text nor a state.
    """
    # The flags of the task are valid only if they were found by the current policy and rules.
    is_in_force = (task.policy_digest, task.rule_version) == (policy.digest, RULE_VERSION)
    case = _Case(
        task=task,
        exchange=exchange,
        policy=policy,
        recorded=recorded,
        flags=task.tier1_flags if is_in_force else None,
        attempts=tamper_reasons(exchange),
    )
    combined = _list_combined_dimensions(case)

    def ask_tier2(questions: ExchangeQuestions) -> Question:
        return questions.combined(combined) if combined else questions.tier2()

    case.tier2, case.semantic = yield from _ask(case, TIER2, ask_tier2, ALWAYS)
    case.tier2_5 = thinking_state(exchange, policy, THINKING)
    if case.tier2_5 == THINKING:
        case.tier2_5, case.thinking = yield from _ask(case, TIER2_5, ExchangeQuestions.thinking, THINKING)
    dimensions = applicable(exchange, policy, flagged=_is_flagged(case))
    case.tier3 = _decide_tier3(case) if dimensions else _state_without_dimensions(case)

    def ask_tier3(questions: ExchangeQuestions) -> Question:
        return questions.combined(combined) if combined else questions.tier3(dimensions)

    if case.tier3.state == SCORED:
        case.tier3, case.behavioural = yield from _ask(case, TIER3, ask_tier3, case.tier3)
    if _is_suspicious(case):
        case.masked = find_passages(exchange, task.earlier_turns, case.addresses)
    if case.masked:
        case.usable.clear()  # dimensions of partial answers that may have been swayed
        case.tier2, case.semantic = yield from _ask_masked(case, TIER2, ask_tier2, case.tier2, case.semantic)
        case.tier2_5, case.thinking = yield from _ask_masked(
            case, TIER2_5, ExchangeQuestions.thinking, case.tier2_5, case.thinking
        )
        case.tier3, case.behavioural = yield from _ask_masked(case, TIER3, ask_tier3, case.tier3, case.behavioural)
    return _build_score(case)


class _Case(msgspec.Struct, kw_only=True):
    """The state of the cascade for one exchange: the answers so far."""

    task: ScoringTask
    exchange: Exchange
    policy: ProjectPolicy
    flags: tuple[str, ...] | None
    """The exchange's Tier 1 flags; None if they must be found again."""
    attempts: tuple[str, ...]
    """The attempts to sway the judge that the rules recognize, in words."""
    masked: tuple[MaskedPassage, ...] = ()
    """The passages without which the tiers are asked once more."""
    questions: dict[tuple[int, tuple[MaskedPassage, ...]], ExchangeQuestions] = msgspec.field(default_factory=dict)
    """By part and masked passages."""
    readings: dict[str, Any] = msgspec.field(default_factory=dict)
    """The reply to each question by its fingerprint: a state, an answer, or usable dimensions."""
    is_addressed: bool = False
    """True if an answer says that a text addresses the judge."""
    addresses: list[str] = msgspec.field(default_factory=list)
    """The words that the answers quote for it."""
    has_seen_all: bool = True
    """False if a part of a text was in no answered question."""
    tier2: TierState = ALWAYS
    semantic: Tier2Answer | None = None
    tier2_5: TierState = THINKING
    thinking: ThinkingAnswer | None = None
    tier3: TierState = ROUTINE
    behavioural: Tier3Answer | None = None
    usable: dict[str, UsableDimensions] = msgspec.field(default_factory=dict)
    """The usable dimensions of partial answers, by tier."""
    judgements: list[Judgement] = msgspec.field(default_factory=list)
    recorded: Sequence[Judgement] = ()


def _list_combined_dimensions(case: _Case) -> tuple[BehaviouralDimension, ...]:
    """Return the dimensions of Tier 3 that the question of Tier 2 asks about, too; empty if Tier 3 is asked later or not at all."""
    if not case.policy.combines_tiers or _find_opening_reason(case) is None or _has_earlier_tier2(case):
        return ()
    dimensions = applicable(case.exchange, case.policy, flagged=True)
    waits_for_flag = dimensions != applicable(case.exchange, case.policy, flagged=_is_flagged(case))
    return () if waits_for_flag else dimensions


def _has_earlier_tier2(case: _Case) -> bool:
    """Return whether Tier 2 was answered for an earlier revision, such as that of a routine turn that is now one of the last."""
    earlier = [judgement for judgement in case.recorded if judgement.subject_revision < case.task.revision]
    if not earlier:
        return False
    fingerprint = _load_questions(case, 1).tier2().fingerprint
    return any(judgement.outcome == ANSWERED and judgement.fingerprint == fingerprint for judgement in earlier)


def _ask(
    case: _Case, tier: str, build: BuildQuestion, answered: TierState
) -> Generator[Question, Reply, tuple[TierState, Any]]:
    """Ask a tier about all parts of the texts; return its state, which is `answered` with a usable answer, and the lower answer."""
    answer: Any = None
    for part in PARTS:
        question = build(_load_questions(case, part))
        state, part_answer = yield from _ask_question(case, tier, question, answered)
        if part_answer is None and answer is None:
            return state, None
        if part_answer is None:
            case.usable.pop(tier, None)  # dimensions of a later part alone
            break
        answer = part_answer if answer is None else lower_verdict(answer, part_answer)
        if not question.is_cut:
            return answered, answer
    case.has_seen_all = False
    return answered, answer


def _load_questions(case: _Case, part: int) -> ExchangeQuestions:
    """Return the questions about a part of the texts, which the tiers share."""
    key = part, case.masked
    if key not in case.questions:
        turns = case.task.earlier_turns
        case.questions[key] = ExchangeQuestions(case.exchange, case.policy, case.flags, turns, part=part, masked=case.masked)
    return case.questions[key]


def _ask_masked(
    case: _Case, tier: str, build: BuildQuestion, state: TierState, answer: Any
) -> Generator[Question, Reply, tuple[TierState, Any]]:
    """Ask an answered tier once more, without the masked passages; return its state and the lower of both answers."""
    if answer is None:
        return state, None
    masked_state, masked_answer = yield from _ask(case, tier, build, state)
    return masked_state, None if masked_answer is None else lower_verdict(answer, masked_answer)


def _ask_question(
    case: _Case, tier: str, question: Question, answered: TierState
) -> Generator[Question, Reply, tuple[TierState, Any]]:
    # A question that was asked before is that of two tiers, or nothing is masked in the texts of this tier.
    if question.fingerprint not in case.readings:
        # Tiers that were not asked yet have the state of an answered tier, so they do not stop the cascade.
        unavailable = _find_unavailable(case.tier2, case.tier2_5)
        if unavailable is not None and not case.recorded:
            return unavailable, None
        reply = yield question if unavailable is None else msgspec.structs.replace(question, fallback=unavailable)
        case.judgements.extend(reply.judgements)
        case.readings[question.fingerprint] = _read_reply(case, question, reply)
    reading = case.readings[question.fingerprint]
    if isinstance(reading, CombinedAnswer):
        reading = getattr(reading, tier)
    if isinstance(reading, TierState):
        return reading, None
    if isinstance(reading, UsableDimensions):
        case.usable[tier] = reading
        return PARTIAL, None
    return (INVALID, None) if isinstance(reading, Invalid) else (answered, reading)


def _read_reply(case: _Case, question: Question, reply: Reply) -> Any:
    """Return the state or the answer of a reply, or what is usable of a partial one, and note a text that addresses the judge."""
    if reply.state == PARTIAL:
        reading = question.read_dimensions(reply.text or "") if question.read_dimensions else INVALID
    elif reply.state is not None:
        return reply.state
    elif reply.text is None:
        raise ValueError(f"the reply to {question.purpose} is neither a text nor a state")
    else:
        reading = question.read(reply.text)
    for part in (reading.tier2, reading.tier3) if isinstance(reading, CombinedAnswer) else (reading,):
        if isinstance(part, Tier2Answer | ThinkingAnswer | Tier3Answer) and part.address.is_present:
            case.is_addressed = True
            case.addresses.append(part.address.quote)
    return reading


def _find_unavailable(*tiers: TierState) -> TierState | None:
    """Return the state of the first tier that found the judge unavailable."""
    return next((tier for tier in tiers if _has_no_score(tier) and tier.reason not in _QUESTION_FAILURES), None)


def _has_no_score(tier: TierState) -> bool:
    return tier.state not in {SCORED, NOT_APPLICABLE}


def applicable(exchange: Exchange, policy: ProjectPolicy, *, flagged: bool) -> tuple[BehaviouralDimension, ...]:
    """Return the Tier 3 dimensions that apply to an exchange."""
    return tuple(dimension for dimension in policy.methodology.tier3 if applies(dimension.when, exchange, flagged=flagged))


def applies(when: When, exchange: Exchange, *, flagged: bool) -> bool:  # noqa: PLR0911 - one return per filter
    """Return whether a dimension with this filter applies; `flagged` says whether Tier 1 or Tier 2 raised a flag."""
    match when:
        case When.ALWAYS:
            return True
        case When.EXECUTION_TASK:
            return _EXECUTION.matches(exchange.user_message)
        case When.IMPLEMENTATION_TASK:
            return _IMPLEMENTATION.matches(exchange.user_message)
        case When.DISAGREEMENT:
            return is_disagreement(exchange.agent_response)
        case When.HIGH_STAKES:
            return flagged
        case When.CODE_CHANGE:
            return _CODE.matches(exchange.agent_response)
        case When.MULTI_USER:
            return exchange.multi_user


def _is_flagged(case: _Case) -> bool:
    return bool(case.task.tier1_flags) or (case.semantic is not None and case.semantic.flagged) or _is_suspicious(case)


def _is_suspicious(case: _Case) -> bool:
    """Return whether a text may address the judge, by the rules or by an answer."""
    return bool(case.attempts) or case.is_addressed


def _decide_tier3(case: _Case) -> TierState:
    """Return the state of Tier 3: scored, with the reason, if the judge is to be asked; otherwise its state without an answer."""
    reason = _find_opening_reason(case)
    if reason is not None:
        return TierState(SCORED, reason)
    unavailable = _find_unavailable(case.tier2, case.tier2_5)
    if unavailable is not None:
        return unavailable
    for tier in (case.tier2, case.tier2_5):
        if _has_no_score(tier):
            return _undecided(tier)
    return ROUTINE


def _undecided(tier: TierState) -> TierState:
    """Return the state of Tier 3 if an earlier tier leaves it undecided: that tier's, but no part of Tier 3 was answered."""
    return INVALID if tier == PARTIAL else tier


def _find_opening_reason(case: _Case) -> OpeningReason | None:
    """Return the first reason that opens the gate of Tier 3; None if it stays closed."""
    if not case.policy.settings.gate_cascade:
        return "gate_off"
    flag = _find_flag_reason(case)
    if flag is not None:
        return flag
    return _find_turn_reason(case)


def _find_turn_reason(case: _Case) -> OpeningReason | None:
    """Return the first reason that comes from the turn's position in its session or from the response."""
    if case.task.turn_number <= EARLY_TURNS:
        return "early_turn"
    if case.task.sampling_reason == FIRST_TURNS:
        return FIRST_TURNS
    if case.task.sampling_reason == LAST_TURNS:
        return LAST_TURNS
    if case.task.sampling_reason == TOOL_TROUBLE or has_trouble(case.exchange.tool_calls):
        return TOOL_TROUBLE
    if case.task.sampling_reason == DISAGREEMENT_REASON or is_disagreement(case.exchange.agent_response):
        return DISAGREEMENT_REASON
    return None


def _find_flag_reason(case: _Case) -> OpeningReason | None:
    """Return the first flag that Tier 1, Tier 2 or Tier 2.5 raised."""
    if case.task.tier1_flags or case.task.sampling_reason == TIER1_FLAGS:
        return TIER1_FLAGS
    if case.semantic is not None and case.semantic.flagged:
        return "tier2_flagged"
    if _is_suspicious(case):
        return JUDGE_TAMPERING
    if case.thinking is not None and case.thinking.sycophancy:
        return "sycophancy"
    if case.thinking is not None and case.thinking.advocacy_suppression:
        return "advocacy_suppression"
    return None


def _state_without_dimensions(case: _Case) -> TierState:
    """Return the state of Tier 3 if no dimension applies; undecided like Tier 2 if a flag of Tier 2 could still make one apply."""
    undecided = _has_no_score(case.tier2) and is_applicable(case.exchange, case.policy, flagged=True)
    return _undecided(case.tier2) if undecided else NO_DIMENSION


def is_applicable(exchange: Exchange, policy: ProjectPolicy, *, flagged: bool) -> bool:
    """Return whether any Tier 3 dimension applies to an exchange."""
    return any(applies(dimension.when, exchange, flagged=flagged) for dimension in policy.methodology.tier3)


def _build_score(case: _Case) -> Score:
    return score_of(
        case.task,
        case.exchange,
        case.policy,
        JudgedTiers(case.tier2, case.tier2_5, case.tier3, _collect_findings(case)),
        tampering=(*case.attempts, *_describe_suspicion(case)),
        judgements=case.judgements,
        paid=list({judgement.judgement_id: judgement for judgement in (*case.recorded, *case.judgements)}.values()),
    )


def _describe_suspicion(case: _Case) -> Iterator[str]:
    """Yield what the answers and the masking add to the attempts that the rules recognize, in words."""
    if case.is_addressed:
        passage = "" if case.masked else ", but quotes no passage of it"
        yield f"{JUDGE_TAMPERING}: the judge says that a text addresses it{passage}"
    for name in TEXTS:
        if leaves_nothing(getattr(case.exchange, name) or "", name, case.masked):
            yield f"{JUDGE_TAMPERING}: without the passages that may address the judge, nothing is left of {name}"


def _collect_findings(case: _Case) -> dict[str, Any]:
    """Return the findings of the tiers that are scored, and the dimensions of those that are partial."""
    fields: dict[str, Any] = dict(NOTHING_FOUND)
    dropped = 0
    semantic = case.semantic
    thinking = case.thinking
    behavioural = case.behavioural
    if semantic is not None:
        fields["tier2_score"] = semantic.score
        fields["tier2_dimensions"] = semantic.dimensions
        fields["tier2_flagged"] = semantic.flagged
        fields["tier2_flag_reason"] = semantic.flag_reason
        dropped += semantic.dropped_quotes
    if thinking is not None:
        fields["tier2_5_alignment"] = thinking.alignment
        fields["tier2_5_sycophancy"] = thinking.sycophancy
        fields["tier2_5_advocacy_suppression"] = thinking.advocacy_suppression
        fields["tier2_5_reasoning"] = thinking.reasoning
        dropped += thinking.dropped_quotes
    if behavioural is not None:
        fields["tier3_score"] = behavioural.score
        fields["tier3_dimensions"] = behavioural.dimensions
        fields["tier3_anomaly"] = behavioural.anomaly
        fields["tier3_anomaly_reason"] = behavioural.anomaly_reason
        dropped += behavioural.dropped_quotes
    for tier, usable in case.usable.items():
        fields[f"{tier}_dimensions"] = usable.dimensions
        dropped += usable.dropped_quotes
    fields["dropped_quotes"] = dropped
    if any(answer is not None for answer in (semantic, thinking, behavioural)):
        fields["judge_saw_all"] = case.has_seen_all
    return fields


def drive(judging: Generator[Question, Reply, ResultT], answer: Callable[[Question], Reply]) -> ResultT:
    """Run a generator of questions to its end, answering each question with a function."""
    advance: Callable[[], Question] = partial(next, judging)
    while True:
        try:
            question = advance()
        except StopIteration as end:
            result: ResultT = end.value
            return result
        advance = partial(judging.send, answer(question))


def is_urgent(task: ScoringTask, exchange: Exchange) -> bool:
    """Return whether an exchange must not wait for a batch: the agent may have failed in it."""
    return (
        bool(task.tier1_flags)
        or task.sampling_reason in {TIER1_FLAGS, TOOL_TROUBLE, DISAGREEMENT_REASON, JUDGE_TAMPERING}
        or has_trouble(exchange.tool_calls)
        or is_disagreement(exchange.agent_response)
        or bool(tamper_reasons(exchange))
    )


def questions_about(
    exchange: Exchange,
    policy: ProjectPolicy,
    earlier_turns: Sequence[EarlierTurn] = (),
    judgements: Iterable[Judgement] = (),
) -> Iterator[Question]:
    """Yield the questions that a policy can ask about an exchange; `earlier_turns` are those of its task.

    Tier 3 is asked twice if a flag makes more dimensions apply. What is masked depends on earlier answers, so `judgements` are needed for
    the questions without these passages.
    """
    for masked in dict.fromkeys([(), *(judgement.masked_passages for judgement in judgements)]):
        for part in PARTS:
            questions = ExchangeQuestions(exchange, policy, earlier_turns=earlier_turns, part=part, masked=masked)
            of_part = list(_list_tiers(questions, exchange, policy))
            yield from of_part
            if not any(question.is_cut for question in of_part):
                break


def _list_tiers(questions: ExchangeQuestions, exchange: Exchange, policy: ProjectPolicy) -> Iterator[Question]:
    yield questions.tier2()
    if exchange.agent_thinking:
        yield questions.thinking()
    for flagged in (False, True):
        if dimensions := applicable(exchange, policy, flagged=flagged):
            yield questions.tier3(dimensions)
            if flagged and policy.combines_tiers:
                yield questions.combined(dimensions)


def rebuild_question(
    exchange: Exchange, policy: ProjectPolicy, judgement: Judgement, earlier_turns: Sequence[EarlierTurn] = ()
) -> Question | None:
    """Return the question that a judgement answers; None if this exchange, its earlier turns and the policy do not produce it."""
    for question in questions_about(exchange, policy, earlier_turns, [judgement]):
        if question.fingerprint == judgement.fingerprint:
            return question
    return None
