"""What judging would have cost without gates, sampling or cache: the same exchanges through the same rules, each saving on or off.

The judge's part is played by the rules of the simulated judge, in this process, because nobody knows what a judge would have said of
exchanges it was never shown. Tokens are estimated as in `audit.estimate`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from audit.cascade import cascade, drive
from audit.estimate import estimate
from audit.fingerprints import canonical_json
from audit.policy import Policy, ProjectSettings
from audit.prices import Usage, usd_of
from audit.questions import Question, Reply
from schemas.arrow import INDEX, decode_batch
from schemas.codec import encode
from schemas.records import Exchange, ScoringTask, SessionClosed
from service.simulator.scoring import simulated_answer, tokens_of
from streams.batches import OFFSET, StageBatch, encoded_exchange
from streams.steps.intake import IntakeStep


@dataclass
class Bill:
    """What judging takes."""

    calls: Counter[str] = field(default_factory=Counter)
    """By purpose."""
    input_tokens: int = 0
    """All of them, those from the cache too."""
    cached_tokens: int = 0
    """Those from the cache."""
    output_tokens: int = 0
    nano: int = 0

    @property
    def usd(self) -> float:
        """The cost."""
        return usd_of(self.nano)


@dataclass(frozen=True)
class Savings:
    """Which savings are on."""

    gates: bool = True
    sampling: bool = True
    cache: bool = True


VARIANTS = {
    "as configured": Savings(),
    "without gates": Savings(gates=False),
    "without sampling": Savings(sampling=False),
    "without the cache": Savings(cache=False),
    "without any of them": Savings(gates=False, sampling=False, cache=False),
}


def bill(records: Sequence[Exchange | SessionClosed], settings: ProjectSettings, savings: Savings) -> Bill:
    """What judging these exchanges takes under the settings, in the order in which they came, without a cap.

    ValueError when the judge's model has no known price.
    """
    policy = _policy(settings, savings)
    price = policy.for_project("").price
    if price is None:
        raise ValueError(f"the price of {settings.judge_model} is not known")
    total, warm = Bill(), set[str]()

    def answer(question: Question) -> Reply:
        text = _simulated(question)
        expected = estimate(question, price, cached=question.instructions in warm)
        warm.add(question.instructions)
        usage = Usage(expected.input, tokens_of([text]), expected.cache_write, expected.cache_read)
        if not savings.cache:
            usage = Usage(usage.prompt_tokens, usage.output_tokens)
        total.calls[question.purpose] += 1
        total.input_tokens += usage.prompt_tokens
        total.cached_tokens += usage.cache_read_tokens
        total.output_tokens += usage.output_tokens
        total.nano += price.cost(usage) or 0
        return Reply(text=text)

    for task in _tasks(records, policy):
        drive(cascade(task, encoded_exchange(task.exchange), policy.for_project(task.project)), answer)
    return total


def _policy(settings: ProjectSettings, savings: Savings) -> Policy:
    sampling = settings.sampling.model_copy(update={"enabled": settings.sampling.enabled and savings.sampling})
    update = {"gate_cascade": settings.gate_cascade and savings.gates, "sampling": sampling, "cost_cap_per_session": None}
    return Policy(defaults=settings.model_copy(update=update))


def _tasks(records: Iterable[Exchange | SessionClosed], policy: Policy) -> Iterator[ScoringTask]:
    """What intake wants to have judged."""
    decoded = decode_batch([encode(record) for record in records])
    frames = {name: frame.rename({INDEX: OFFSET}) for name, frame in decoded.frames.items()}
    outcome = IntakeStep(policy)(StageBatch.of("exchanges", frames), {})
    return (record for _, record in outcome.records if isinstance(record, ScoringTask))


def _simulated(question: Question) -> str:
    materials = {one.name: json.loads(one.literal) for one in question.materials}
    return canonical_json(simulated_answer(question.schema, materials, model=question.model))
