"""What judging cost, and what it would cost with gates, sampling or cache off: the same exchanges by the same rules.

The simulated judge answers in this process, because a real judge's answers to exchanges that it never saw are unknown. Each question
becomes the request that the judge would get, with tokens counted as the simulated judge counts them, so for questions really asked the
bill agrees to the token. Answering takes most of the time. So each set of calls is made once, and priced for each variant and each model.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from analytics.store.store import Store
from audit.cost import ListedPrice, ModelPrice, Usage, shipped_prices, usd_of
from audit.exchanges.cascade import cascade, drive, is_urgent
from audit.exchanges.questions import ANSWERED, Question, Reply
from audit.exchanges.states import TIER2, TIER2_5, TIER3, TIERS_2_AND_3
from audit.fingerprints import canonical_json
from audit.policy import Policy, ProjectSettings
from driftline_trial.simulator.answers import simulated_answer, simulated_usage
from driftline_trial.simulator.caching import PrefixCache
from driftline_trial.simulator.requests import ParsedRequest, Problem, read_request
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Exchange, Judgement, ScoringTask, SessionClosed
from service.cli.terminal import heading, table
from service.cli.views import SIMULATED
from streams.stage_batches import OFFSET, StageBatch, decode_exchange
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
    batches: bool = False
    """Exchanges that are not urgent wait for a batch."""
    combined: bool = False
    """Tiers 2 and 3 are asked in one call where the gate is open from the start."""

    @property
    def selection(self) -> tuple[bool, bool, bool]:
        """The savings that decide which calls are made; the others change their prices."""
        return self.gates, self.sampling, self.combined


VARIANTS = {
    "as configured": Savings(),
    "with judgeWithinHours": Savings(batches=True),
    "with combineTiers": Savings(combined=True),
    "with both": Savings(batches=True, combined=True),
    "without gates": Savings(gates=False),
    "without sampling": Savings(sampling=False),
    "without the cache": Savings(cache=False),
    "without any of them": Savings(gates=False, sampling=False, cache=False),
}
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


class Call(NamedTuple):
    """A call of the judge."""

    agent: str
    purpose: str
    request: ParsedRequest
    answer: str
    is_urgent: bool
    """Whether it must not wait for a batch."""


class Estimate:
    """The cost of judging exchanges under a project's settings, in order of arrival and without a cap."""

    def __init__(
        self,
        records: Sequence[Exchange | SessionClosed],
        settings: ProjectSettings,
        strictness: Strictness = lambda _: 0.0,
    ) -> None:
        self._records = records
        self._settings = settings
        self._strictness = strictness
        self._answers: dict[tuple[str, float], tuple[ParsedRequest, str]] = {}
        self._calls: dict[tuple[bool, bool, bool], list[Call]] = {}

    def bill(self, savings: Savings, model: str | None = None) -> Bill:
        """Return the cost with some savings; for another model, that of the same calls. ValueError if its price is not known."""
        model = model or self._settings.judge_model
        price = self._price(model)
        if savings.selection not in self._calls:
            self._calls[savings.selection] = self._make_calls(_policy(self._settings, savings))
        total, cache = Bill(), PrefixCache()
        for call in self._calls[savings.selection]:
            request = replace(call.request, model=model)
            usage = _usage(request, call.answer, cache) if savings.cache else simulated_usage(_texts(request), call.answer)
            nano = price.cost(usage, batched=savings.batches and not call.is_urgent) or 0
            for target in (total, total.by_agent.setdefault(call.agent, Part())):
                target.add(call.purpose, usage, nano)
        return total

    def _price(self, model: str) -> ModelPrice:
        price = Policy(defaults=self._settings.model_copy(update={"judge_model": model})).for_project("").price
        if price is None:
            raise ValueError(f"the price of {model} is not known")
        return price

    def _make_calls(self, policy: Policy) -> list[Call]:
        paid: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
        price = self._price(self._settings.judge_model)
        return [
            call
            for task in _tasks(self._records, policy)
            for call in self._judge(task, policy, price, paid[task.connection, task.exchange_id])
        ]

    def _judge(self, task: ScoringTask, policy: Policy, price: ModelPrice, paid: list[Judgement]) -> list[Call]:
        """Return the calls of a task, and add their judgements to those that were paid for the exchange."""
        exchange = decode_exchange(task.exchange)
        calls: list[Call] = []

        def answer(question: Question) -> Reply:
            request, text = self._answer(question, price, self._strictness(exchange))
            # Later revisions of a score reuse the answers of earlier ones.
            if all(judgement.fingerprint != question.fingerprint for judgement in paid):
                paid.append(_build_judgement(question, task, exchange))
                calls.append(Call(exchange.agent or "", question.purpose, request, text, is_urgent(task, exchange)))
            return Reply(text=text)

        drive(cascade(task, exchange, policy.for_project(task.project), tuple(paid)), answer)
        return calls

    def _answer(self, question: Question, price: ModelPrice, strictness: float) -> tuple[ParsedRequest, str]:
        """Return the request of the question as the simulated judge reads it, and its answer."""
        # The client of the model's API takes half a second to load, which listing the commands does without.
        from streams.judges.messages_api import message_parameters  # noqa: PLC0415
        from streams.judges.model_api import build_request  # noqa: PLC0415
        from streams.judges.protocol import ModelTraits  # noqa: PLC0415

        key = question.fingerprint, strictness
        if key not in self._answers:
            traits = ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)
            parameters = message_parameters(build_request(question, traits, _BOUNDARY))
            parsed = read_request(_HEAD, json.dumps(parameters).encode())
            if isinstance(parsed, Problem):
                raise ValueError(f"the simulated judge does not take its own questions: {parsed.message}")
            answer = simulated_answer(question.schema, parsed.materials, model=question.model, strictness=strictness)
            self._answers[key] = parsed, json.dumps(answer, ensure_ascii=False)
        return self._answers[key]


def _build_judgement(question: Question, task: ScoringTask, exchange: Exchange) -> Judgement:
    """Return the record that a question of a task was answered."""
    return Judgement(
        judgement_id=question.fingerprint,
        fingerprint=question.fingerprint,
        connection=task.connection,
        project=task.project,
        session_id=task.session_id,
        subject_id=task.exchange_id,
        subject_revision=task.revision,
        purpose=question.purpose,
        requested_model=question.model,
        outcome=ANSWERED,
        attempts=1,
        judged_at=exchange.ingested_at,
    )


def _policy(settings: ProjectSettings, savings: Savings) -> Policy:
    sampling = settings.sampling.model_copy(update={"enabled": settings.sampling.enabled and savings.sampling})
    update = {
        "gate_cascade": settings.gate_cascade and savings.gates,
        "combine_tiers": settings.combine_tiers or savings.combined,
        "sampling": sampling,
        "cost_cap_per_session": None,
    }
    return Policy(defaults=settings.model_copy(update=update))


def _tasks(records: Iterable[Exchange | SessionClosed], policy: Policy) -> Iterator[ScoringTask]:
    """Return the tasks of the exchanges that intake selects for judging."""
    decoded = decode_batch([encode(record) for record in records])
    frames = {name: frame.rename({INDEX: OFFSET}) for name, frame in decoded.frames.items()}
    outcome = IntakeStep(policy)(StageBatch.of("exchanges", frames), {})
    return (record for _, record in outcome.records if isinstance(record, ScoringTask))


def _texts(parsed: ParsedRequest) -> list[str]:
    """Return everything that the model reads."""
    return [canonical_json(parsed.structured), *(block.text for block in parsed.blocks)]


def _usage(parsed: ParsedRequest, answer_text: str, cache: PrefixCache) -> Usage:
    used = cache.usage(parsed, answer_text)
    return Usage(
        used["input_tokens"], used["output_tokens"], used["cache_creation_input_tokens"], used["cache_read_input_tokens"]
    )


_TIERS = (TIER2, TIER2_5, TIER3, TIERS_2_AND_3)
_MILLION = 1_000_000
PROJECTED = ("as configured", "without sampling", "without any of them")
"""The variants that are projected to a million exchanges."""
Ledger = Sequence[Mapping[str, Any]]
"""Rows of the query `judge_costs`, by project."""


def cost_report(
    ledger: Ledger,
    agents: Mapping[str, str],
    records: Sequence[Exchange | SessionClosed],
    settings: ProjectSettings,
    strictness: Strictness,
) -> RenderableType:
    """Report the cost of the recorded calls and the cost without each saving; `agents` has the agent of each project."""
    estimate = Estimate(records, settings, strictness)
    bills = {name: estimate.bill(savings) for name, savings in VARIANTS.items()}
    configured = bills["as configured"]
    return Group(
        heading(f"Judging costs at the prices of {settings.judge_model}; {SIMULATED}, so nothing was paid"),
        _agents_table(ledger, agents, configured),
        heading("Cost without each saving (the same exchanges in the same order)"),
        _variants_table(bills),
        Text(_compared(ledger, configured), style="dim"),
        heading("Cost of a million such exchanges, by judge model"),
        _models_table(estimate, sum(isinstance(record, Exchange) for record in records)),
    )


def _models() -> Mapping[str, ListedPrice]:
    """Return the models with a known price, each by its first name."""
    first_names = {id(price): name for name, price in reversed([*shipped_prices().items()])}
    return {name: price for name, price in shipped_prices().items() if first_names[id(price)] == name}


def _models_table(estimate: Estimate, exchanges: int) -> RenderableType:
    cells = [
        [
            model,
            *(f"${estimate.bill(VARIANTS[name], model).usd * _MILLION / exchanges:,.0f}" for name in PROJECTED),
            f"{price.read_on}",
        ]
        for model, price in _models().items()
    ]
    return table(["model", *PROJECTED, "prices of"], cells, right=PROJECTED)


def _agents_table(ledger: Ledger, agents: Mapping[str, str], configured: Bill) -> RenderableType:
    """Show costs by agent; the counts are from the ledger.

    The cost assumes the exchanges in order. Delivered concurrently they may arrive in another order, and the first one pays for filling
    the cache, so costs by agent differ a little between runs.
    """
    cells = [
        [
            agents[row["project"]],
            f"{row['calls']:,}",
            f"{_prompt(row):,}",
            f"{row['output_tokens']:,}",
            f"${configured.by_agent[agents[row['project']]].usd:.3f}",
        ]
        for row in sorted(ledger, key=lambda row: agents[row["project"]])
    ]
    calls, prompt, output = _recorded(ledger)
    cells.append(["all", f"{calls:,}", f"{prompt:,}", f"{output:,}", f"${configured.usd:.3f}"])
    numbers = ["calls", "tokens read", "written", "cost"]
    return table(["agent", *numbers], cells, right=numbers)


def _variants_table(bills: Mapping[str, Bill]) -> RenderableType:
    least = bills["as configured"].nano
    cells = [
        [
            name,
            f"{variant.calls.total():,}",
            *(f"{variant.calls[tier]:,}" for tier in _TIERS),
            f"{variant.input_tokens:,}",
            f"{variant.cached_tokens:,}",
            f"{variant.output_tokens:,}",
            f"${variant.usd:.4f}",
            f"{variant.nano / least:.2f}" if least else "",
        ]
        for name, variant in bills.items()
    ]
    numbers = ["calls", "tier 2", "tier 2.5", "tier 3", "2 and 3", "tokens read", "from cache", "written", "cost", "times"]
    return table(["", *numbers], cells, right=numbers, cut_last=True)


def _compared(ledger: Ledger, configured: Bill) -> str:
    """Tell whether the bill equals the ledger."""
    usd = sum(row["cost_usd"] or 0.0 for row in ledger)
    calls, *tokens = _recorded(ledger)
    repeated_calls = calls - sum(row["judgements"] for row in ledger)
    if [calls, *tokens] == [configured.calls.total(), configured.input_tokens, configured.output_tokens]:
        result = "the bill as configured agrees with it, to the token"
    else:
        result = f"{repeated_calls} of them were made again" if repeated_calls else "some of them took another path"
    return f"The server's ledger has {calls:,} calls for ${usd:.4f}: {result}."


def _prompt(row: Mapping[str, Any]) -> int:
    """Count every token that was read, cached or not."""
    return int(row["input_tokens"] + row["cache_write_tokens"] + row["cache_read_tokens"])


def _recorded(ledger: Ledger) -> tuple[int, int, int]:
    """Count calls, tokens read and tokens written."""
    return (
        sum(row["calls"] for row in ledger),
        sum(map(_prompt, ledger)),
        sum(row["output_tokens"] for row in ledger),
    )
