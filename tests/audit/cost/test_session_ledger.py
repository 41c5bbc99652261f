"""The ledger: the cap holds whatever runs concurrently and in whatever order it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.cost import Ledger

CAP = 1_000_000_000
"""One dollar in nano-USD."""
calls = st.lists(
    st.tuples(st.integers(0, CAP // 4), st.sampled_from(["settled", "released", "lost"]), st.floats(0, 1)),
    min_size=1,
    max_size=64,
)
"""The largest cost of a call, its outcome, and the fraction of that cost it takes."""


class CheckThenSpend(Ledger):
    """A naive ledger that checks for room first and charges when the call is over."""

    def can_reserve(self, amount: int) -> bool:
        """Return whether there is room, by the amount spent so far."""
        return self.spent + amount <= CAP


def run(ledger: Ledger, planned: list[tuple[int, str, float]], order: list[int], check: Callable[[Ledger], None]) -> None:
    """Start the calls one by one and, between starts and afterwards, end running ones in the given order."""
    running: list[tuple[int, str, float]] = []
    for step in range(2 * len(planned)):
        pick = order[step % len(order)]
        if step < len(planned) and ledger.reserve(planned[step][0]):
            running.append(planned[step])
        if running and (pick % 3 == 0 or step >= len(planned)):
            end(ledger, *running.pop(pick % len(running)))
        check(ledger)


def end(ledger: Ledger, amount: int, outcome: str, part: float) -> None:
    """End one call."""
    if outcome == "released":
        ledger.release(amount)
    else:
        ledger.settle(amount, amount if outcome == "lost" else int(amount * part))


@settings(deadline=None)
@given(planned=calls, order=st.lists(st.integers(0, 63), min_size=1, max_size=128))
def test_the_cap_holds_for_any_interleaving(planned: list[tuple[int, str, float]], order: list[int]) -> None:
    """A cap promises that nobody pays more, not that nobody pays much more."""

    def holds(ledger: Ledger) -> None:
        assert 0 <= ledger.spent <= ledger.spent + ledger.reserved <= CAP

    ledger = Ledger(CAP)
    run(ledger, planned, order, holds)
    assert ledger.reserved == 0


def test_checking_before_and_paying_afterwards_exceeds_the_cap() -> None:
    """The naive ledger overspends in the same run, so the test above can fail."""
    planned = [(CAP // 4, "lost", 1.0)] * 16
    order = [1]
    naive, ours = CheckThenSpend(CAP), Ledger(CAP)
    run(naive, planned, order, lambda _: None)
    run(ours, planned, order, lambda _: None)
    assert naive.spent > CAP
    assert ours.spent == CAP


def test_a_reservation_is_not_spent_twice() -> None:
    """Two concurrent calls share the room; the second sees the first one's reservation."""
    ledger = Ledger(100, spent=30)
    assert ledger.reserve(50)
    assert not ledger.reserve(21)
    assert ledger.spent == 30
    assert ledger.reserved == 50
    assert ledger.reserve(20)
    ledger.settle(50, 10)
    assert ledger.spent == 40
    assert ledger.reserved == 20
    ledger.release(20)
    assert ledger.can_reserve(60)
    assert not ledger.can_reserve(61)


def test_a_cap_of_zero_allows_free_calls() -> None:
    """0 means that no call may be paid for, but a free local model is still asked."""
    ledger = Ledger(0)
    assert not ledger.reserve(1)
    assert ledger.reserve(0)
    ledger.settle(0, 0)
    assert ledger.spent == 0


def test_without_a_cap_spending_is_counted_and_nothing_refused() -> None:
    """Without a cap, spending is still counted."""
    ledger = Ledger(None)
    assert ledger.reserve(10**15)
    ledger.settle(10**15, 10**15)
    assert ledger.cap is None
    assert ledger.spent == 10**15


def test_earlier_payments_count_beyond_the_cap() -> None:
    """Lowering a cap does not undo payments, but ends them."""
    ledger = Ledger(100)
    ledger.charge(150)
    assert ledger.spent == 150
    assert not ledger.can_reserve(0)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda ledger: ledger.settle(10, 11), "10 were reserved"),
        (lambda ledger: ledger.settle(11, 11), "only 10 are reserved"),
        (lambda ledger: ledger.release(11), "only 10 are reserved"),
        (lambda ledger: ledger.reserve(-1), "cannot be negative"),
        (lambda ledger: ledger.release(-1), "cannot be negative"),
        (lambda ledger: ledger.settle(1, -1), "cannot be negative"),
        (lambda ledger: ledger.charge(-1), "cannot be negative"),
    ],
)
def test_an_invalid_booking_is_refused_and_changes_nothing(wrong: Callable[[Ledger], object], reason: str) -> None:
    """Wrong accounting is a bug; adjusting it silently would hide the bug."""
    ledger = Ledger(100)
    assert ledger.reserve(10)
    with pytest.raises(ValueError, match=reason):
        wrong(ledger)
    assert ledger.spent == 0
    assert ledger.reserved == 10
