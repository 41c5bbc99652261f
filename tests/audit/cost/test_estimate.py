"""Estimates: the cost of a bulk run, at the same prices as the calls."""

from __future__ import annotations

from datetime import date

import pytest
from msgspec.structs import replace

from audit.cost import ListedPrice, max_cost, shipped_prices
from audit.exchanges.questions import EXPECTED_OUTPUT, Estimate, Material, Question, estimate

HAIKU = shipped_prices()["claude-haiku-4-5"]
LONG = shipped_prices()["claude-haiku-5-5"]
QUESTION = Question(
    purpose="tier2",
    model="claude-haiku-4-5",
    instructions="i" * 4 * 600,
    materials=(Material("user_message", "m" * 100),),
    task="t" * 98,
    schema={},
    max_tokens=1000,
    fingerprint="f",
    read=str,
)
"""600 tokens of instructions and 50 of everything else."""
OUTPUT = EXPECTED_OUTPUT["tier2"]


def test_a_prefix_below_the_models_minimum_is_paid_for_each_time() -> None:
    """A short prefix is silently not cached, so an estimate that assumed caching would be too low."""
    expected = Estimate(input=650, output=OUTPUT, cache_read=0, cache_write=0, nano=650 * 1000 + OUTPUT * 5000)
    assert estimate(QUESTION, HAIKU, cached=True) == estimate(QUESTION, HAIKU, cached=False) == expected


def test_a_longer_prefix_is_written_once_and_read_afterwards() -> None:
    """Bulk runs are cheap because they share the instructions."""
    first_call = Estimate(input=50, output=OUTPUT, cache_read=0, cache_write=600, nano=50 * 100 + 600 * 125 + OUTPUT * 500)
    later_call = Estimate(input=50, output=OUTPUT, cache_read=600, cache_write=0, nano=50 * 100 + 600 * 10 + OUTPUT * 500)
    assert first_call == estimate(QUESTION, LONG, cached=False)
    assert later_call == estimate(QUESTION, LONG, cached=True)


def test_an_unknown_minimum_counts_as_no_cache() -> None:
    """Unknown caching is not assumed."""
    assert estimate(QUESTION, shipped_prices()["claude-sonnet-5-5"], cached=True).cache_read == 0


def test_a_batch_is_estimated_at_batch_prices() -> None:
    """Half the price if it is known, else unknown, but never the full price."""
    live, batched = (estimate(QUESTION, HAIKU, cached=False, batched=batched).nano for batched in (False, True))
    assert live == 2 * (batched or 0)
    unknown = ListedPrice(source="a test", read_on=date(2026, 11, 21), input=1, output=1)
    assert None is estimate(QUESTION, unknown, cached=False, batched=True).nano


def test_without_a_price_only_the_tokens_are_known() -> None:
    """0 would look like a free run."""
    unpriced = estimate(QUESTION, None, cached=True)
    assert unpriced.input == 650
    assert unpriced.output == OUTPUT
    assert unpriced.nano is None


@pytest.mark.parametrize(
    ("purpose", "max_tokens", "expected"),
    [("tier2_5", 1000, EXPECTED_OUTPUT["tier2_5"]), ("tier3", 100, 100), ("anchor", 1000, 1000)],
)
def test_an_answer_has_its_typical_length_up_to_the_limit(purpose: str, max_tokens: int, expected: int) -> None:
    """A purpose without a typical length is assumed to have the longest answer."""
    assert estimate(replace(QUESTION, purpose=purpose, max_tokens=max_tokens), HAIKU, cached=False).output == expected


def test_an_estimate_stays_below_the_worst_case() -> None:
    """If an estimate is accepted, the calls must fit under the cap."""
    nano = estimate(QUESTION, HAIKU, cached=False).nano
    assert nano is not None
    assert 0 < nano < max_cost(QUESTION, HAIKU)
