"""The rough effect of another policy: what share of the exchanges of the last days it would have judged, and what that costs per month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.queries import query_rows
from audit.cost.prices import ModelPrice, Usage, usd_of
from audit.policy.policy import Policy, ProjectPolicy
from schemas.lazy.duckdb import duckdb
from service.policies.changes import EVERY_OTHER, Change

DAYS = 7
"""Days that an estimate rests on."""
MONTH = 30
"""Days of a month."""
MOST = 20
"""Projects that are estimated."""
_MATTERS = ("enabled", "judgeModel", "prices.", "sampling.")
"""Beginnings of the names of settings whose effect is estimated. The cap and the gate depend on what the judge will say."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of another policy on a project's exchanges of the last days."""

    project: str
    exchanges: int
    """Exchanges of the last days."""
    judged_before: float
    """Share that the present policy has judged or would have, 0 to 1."""
    judged_after: float
    month_before: float | None
    """USD in thirty days like the last ones; None if no price is known."""
    month_after: float | None


def effects(
    cursor: duckdb.DuckDBPyConnection,
    before: Policy,
    after: Policy,
    *,
    found: Sequence[Change],
    projects: Sequence[str],
    now: datetime,
) -> list[Effect]:
    """Return the effect on the `projects` that have exchanges and that any of the changes concerns, at most MOST."""
    named = {*before.projects, *after.projects}
    concerned = {one for change in found if change.setting.startswith(_MATTERS) for one in change.projects}
    wanted = [one for one in projects if one in concerned or (EVERY_OTHER in concerned and one not in named)]
    estimates = (_effect(cursor, one, before.for_project(one), after.for_project(one), now) for one in wanted[:MOST])
    return [one for one in estimates if one is not None]


def _effect(
    cursor: duckdb.DuckDBPyConnection, project: str, before: ProjectPolicy, after: ProjectPolicy, now: datetime
) -> Effect | None:
    start = now - timedelta(days=DAYS)
    exchanges, was = _sampled(cursor, project, before, start, now)
    _, will = _sampled(cursor, project, after, start, now)
    if not exchanges:
        return None
    spent = _spent(cursor, project, start, now)
    known, factor = _month(spent, before.price), will / was if was else None
    changed = before.settings.judge_model != after.settings.judge_model or before.price != after.price
    per_sample = _month(spent, after.price) if changed else known
    return Effect(
        project=project,
        exchanges=exchanges,
        judged_before=was / exchanges,
        judged_after=will / exchanges,
        month_before=known,
        month_after=None if per_sample is None or factor is None else per_sample * factor,
    )


def _sampled(
    cursor: duckdb.DuckDBPyConnection, project: str, policy: ProjectPolicy, start: datetime, end: datetime
) -> tuple[int, float]:
    """The exchanges of a time, and how many of them a policy would have judged."""
    sampling = policy.settings.sampling
    values = {
        "project": project,
        "from": start,
        "to": end,
        "enabled": sampling.enabled,
        "first": sampling.always_score_first,
        "last": sampling.always_score_last,
        "disagreement": sampling.always_score_disagreement,
        "long": sampling.always_score_long_responses,
        "threshold": sampling.long_response_threshold,
        "interval": sampling.routine_interval,
    }
    found = query_rows(cursor, "sampling_estimate", values)
    if not found:
        return 0, 0.0
    return found[0]["exchanges"], found[0]["expected"] if policy.settings.enabled else 0.0


def _spent(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> Usage:
    """The tokens of the judge's calls of a time."""
    rows = query_rows(cursor, "judge_costs", {"by": "project", "project": project, "from": start, "to": end})
    row = rows[0] if rows else dict.fromkeys(("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens"), 0)
    return Usage(row["input_tokens"], row["output_tokens"], row["cache_write_tokens"], row["cache_read_tokens"])


def _month(spent: Usage, price: ModelPrice | None) -> float | None:
    """USD for so many tokens in DAYS, in a month; None if the price is unknown. Rates of long prompts do not count: these are sums."""
    plain = None if price is None else price.model_copy(update={"steps": ()}).cost(spent)
    return None if plain is None else usd_of(plain) * MONTH / DAYS
