"""The spending of projects and of the installation in UTC days and months, under the caps that all their sessions share.

Spending is a log of entries in one order. Every process that reads the same entries makes the same decisions, so several processes
share a cap without talking to each other: the position of an entry in the log decides whether it fits. A reservation counts in full
until it is settled, so nothing needs to be repaired after a kill: calls with an unknown outcome simply stay counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import TypeAlias

import msgspec

from audit.anchors import anchor_project, is_reserved
from audit.cost import nano_of
from audit.policy import Policy

SHARED_CAPS: Mapping[str, str] = {
    "project_day_cap": "the project's cap for the day",
    "project_month_cap": "the project's cap for the month",
    "installation_day_cap": "the installation's cap for the day",
    "installation_month_cap": "the installation's cap for the month",
}
"""The shared caps in the order of `Reserved.limits`, each with its description. The names are reasons of tiers."""
Limits: TypeAlias = tuple[int | None, ...]
"""Nano-USD for each of `SHARED_CAPS`; None is no cap."""
NO_LIMITS: Limits = (None,) * len(SHARED_CAPS)
_INSTALLATION = ""
_Account: TypeAlias = tuple[str, str]
"""A project, or the installation, and a period: `2026-11-29` or `2026-11`."""


class Reserved(msgspec.Struct, frozen=True, tag="reserved"):
    """The most that one call can cost, reserved before the call."""

    reservation_id: str
    project: str
    at: datetime
    """The time of the reservation, UTC. It decides the day and the month."""
    amount: int
    """Nano-USD."""
    limits: Limits = NO_LIMITS
    """The caps of the process that made it. They decide, so processes with another policy come to the same result."""


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The cost of a question, which replaces its reservations.

    If they fall on two days, the cost counts on both: no day may be understated.
    """

    reservation_ids: tuple[str, ...]
    cost: int
    """Nano-USD."""


class Spent(msgspec.Struct, frozen=True, tag="spent"):
    """The cost of calls that were made before there was a cap."""

    project: str
    day: date
    amount: int
    """Nano-USD."""


Entry: TypeAlias = Reserved | Settled | Spent
ENTRY = msgspec.json.Decoder(Entry)


class Spending:
    """The sums of a log of entries."""

    def __init__(self) -> None:
        self._spent: Counter[_Account] = Counter()
        self._reserved: Counter[_Account] = Counter()
        self._open: dict[str, Reserved] = {}

    def refusing_cap(self, entry: Reserved, *, counting_reserved: bool = True) -> str | None:
        """Return the first of `SHARED_CAPS` that leaves no room for a reservation; None if it fits.

        With `counting_reserved` False, other reservations are assumed to cost nothing in the end.
        """
        for cap, account, limit in zip(SHARED_CAPS, _accounts_of(entry.project, entry.at), entry.limits, strict=True):
            used = self._spent[account] + (self._reserved[account] if counting_reserved else 0)
            if limit is not None and used + entry.amount > limit:
                return cap
        return None

    def add(self, entry: Entry) -> str | None:
        """Add the next entry of the log. Return the cap that refuses it, so that it does not count; None if it counts."""
        if isinstance(entry, Spent):
            self._spent.update(dict.fromkeys(_accounts_of(entry.project, entry.day), entry.amount))
        elif isinstance(entry, Settled):
            self._settle(entry)
        elif entry.reservation_id not in self._open:  # a producer may repeat an entry
            cap = self.refusing_cap(entry)
            if cap is not None:
                return cap
            self._open[entry.reservation_id] = entry
            self._reserved.update(dict.fromkeys(_accounts_of(entry.project, entry.at), entry.amount))
        return None

    def has_open(self, reservation_ids: Iterable[str]) -> bool:
        """Return whether any of these reservations is not settled."""
        return any(reservation_id in self._open for reservation_id in reservation_ids)

    def used_on(self, project: str, day: date) -> int:
        """Return the nano-USD that a project has spent and reserved on a day."""
        account, *_ = _accounts_of(project, day)
        return self._spent[account] + self._reserved[account]

    def _settle(self, entry: Settled) -> None:
        """Replace reservations by their cost. Settled and unknown ones, such as those of earlier months, change nothing."""
        accounts: set[_Account] = set()
        for reservation_id in entry.reservation_ids:
            reservation = self._open.pop(reservation_id, None)
            if reservation is not None:
                own = _accounts_of(reservation.project, reservation.at)
                self._reserved.subtract(dict.fromkeys(own, reservation.amount))
                accounts.update(own)
        self._spent.update(dict.fromkeys(accounts, entry.cost))


def limits_of(policy: Policy, project: str) -> Limits:
    """Return the caps that apply to the calls of a project."""
    own, installation = policy.for_project(project).settings.cost_caps, policy.cost_caps
    caps = (own.day, own.month, installation.day, installation.month)
    return tuple(None if cap is None else nano_of(cap) for cap in caps)


def has_shared_caps(policy: Policy) -> bool:
    """Return whether the policy has a cap that sessions share."""
    return any(policy.for_project(project).has_shared_cap for project in ("", *policy.projects))


def account_of(project: str) -> str:
    """Return the name under which the spending of a project is summed: its anchors count with it."""
    return project if is_reserved(project) else anchor_project(project)


def _accounts_of(project: str, at: date) -> tuple[_Account, ...]:
    """Return the account of each of `SHARED_CAPS`."""
    day, month = f"{at:%Y-%m-%d}", f"{at:%Y-%m}"
    account = account_of(project)
    return (account, day), (account, month), (_INSTALLATION, day), (_INSTALLATION, month)
