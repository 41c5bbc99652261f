"""Cost comparison: the same exchanges by the same rules, with gates, sampling and cache on or off.

The simulated judge answers in this process, because a real judge's answers to exchanges that it never saw are unknown. Each question
becomes the request that the judge would get, with tokens counted as the simulated judge counts them, so for questions really asked the
bill agrees to the token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from analytics.store.store import Store
from audit.cost import ModelPrice, Usage, usd_of
from audit.exchanges.cascade import cascade, drive
from audit.exchanges.questions import Question, Reply
from audit.fingerprints import canonical_json
from audit.policy import Policy, ProjectSettings
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Exchange, ScoringTask, SessionClosed
from service.simulator.api.caching import PrefixCache
from service.simulator.api.request_validation import Asked, Problem, read_request
from service.simulator.scoring import simulated_answer, simulated_usage
from streams.judges.requests import Format, Rung, parameters
from streams.stage_batches import OFFSET, StageBatch, encoded_exchange
from streams.steps.intake import IntakeStep

_HEAD = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
_BOUNDARY = "0" * 16
"""A boundary as long as the random one of each request."""


@dataclass
class Part:
    """The tokens and cost of some of the calls."""

    calls: Counter[str] = field(default_factory=Counter)
    """By purpose."""
    input_tokens: int = 0
    """All of them, including cached ones."""
    cached_tokens: int = 0
    """Those from the cache."""
    output_tokens: int = 0
    nano: int = 0

    @property
    def usd(self) -> float:
        """Return the cost."""
        return usd_of(self.nano)

    def add(self, purpose: str, usage: Usage, nano: int) -> None:
        """Add a call."""
        self.calls[purpose] += 1
        self.input_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cache_read_tokens
        self.output_tokens += usage.output_tokens
        self.nano += nano


@dataclass
class Bill(Part):
    """The cost of judging."""

    by_agent: dict[str, Part] = field(default_factory=dict)
    """The part of each agent; the first one pays for writing to the cache."""


@dataclass(frozen=True)
class Savings:
    """The savings that are on."""

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
Answers = dict[tuple[str, float], tuple[Asked, str]]
"""Questions and answers by the question's fingerprint and the judge's strictness, cached between bills."""
Strictness = Callable[[Exchange], float]
"""Returns the strictness of an exchange's judge."""


def records_of(store: Store, projects: Sequence[str]) -> list[Exchange | SessionClosed]:
    """Return the projects' exchanges and ends of sessions, session by session in the order of the log.

    Sessions are ordered by their first exchanges, not by their first calls.
    """
    sessions: dict[str, list[Exchange | SessionClosed]] = {}
    frames = store.read("exchanges", 0, store.end_of("exchanges"))
    for _, key, record in StageBatch.of("exchanges", frames).records():
        if isinstance(record, Exchange | SessionClosed) and record.project in projects:
            sessions.setdefault(key, []).append(record)
    in_order = sorted(sessions, key=lambda key: (min(map(_time_of, sessions[key])), key))
    return [record for key in in_order for record in sessions[key]]


def _time_of(record: Exchange | SessionClosed) -> datetime:
    return record.occurred_at if isinstance(record, Exchange) else record.closed_at


def bill(
    records: Sequence[Exchange | SessionClosed],
    settings: ProjectSettings,
    savings: Savings,
    answers: Answers | None = None,
    *,
    strictness: Strictness = lambda _: 0.0,
) -> Bill:
    """Return the cost of judging these exchanges under the settings, in order of arrival, without a cap.

    ValueError if the judge's model has no known price.
    """
    policy = _policy(settings, savings)
    price = policy.for_project("").price
    if price is None:
        raise ValueError(f"the price of {settings.judge_model} is not known")
    total, known, cache, paid = Bill(), {} if answers is None else answers, PrefixCache(), set[str]()
    for task in _tasks(records, policy):
        exchange = encoded_exchange(task.exchange)
        part = total.by_agent.setdefault(exchange.agent or "", Part())
        strict = strictness(exchange)

        def answer(question: Question, part: Part = part, strict: float = strict) -> Reply:
            asked, said = _answered(question, price, known, strict)
            if question.fingerprint in paid:  # later revisions of a score reuse the answers of earlier ones
                return Reply(text=said)
            paid.add(question.fingerprint)
            usage = _usage(asked, said, cache) if savings.cache else simulated_usage(_texts(asked), said)
            nano = price.cost(usage) or 0
            for whole in (part, total):
                whole.add(question.purpose, usage, nano)
            return Reply(text=said)

        drive(cascade(task, exchange, policy.for_project(task.project)), answer)
    return total


def _policy(settings: ProjectSettings, savings: Savings) -> Policy:
    sampling = settings.sampling.model_copy(update={"enabled": settings.sampling.enabled and savings.sampling})
    update = {"gate_cascade": settings.gate_cascade and savings.gates, "sampling": sampling, "cost_cap_per_session": None}
    return Policy(defaults=settings.model_copy(update=update))


def _tasks(records: Iterable[Exchange | SessionClosed], policy: Policy) -> Iterator[ScoringTask]:
    """Return the tasks of the exchanges that intake selects for judging."""
    decoded = decode_batch([encode(record) for record in records])
    frames = {name: frame.rename({INDEX: OFFSET}) for name, frame in decoded.frames.items()}
    outcome = IntakeStep(policy)(StageBatch.of("exchanges", frames), {})
    return (record for _, record in outcome.records if isinstance(record, ScoringTask))


def _answered(question: Question, price: ModelPrice, known: Answers, strictness: float) -> tuple[Asked, str]:
    """Return the request of the question as the simulated judge reads it, and its answer."""
    key = question.fingerprint, strictness
    if key not in known:
        form = Format(Rung.STRUCTURED, price.cache_minimum, price.switch_off_thinking)
        asked = read_request(_HEAD, json.dumps(parameters(question, form, _BOUNDARY)).encode())
        if isinstance(asked, Problem):
            raise ValueError(f"the simulated judge does not take its own questions: {asked.message}")
        answer = simulated_answer(question.schema, asked.materials, model=question.model, strictness=strictness)
        known[key] = asked, json.dumps(answer, ensure_ascii=False)
    return known[key]


def _texts(asked: Asked) -> list[str]:
    """Return everything that the model reads."""
    return [canonical_json(asked.structured), *(block.text for block in asked.blocks)]


def _usage(asked: Asked, said: str, cache: PrefixCache) -> Usage:
    used = cache.usage(asked, said)
    return Usage(
        used["input_tokens"], used["output_tokens"], used["cache_creation_input_tokens"], used["cache_read_input_tokens"]
    )
