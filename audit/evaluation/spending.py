"""Tokens and costs of a run. Nothing is guessed: unknown values are null.

1. Every exchange counts, abandoned ones too: they were paid for. An exchange that no model answered took nothing.
2. Tokens are those of the exchanges where all of them tell, else those of the token_usage events where all of those do.
3. The cost is that of the token_usage events where they tell no less than the exchanges do, because they know what came out of
   the prompt cache; else that of the exchanges, with all they read at the price of input; else what the source itself counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.cost.prices import ModelPrice, Usage, price_of, usd_of
from audit.diagnosis.events import MAX_TOKENS, token_total
from schemas.records import Exchange

_INPUT = ("input", "input_tokens", "prompt_tokens")
_OUTPUT = ("output", "output_tokens", "completion_tokens")
_READ = ("cache_read", "cache_read_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write", "cache_write_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class Spending:
    """Tokens and USD of a run; null means missing, not zero."""

    input_tokens: int | None
    output_tokens: int | None
    reported_tokens: int | None
    """Tokens, read and written together, as token_usage events tell them."""
    cost_usd: float | None


UNKNOWN = Spending(None, None, None, None)
"""The spending of a run that is not known in full."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One exchange or token_usage event."""

    model: str | None
    usage: Usage | None
    reported: int | None = None
    cost_usd: float | None = None


def spending_of(
    exchanges: Sequence[Exchange], events: Iterable[Mapping[str, Any]], model: str | None, prices: Mapping[str, ModelPrice]
) -> Spending:
    """Add up the run's spending.

    `model` is the agent's where a part names none; `prices` are one's own, before the shipped ones.
    """
    answers = [_of_exchange(exchange, model) for exchange in exchanges if _was_answered(exchange)]
    calls = [_of_event(event, model) for event in events if event.get("event") == "token_usage"]
    tokens = _total(answers) or _total(calls)
    reported = [part.reported for part in calls]
    return Spending(
        input_tokens=tokens.prompt_tokens if tokens else None,
        output_tokens=tokens.output_tokens if tokens else None,
        reported_tokens=sum(filter(None, reported)) if reported and None not in reported else None,
        cost_usd=_cost(answers, calls, prices),
    )


def _was_answered(exchange: Exchange) -> bool:
    known = exchange.input_tokens is not None or exchange.output_tokens is not None
    return known or bool(exchange.agent_response.strip())


def _of_exchange(exchange: Exchange, model: str | None) -> _Part:
    read, written = exchange.input_tokens, exchange.output_tokens
    usage = None if read is None or written is None else Usage(read, written)
    return _Part(exchange.agent_model or model, usage)


def _of_event(event: Mapping[str, Any], model: str | None) -> _Part:
    given = event.get("usage")
    source = given if isinstance(given, Mapping) else event
    read, written = _count(source, _INPUT), _count(source, _OUTPUT)
    usage = None
    if read is not None and written is not None:
        usage = Usage(read, written, _count(source, _WRITTEN) or 0, _count(source, _READ) or 0)
    named, cost = event.get("model"), source.get("cost_usd")
    return _Part(
        named if isinstance(named, str) and named else model,
        usage,
        token_total(event) if usage is None else usage.prompt_tokens + usage.output_tokens,
        float(cost) if (type(cost) is int or type(cost) is float) and 0 <= cost < MAX_TOKENS else None,
    )


def _count(source: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first of these fields that is a number from 0."""
    for name in names:
        value = source.get(name)
        if (type(value) is int or type(value) is float) and value >= 0:
            return int(min(value, MAX_TOKENS))
    return None


def _total(parts: Sequence[_Part]) -> Usage | None:
    """All tokens together; None where a part does not tell them, and where there is no part."""
    usages = [part.usage for part in parts if part.usage is not None]
    if not parts or len(usages) < len(parts):
        return None
    return Usage(sum(usage.prompt_tokens for usage in usages), sum(usage.output_tokens for usage in usages))


def _cost(answers: Sequence[_Part], calls: Sequence[_Part], prices: Mapping[str, ModelPrice]) -> float | None:
    of_answers, of_calls = _total(answers), _total(calls)
    ways = [calls, answers] if of_calls and (of_answers is None or _sum(of_calls) >= _sum(of_answers)) else [answers]
    costs = (_priced(parts, prices) for parts in ways)
    known = next((cost for cost in costs if cost is not None), None)
    if known is not None:
        return known
    counted = [part.cost_usd for part in calls]
    # Sources write 0 for a model whose price they do not know.
    return math.fsum(filter(None, counted)) or None if None not in counted else None


def _sum(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens


def _priced(parts: Sequence[_Part], prices: Mapping[str, ModelPrice]) -> float | None:
    """USD of all parts; None where the tokens or the price of one are unknown, and without any."""
    costs = []
    for part in parts:
        price = price_of(part.model, prices) if part.model else None
        costs.append(price.cost(part.usage) if price is not None and part.usage is not None else None)
    known = [cost for cost in costs if cost is not None]
    return usd_of(sum(known)) if parts and len(known) == len(parts) else None
