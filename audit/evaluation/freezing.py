"""Freezing exchanges as cases, and measuring an answer to a case: its run, its checks and its scores.

An answer of a candidate build is measured like the exchange that its case was frozen from: as an exchange of one turn, whose tool calls are
the events of a run. So the numbers of both sides come from the same rules.

1. The healthy exchanges are drawn by a hash, with the probability that they would have had without the policy's oversampling of troubled
   ones. Anomalies are left out.
2. The levels before the change come from all exchanges that were read, also from those that become no case.
3. A check is only made of what nearly always held before: a rule of Tier 1, a failure type, a tool that was always called.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from audit.detectors.detectors import FAILURE_TYPES, FINDING_TYPES
from audit.detectors.thresholds import profile_name
from audit.diagnosis.diagnosis import diagnose_events
from audit.evaluation.cases import (
    Answer,
    AnswerCall,
    Case,
    CaseInput,
    CheckLevel,
    FrozenCases,
    Levels,
    MaxTotalTokens,
    Message,
    NoFailure,
    NoTier1Flag,
    RecordedAnswer,
    ScoreLevel,
    Source,
    ToolCallCount,
    ToolCalled,
)
from audit.evaluation.checks import check_run
from audit.evaluation.run import Run, SessionRecords, run_of
from audit.exchanges.context import ERROR, UNANSWERED
from audit.exchanges.states import SCORED
from audit.exchanges.tier1 import checks_of
from audit.fingerprints import stable_id
from audit.policy import ProjectPolicy
from schemas.records import CheckOutcome, EarlierTurn, Exchange, FailureCause, Score

TOKENS = "tokens"
"""The series of the tokens of an exchange, read and written."""
ANOMALIES = "anomalies"
"""The check that an exchange is no anomaly."""
SCALES: Mapping[str, float] = {"tier2": 1.0, "tier2_5": 1.0, "tier3": 4.0}
"""The width of the scale of each judged tier."""
TOKEN_MARGIN = 0.25
"""The share by which a build may use more tokens."""
MIN_LEVEL_SCORES = 10
"""Fewest scores from which a level is computed."""
USUAL_SHARE = 0.95
"""Share of the exchanges before that called a tool from which every answer must call it."""
LOW_SHARE = 0.02
"""Share of the scores before that are below a low score."""
MAX_TEXT = 50_000
"""Most characters of a message of a case; an exchange with a longer one is not frozen."""
_IDENTIFIER = re.compile("[A-Za-z0-9_.-]{1,50}")
_ROOM = 2
"""How many times as many calls or tokens as the most before are still no failure."""


class ScoredExchange(NamedTuple):
    """An exchange with its newest score and the turns that its judge was shown."""

    exchange: Exchange
    score: Score
    turns: Sequence[EarlierTurn] = ()
    moved: float = 0.0


def freeze(
    moved: Sequence[ScoredExchange],
    before: Sequence[ScoredExchange],
    policy: ProjectPolicy,
    source: Source,
    *,
    healthy: int,
    noise: Mapping[str, float],
) -> FrozenCases:
    """Return the exchanges that moved an incident and `healthy` ones from before as cases, with the levels of all from before.

    `noise` is the margin of each judged tier as a share of its scale. There must be an exchange on each side.
    """
    drawn = draw_healthy(before, healthy)
    checks = _list_checks(before, policy)
    cases = [
        *(_build_case(number, "incident", scored) for number, scored in enumerate(moved, 1)),
        *(_build_case(number, "before", scored) for number, scored in enumerate(drawn, 1)),
    ]
    whole = Case(case_id="level", title="level", input=cases[0].input, deterministic_checks=checks)
    failed: Counter[str] = Counter()
    for scored in before:
        failed.update(
            outcome.check_id for outcome in measure_checks(whole, scored.exchange, policy) if outcome.outcome == "fail"
        )
    judged = [scored for scored in before if scored.score.tier2_state == SCORED]
    counts = {check.check_id: CheckLevel(failed=failed[check.check_id], exchanges=len(before)) for check in checks}
    if judged:
        counts[ANOMALIES] = CheckLevel(failed=sum(scored.score.anomaly for scored in judged), exchanges=len(judged))
    return FrozenCases(
        source=source,
        levels=Levels(scores=_measure_levels(before, noise), checks=counts),
        deterministic_checks=checks,
        cases=tuple(cases),
    )


def draw_healthy(before: Sequence[ScoredExchange], count: int) -> list[ScoredExchange]:
    """Return `count` exchanges without an anomaly, judged ones if there are any, by a hash and their sampling probability."""

    def draw(scored: ScoredExchange) -> float:
        key = f"{scored.exchange.connection}/{scored.exchange.exchange_id}".encode("utf-8", "surrogatepass")
        uniform = (int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"cases").digest()) + 1) / (2**64 + 1)
        return math.log(uniform) * (scored.score.sampling_probability or 1.0)

    healthy = [scored for scored in before if not scored.score.anomaly]
    judged = [scored for scored in healthy if scored.score.tier2_state == SCORED]
    chosen = sorted(judged or healthy, key=draw, reverse=True)[:count]
    return sorted(chosen, key=lambda scored: (scored.exchange.occurred_at, scored.exchange.exchange_id))


def is_freezable(exchange: Exchange) -> bool:
    """Return whether an exchange fits into a case."""
    texts = (exchange.user_message, exchange.agent_response, exchange.agent_thinking or "")
    return bool(exchange.user_message.strip()) and max(map(len, texts)) <= MAX_TEXT


def _build_case(number: int, side: Any, scored: ScoredExchange) -> Case:
    exchange, score = scored.exchange, scored.score
    identity = stable_id("frozen case", exchange.connection, exchange.exchange_id)[:8]
    recorded = RecordedAnswer(
        side=side,
        moved=round(scored.moved, 4),
        agent=exchange.agent,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        turn_number=score.turn_number,
        sampling_reason=score.sampling_reason,
        agent_response=exchange.agent_response,
        agent_thinking=exchange.agent_thinking,
        tool_calls=tuple(
            AnswerCall(name=call.name, arguments=call.arguments, result=call.result, outcome=call.outcome)  # type: ignore[arg-type]
            for call in exchange.tool_calls
        ),
        agent_model=exchange.agent_model,
        input_tokens=exchange.input_tokens,
        output_tokens=exchange.output_tokens,
        scores=scores_of(score),
        anomalous=score.anomaly,
    )
    return Case(
        case_id=f"{side}-{number:02d}-{identity}",
        title=" ".join(exchange.user_message.split())[:200],
        input=CaseInput(messages=tuple(_list_messages(scored))),
        recorded=recorded,
    )


def _list_messages(scored: ScoredExchange) -> Iterator[Message]:
    for turn in scored.turns:
        if turn.user_message.strip():
            yield Message(role="user", content=turn.user_message)
            if turn.agent_response.strip():
                yield Message(role="assistant", content=turn.agent_response)
    yield Message(role="user", content=scored.exchange.user_message)


def earlier_turns_of(case: Case) -> tuple[EarlierTurn, ...]:
    """Return the turns before the last message of a frozen case, as the judge is shown them."""
    texts: list[list[str]] = []
    for message in case.input.messages[:-1]:
        if message.role == "user":
            texts.append([message.content, ""])
        elif texts:
            texts[-1][1] = message.content
    last = case.recorded.turn_number if case.recorded else len(texts) + 1
    return tuple(
        EarlierTurn(turn_number=max(0, last - len(texts) + index), user_message=question, agent_response=answer)
        for index, (question, answer) in enumerate(texts)
    )


def _list_checks(before: Sequence[ScoredExchange], policy: ProjectPolicy) -> tuple[Any, ...]:
    """Return the checks that every answer must pass: rules of Tier 1, detectors, and the usual calls and tokens."""
    checks: list[Any] = [NoTier1Flag(kind="no_tier1_flag", check_id=flag, flag=flag) for flag in checks_of(policy.methodology)]
    checks += [
        NoFailure(kind="no_failure", check_id=failure, failure=failure, dimensions=("process",))
        for failure in (*FAILURE_TYPES, *FINDING_TYPES)
    ]
    calls = [Counter(call.name for call in scored.exchange.tool_calls) for scored in before]
    used = Counter(tool for tools in calls for tool in tools)
    always = [tool for tool, count in sorted(used.items()) if count >= USUAL_SHARE * len(before)]
    for number, tool in enumerate(always, 1):
        check_id = f"calls-{tool}" if _IDENTIFIER.fullmatch(tool) else f"calls-tool-{number}"
        checks.append(ToolCalled(kind="tool_called", check_id=check_id, tool=tool, dimensions=("process",)))
    if most_calls := max(sum(tools.values()) for tools in calls):
        limit = ToolCallCount(kind="tool_call_count", check_id="tool-calls", max=_ROOM * most_calls, dimensions=("efficiency",))
        checks.append(limit)
    if tokens := [count for scored in before if (count := count_tokens(scored.exchange))]:
        limit_tokens = MaxTotalTokens(
            kind="max_total_tokens", check_id="total-tokens", tokens=_ROOM * max(tokens), dimensions=("efficiency",)
        )
        checks.append(limit_tokens)
    return tuple(checks)


def _measure_levels(before: Sequence[ScoredExchange], noise: Mapping[str, float]) -> dict[str, ScoreLevel]:
    weighted: dict[str, list[tuple[float, float]]] = {}
    for scored in before:
        for series, value in scores_of(scored.score).items():
            weighted.setdefault(series, []).append((value, 1 / (scored.score.sampling_probability or 1.0)))
    levels = {}
    for series, values in sorted(weighted.items()):
        if len(values) >= MIN_LEVEL_SCORES:
            tier = series.partition(".")[0]
            mean = sum(value * weight for value, weight in values) / sum(weight for _, weight in values)
            margin = round(noise[tier] * SCALES[tier], 4)
            low = _find_low(sorted(value for value, _ in values)) if series == tier else {}
            levels[series] = ScoreLevel(mean=round(mean, 4), scores=len(values), margin=margin, **low)
    tokens = [count for scored in before if (count := count_tokens(scored.exchange))]
    if len(tokens) >= MIN_LEVEL_SCORES:
        mean = math.exp(math.fsum(map(math.log, tokens)) / len(tokens))
        low = _find_low(sorted(tokens, reverse=True))
        levels[TOKENS] = ScoreLevel(mean=round(mean, 1), scores=len(tokens), margin=TOKEN_MARGIN, **low)
    return levels


def _find_low(ordered: Sequence[float]) -> dict[str, Any]:
    """Return the value that hardly any exchange was worse than, with its rank; the worst values come first."""
    rank = 1 + int(LOW_SHARE * len(ordered))
    return {"low": ordered[rank - 1], "low_rank": rank}


def scores_of(score: Score) -> dict[str, float]:
    """Return the judge's scores by series: those of the tiers, and those of the dimensions of Tiers 2 and 3."""
    tiers = (
        ("tier2", score.tier2_state, score.tier2_score, score.tier2_dimensions),
        ("tier2_5", score.tier2_5_state, score.tier2_5_alignment, ()),
        ("tier3", score.tier3_state, score.tier3_score, score.tier3_dimensions),
    )
    scores: dict[str, float] = {}
    for tier, state, value, dimensions in tiers:
        if state == SCORED and value is not None:
            scores[tier] = value
            scores |= {f"{tier}.{dimension.dimension}": dimension.score for dimension in dimensions}
    return scores


def count_tokens(answer: Exchange | Answer) -> int | None:
    """Return the tokens that were read and written for an answer; None if unknown."""
    if answer.input_tokens is None or answer.output_tokens is None:
        return None
    return answer.input_tokens + answer.output_tokens


def measure_checks(case: Case, exchange: Exchange, policy: ProjectPolicy) -> tuple[CheckOutcome, ...]:
    """Return the outcomes of the checks of a case for an exchange that answers it."""
    return check_run(case, build_run(exchange, policy))


def build_run(exchange: Exchange, policy: ProjectPolicy) -> Run:
    """Return an exchange as a run of one turn, with its tool calls as events."""
    events = list(_list_events(exchange))
    profile = policy.settings.detectors.profile(profile_name(None), exchange.agent)
    diagnosis = diagnose_events(exchange.session_id, events, profile)
    causes = [_build_cause(cause) for cause in diagnosis["failure_causes"]]
    return run_of(
        SessionRecords(
            connection=exchange.connection,
            project=exchange.project,
            session_id=exchange.session_id,
            exchanges=[exchange],
            events=events,
            trust=diagnosis["trust_score"],
            failure_causes=causes,
            methodology=policy.methodology,
        ),
        {},
    )


def _build_cause(cause: Mapping[str, Any]) -> FailureCause:
    fields = {name: cause[name] for name in ("type", "severity", "impact_score", "description", "remediation")}
    return FailureCause(**fields, causal_chain=tuple(cause["causal_chain"]), evidence_count=len(cause["evidence"]), evidence=())


def _list_events(exchange: Exchange) -> Iterable[dict[str, Any]]:
    yield {"event": "session_start"}
    for number, call in enumerate(exchange.tool_calls):
        identity = {"tool": call.name, "tool_call_id": f"call-{number}"}
        yield {"event": "tool_call", **identity, "args": call.arguments}
        if call.outcome != UNANSWERED:
            yield {"event": "tool_output", **identity, "result": call.result, "is_error": call.outcome == ERROR}
    tokens = count_tokens(exchange)
    if tokens is not None:
        usage = {"input_tokens": exchange.input_tokens, "output_tokens": exchange.output_tokens}
        yield {"event": "token_usage", **usage, "total": tokens}
