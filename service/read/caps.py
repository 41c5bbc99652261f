"""The caps of projects and of the installation on what judging costs in a day and in a month, and the spending under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Annotated, TypeAlias

from msgspec import Meta

from analytics.queries import query_rows
from audit.cost import usd_of
from audit.policy import Policy
from audit.spending import SHARED_CAPS, account_of, has_shared_caps, limits_of
from schemas.lazy import duckdb
from service.read.scores import JudgeCost
from service.text.answers import Answer, Moment, NextCursor


class SharedCap(Answer, frozen=True):
    """A cap on the judge calls of all sessions of a project, or of all projects, in the current UTC day or month."""

    cap: Annotated[str, Meta(description="Reason of tiers that it leaves out.", examples=list(SHARED_CAPS))]
    project: Annotated[str | None, Meta(description="Null: of the installation.")]
    period: Annotated[str, Meta(examples=["2026-11-29", "2026-11"])]
    cap_usd: float
    spent_usd: Annotated[float, Meta(description="Costs of the calls, and the largest possible costs of running ones.")]
    reached_at: Annotated[Moment | None, Meta(description="When it first left out a question; null if it has not.")] = None
    left_out: Annotated[int, Meta(description="Questions that it left out.")] = 0

    @property
    def summary(self) -> str:
        """Describe the present cap, and when it left out questions. It may have been raised since."""
        owner = "all projects together" if self.project is None else f"project {self.project}"
        cap = f"The cap on judging {owner} for {self.period}, now {self.cap_usd:g} USD"
        return f"{cap}, first left out a question at {self.reached_at:%Y-%m-%d %H:%M} UTC" if self.reached_at else cap

    @property
    def consequence(self) -> str:
        """Describe the effect on exchanges, and the remedy."""
        return (
            f"Exchanges whose questions would pass it are left out until the {'day' if len(self.period) > len('2026-11') else 'month'} "
            f"ends (UTC) or costCaps in the policy is raised; driftline rejudge --reason {self.cap} judges them then"
        )


class CostList(Answer, frozen=True):
    """Groups: days in order of time, all other groups by falling cost."""

    costs: list[JudgeCost]
    count: int
    next_cursor: NextCursor
    caps: Annotated[list[SharedCap], Meta(description="Caps of the current day and month, whatever the period of the sums.")]


def shared_caps(cursor: duckdb.DuckDBPyConnection, policy: Policy, project: str | None, now: datetime) -> list[SharedCap]:
    """Return the caps that apply to a project (None: all projects with spending or a cap of their own) and their spending."""
    return list(_read_caps(cursor, policy, project, now, _read_reached(cursor, now))) if has_shared_caps(policy) else []


def reached_caps(
    cursor: duckdb.DuckDBPyConnection, policy: Policy, project: str | None, now: datetime
) -> tuple[SharedCap, ...]:
    """Return the caps of a project (None: all) that have left out questions in the current day or month."""
    # Every page asks. Most days no cap is reached, and then the spending of the month is not summed.
    reached = _read_reached(cursor, now) if has_shared_caps(policy) else {}
    return tuple(cap for cap in _read_caps(cursor, policy, project, now, reached) if cap.left_out) if reached else ()


_Key: TypeAlias = tuple[str, str | None, str]
"""A cap, the account (None: the installation) and the period."""


def _read_reached(cursor: duckdb.DuckDBPyConnection, now: datetime) -> dict[_Key, tuple[datetime, int]]:
    """Return when each cap first left out a question in the current day or month, and how many it left out."""
    reached: dict[_Key, tuple[datetime, int]] = {}
    for row in query_rows(cursor, "reached_caps", {"from": _start_month(now)}):
        if row["period"] in _list_periods(now):
            key = row["cap"], None if row["project"] is None else account_of(row["project"]), row["period"]
            first, questions = reached.get(key, (row["reached_at"], 0))
            reached[key] = first, questions + row["questions"]
    return reached


def _read_caps(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str | None,
    now: datetime,
    reached: Mapping[_Key, tuple[datetime, int]],
) -> Iterator[SharedCap]:
    spent: Counter[tuple[str | None, str]] = Counter()
    names = {account_of(name): name for name in ([*policy.projects] if project is None else [project])}
    for row in query_rows(cursor, "spending", {"from": _start_month(now).date(), "as_of": now}):
        if project is None and row["project"] != account_of(row["project"]):
            names.setdefault(account_of(row["project"]), row["project"])
        for account in (account_of(row["project"]), None):
            spent.update(dict.fromkeys([(account, f"{row['day']:%Y-%m-%d}"), (account, f"{now:%Y-%m}")], row["nano_usd"]))
    owners: list[tuple[str | None, str | None]] = [*sorted(names.items(), key=itemgetter(1)), (None, None)]
    for account, name in owners:
        for cap, period, limit in zip(SHARED_CAPS, _list_periods(now), limits_of(policy, name or ""), strict=True):
            if limit is not None and cap.startswith("installation") == (account is None):
                reached_at, left_out = reached.get((cap, account, period), (None, 0))
                yield SharedCap(cap, name, period, usd_of(limit), usd_of(spent[account, period]), reached_at, left_out)


def _list_periods(now: datetime) -> tuple[str, ...]:
    """Return the current period of each of `SHARED_CAPS`."""
    return (f"{now:%Y-%m-%d}", f"{now:%Y-%m}") * 2


def _start_month(now: datetime) -> datetime:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
