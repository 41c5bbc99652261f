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
"""Maximum input tokens of a request beyond the texts of its question: roles, fences, and the API's additions for a schema."""
MAX_BYTES_PER_TOKEN = 8
"""Maximum average of bytes per token of a prompt; English prose has four to five."""
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
        """Maximum number of tokens of its texts: one per byte."""

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of the answer."""


class ShortRequest(Request, Protocol):
    """A request whose answer may have fewer tokens if the budget is low."""

    @property
    def min_tokens(self) -> int:
        """Minimum number of answer tokens to request."""


@dataclass(frozen=True, slots=True)
class PromptBound:
    """Maximum number of tokens of the prompt of one call."""

    tokens: int
    written: int
    """Maximum number of these tokens that may be written to the prompt cache."""


class _PriceModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True)


class Rates(_PriceModel):
    """The prices of tokens, in USD per million."""

    input: UsdPerMillion
    """Price of input tokens."""
    output: UsdPerMillion
    """Price of output tokens."""
    batch_input: UsdPerMillion | None = None
    """Price of input tokens through the batch API; None is unknown."""
    batch_output: UsdPerMillion | None = None
    """Price of output tokens through the batch API; None is unknown."""

    def per_token(self, *, batched: bool) -> tuple[Fraction, Fraction] | None:
        """Return nano-USD per token of input and of output; None if unknown."""
        rates = self._usd_per_million(batched=batched)
        if rates is None:
            return None
        input_rate, output_rate = rates
        return _exact(input_rate) * 1000, _exact(output_rate) * 1000

    def possible_rates(self, *, batched: bool) -> list[tuple[float, float]]:
        """Return the rates, in USD per million tokens, at which a call may be charged.

        A single call may be charged at batch rates, but a batched call is never charged at the rates of single calls if batch rates
        are known.
        """
        single = self._usd_per_million(batched=False)
        batch = self._usd_per_million(batched=True)
        rates = [pair for pair in (batch, single) if pair is not None]
        return rates[:1] if batched else rates

    def _usd_per_million(self, *, batched: bool) -> tuple[float, float] | None:
        """Return USD per million tokens of input and of output; None if unknown."""
        if not batched:
            return self.input, self.output
        if self.batch_input is None or self.batch_output is None:
            return None
        return self.batch_input, self.batch_output


@lru_cache(maxsize=4096)
def _exact(number: float) -> Fraction:
    """Return a price exactly as written: 0.1 instead of the nearest binary fraction."""
    return Fraction(str(number))


class PriceStep(Rates):
    """Rates of a request with a long prompt; they apply to all of its tokens, including the output."""

    above: Tokens
    """Number of prompt tokens, including cached ones, above which the rates apply."""


class CacheTerms(_PriceModel):
    """The terms of the prompt cache, as factors of the price of input."""

    minimum: Tokens | None = None
    """Minimum tokens of a cached prefix; the API silently does not cache shorter ones. None is unknown."""
    write: Factor = 1.25
    """For tokens that are cached for five minutes."""
    write_hour: Factor = 2.0
    """For tokens that are cached for an hour."""
    read: Factor = 0.1
    """For tokens that are read from the cache."""

    def exact_write_factor(self, life: CacheLife) -> Fraction:
        """Return the factor for a token that is written to the cache, as an exact fraction."""
        return _exact(self.write_factor(life))

    def write_factor(self, life: CacheLife) -> float:
        """Return the factor for a token that is written to the cache."""
        return self.write if life == "5m" else self.write_hour


class ModelPrice(Rates):
    """The price of a model, and other properties that the cost of a call depends on."""

    steps: Annotated[tuple[PriceStep, ...], Field(max_length=16)] = ()
    """Other rates for longer prompts, in ascending order."""
    cache: CacheTerms = CacheTerms()
    switch_off_thinking: bool = False
    """True for a model that thinks by default: for judging, thinking is switched off."""

    @field_validator("steps")
    @classmethod
    def _require_ascending(cls, steps: tuple[PriceStep, ...]) -> tuple[PriceStep, ...]:
        bounds = [step.above for step in steps]
        if bounds != sorted(set(bounds)):
            raise ValueError("each step must have a larger `above` than the previous step")
        return steps

    @property
    def cache_minimum(self) -> int | None:
        """Minimum tokens of a cached prefix; None if unknown."""
        return self.cache.minimum

    def cost(self, usage: Usage, *, batched: bool = False, cache_life: CacheLife = "5m") -> int | None:
        """Return the cost of one call in nano-USD, rounded up; None if the price is unknown."""
        *_, rates = self._rates_up_to(usage.prompt_tokens)
        per_token = rates.per_token(batched=batched)
        if per_token is None:
            return None
        input_rate, output_rate = per_token
        weighted_input = (
            usage.input_tokens
            + usage.cache_write_tokens * self.cache.exact_write_factor(cache_life)
            + usage.cache_read_tokens * _exact(self.cache.read)
        )
        return math.ceil(weighted_input * input_rate + usage.output_tokens * output_rate)

    def cost_of_calls(self, usage: Usage) -> int | None:
        """Return the cost in nano-USD of the tokens of many calls; None if the price is unknown.

        Rates of long prompts depend on the single call, so they are left out.
        """
        return self.model_copy(update={"steps": ()}).cost(usage)

    def max_cost(self, texts_size: int, max_tokens: int, *, batched: bool = False, cache_life: CacheLife = "5m") -> int:
        """Return the largest possible cost of one call in nano-USD; a batched call is charged at batch prices, if known.

        It assumes one token per byte of the texts, the overhead, the highest price of input, and every token of the answer.
        """
        tokens = texts_size + OVERHEAD_TOKENS
        return self.max_prompt_cost(PromptBound(tokens, written=tokens), max_tokens, batched=batched, cache_life=cache_life)

    def max_prompt_cost(
        self, prompt: PromptBound, max_tokens: int, *, batched: bool = False, cache_life: CacheLife = "5m"
    ) -> int:
        """Return the largest possible cost in nano-USD of a call whose prompt and answer have at most these tokens."""
        factors = (self.cache.write_factor(cache_life), self.cache.read)
        return max(
            _exact_bound(*pair, *factors).nano(prompt, max_tokens)
            for rates in self._rates_up_to(prompt.tokens)
            for pair in rates.possible_rates(batched=batched)
        )

    def _rates_up_to(self, prompt_tokens: int) -> Iterator[Rates]:
        """Yield the rates for prompts of up to this size in ascending order; the last ones are those of this size."""
        yield self
        yield from (step for step in self.steps if step.above < prompt_tokens)


@lru_cache(maxsize=4096)
def _exact_bound(input_usd: float, output_usd: float, write_factor: float, read_factor: float) -> _CostBound:
    """Return the exact bound at these rates, in USD per million tokens, and these cache factors."""
    highest_factor = max(Fraction(1), _exact(write_factor), _exact(read_factor))
    read = _exact(input_usd) * 1000
    written = read * (highest_factor - 1)
    answered = _exact(output_usd) * 1000
    divisor = math.lcm(read.denominator, written.denominator, answered.denominator)
    return _CostBound(int(read * divisor), int(written * divisor), int(answered * divisor), divisor)


class _CostBound(NamedTuple):
    """The largest possible cost of a call as whole numbers, whose sum is divided by `divisor`."""

    read: int
    """Per token of the prompt."""
    written: int
    """Additional cost per token that is written to the cache."""
    answered: int
    """Per token of the answer."""
    divisor: int

    def nano(self, prompt: PromptBound, max_tokens: int) -> int:
        """Return the bound in nano-USD, rounded up."""
        multiple = self.read * prompt.tokens + self.written * prompt.written + self.answered * max_tokens
        return -(-multiple // self.divisor)


@lru_cache(4096)
def nano_of(usd: float) -> int:
    """Convert USD to the nearest nano-USD; inverse of `usd_of`. Raises ValueError or OverflowError for NaN and infinities."""
    numerator, denominator = usd.as_integer_ratio()
    quotient, remainder = divmod(numerator * NANO, denominator)
    rounds_up = 2 * remainder > denominator or (2 * remainder == denominator and quotient % 2 == 1)
    return quotient + 1 if rounds_up else quotient


def usd_of(nano: int) -> float:
    """Convert nano-USD to USD."""
    return nano / NANO


@cache
def shipped_prices() -> Mapping[str, ListedPrice]:
    """Return the shipped prices by the names of their models, including aliases."""
    with resources.as_file(resources.files("audit").joinpath("models.yaml")) as path:
        models = Document(path).validate(_PriceList).models
    return {name: price for model, price in models.items() for name in (model, *price.aliases)}


class ListedPrice(ModelPrice):
    """A price with its source."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """The source of the price, such as the address of a page."""
    read_on: Annotated[date, Field(strict=False)]
    """The day on which the price was looked up."""


class _ListedModel(ListedPrice):
    aliases: tuple[Annotated[str, StringConstraints(pattern=MODEL_NAME)], ...] = ()


class _PriceList(_PriceModel):
    models: dict[str, _ListedModel]


def price_of(model: str, configured_prices: Mapping[str, ModelPrice]) -> ModelPrice | None:
    """Return the price of a model: the configured one under any of its names, else the shipped one; None if unknown.

    Properties of cache and thinking that the configured price omits are taken from the shipped one.
    """
    shipped = shipped_prices().get(model)
    if shipped is None:
        return configured_prices.get(model)
    names = (model, *(name for name, price in shipped_prices().items() if price is shipped))
    configured = next((configured_prices[name] for name in names if name in configured_prices), None)
    if configured is None:
        return shipped
    omitted = {"cache", "switch_off_thinking"} - configured.model_fields_set
    return configured.model_copy(update={name: getattr(shipped, name) for name in omitted})


TYPICAL_PROMPT, TYPICAL_INSTRUCTIONS, TYPICAL_ANSWER = 1_722, 1_563, 120
"""Tokens of a typical question, of its instructions, which can be cached, and of its answer: the means of `python -m benchmarks judging`."""


def typical_cost(price: ModelPrice) -> int:
    """Return the cost in nano-USD of a typical question whose instructions are cached, if the model caches such short ones."""
    minimum = price.cache_minimum
    cached = TYPICAL_INSTRUCTIONS if minimum is not None and minimum <= TYPICAL_INSTRUCTIONS else 0
    return price.cost(Usage(TYPICAL_PROMPT - cached, TYPICAL_ANSWER, cache_read_tokens=cached)) or 0


def max_cost(question: Request, price: ModelPrice, *, batched: bool = False) -> int:
    """Return the largest possible cost in nano-USD of asking the question once, by itself or in a batch."""
    return price.max_cost(question.texts_size, question.max_tokens, batched=batched)


def min_budget(question: ShortRequest, price: ModelPrice) -> int:
    """Return the smallest budget in nano-USD worth trying: enough for a prompt with few tokens and a short answer."""
    prompt = PromptBound(question.texts_size // MAX_BYTES_PER_TOKEN, written=0)
    return price.max_prompt_cost(prompt, question.min_tokens)


def is_plausible(usage: Usage | None, question: Request, answer_tokens: int | None = None) -> bool:
    """Return whether one call of the question can have this usage: at least one token was read, and no more than possible.

    `answer_tokens` is the largest answer that was allowed; None is the question's own limit.
    Servers that imitate the API may report nothing or zeros; implausible usage is charged at the largest possible cost.
    """
    if usage is None:
        return False
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
    return (
        min(counts) >= 0
        and 0 < usage.prompt_tokens <= question.texts_size + OVERHEAD_TOKENS
        and usage.output_tokens <= (answer_tokens or question.max_tokens)
    )


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
        return self._cap is None or self._spent + self._reserved + _require_amount(amount) <= self._cap

    def reserve(self, amount: int) -> bool:
        """Reserve an amount; returns False without reserving if the cap leaves no room."""
        if not self.can_reserve(amount):
            return False
        self._reserved += _require_amount(amount)
        return True

    def settle(self, amount: int, cost: int) -> None:
        """Charge a reserved call; raises ValueError for more than its reservation.

        A call with an unknown outcome is charged its whole reservation.
        """
        if _require_amount(cost) > amount:
            raise ValueError(f"a call cost {cost} nano-USD, but only {amount} were reserved for it")
        self.release(amount)
        self._spent += cost

    def release(self, amount: int) -> None:
        """Release the reservation of a call that was not made or was free; raises ValueError for more than is reserved."""
        if _require_amount(amount) > self._reserved:
            raise ValueError(f"cannot release {amount} nano-USD: only {self._reserved} are reserved")
        self._reserved -= amount

    def charge(self, cost: int) -> None:
        """Add the cost of an earlier call. It may exceed the cap."""
        self._spent += _require_amount(cost)


def _require_amount(nano: int) -> int:
    if nano < 0:
        raise ValueError(f"an amount of money cannot be negative: {nano} nano-USD")
    return nano
