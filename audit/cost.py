"""Prices, the cost of a call, its largest possible cost, and a session's spending under its cap.

Prices are dated, and money is exact integer nano-USD. The largest possible cost of a call is reserved before the call, so concurrent
calls cannot exceed the cap together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cache, lru_cache
from importlib import resources
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from audit.settings_files import Document

NANO = 10**9
"""Nano-USD per USD."""
OVERHEAD_TOKENS = 1000
"""Most input tokens of a request beyond the texts of its question: roles, fences, what the API adds for a schema."""
BYTES_A_TOKEN = 8
"""Most bytes per token of a prompt on average; English prose has four to five."""
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$"
"""The pattern of a model's name."""
CacheLife = Literal["5m", "1h"]
"""How long the prompt cache keeps an entry."""
UsdPerMillion = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more calls, as the API reports them.

    `input_tokens` excludes tokens read from or written to the cache.
    """

    input_tokens: int
    output_tokens: int
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens that the model read, including those from the cache."""
        return self.input_tokens + self.cache_write_tokens + self.cache_read_tokens


class Request(Protocol):
    """The properties of a question that its cost depends on."""

    @property
    def texts_size(self) -> int:
        """Most tokens of its texts: one per byte."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of the answer."""


class ShortRequest(Request, Protocol):
    """A request whose answer may have fewer tokens if money is short."""

    @property
    def least_tokens(self) -> int:
        """Fewest tokens to ask for."""


@dataclass(frozen=True, slots=True)
class PromptBound:
    """Most tokens of the prompt of one call."""

    tokens: int
    written: int
    """Most of these that the prompt cache may write."""


class _PriceModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True)


class Rates(_PriceModel):
    """The prices of tokens, in USD per million."""

    input: UsdPerMillion
    """For what the model reads."""
    output: UsdPerMillion
    """For what it writes."""
    batch_input: UsdPerMillion | None = None
    """Through the batch API; None is unknown."""
    batch_output: UsdPerMillion | None = None
    """Through the batch API; None is unknown."""

    def per_token(self, *, batched: bool) -> tuple[Fraction, Fraction] | None:
        """Return nano-USD per token of input and of output; None if unknown."""
        pair = self._listed(batched=batched)
        return None if pair is None else (_exactly(pair[0]) * 1000, _exactly(pair[1]) * 1000)

    def at_most(self, *, batched: bool) -> list[tuple[float, float]]:
        """Return the rates that `per_token` may return.

        A single call may later count as batched, but not the other way round.
        """
        pairs = [self._listed(batched=True), self._listed(batched=False)]
        upper_rates = [pair for pair in pairs if pair is not None]
        return upper_rates[:1] if batched else upper_rates

    def _listed(self, *, batched: bool) -> tuple[float, float] | None:
        """Return USD per million tokens of input and of output; None if unknown."""
        pair = (self.batch_input, self.batch_output) if batched else (self.input, self.output)
        return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


@lru_cache(maxsize=4096)
def _exactly(number: float) -> Fraction:
    """Return a price exactly as written: 0.1 instead of the nearest binary fraction."""
    return Fraction(str(number))


class PriceStep(Rates):
    """Rates of a request with a long prompt; they hold for all of its tokens, the output too."""

    above: Tokens
    """Prompt tokens, the cached ones too, beyond which they hold."""


class CacheTerms(_PriceModel):
    """The terms of the prompt cache, as factors of the price of input."""

    minimum: Tokens | None = None
    """Tokens of the smallest prefix that is cached; a shorter one is silently not. None is unknown."""
    write: Factor = 1.25
    """For what is kept for five minutes."""
    write_hour: Factor = 2.0
    """For what is kept for an hour."""
    read: Factor = 0.1

    def writing(self, life: CacheLife) -> Fraction:
        """Return the factor for a token that is written to the cache."""
        return _exactly(self.write_factor(life))

    def write_factor(self, life: CacheLife) -> float:
        """The same as it is listed."""
        return self.write if life == "5m" else self.write_hour


class ModelPrice(Rates):
    """The price of a model with its source, and other properties that the cost of a call depends on."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """The place where the price was read."""
    read_on: Annotated[date, Field(strict=False)]
    """The day on which it was read."""
    steps: Annotated[tuple[PriceStep, ...], Field(max_length=16)] = ()
    """Other rates for longer prompts, rising."""
    cache: CacheTerms = CacheTerms()
    switch_off_thinking: bool = False
    """True for a model that thinks by default: for judging, thinking is switched off."""

    @field_validator("steps")
    @classmethod
    def _steps_rise(cls, steps: tuple[PriceStep, ...]) -> tuple[PriceStep, ...]:
        bounds = [step.above for step in steps]
        if bounds != sorted(set(bounds)):
            raise ValueError("each step must begin above the one before it")
        return steps

    @property
    def cache_minimum(self) -> int | None:
        """Tokens of the smallest prefix that is cached; None if unknown."""
        return self.cache.minimum

    def cost(self, usage: Usage, *, batched: bool = False, cache_life: CacheLife = "5m") -> int | None:
        """Return the cost of one call in nano-USD, rounded up; None if the price is unknown."""
        *_, rates = self._reached(usage.prompt_tokens)
        tokens = rates.per_token(batched=batched)
        if tokens is None:
            return None
        read = usage.input_tokens + usage.cache_write_tokens * self.cache.writing(cache_life)
        read += usage.cache_read_tokens * _exactly(self.cache.read)
        return math.ceil(read * tokens[0] + usage.output_tokens * tokens[1])

    def worst_case(self, texts_size: int, max_tokens: int, *, batched: bool = False, cache_life: CacheLife = "5m") -> int:
        """Return the largest possible cost of one call in nano-USD; for a batched one at batch prices, if known.

        It assumes one token per byte of the texts, the overhead, the highest price of input, and every token of the answer.
        """
        most = texts_size + OVERHEAD_TOKENS
        return self.most(PromptBound(most, written=most), max_tokens, batched=batched, cache_life=cache_life)

    def most(self, prompt: PromptBound, max_tokens: int, *, batched: bool = False, cache_life: CacheLife = "5m") -> int:
        """Return the largest possible cost in nano-USD of a call whose prompt and answer have at most these tokens."""
        factors = (self.cache.write_factor(cache_life), self.cache.read)
        return max(
            _bound(*rates, *factors).nano(prompt, max_tokens)
            for reached in self._reached(prompt.tokens)
            for rates in reached.at_most(batched=batched)
        )

    def _reached(self, prompt_tokens: int) -> Iterator[Rates]:
        """Return the rates for prompts up to this size, the actual one's last."""
        yield self
        yield from (step for step in self.steps if step.above < prompt_tokens)


@lru_cache(maxsize=4096)
def _bound(read_usd: float, answer_usd: float, write_factor: float, read_factor: float) -> _Bound:
    """Return the exact bound at these rates, in USD per million tokens, and these cache factors."""
    highest = max(Fraction(1), _exactly(write_factor), _exactly(read_factor))
    read, answered = _exactly(read_usd) * 1000, _exactly(answer_usd) * 1000
    written = read * (highest - 1)
    divisor = math.lcm(read.denominator, written.denominator, answered.denominator)
    return _Bound(int(read * divisor), int(written * divisor), int(answered * divisor), divisor)


class _Bound(NamedTuple):
    """The largest possible cost of a call as whole numbers, whose sum is divided by `divisor`.

    One number is per token read, one per token that is also written to the cache, and one per token of the answer.
    """

    read: int
    written: int
    answered: int
    divisor: int

    def nano(self, prompt: PromptBound, max_tokens: int) -> int:
        """Return the bound in nano-USD, rounded up."""
        whole = self.read * prompt.tokens + self.written * prompt.written + self.answered * max_tokens
        return -(-whole // self.divisor)


@lru_cache(4096)
def nano_of(usd: float) -> int:
    """Convert USD to the nearest nano-USD; inverse of `usd_of`. Raises ValueError or OverflowError for NaN and infinities."""
    numerator, denominator = usd.as_integer_ratio()
    whole, rest = divmod(numerator * NANO, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2))


def usd_of(nano: int) -> float:
    """Convert nano-USD to USD."""
    return nano / NANO


@cache
def shipped_prices() -> Mapping[str, ModelPrice]:
    """Return the shipped prices by every name of a model."""
    with resources.as_file(resources.files("audit").joinpath("models.yaml")) as path:
        listed = Document(path).validate(_PriceList).models
    return {name: price for model, price in listed.items() for name in (model, *price.aliases)}


class _ListedModel(ModelPrice):
    aliases: tuple[Annotated[str, StringConstraints(pattern=MODEL_NAME)], ...] = ()


class _PriceList(_PriceModel):
    models: dict[str, _ListedModel]


def price_of(model: str, own: Mapping[str, ModelPrice]) -> ModelPrice | None:
    """Return the price of a model: the configured one under any of its names, else the shipped one; None if unknown.

    Properties of cache and thinking that the configured price omits are taken from the shipped one.
    """
    shipped = shipped_prices().get(model)
    if shipped is None:
        return own.get(model)
    names = (model, *(name for name, price in shipped_prices().items() if price is shipped))
    found = next((own[name] for name in names if name in own), None)
    if found is None:
        return shipped
    unsaid = {"cache", "switch_off_thinking"} - found.model_fields_set
    return found.model_copy(update={name: getattr(shipped, name) for name in unsaid})


def worst_case(question: Request, price: ModelPrice, *, batched: bool = False) -> int:
    """Return the largest possible cost in nano-USD of asking the question once, by itself or in a batch."""
    return price.worst_case(question.texts_size, question.max_tokens, batched=batched)


def least_case(question: ShortRequest, price: ModelPrice) -> int:
    """Return the smallest budget in nano-USD worth trying: for a prompt that tokenizes well, and a short answer."""
    return price.most(PromptBound(question.texts_size // BYTES_A_TOKEN, written=0), question.least_tokens)


def believable(usage: Usage | None, question: Request) -> bool:
    """Return whether one call of the question can have this usage: at least one token was read, and no more than possible.

    Servers that imitate the API may report nothing or zeros; implausible usage is charged at the largest possible cost.
    """
    if usage is None:
        return False
    parts = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
    within = usage.prompt_tokens <= question.texts_size + OVERHEAD_TOKENS and usage.output_tokens <= question.max_tokens
    return within and min(parts) >= 0 and usage.prompt_tokens > 0


class Ledger:
    """Spent and reserved money under a cap; None is no cap."""

    def __init__(self, cap: int | None, spent: int = 0) -> None:
        self._cap = cap
        self._spent = spent
        self._reserved = 0

    @property
    def cap(self) -> int | None:
        """The cap in nano-USD."""
        return self._cap

    @property
    def spent(self) -> int:
        """The cost of the calls so far."""
        return self._spent

    @property
    def reserved(self) -> int:
        """The amount reserved for calls with an unknown outcome."""
        return self._reserved

    def can_reserve(self, amount: int) -> bool:
        """Return whether the cap leaves room for an amount. With a cap of 0 there is room for free calls."""
        return self._cap is None or self._spent + self._reserved + _amount(amount) <= self._cap

    def reserve(self, amount: int) -> bool:
        """Reserve an amount; returns False without reserving if the cap leaves no room."""
        if not self.can_reserve(amount):
            return False
        self._reserved += _amount(amount)
        return True

    def settle(self, amount: int, cost: int) -> None:
        """Charge a reserved call; raises ValueError for more than its reservation.

        A call with an unknown outcome is charged its whole reservation.
        """
        if _amount(cost) > amount:
            raise ValueError(f"a call cost {cost} nano-USD and {amount} were reserved for it")
        self.release(amount)
        self._spent += cost

    def release(self, amount: int) -> None:
        """Release the reservation of a call that was not made or was free; raises ValueError for more than is reserved."""
        if _amount(amount) > self._reserved:
            raise ValueError(f"{amount} nano-USD to give back and {self._reserved} are reserved")
        self._reserved -= amount

    def charge(self, cost: int) -> None:
        """Add an earlier payment. It may exceed the cap."""
        self._spent += _amount(cost)


def _amount(nano: int) -> int:
    if nano < 0:
        raise ValueError(f"an amount of money cannot be negative: {nano} nano-USD")
    return nano
