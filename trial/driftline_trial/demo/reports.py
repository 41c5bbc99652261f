"""The two reports of the demo: on the imported sessions, and on the judged exchanges.

The first has the failed sessions with their causes and each agent's trust over time. The second has each agent's tiers over time,
sampling with its reasons, and the worst exchanges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from analytics.queries import queries, query_rows
from analytics.store.store import Store
from service.cli.terminal import SEVERITY_STYLES, heading, table
from service.cli.views import SIMULATED, TIER_STATES
from service.read.runs import runs_of
from service.text.formats import MISSING, plain

FAILED_SHOWN = 12
LEVELS = {"unsafe_for_production": "unsafe", "review_recommended": "review"}
"""The readiness levels of failed sessions, in one word."""


def fleet_report(store: Store, project: str) -> RenderableType:
    """The report on the imported sessions of one project."""
    cursor = store.cursor()
    failed = query_rows(cursor, "failed_sessions", {"project": project, "limit": 1_000_000})
    parts = [
        heading("Sessions that are not ready, worst first"),
        _failed_table(failed, {run.session_id: run.run_id for run in runs_of(store, project)}),
        heading("Failures by agent"),
        _failures_table(query_rows(cursor, "failures_by_agent", {"project": project})),
        heading("Trust per agent, week by week (in brackets: runs unsafe for production)"),
        _trust_table(query_rows(cursor, "trust_over_time", {"project": project})),
        heading("Exchanges that a judge would have seen, by reason (an import asks no judge: they stay unscored)"),
        _import_sampling_table(query_rows(cursor, "sampling_mix", {"project": project})),
    ]
    return Group(*parts)


def worst_run(store: Store, project: str) -> str:
    """Return the id of the run with the worst failures."""
    (failed,) = query_rows(store.cursor(), "failed_sessions", {"project": project, "limit": 1})
    return next(run.run_id for run in runs_of(store, project) if run.session_id == failed["session_id"])


def _failed_table(rows: Sequence[Mapping[str, Any]], run_ids: Mapping[str, str]) -> RenderableType:
    headers = ["run", "readiness", "trust", "agent", "ended", "primary failure", "finding"]
    cells = [
        [
            run_ids[row["session_id"]],
            Text(LEVELS[row["readiness_level"]], style=SEVERITY_STYLES[row["readiness_level"]]),
            row["trust_score"],
            row["agent"],
            f"{row['ended_at']:%m-%d}",
            row["primary_failure_type"],
            row["description"],
        ]
        for row in rows[:FAILED_SHOWN]
    ]
    failed_table = table(headers, cells, right=["trust"], cut_last=True)
    if len(rows) <= FAILED_SHOWN:
        return failed_table
    return Group(failed_table, Text(f"… and {len(rows) - FAILED_SHOWN} more", style="dim"))


def _failures_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    cells = [[row["agent"], row["failure_type"], row["sessions"], row["critical"], row["worst_impact"]] for row in rows]
    numbers = ["sessions", "critical", "worst impact"]
    return table(["agent", "failure", *numbers], cells, right=numbers)


def _trust_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    weeks = sorted({row["week"] for row in rows})
    by_agent: dict[str, dict[Any, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_agent[row["agent"]][row["week"]] = row
    cells = [[agent, *[_trust_cell(own.get(week)) for week in weeks]] for agent, own in by_agent.items()]
    return table(["agent", *[f"week of {week:%m-%d}" for week in weeks]], cells)


def _trust_cell(row: Mapping[str, Any] | None) -> Text:
    if row is None or row["mean_trust"] is None:
        return Text(MISSING, style="dim")
    unsafe, runs = row["unsafe_runs"], row["runs"]
    style = "red" if unsafe > runs / 4 else "yellow" if unsafe else "green"
    return Text(f"{row['mean_trust']:5.1f}" + (f" ({unsafe})" if unsafe else ""), style=style)


def _import_sampling_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    cells = [
        [row["sampling_reason"], row["disposition"], row["exchanges"], f"{row['mean_tier1']:.3f}", row["anomalies"]]
        for row in rows
    ]
    return table(
        ["sampling", "outcome", "exchanges", "mean tier 1", "anomalies"], cells, right=["exchanges", "mean tier 1", "anomalies"]
    )


Row = Mapping[str, Any]
WORST_SHOWN = 5
REASONS_LENGTH = 1000
"""Characters of an exchange's reasons that are shown."""
WORSE_BY = 0.1
"""The fall of Tier 2's mean, 0 to 1, from which an agent is called worse."""
TIERS = {"tier2": "tier 2", "tier2_5": "tier 2.5", "tier3": "tier 3"}
TAMPERING = "judge_tampering: "
"""The beginning of a reason for a text that tried to sway the judge."""
_LARGE = 1_000_000


def exchange_report(store: Store, projects: Sequence[str], since: date) -> RenderableType:
    """Report on the exchanges of the projects, comparing each agent before and since a day."""
    moment = datetime.combine(since, time(), UTC)
    anomalies = worst_first(store, projects)
    reasons = _query_projects(store, projects, "anomaly_reasons", **{"from": None, "to": None})
    return Group(
        heading(f"Tiers per agent, week by week: tier 2, tier 2.5 (both 0 to 1), tier 3 (1 to 5); {SIMULATED}"),
        _weeks_table(_query_projects(store, projects, "tier_trend")),
        heading(f"Before {since:%m-%d} and since then; {SIMULATED}"),
        _change_table(_query_projects(store, projects, "tier_change", since=moment), since),
        heading("Sampled exchanges by reason"),
        _sampling_table(_query_projects(store, projects, "sampling_mix")),
        heading("Tiers that ran or not, by reason"),
        _gates_table(_query_projects(store, projects, "gate_decisions")),
        heading(f"Anomalies: {len(anomalies)} exchanges, by reason; {SIMULATED}"),
        _reasons_table(reasons),
        heading(f"Worst exchanges; {SIMULATED}"),
        _exchanges_table(anomalies[:WORST_SHOWN]),
        heading(f"Attempts to sway the judge (found by rules, whatever the judge says); {SIMULATED}"),
        _exchanges_table([row for row in anomalies if any(map(_is_tampering, row["anomaly_reasons"]))], only=_is_tampering),
    )


def delivered_line(store: Store, projects: Sequence[str], sessions: int) -> str:
    """Describe the outcomes of the delivered exchanges."""
    summed: Counter[str] = Counter()
    for row in _query_projects(store, projects, "project_summary"):
        summed.update({name: row[name] for name in ("exchanges", "scored", "skipped_sampling", "pending", "simulated")})
    without_verdict = summed["exchanges"] - summed["scored"] - summed["skipped_sampling"] - summed["pending"]
    judge_text = (
        f"by the {SIMULATED}" if summed["simulated"] == summed["scored"] else f"{summed['simulated']} by the {SIMULATED}"
    )
    return (
        f"{sessions} sessions over HTTP: {summed['exchanges']} exchanges, {summed['scored']} judged {judge_text}, "
        f"{summed['skipped_sampling']} left out by sampling, {without_verdict} without a verdict, {summed['pending']} pending"
    )


def worst_first(store: Store, projects: Sequence[str]) -> list[Row]:
    """Return the anomalous exchanges of the projects: most reasons first, then lowest Tier 2."""
    unfiltered = dict.fromkeys(queries()["project_scores"].parameters)
    return sorted(
        _query_projects(store, projects, "project_scores", **unfiltered | {"anomalies": True, "limit": _LARGE}),
        key=lambda row: (
            -len(row["anomaly_reasons"]),
            1.0 if row["tier2_score"] is None else row["tier2_score"],
            row["exchange_at"],
            row["exchange_id"],
        ),
    )


def _query_projects(store: Store, projects: Sequence[str], query: str, **values: object) -> list[dict[str, Any]]:
    """Return the rows of a query for the projects."""
    rows = query_rows(store.cursor(), query, {"project": None, **values})
    return [row for row in rows if row["project"] in projects]


def _weeks_table(rows: Sequence[Row]) -> RenderableType:
    weeks = sorted({row["week"] for row in rows})
    by_agent: dict[str, dict[Any, Row]] = defaultdict(dict)
    for row in rows:
        by_agent[row["agent"]][row["week"]] = row
    cells = [[agent, *[_week_cell(by_agent[agent].get(week)) for week in weeks]] for agent in sorted(by_agent)]
    return table(["agent", *[f"week of {week:%m-%d}" for week in weeks]], cells)


def _week_cell(row: Row | None) -> Text:
    if row is None or row["mean_tier2"] is None:
        return Text(MISSING, style="dim")
    style = "red" if row["mean_tier2"] < 0.8 else "green"
    return Text("  ".join(_format_number(row[f"mean_{tier}"]) for tier in TIERS), style=style)


def _change_table(rows: Sequence[Row], since: date) -> RenderableType:
    periods: dict[str, dict[bool, Row]] = defaultdict(dict)
    for row in rows:
        periods[row["agent"]][row["later"]] = row
    compared = {agent: (both[False], both[True]) for agent, both in sorted(periods.items()) if len(both) == 2}
    worse = {agent for agent, both in compared.items() if _tier2_fall(*both) > WORSE_BY}
    measures = {"tier 1": "mean_tier1", **{change_table: f"mean_{tier}" for tier, change_table in TIERS.items()}}
    cells = [
        [
            agent,
            _format_change(str(before["exchanges"]), str(after["exchanges"])),
            *[_format_change(_format_number(before[column]), _format_number(after[column])) for column in measures.values()],
            _format_change(*(f"{row['anomalies'] / row['exchanges']:.0%}" for row in (before, after))),
            Text("worse", style="bold red") if agent in worse else Text("as before", style="green"),
        ]
        for agent, (before, after) in compared.items()
    ]
    worse_line = f"{', '.join(sorted(worse))} got worse on {since:%m-%d}; " if worse else ""
    conclusion = "the others are unchanged." if worse else "No agent got worse."
    change_table = table(["agent", "exchanges", *measures, "anomalous", ""], cells, right=["exchanges", *measures, "anomalous"])
    return Group(change_table, Text(f"{worse_line}{conclusion}"))


def _tier2_fall(before: Row, after: Row) -> float:
    both_judged = before["mean_tier2"] is not None and after["mean_tier2"] is not None
    return float(before["mean_tier2"] - after["mean_tier2"]) if both_judged else 0.0


def _sampling_table(rows: Sequence[Row]) -> RenderableType:
    exchanges: Counter[tuple[str, str]] = Counter()
    anomalies: Counter[tuple[str, str]] = Counter()
    for row in rows:
        exchanges[row["sampling_reason"], row["disposition"]] += row["exchanges"]
        anomalies[row["sampling_reason"], row["disposition"]] += row["anomalies"]
    total = exchanges.total()
    cells = [[*group, count, f"{count / total:.0%}", anomalies[group]] for group, count in _sort_counts(exchanges)]
    numbers = ["exchanges", "share", "anomalies"]
    return table(["sampling", "outcome", *numbers], cells, right=numbers)


def _gates_table(rows: Sequence[Row]) -> RenderableType:
    gates: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        gates[row["tier"], row["state"], row["reason"]] += row["exchanges"]
    cells = [
        [TIERS[tier], state.replace("_", " "), reason, count]
        for (tier, state, reason), count in sorted(_sort_counts(gates), key=lambda gate: list(TIERS).index(gate[0][0]))
    ]
    return table(["tier", "state", "why", "exchanges"], cells, right=["exchanges"])


def _reasons_table(rows: Sequence[Row]) -> RenderableType:
    counts: Counter[str] = Counter()
    agents: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["reason"]] += row["exchanges"]
        agents[row["reason"]][row["agent"]] += row["exchanges"]
    cells = [
        [reason, count, ", ".join(f"{agent} {number}" for agent, number in _sort_counts(agents[reason]))]
        for reason, count in _sort_counts(counts)
    ]
    return table(["reason", "exchanges", "agents"], cells, right=["exchanges"])


def _exchanges_table(rows: Sequence[Row], only: Any = bool) -> RenderableType:
    """Show exchanges with a selection of their reasons."""
    cells = [
        [
            f"{row['exchange_at']:%m-%d %H:%M}",
            row["agent"],
            row["turn_number"],
            *[_format_tier(row, tier) for tier in TIERS],
            Text(plain("; ".join(filter(only, row["anomaly_reasons"])), REASONS_LENGTH)),
        ]
        for row in rows
    ]
    numbers = ["turn", *TIERS.values()]
    return table(["exchange at", "agent", *numbers, "why"], cells, right=numbers)


def _format_tier(row: Row, tier: str) -> str:
    score = row["tier2_5_alignment"] if tier == "tier2_5" else row[f"{tier}_score"]
    return TIER_STATES.get(row[f"{tier}_state"], "") or _format_number(score)


def _is_tampering(reason: str) -> bool:
    return reason.startswith(TAMPERING)


def _format_change(before: str, after: str) -> str:
    return f"{before} → {after}"


def _format_number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _sort_counts(counts: Counter[Any]) -> list[tuple[Any, int]]:
    """Return the counts in descending order, equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
