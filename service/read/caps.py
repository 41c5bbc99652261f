"""The caps of projects and of the installation on what judging costs in a day and in a month, and the spending under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated

import msgspec
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
        """Describe a cap that was reached, and when."""
        owner = "all projects together" if self.project is None else f"project {self.project}"
        return f"The cap of {self.cap_usd:g} USD on judging {owner} for {self.period} was reached" + (
            f" at {self.reached_at:%Y-%m-%d %H:%M} UTC" if self.reached_at else ""
        )

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
    if not has_shared_caps(policy):
        return []
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    spent: Counter[tuple[str | None, str]] = Counter()
    accounts: dict[str, str] = {account_of(name): name for name in ([*policy.projects] if project is None else [project])}
    for row in query_rows(cursor, "spending", {"from": start.date(), "as_of": now}):
        if project is None and row["project"] != account_of(row["project"]):
            accounts.setdefault(account_of(row["project"]), row["project"])
        for account in (account_of(row["project"]), None):
            spent.update(dict.fromkeys([(account, f"{row['day']:%Y-%m-%d}"), (account, f"{now:%Y-%m}")], row["nano_usd"]))
    reached: dict[tuple[str, str | None, str], Mapping[str, object]] = {}
    for row in query_rows(cursor, "reached_caps", {"from": start}):
        account = None if row["project"] is None else account_of(row["project"])
        reached.setdefault((row["cap"], account, row["period"]), row)
    return list(_states(policy, accounts, spent, reached, now))


def reached_caps(
    cursor: duckdb.DuckDBPyConnection, policy: Policy, project: str | None, now: datetime
) -> tuple[SharedCap, ...]:
    """Return the caps of a project (None: all) that have left out questions in the current day or month."""
    return tuple(cap for cap in shared_caps(cursor, policy, project, now) if cap.reached_at is not None)


def _states(
    policy: Policy,
    accounts: Mapping[str, str],
    spent: Mapping[tuple[str | None, str], int],
    reached: Mapping[tuple[str, str | None, str], Mapping[str, object]],
    now: datetime,
) -> Iterator[SharedCap]:
    periods = (f"{now:%Y-%m-%d}", f"{now:%Y-%m}") * 2
    seen: set[tuple[str, str | None]] = set()
    for account, name in [*sorted(accounts.items(), key=lambda item: item[1]), ("", "")]:
        for cap, period, limit in zip(SHARED_CAPS, periods, limits_of(policy, name), strict=True):
            owner = account if cap.startswith("project") else None
            if limit is None or owner == "" or (cap, owner) in seen:
                continue
            seen.add((cap, owner))
            row = reached.get((cap, owner, period), {})
            state = SharedCap(cap, name if owner else None, period, usd_of(limit), usd_of(spent.get((owner, period), 0)))
            yield msgspec.structs.replace(state, reached_at=row.get("reached_at"), left_out=row.get("questions", 0))
