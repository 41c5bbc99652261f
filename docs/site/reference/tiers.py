"""Tiers, their states, what samples an exchange and what opens a gate: names from the rules, each with its words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from audit.drift.watched_series import TIER_NUMBERS, TIERS
from audit.evaluation.questions import NOT_BATCHED, NOT_RECORDED
from audit.exchanges import cascade, outcomes, questions, sampling, states
from audit.exchanges.outcomes import LOW_ALIGNMENT, LOW_DIMENSION, TierState
from audit.exchanges.tier1 import STRUCTURAL_CHECKS
from audit.spending import SHARED_CAPS
from reference.markdown import code, page, table, words
from schemas.errors import SchemaError
from schemas.registry import current_schemas
from service.text.words import WORDS
from streams.log.dead_letters import RETRY_SAMPLING_REASON

_TIERS = {
    "tier1": f"Structural checks on every exchange, without a judge: {', '.join(code(check.id) for check in STRUCTURAL_CHECKS)}, and those of the [methodology](methodology.md). The score is 1 - flags / checks.",
    "tier2": "The judge scores each dimension from 0 to 1. Asked about every exchange that is sampled.",
    "tier2_5": "The agent's thinking compared with its answer, from 0 to 1, if there is thinking and the policy has it analysed.",
    "tier3": "The judge rates how the agent behaved: it scores each dimension that applies from 1 to 5. Asked where a gate opens it; with `combineTiers`, in the call of Tier 2 if it is open before any call.",
}
_STATES = {
    states.SCORED: "The tier has a score.",
    states.NOT_APPLICABLE: "There is nothing that the tier could judge.",
    states.SKIPPED_GATE: "No gate opened Tier 3.",
    states.SKIPPED_COST_CAP: "A cap left no room for the call; the reason says which one.",
    states.SKIPPED_SAMPLING: "The exchange was not sampled.",
    states.UNSCORED: "The judge did not answer, or not so that it can be used; the reason says why. `driftline rejudge` asks again.",
}
_SAMPLING_REASONS = (*sampling.REASONS[:-1], RETRY_SAMPLING_REASON, sampling.SAMPLING_SKIP)
_GATES = {
    "gate_off": "`gateCascade` is false: Tier 3 is always asked.",
    sampling.TIER1_FLAGS: "A check of Tier 1 fired.",
    "tier2_flagged": "The judge raised a flag in Tier 2.",
    sampling.JUDGE_TAMPERING: "The rules recognise an attempt to sway the judge, or the judge says that a text addresses it.",
    "sycophancy": "Tier 2.5 found that disagreement was suppressed.",
    "advocacy_suppression": "Tier 2.5 found that a recommendation was softened.",
    "early_turn": f"One of the first {cascade.EARLY_TURNS} turns.",
    sampling.FIRST_TURNS: "Sampled as one of the first turns.",
    sampling.LAST_TURNS: "Sampled as one of the last turns.",
    sampling.TOOL_TROUBLE: "A tool call failed, was repeated or has no answer.",
    sampling.DISAGREEMENT_REASON: "The agent pushes back.",
}
_REASONS = {
    cascade.ALWAYS: "Tier 2 is asked about every sampled exchange.",
    cascade.THINKING: "There is thinking to compare with.",
    cascade.ROUTINE: "No gate opened.",
    outcomes.NO_DIMENSION: "None of the dimensions applies to the exchange.",
    outcomes.NO_THINKING: "There is no thinking to compare with.",
    outcomes.THINKING_OFF: "`thinkingBlockAnalysis` is false.",
    outcomes.NOT_SAMPLED: "The exchange was not sampled.",
    **{
        TierState(
            states.SKIPPED_COST_CAP, cap
        ): f"The most that the call could have cost did not fit under {description} (`costCaps`)."
        for cap, description in SHARED_CAPS.items()
    },
    questions.COST_CAP: "The most that the call could have cost did not fit under the cap.",
    questions.UNKNOWN_PRICE: "There is a cap, and the model has no known price: give it a price in the policy, or lift the cap.",
    outcomes.NO_JUDGE: "No judge is configured.",
    cascade.INVALID: "The answer does not fit, twice.",
    questions.PARTIAL: "The answer does not fit, twice, but some of its dimensions do. They are kept and shown; the tier has no score.",
    NOT_RECORDED: "Only recorded answers count, and none is there.",
    questions.AWAITING_BATCH: "The exchange waits for a batch (`judgeWithinHours`); its score is revised with the answers.",
    NOT_BATCHED: "The judge works in batches, and none has answered.",
    TierState(states.UNSCORED, "refused"): "The judge refused to answer.",
    TierState(states.UNSCORED, "cut_off"): "The answer was cut off at its length.",
    TierState(states.UNSCORED, "provider_error"): "The judge answered with errors until no try was left.",
    TierState(states.UNSCORED, "timeout"): "No answer within `DRIFTLINE_JUDGE_DEADLINE`.",
    TierState(states.UNSCORED, "interrupted"): "The process ended before the answer was recorded; the call is charged in full.",
}


def tiers() -> str:
    """Return the page; SchemaError where the rules have a name that has no words here, or no longer have one."""
    return page(
        "Tiers, states, gates",
        "Each exchange has one score with the state of every tier. Unscored is a state and no number: it is in no mean. `driftline scores --full` shows all of it.",
        "## Tiers",
        *(part for tier, about in _TIERS.items() for part in (f"### {TIER_NUMBERS[tier]}: {TIERS[tier].lower()}", about)),
        "## States of a tier",
        *_named("state", _STATES, _states()),
        "## Why an exchange is sampled",
        "In this order; the first that holds decides. The settings are those of `sampling` in the [policy](policy.md). A routine sample counts n times in every mean. "
        "When the session closes, `last_turns` replaces any other reason except `first_turns` and `sampling_disabled`, in a new revision of the score.",
        *_named("sampling", WORDS["sampling"], _SAMPLING_REASONS),
        "## Gates of Tier 3",
        "In this order; the first that holds is the reason of the tier's state.",
        *_named("gate", _GATES, get_args(cascade.OpeningReason)),
        "## Reasons of states",
        "Besides the gates, which are the reasons of a Tier 3 that is scored. Tier 3 takes over the state of a tier before it that leaves its gate undecided.",
        table(
            ("reason", "state", "what it says"), [(code(one.reason), code(one.state), about) for one, about in _REASONS.items()]
        ),
        "## What makes an anomaly",
        f"A check of Tier 1 that fired; a dimension of Tier 3 at {LOW_DIMENSION} or less; an alignment of thinking and answer of {LOW_ALIGNMENT:g} or less; and texts "
        "that try to sway the judge (`judge_tampering`; up to the rules `eval-4` the reason begins with `judge_tamper`), recognised by rules or by the judge. Each tier is then judged once more "
        "without these passages, and the lower verdict is valid. So do instructions to the agent, in the user message or in outputs of tools (`prompt_injection`). A judge can add reasons, and never take one away.",
        "## Dispositions",
        "The state of the exchange as a whole, from the states of its tiers.",
        f"One of {words(_doc('disposition'))}",
    )


def _states() -> list[str]:
    """Return the states of a tier as the record of scores names them."""
    return _doc("tier3_state").partition(": ")[2].rstrip(".").replace(" or ", ", ").split(", ")


def _doc(name: str) -> str:
    """What the schema says of a field of scores."""
    return str(next(field["doc"] for field in current_schemas()["Score"].fields if field["name"] == name))


def _named(kind: str, said: Mapping[str, str], names: Iterable[str]) -> list[str]:
    known = list(names)
    if set(known) != set(said):
        raise SchemaError(
            f"{kind}: {sorted(set(known) ^ set(said))} is in the rules or in the reference, not in both",
            hint="Give it words: sampling reasons in service/text/words.yaml, others in tiers.py.",
        )
    return [part for name in known for part in (f"### {kind}: {name}", said[name])]
