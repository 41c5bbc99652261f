"""The money of one session: what was spent, what is set aside for calls in flight, and the cap that both together never pass.

Amounts are integers of nano-USD. The worst case of a call is reserved before the call is made, so calls that run at once cannot pass
the cap together; checking first and paying later can.
"""

from __future__ import annotations


class Ledger:
    """Spent and reserved money under a cap; None is no cap."""

    def __init__(self, cap: int | None, spent: int = 0) -> None:
        self._cap = cap
        self._spent = spent
        self._reserved = 0

    @property
    def cap(self) -> int | None:
        """The most that may be spent."""
        return self._cap

    @property
    def spent(self) -> int:
        """The cost of the calls so far."""
        return self._spent

    @property
    def reserved(self) -> int:
        """The amount set aside for calls whose outcome is not known yet."""
        return self._reserved

    def can_reserve(self, amount: int) -> bool:
        """Tell whether the cap leaves room for this much. With a cap of 0 there is room for calls that cost nothing."""
        return self._cap is None or self._spent + self._reserved + _amount(amount) <= self._cap

    def reserve(self, amount: int) -> bool:
        """Set the amount aside; False, and nothing happens, where the cap leaves no room."""
        if not self.can_reserve(amount):
            return False
        self._reserved += _amount(amount)
        return True

    def settle(self, amount: int, cost: int) -> None:
        """A reserved call was made and cost this much; ValueError for more than was set aside for it.

        A call with an unknown outcome has cost the whole amount.
        """
        if _amount(cost) > amount:
            raise ValueError(f"a call cost {cost} nano-USD and {amount} were reserved for it")
        self.release(amount)
        self._spent += cost

    def release(self, amount: int) -> None:
        """A reserved call was not made, or was refused free of charge; ValueError for what was never reserved."""
        if _amount(amount) > self._reserved:
            raise ValueError(f"{amount} nano-USD to give back and {self._reserved} are reserved")
        self._reserved -= amount

    def charge(self, cost: int) -> None:
        """Count what was paid for earlier. It may pass the cap: it was paid."""
        self._spent += _amount(cost)


def _amount(nano: int) -> int:
    if nano < 0:
        raise ValueError(f"an amount of money cannot be negative: {nano} nano-USD")
    return nano
