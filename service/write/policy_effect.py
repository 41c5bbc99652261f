"""The estimated effect of another policy: the share of the last days' exchanges that it would have judged, and the cost per month.

Both policies are applied to a sample of stored sessions with the code of intake: `audit.exchanges.tier1` and `audit.exchanges.sampling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Any

from msgspec import Meta

from analytics.queries import query_rows
from audit.cost import ModelPrice, Usage, usd_of
from audit.exchanges.sampling import Candidate, SamplingState, close, decide
from audit.exchanges.tier1 import check_structure
from audit.policy import Policy, ProjectPolicy
from schemas.lazy import duckdb
from service.text.answers import Answer
from service.write.policy_file import EVERY_OTHER, PolicyProblem, SettingChange
from streams.stage_batches import named_session

Row = Mapping[str, Any]

DAYS = 7
"""Days that an estimate rests on."""
MONTH = 30
"""Days of a month."""
MOST = 20
"""Projects that are estimated."""
SAMPLE = 5_000
"""Exchanges in the sample of a project. A share has a standard error of 0.7 points, a little more if sessions differ."""
_RECORD = b"-"
"""Stands for the encoded exchange, which sampling only passes through."""
_MATTERS = ("enabled", "judgeModel", "prices.", "sampling.")
"""Prefixes of the settings whose effect is estimated. The effects of cap and gate depend on the judge's answers."""


class PolicyEffect(Answer, frozen=True):
    """A rough estimate for a project, from its exchanges of the last days."""

    project: str
    exchanges: int
    judged_before: Annotated[float, Meta(description="Share of the exchanges.")]
    judged_after: float
    usd_per_month_before: Annotated[float | None, Meta(description="null: the price or the use is unknown.")]
    usd_per_month_after: float | None


class PolicyTrial(Answer, frozen=True):
    """The result of a trial; nothing was saved."""

    valid: bool
    problems: list[PolicyProblem]
    comparison: Annotated[list[str], Meta(description="Lines of a unified diff against the file.")]
    changes: Annotated[list[SettingChange], Meta(description="Against the file, by setting.")]
    effects: Annotated[list[PolicyEffect], Meta(description=f"From the last {DAYS} days.")]


def effects(
    cursor: duckdb.DuckDBPyConnection,
    before: Policy,
    after: Policy,
    *,
    found: Sequence[SettingChange],
    projects: Sequence[str],
    now: datetime,
) -> list[PolicyEffect]:
    """Return the effect on those `projects` that have exchanges and are affected by a change, at most MOST."""
    named = {*before.projects, *after.projects}
    concerned = {one for change in found if change.setting.startswith(_MATTERS) for one in change.projects}
    wanted = [one for one in projects if one in concerned or (EVERY_OTHER in concerned and one not in named)]
    estimates = (_effect(cursor, one, before.for_project(one), after.for_project(one), now) for one in wanted[:MOST])
    return [one for one in estimates if one is not None]


def _effect(
    cursor: duckdb.DuckDBPyConnection, project: str, before: ProjectPolicy, after: ProjectPolicy, now: datetime
) -> PolicyEffect | None:
    start = now - timedelta(days=DAYS)
    sample = query_rows(cursor, "session_sample", {"project": project, "from": start, "to": now, "limit": SAMPLE})
    if not sample:
        return None
    was, will = _judged(sample, before), _judged(sample, after)
    spent = _spent(cursor, project, start, now)
    known, factor = _month(spent, before.price), will / was if was else None
    changed = before.settings.judge_model != after.settings.judge_model or before.price != after.price
    per_sample = _month(spent, after.price) if changed else known
    return PolicyEffect(
        project=project,
        exchanges=sample[0]["total"],
        judged_before=was / len(sample),
        judged_after=will / len(sample),
        usd_per_month_before=known,
        usd_per_month_after=None if per_sample is None or factor is None else per_sample * factor,
    )


def _judged(sample: Sequence[Row], policy: ProjectPolicy) -> int:
    """Return the number of exchanges of a sample that a policy would have judged, if sessions end with the sample."""
    if not policy.settings.enabled:
        return 0
    sessions = groupby(sample, key=lambda row: named_session(row["connection"], row["session_id"]))
    return sum(len(_judged_in_session(key, rows, policy)) for key, rows in sessions)


def _judged_in_session(session: str, rows: Iterable[Row], policy: ProjectPolicy) -> set[str]:
    """Return the ids of a session's exchanges that a policy would have judged."""
    state, judged = SamplingState(), set[str]()
    for row in rows:
        tier1 = check_structure(row["user_message"], row["agent_response"], policy.methodology)
        candidate = Candidate(
            session=session,
            exchange_id=row["exchange_id"],
            revision=0,
            turn_number=row["turn_number"],
            agent_response=row["agent_response"],
            output_tokens=row["output_tokens"],
            tier1_flags=tier1.flags,
            record=_RECORD,
        )
        decision, state = decide(state, candidate, policy.settings.sampling)
        if decision.sampled:
            judged.add(candidate.exchange_id)
    last, _ = close(state, policy.settings.sampling)
    return judged.union(parked.exchange_id for parked in last)


def _spent(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> Usage:
    """Return the tokens of the judge's calls in a period."""
    rows = query_rows(cursor, "judge_costs", {"by": "project", "project": project, "from": start, "to": end})
    row = rows[0] if rows else dict.fromkeys(("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens"), 0)
    return Usage(row["input_tokens"], row["output_tokens"], row["cache_write_tokens"], row["cache_read_tokens"])


def _month(spent: Usage, price: ModelPrice | None) -> float | None:
    """Return the monthly cost in USD of this many tokens in DAYS; None without a price. Rates of long prompts cannot be applied to sums."""
    plain = None if price is None else price.model_copy(update={"steps": ()}).cost(spent)
    return None if plain is None else usd_of(plain) * MONTH / DAYS
