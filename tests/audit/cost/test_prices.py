"""Prices: dated, exact, unknown rather than zero, and with an upper bound for every plausible call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from audit.cost import (
    NANO,
    OVERHEAD_TOKENS,
    ListedPrice,
    ModelPrice,
    Usage,
    is_plausible,
    max_cost,
    nano_of,
    price_of,
    shipped_prices,
    usd_of,
)

MILLION = 1_000_000
HAIKU = shipped_prices()["claude-haiku-4-5"]
LONG = shipped_prices()["claude-haiku-5-5"]


@dataclass
class QuestionSize:
    """The properties of a question that its cost depends on."""

    texts_size: int
    max_tokens: int


def price(**fields: Any) -> ModelPrice:
    """Return a price with defaults for the fields that are not given."""
    return ListedPrice(**{"source": "a test", "read_on": date(2026, 11, 21), "input": 3.0, "output": 15.0} | fields)


tokens = st.integers(0, 400_000)
usages = st.builds(Usage, tokens, tokens, tokens, tokens)
prices = st.sampled_from([*shipped_prices().values(), price(cache={"write": 0.5, "write_hour": 0.5, "read": 0.5})])


def test_haiku_has_the_current_list_price() -> None:
    """The outdated 0.80 and 4.00 would let a session exceed its cap by a quarter."""
    assert HAIKU.cost(Usage(MILLION, 0)) == 1 * NANO
    assert HAIKU.cost(Usage(0, MILLION)) == 5 * NANO
    assert nano_of(0.5) == HAIKU.cost(Usage(MILLION, 0), batched=True)
    assert nano_of(2.5) == HAIKU.cost(Usage(0, MILLION), batched=True)


@pytest.mark.parametrize("name", sorted(shipped_prices()))
def test_every_price_has_a_source_and_a_date(name: str) -> None:
    """Only a date shows whether a price is outdated."""
    shipped = shipped_prices()[name]
    assert shipped.source.startswith("https://")
    assert date(2026, 11, 21) <= shipped.read_on


def test_a_model_has_one_price_under_all_its_names() -> None:
    """The dated name of a model is the same model, so its price must be known."""
    assert HAIKU is shipped_prices()["claude-haiku-4-5-20251001"]
    assert HAIKU is price_of("claude-haiku-4-5-20251001", {})


def test_an_unknown_model_has_no_price() -> None:
    """Unknown is not 0: a cap computed from 0 would have no effect."""
    assert None is price_of("claude-haiku-4", {})
    assert None is price_of("", {})


def test_cached_tokens_have_their_own_prices() -> None:
    """Writing to the cache costs 1.25 (five minutes) or 2 (an hour) times the input price, reading 0.1."""
    assert nano_of(1.25) == HAIKU.cost(Usage(0, 0, cache_write_tokens=MILLION))
    assert nano_of(2.0) == HAIKU.cost(Usage(0, 0, cache_write_tokens=MILLION), cache_life="1h")
    assert nano_of(0.1) == HAIKU.cost(Usage(0, 0, cache_read_tokens=MILLION))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(100_000, 1000), 100_000 * 100 + 1000 * 500),
        (Usage(100_001, 1000), 100_001 * 500 + 1000 * 2500),
        (Usage(50_000, 1000, cache_read_tokens=50_000), 50_000 * 100 + 50_000 * 10 + 1000 * 500),
        (Usage(50_001, 1000, cache_read_tokens=50_000), 50_001 * 500 + 50_000 * 50 + 1000 * 2500),
        (Usage(1, 0, cache_write_tokens=100_000), 1 * 500 + 100_000 * 625),
    ],
)
def test_a_long_prompt_costs_more_from_the_first_token_on(usage: Usage, expected: int) -> None:
    """The step depends on all tokens read, cached or not, and applies to the output as well."""
    assert LONG.cost(usage) == expected


def test_an_unknown_batch_price_stays_unknown() -> None:
    """Half of the long-prompt price would be a guess."""
    assert nano_of(0.05) / 10 == LONG.cost(Usage(100_000, 0), batched=True)
    assert None is LONG.cost(Usage(100_001, 0), batched=True)
    assert None is price(batch_input=1.0).cost(Usage(1, 1), batched=True)


def test_special_properties_of_a_model_are_reported() -> None:
    """A short prefix is silently not cached; a model that thinks by default uses up its tokens before it answers."""
    assert tuple(shipped_prices()[f"claude-{name}"].cache_minimum for name in MODELS) == (4096, 512, None)
    assert tuple(shipped_prices()[f"claude-{name}"].switch_off_thinking for name in MODELS) == (False, True, False)


MODELS = ("haiku-4-5", "haiku-5-5", "sonnet-5-5")


def test_fractions_of_a_nano_dollar_are_rounded_up_once() -> None:
    """Rounding down would let many small calls exceed a cap; rounding each part up would charge too much."""
    assert price(input=0.001, output=0.0015).cost(Usage(1, 1)) == 3
    assert price(input=0.0001, output=0).cost(Usage(1, 1)) == 1
    assert price(input=0, output=0).cost(Usage(MILLION, MILLION)) == 0


@settings(deadline=None)
@given(nano=st.integers(0, 10**15))
def test_money_survives_the_conversion_to_a_record(nano: int) -> None:
    """Records store USD as doubles, so sums are exact only if each amount survives the conversion."""
    assert nano_of(usd_of(nano)) == nano


@pytest.mark.parametrize("amount", [math.nan, math.inf])
def test_an_invalid_amount_is_refused(amount: float) -> None:
    """NaN compares false with every cap."""
    with pytest.raises((ValueError, OverflowError)):
        nano_of(amount)


@settings(deadline=None)
@given(usage=usages, question=st.builds(QuestionSize, st.integers(0, 500_000), st.integers(1, 400_000)), model_price=prices)
def test_no_plausible_call_exceeds_its_worst_case(usage: Usage, question: QuestionSize, model_price: ModelPrice) -> None:
    """The cap relies on it: a reservation bounds the settled amount."""
    if is_plausible(usage, question):
        assert (model_price.cost(usage) or 0) <= max_cost(question, model_price)
        assert (
            (model_price.cost(usage, batched=True) or 0)
            <= max_cost(question, model_price, batched=True)
            <= max_cost(question, model_price)
        )
        hour_bound = model_price.max_cost(question.texts_size, question.max_tokens, cache_life="1h")
        assert (model_price.cost(usage, cache_life="1h") or 0) <= hour_bound


@given(usd=st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6) | st.integers(-(10**9), 10**9).map(lambda n: n / 2**10))
def test_an_amount_is_rounded_to_the_nearest_nano_usd(usd: float) -> None:
    """Integers are rounded like `round`: halves to even."""
    assert nano_of(usd) == round(Fraction(usd) * NANO)


@given(texts_size=tokens, max_tokens=tokens, model_price=prices, batched=st.booleans())
def test_the_worst_case_is_exact(texts_size: int, max_tokens: int, model_price: ModelPrice, *, batched: bool) -> None:
    """A reservation that is too small by one would let a session exceed its cap."""
    input_tokens = texts_size + OVERHEAD_TOKENS
    max_factor = max(Fraction(1), model_price.cache.exact_write_factor("5m"), Fraction(str(model_price.cache.read)))
    steps = [model_price, *(step for step in model_price.steps if step.above < input_tokens)]
    costs = []
    for step in steps:
        batch_rates = step.per_token(batched=True)
        live_rates = step.per_token(batched=False)
        # A batch is reserved at its own price if that is known.
        rates = [live_rates if batch_rates is None else batch_rates] if batched else [batch_rates, live_rates]
        costs += [math.ceil(input_tokens * max_factor * pair[0] + max_tokens * pair[1]) for pair in rates if pair is not None]
    expected = max(costs)
    assert model_price.max_cost(texts_size, max_tokens, batched=batched) == expected


def test_the_worst_case_writes_the_cache_and_uses_every_output_token() -> None:
    """One token per byte plus the overhead at 1.25 times the input price, and every token of output."""
    assert max_cost(QuestionSize(10_000, 500), HAIKU) == 11_000 * 1250 + 500 * 5000
    assert HAIKU.max_cost(10_000, 500, cache_life="1h") == 11_000 * 2000 + 500 * 5000
    assert max_cost(QuestionSize(100_001 - OVERHEAD_TOKENS, 10), LONG) == (100_001 * 625 + 10 * 2500)
    assert max_cost(QuestionSize(100_000 - OVERHEAD_TOKENS, 10), LONG) == (100_000 * 125 + 10 * 500)


def test_a_batch_is_reserved_at_its_own_price_if_known() -> None:
    """Half the price allows twice the questions under one cap; an unknown batch price is assumed to be the full one."""
    assert max_cost(QuestionSize(10_000, 500), HAIKU, batched=True) == 11_000 * 625 + 500 * 2500
    assert max_cost(QuestionSize(100_001 - OVERHEAD_TOKENS, 10), LONG, batched=True) == (100_001 * 625 + 10 * 2500)


def test_the_worst_case_ignores_a_discount_for_long_prompts() -> None:
    """A discount for long prompts may not apply: the number of tokens is unknown before the call."""
    discounted = price(input=10.0, output=10.0, steps=({"above": 1500, "input": 1.0, "output": 1.0},))
    assert max_cost(QuestionSize(1000, 10), discounted) == 2000 * 12_500 + 10 * 10_000


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(1, 0), True),
        (Usage(1100, 50), True),
        (Usage(100, 50, 500, 500), True),
        (None, False),
        (Usage(0, 0), False),
        (Usage(0, 5), False),
        (Usage(1101, 50), False),
        (Usage(101, 50, 500, 500), False),
        (Usage(1, 51), False),
        (Usage(2**63, 5), False),
        (Usage(-1, 5, 10), False),
        (Usage(5, -1), False),
        (Usage(5, 1, -1), False),
        (Usage(5, 1, 0, -1), False),
    ],
)
def test_implausible_usage_is_ignored(usage: Usage | None, expected: bool) -> None:
    """A server that reports zeros would judge for free, and one that reports nonsense would break the ledger."""
    assert is_plausible(usage, QuestionSize(100, 50)) == expected


def test_a_custom_price_applies_to_every_name_of_the_model() -> None:
    """A contract's price applies to any name of the model."""
    own = price(input=7.0)
    assert getattr(price_of("claude-haiku-4-5-20251001", {"claude-haiku-4-5": own}), "input", None) == 7.0
    assert own is price_of("house-model", {"house-model": own})


def test_a_custom_price_keeps_the_other_properties_of_the_model() -> None:
    """A cheaper contract does not stop a model from thinking, but has its own steps."""
    custom_price = price_of("claude-haiku-5-5", {"claude-haiku-5-5": price()})
    assert custom_price is not None
    assert custom_price.switch_off_thinking is True
    assert custom_price.cache_minimum == 512
    assert custom_price.steps == ()
    explicit_price = price_of("claude-haiku-5-5", {"claude-haiku-5-5": price(switch_off_thinking=False, cache={"minimum": 9})})
    assert explicit_price is not None
    assert explicit_price.switch_off_thinking is False
    assert explicit_price.cache_minimum == 9


@pytest.mark.parametrize(
    "fields",
    [
        {"input": -1.0},
        {"output": math.nan},
        {"input": math.inf},
        {"steps": ({"above": 5, "input": 1.0, "output": 1.0}, {"above": 5, "input": 2.0, "output": 1.0})},
        {"steps": ({"above": 0, "input": 1.0, "output": 1.0},)},
        {"source": ""},
        {"cache": {"read": -0.1}},
    ],
)
def test_an_inconsistent_price_is_refused(fields: dict[str, Any]) -> None:
    """Two rates for one prompt size, or a negative price, must be a mistake."""
    with pytest.raises(ValidationError):
        price(**fields)
