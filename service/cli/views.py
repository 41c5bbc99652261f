"""Views of the commands, as tables and text: the same rows that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from audit.exchanges.states import NOT_APPLICABLE, SCORED, SKIPPED_COST_CAP, SKIPPED_GATE, SKIPPED_SAMPLING, UNSCORED
from audit.fingerprints import canonical_json
from service.cli.terminal import ListTable, bar, styled, table
from service.read.runs import EXCHANGES_ONLY
from service.text.formats import MISSING, counted, plain

if TYPE_CHECKING:
    from service.read.agent_costs import AgentCost
    from service.read.agreement import Estimate
    from service.read.caps import SharedCap
    from service.read.runs import Run
    from service.read.scores import JudgeCost, Score, WrapUp
    from service.read.sessions import ListedSession, MarkedTurn, SessionFindings

MAX_EVIDENCE = 5
"""Maximum number of events shown for a cause."""
MAX_TURNS = 50
"""Maximum number of lines about the turns of findings."""
MAX_EVENTS = 3
"""Maximum number of events named per turn."""
IDENTIFYING_FIELDS = ("event", "event_id", "timestamp", "entry_id", "exchange_id", "tool_call_id")
"""Fields of an event that identify it but do not describe its content."""
SIMULATED = "simulated judge"
"""Marks every result of a simulated judge."""
TIER_STATES = {
    NOT_APPLICABLE: "n/a",
    SKIPPED_GATE: "gate",
    SKIPPED_COST_CAP: "cap",
    SKIPPED_SAMPLING: MISSING,
    UNSCORED: "unsc",
}
"""Shown for a tier without a score, by its state."""


RUN_KEYS = (
    *("runId", "project", "agent", "connection", "sessionId", "endedAt", "closedAt", "readinessLevel", "trustScore"),
    *("primaryFailureType", "toolCalls"),
)
"""The fields of a run in a list."""


def runs_table(runs: Sequence[Run]) -> ListTable:
    """Show each run on a line."""
    headers = ["run", "project", "agent", "session", "ended", "tool calls", "readiness", "trust", "primary failure"]
    cells = [
        [
            run.run_id,
            run.project,
            run.agent,
            run.session_id,
            f"{run.last_at:%Y-%m-%d %H:%M}",
            run.tool_calls,
            run.readiness_level,
            MISSING if run.trust_score is None else run.trust_score,
            EXCHANGES_ONLY if run.exchanges_only else run.primary_failure_type or MISSING,
        ]
        for run in runs
    ]
    return ListTable(
        headers, cells, right=["trust", "tool calls"], whole=["run", "ended"], optional=["tool calls", "session", "project"]
    )


SESSION_KEYS = (
    *("sessionId", "connection", "project", "agent", "question", "lastAt", "turns", "events", "anomalies", "tier2", "runId"),
    *("readinessLevel", "primaryFailureType"),
)
"""The fields of a session in a list."""


def sessions_table(sessions: Sequence[ListedSession]) -> ListTable:
    """Show each session on a line."""
    headers = [
        "last record",
        "project",
        "agent",
        "session",
        "turns",
        "events",
        "anomalies",
        "tier 2",
        "failure",
        "first question",
    ]
    cells = [
        [
            f"{session.last_at:%Y-%m-%d %H:%M}",
            session.project,
            session.agent,
            session.session_id,
            session.turns,
            session.events,
            session.anomalies,
            MISSING if session.tier2 is None else f"{session.tier2:.2f}",
            session.primary_failure_type or MISSING,
            session.question or MISSING,
        ]
        for session in sessions
    ]
    numbers = ["turns", "events", "anomalies", "tier 2"]
    optional = ["events", "tier 2", "failure", "project", "agent"]
    return ListTable(headers, cells, right=numbers, whole=["last record"], optional=optional)


SCORE_KEYS = (
    *("id", "exchangeId", "exchangeTimestamp", "project", "agent", "connection", "sessionId", "turnNumber", "samplingReason"),
    *("tier1StructuralScore", "tier2SemanticScore", "tier2_5AlignmentScore", "tier3BehavioralScore", "disposition"),
    *("anomalyFlag", "anomalyReason", "simulated"),
)
"""The fields of a score in a list."""


def scores_table(scores: Sequence[Score]) -> ListTable:
    """Show one score per line: its tiers side by side, then its outcome and anomaly reasons."""
    tiers = "tiers 1, 2, 2.5, 3"
    headers = ["exchange at", "project", "agent", "session", "turn", "sampling", tiers, "judged, anomalies"]
    cells = [
        [
            f"{score.exchange_at:%Y-%m-%d %H:%M}",
            score.project,
            score.agent,
            score.session_id,
            score.turn_number,
            score.sampling_reason,
            _format_tiers(score),
            "; ".join(filter(None, [_describe_outcome(score), score.anomaly_reason])),
        ]
        for score in scores
    ]
    return ListTable(headers, cells, right=["turn"], whole=["exchange at", tiers], optional=["sampling", "session", "project"])


def costs_table(groups: Sequence[str], costs: Sequence[JudgeCost]) -> ListTable:
    """Show the cost of judging, one group per line; `groups` are the fields that name a group."""
    counts = ("judgements", "calls", "input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
    headers = [name.removesuffix("_id").replace("_", " ") for name in (*groups, *counts)]
    cells = [
        [*(getattr(cost, name) for name in (*groups, *counts)), _format_cost(cost), _describe_judge(cost)] for cost in costs
    ]
    right = [*headers[len(groups) :], "cost"]
    optional = ["cache write tokens", "cache read tokens", "judgements", "output tokens", "input tokens", "judge"]
    return ListTable([*headers, "cost", "judge"], cells, right=right, whole=["day"], optional=optional)


def agent_costs_table(group: str, costs: Sequence[AgentCost]) -> ListTable:
    """Show the costs of agents, one group per line; `group` is the field that names it."""
    headers = [group, "exchanges", "input tokens", "output tokens", "without tokens", "without price", "cost at most"]
    cells = [
        [
            getattr(cost, group) or MISSING,
            cost.exchanges,
            cost.input_tokens,
            cost.output_tokens,
            cost.unknown_tokens,
            cost.unknown_prices,
            MISSING if cost.cost_usd is None else f"${cost.cost_usd:.4f}",
        ]
        for cost in costs
    ]
    optional = ["without tokens", "without price", "output tokens", "input tokens"]
    return ListTable(headers, cells, right=headers[1:], whole=["day"], optional=optional)


def caps_table(caps: Sequence[SharedCap]) -> RenderableType:
    """Show the caps that sessions share, with the spending that counts toward each."""
    cells = [
        [
            cap.project or "all projects",
            cap.period,
            f"{cap.spent_usd:.4f} USD",
            f"{cap.cap_usd:g} USD",
            f"{cap.reached_at:%Y-%m-%d %H:%M}" if cap.reached_at else "",
            cap.left_out or "",
        ]
        for cap in caps
    ]
    return table(
        ["caps of", "UTC day or month", "spent", "cap", "reached", "left out"], cells, right=["spent", "cap", "left out"]
    )


WRAP_KEYS = ("project", "sessionId", "connection", "lastTimestamp", "score", "stepsMissing")
"""The fields of a wrap-up in a list."""


def wrap_table(sessions: Sequence[WrapUp]) -> ListTable:
    """Show wrap quality, one session per line."""
    cells = [
        [
            session.project,
            session.session_id,
            f"{session.last_timestamp:%Y-%m-%d %H:%M}",
            f"{session.score:.1f}",
            ", ".join(session.steps_missing),
        ]
        for session in sessions
    ]
    return ListTable(
        ["project", "session", "last exchange", "score", "missing"], cells, right=["score"], whole=["last exchange"]
    )


def diagnosis_view(document: Mapping[str, Any], run: Run | None = None) -> RenderableType:
    """Show a diagnosis: the verdict first, then each cause with its steps, evidence and remedy.

    A run without events has only the verdict.
    """
    parts: list[RenderableType] = [_format_verdict(document, run)]
    if run is not None and not document["evidence_summary"]["event_count"]:
        return Group(
            *parts,
            Text(""),
            Text(f"{EXCHANGES_ONLY}. Trust and readiness need runtime events; `driftline scores` shows the exchanges."),
        )
    primary = document["primary_diagnosis"]
    if primary["root_cause_failure_type"] is None:
        parts += [Text(""), Text(plain(primary["causal_chain_explanation"]))]
    impacts = [cause["impact_score"] for cause in document["failure_causes"]]
    for index, cause in enumerate(document["failure_causes"]):
        parts += [Text(""), *_format_cause(cause, primary=index == impacts.index(min(impacts)))]
    parts += [Text(""), _tabulate_dimensions(document), Text(""), _summarize_evidence(document)]
    return Group(*parts)


def findings_view(findings: SessionFindings) -> RenderableType:
    """Show the findings of a run, one line per finding and turn, and the findings that are not marked in a turn."""
    cells = [
        [
            f"turn {turn}" if turn else "before turn 1",
            finding.type,
            styled(finding.severity),
            marked.event_count,
            _name_events(marked),
        ]
        for turn, marks in sorted(findings.by_turn.items())
        for finding, marked in marks
    ]
    notes = [f"{finding.type}: {finding.note}" for finding in findings.findings if finding.note]
    if len(cells) > MAX_TURNS:
        notes.append(f"{len(cells) - MAX_TURNS} more lines: --json has them.")
    if findings.left_out:
        notes.append(f"{counted(findings.left_out, 'more finding')} with smaller penalties: not marked.")
    turns_table = table(["where", "finding", "severity", "events", "of them"], cells[:MAX_TURNS], right=["events"])
    return Group(Text(""), *([turns_table] if cells else []), *(Text(note, style="dim") for note in notes))


def _name_events(marked: MarkedTurn) -> str:
    """Name the first events of a turn: type, tool and id."""
    first = [
        plain(" ".join(filter(None, (event.event, event.tool, event.event_id))), 80) for event in marked.events[:MAX_EVENTS]
    ]
    return ", ".join([*first, *(["…"] if marked.event_count > MAX_EVENTS else [])])


def _format_tiers(score: Score) -> str:
    """Show the scores of the tiers, aligned across lines, or a short reason why there is none."""
    judged = (
        _format_tier(score.tier2_state, score.tier2_score),
        _format_tier(score.tier2_5_state, score.tier2_5_alignment),
        _format_tier(score.tier3_state, score.tier3_score),
    )
    return " ".join(f"{shown:>4}" for shown in (f"{score.tier1_score:.2f}", *judged))


def _format_tier(state: str, score: float | None) -> str:
    """Show the score of a tier, or a short reason why there is none."""
    return f"{score:.2f}" if state == SCORED and score is not None else TIER_STATES.get(state, state)


def _describe_outcome(score: Score) -> str:
    """Describe the outcome of the exchange: each reason once if it is unscored, and whether a simulated judge took part."""
    states = (
        (score.tier2_state, score.tier2_reason),
        (score.tier2_5_state, score.tier2_5_reason),
        (score.tier3_state, score.tier3_reason),
    )
    reasons = ", ".join(dict.fromkeys(reason or MISSING for state, reason in states if state == UNSCORED))
    outcome = f"{score.disposition}: {reasons}" if score.disposition == UNSCORED and reasons else score.disposition
    return f"{outcome}, {SIMULATED}" if score.simulated else outcome


def _format_cost(cost: JudgeCost) -> str:
    """Show dollars, and the number of calls left out because their price is unknown."""
    dollars = [] if cost.cost_usd is None else [f"${cost.cost_usd:.4f}"]
    return " + ".join([*dollars, *([f"{cost.unknown_costs} unknown"] if cost.unknown_costs else [])])


def _describe_judge(cost: JudgeCost) -> str:
    """Describe whether a simulated judge took part."""
    if cost.simulated in (0, cost.judgements):
        return SIMULATED if cost.simulated else MISSING
    return f"{SIMULATED} ({cost.simulated} of {cost.judgements})"


def _format_verdict(document: Mapping[str, Any], run: Run | None) -> Text:
    trust = document["trust_score"]
    line = Text.assemble(
        styled(document["readiness_level"]), "  ", ("no evidence" if trust is None else f"trust {trust}", "bold")
    )
    line.append(f"  session {plain(document['session_id'])}", style="dim")
    if run is not None:
        line.append(f"  {run.run_id}  project {plain(run.project)}  agent {plain(run.agent or MISSING)}", style="dim")
        if run.threshold_profile:
            changes = f" changed by {plain(run.threshold_changes, 400)}" if run.threshold_changes else ""
            line.append(f"  thresholds {plain(run.threshold_profile)}{changes}", style="dim")
    return line


def _format_cause(cause: Mapping[str, Any], *, primary: bool) -> list[RenderableType]:
    head = Text.assemble(styled(cause["severity"]), f"  {cause['type']}  {cause['impact_score']}")
    if primary:
        head.append("  primary", style="bold")
    lines: list[RenderableType] = [head, Text(f"  {plain(cause['description'], 400)}")]
    lines += [Text(f"    {number}. {step}") for number, step in enumerate(cause["causal_chain"], start=1)]
    evidence = cause["evidence"]
    lines.append(Text(f"  evidence ({counted(len(evidence), 'event')})", style="dim"))
    lines += [Text(f"    {plain(_format_event(event), 160)}", style="dim") for event in evidence[:MAX_EVIDENCE]]
    if len(evidence) > MAX_EVIDENCE:
        lines.append(Text(f"    … and {len(evidence) - MAX_EVIDENCE} more", style="dim"))
    lines.append(Padding(Text(f"→ {plain(cause['remediation'], 400)}", style="green"), (0, 0, 0, 2)))
    return lines


def _format_event(event: Mapping[str, Any]) -> str:
    content = canonical_json({name: value for name, value in event.items() if name not in IDENTIFYING_FIELDS})
    return f"{event['event_id']}  {event['event']}  {event.get('timestamp', '')}  {content}"


def _tabulate_dimensions(document: Mapping[str, Any]) -> RenderableType:
    rows = [
        [name, MISSING if score is None else score, Text(bar(score or 0, 100), style="green" if score == 100 else "yellow")]
        for name, score in document["scores"].items()
    ]
    return table(["dimension", "score", ""], rows, right=["score"])


def _summarize_evidence(document: Mapping[str, Any]) -> Text:
    summary, cost = document["evidence_summary"], document["cost_analysis"]
    counts = ", ".join(f"{count} {plain(event, 40)}" for event, count in summary["event_counts"].items())
    return Text(
        f"{summary['event_count']} events ({counts or 'none'}); {cost['total_tokens']} tokens, "
        f"{cost['duplicate_calls']} duplicate calls, about {cost['token_waste']} tokens wasted",
        style="dim",
    )


def agreement_cells(name: str, estimate: Estimate) -> list[Any]:
    """Return a row of an agreement table: the sides compared, the number of labels, kappa and bias with their intervals."""
    kappa = estimate.state.replace("_", " ")
    if estimate.kappa is not None:
        kappa = f"{estimate.kappa:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
    bias = MISSING
    if estimate.bias is not None:
        bias = f"{estimate.bias:+.2f} ({estimate.bias_low:+.2f} to {estimate.bias_high:+.2f})"
    return [name, estimate.labels, estimate.exchanges, estimate.sessions, kappa, bias]
