"""Why an incident happened: its reasons in sentences, strongest first, with recommended actions and a one-line summary for alerts.

If the anchors show that the judge changed, that is the first reason. Otherwise the first reason is a symptom with counts, followed by the
slice of the traffic that changed and its deployment. Other symptoms come last.

1. A sentence gives counts with their totals, before and since the change. It says what changed at the same time and claims no cause:
   only anchors can distinguish a change of the agent from one of the judge.
2. A share is mentioned only if it changed by more than three standard errors, so that chance does not explain it.
3. Changes of other days or in the other direction have incidents of their own, which may be related. Only drift is checked for its cause,
   so the suspected cause of a spike is the cause of a related drift.

The page, the API, the command line and alerts use the same sentences and actions (`service.read.incident_actions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from audit.drift.incident_evidence import EVERYWHERE, ChangedSeries, Count, SliceRow, evidence_of
from audit.drift.watched_series import VERSION, format_level
from audit.exchanges.tier1 import STRUCTURAL_CHECKS
from schemas.records import Incident
from service.read.incident_actions import (
    Action,
    IncidentFacts,
    describe_slices,
    format_explained_share,
    format_slice_means,
    format_slice_rates,
    recommend_actions,
)
from service.text.answers import Answer
from service.text.formats import grouped, grouped_count
from service.text.words import TERMS, WORDS

MAX_NAMED_ITEMS = 4
"""Maximum number of reasons, failures or series in a sentence."""
MAX_NAME_LENGTH = 120
"""Maximum length of a name chosen by a sender or a judge."""
_FLAG_NOUNS: Mapping[str, tuple[str, str]] = {check.id: (check.noun, check.plural) for check in STRUCTURAL_CHECKS}
"""Tier 1 flags in words, singular and plural."""
UNEXPLAINED = "unexplained"
"""The kind of the sentence for an incident without a known reason."""
_NO_REASON = (
    "The evidence shows no reason: no check, dimension, failure or part of the traffic changed with it beyond chance. "
    "Read the sessions to find one."
)


class BeforeAndAfter(Answer, frozen=True):
    """The number of exchanges or runs with a property before and since a change, with their totals."""

    name: Annotated[str, Meta(description="Check, reason, failure or sampling reason; empty for any.")]
    before: int
    all_before: int
    after: int
    all_after: int


class Statement(Answer, frozen=True):
    """A reason of an incident."""

    kind: Annotated[str, Meta(examples=["tier1_flags", "dimensions", "failures", "slice", "deployments"])]
    text: Annotated[str, Meta(description="The reason, in a sentence. Coincidence is not called a cause.")]
    counts: Annotated[list[BeforeAndAfter], Meta(description="The counts behind it; empty for means and quotations.")] = (
        msgspec.field(default_factory=list)
    )

    @classmethod
    def with_counts(cls, kind: str, text: str, counts: Iterable[Count]) -> Self:
        """Return a reason with the counts behind it."""
        fields = ("name", "before", "all_before", "after", "all_after")
        return cls(kind, text, [BeforeAndAfter(*(getattr(count, field) for field in fields)) for count in counts])


def list_reasons(facts: IncidentFacts) -> list[Statement]:
    """Return the reasons in the evidence, strongest first. Without any, the first statement says so."""
    kinds = next(kinds for applies, kinds in _ORDERS if applies(facts))
    if _is_judge_change(facts):
        # A dictionary removes the second "cause" and keeps the order.
        return _explain(facts, dict.fromkeys(("cause", *kinds)))
    reasons = _explain(facts, kinds)
    if not any(reason.kind in REASON_KINDS for reason in reasons):
        return [Statement(UNEXPLAINED, _NO_REASON), *reasons]
    if facts.slice_comparison is not None and facts.slice_comparison.found is not None:
        return _move_slice_up(reasons)
    return reasons


def _explain(facts: IncidentFacts, kinds: Iterable[str]) -> list[Statement]:
    return [statement for kind in kinds for statement in _EXPLANATIONS[kind](facts)]


def _move_slice_up(reasons: Sequence[Statement]) -> list[Statement]:
    """Move the changed slice and its deployment directly behind the first symptom."""
    slices = [reason for reason in reasons if reason.kind in SLICE_KINDS]
    others = [reason for reason in reasons if reason.kind not in SLICE_KINDS]
    symptoms = 1 if others and others[0].kind in REASON_KINDS else 0
    return [*others[:symptoms], *slices, *others[symptoms:]]


def _is_judge_change(facts: IncidentFacts) -> bool:
    """Return whether the anchors show, in words, that the judge changed."""
    return facts.incident.cause == "judge" and any(_explain_cause(facts))


def _explain_flags(facts: IncidentFacts) -> Iterator[Statement]:
    checks = facts.select_changed(facts.evidence.flags)[:MAX_NAMED_ITEMS]
    total = facts.find_reason("flagged")
    if total is not None and facts.select_changed([total]):
        parts = ", ".join(_describe_flagged(check.after, check.name) for check in checks)
        yield Statement.with_counts(
            "tier1_flags",
            f"{_format_after(total)} exchanges were flagged by checks, {_format_before(total)}{_prefix_colon(parts)}.",
            [total, *checks],
        )
    elif checks:
        first, *others = checks
        text = f"Checks flagged {_describe_flagged(first.after, first.name)} in {grouped(first.all_after)} exchanges, before {grouped(first.before)}"
        clauses = [f"{text} in {grouped(first.all_before)}"]
        clauses += [f"{_describe_flagged(check.after, check.name)}, before {grouped(check.before)}" for check in others]
        yield Statement.with_counts("tier1_flags", f"{'; '.join(clauses)}.", checks)


def _explain_anomalies(facts: IncidentFacts) -> Iterator[Statement]:
    total = facts.find_reason("anomalous") or facts.anomaly_counts
    if total is None or not facts.select_changed([total]):
        yield from _explain_flags(facts)
        return
    reasons: Sequence[Count] = facts.select_changed(reason for reason in facts.evidence.reasons if reason.kind == "anomaly")[
        :MAX_NAMED_ITEMS
    ]
    parts = ", ".join(f"{_shorten_name(reason.name)} ({grouped(reason.after)})" for reason in reasons)
    if not reasons:  # evidence of earlier versions has only the checks of Tier 1
        reasons = facts.select_changed(facts.evidence.flags)[:MAX_NAMED_ITEMS]
        parts = ", ".join(_describe_flagged(flag.after, flag.name) for flag in reasons)
    yield Statement.with_counts(
        "anomalies",
        f"{_format_after(total)} exchanges have an anomaly, {_format_before(total)}{_prefix_colon(parts)}.",
        [total, *reasons],
    )


def _explain_judge_flags(facts: IncidentFacts) -> Iterator[Statement]:
    clauses = {
        "judge_flag": "judged turns were flagged by the judge",
        "sycophancy": "turns with thinking agree with the user against their own reasoning",
        "advocacy_suppression": "turns with thinking recommend less than their own reasoning does",
    }
    for kind, clause in clauses.items():
        reason = facts.find_reason(kind)
        if reason is not None and facts.select_changed([reason]):
            yield Statement.with_counts(kind, f"{_format_after(reason)} {clause}, {_format_before(reason)}.", [reason])


def _explain_dimensions(facts: IncidentFacts) -> Iterator[Statement]:
    """Name the dimensions that changed most, with the number of judged turns."""
    changed = facts.dimensions[:MAX_NAMED_ITEMS]
    if not changed:
        return
    verb = "changed" if facts.is_spread else "rose" if facts.incident.direction == "up" else "fell"
    parts = [f"{_shorten_name(_name_term(row.dimension))} {row.mean_before:.2f} → {row.mean_after:.2f}" for row in changed]
    first = changed[0]
    turns = f"{grouped(first.judged_after)} judged turns since the change, {grouped(first.judged_before)} before"
    then = f", then {', '.join(parts[1:])}" if parts[1:] else ""
    yield Statement("dimensions", f"The judge's scores {verb} most in {parts[0]} ({turns}){then}.")


def _explain_failures(facts: IncidentFacts) -> Iterator[Statement]:
    changed = facts.select_changed(facts.evidence.failures, min_count=2)[:MAX_NAMED_ITEMS]
    if not changed:
        return
    first, *others = changed
    clauses = [f"{_shorten_name(_name_term(first.name))} in {_format_after(first)} runs, {_format_before(first)}"]
    clauses += [
        f"{_shorten_name(_name_term(failure.name))} in {grouped(failure.after)}, before {grouped(failure.before)}"
        for failure in others
    ]
    yield Statement.with_counts("failures", f"{'; '.join(clauses)}.", changed)


def _explain_slice_series(facts: IncidentFacts) -> Iterator[Statement]:
    """Name the slice of which the leading series is, and the level of the others."""
    lead = facts.lead_slice
    if lead is None or lead.slice is None or lead.level is None:
        return
    before, after = format_level(lead.tier, lead.level.before), format_level(lead.tier, lead.level.after)
    if lead.kind == VERSION:
        yield Statement(
            "slice", f"{_shorten_name(lead.slice)} is at {after}, and the other versions at {before} on the same days."
        )
    else:
        yield Statement(
            "slice", f"Only {_shorten_name(lead.slice)} changed, {before} → {after}; as a whole the mean is as before."
        )


def _explain_slices(facts: IncidentFacts) -> Iterator[Statement]:
    comparison = facts.slice_comparison
    best = comparison.found if comparison is not None else None
    if best is None:
        return
    if abs(best.mix.amount) > abs(best.within.amount):
        change = f"its share went {best.shares}"
    elif facts.is_spike:
        change = f"its rate of anomalies went {format_slice_rates(best)}"
    else:
        change = f"its mean went {format_slice_means(best)}"
    identical = f" Identical slices: {', '.join(_shorten_name(row.name) for row in best.same_as)}." if best.same_as else ""
    explained = f"{_shorten_name(best.name)} explains {format_explained_share(best)} of the change"
    yield Statement("slice", f"{explained}: {change}{_describe_exchanges(best, facts.unit)}.{identical}")


def _explain_everywhere(facts: IncidentFacts) -> Iterator[Statement]:
    comparison = facts.slice_comparison
    if comparison is not None and comparison.state == EVERYWHERE:
        yield Statement("everywhere", describe_slices(comparison))


def _explain_deployments(facts: IncidentFacts) -> Iterator[Statement]:
    deployments = [
        f"{_shorten_name(deployed.name)} ({_format_time(deployed.at)}, by {_shorten_name(deployed.by)}{_quote_comment(deployed.comment)})"
        for deployed in facts.evidence.deployments
    ]
    if deployments:
        more = f" and {len(deployments) - MAX_NAMED_ITEMS} more" if len(deployments) > MAX_NAMED_ITEMS else ""
        yield Statement(
            "deployments",
            f"It coincides with {'a deployment' if len(deployments) == 1 else 'deployments'}: {', '.join(deployments[:MAX_NAMED_ITEMS])}{more}.",
        )


def _explain_moved(facts: IncidentFacts) -> Iterator[Statement]:
    """Name the other series that changed, with their levels."""
    levels = [describe_levels(series) for series in facts.changed_series[1:]]
    others = [text for text in levels if text is not None]
    if others:
        more = f" and {len(others) - MAX_NAMED_ITEMS} more" if len(others) > MAX_NAMED_ITEMS else ""
        yield Statement("moved_too", f"Also changed on the same days: {', '.join(others[:MAX_NAMED_ITEMS])}{more}.")


def _explain_cause(facts: IncidentFacts) -> Iterator[Statement]:
    explanation = facts.mix_explanation or facts.cause.words
    if facts.incident.cause and explanation:
        yield Statement("cause", explanation)


def _explain_policy(facts: IncidentFacts) -> Iterator[Statement]:
    if facts.evidence.note:
        yield Statement("policy", facts.evidence.note)


def _explain_sampling(facts: IncidentFacts) -> Iterator[Statement]:
    changed = [count for count in facts.sampling_counts if count.has_risen()][:MAX_NAMED_ITEMS]
    if not changed or not (facts.is_judged or facts.is_spike):
        return
    first, *others = changed
    parts = [f"{_describe_sampled(first.name)} {_format_after(first)}, {_format_before(first)}"]
    parts += [f"{_describe_sampled(count.name)} {grouped(count.after)}, before {grouped(count.before)}" for count in others]
    consequence = (
        "This alone can raise the number of anomalies that only the judge detects."
        if facts.is_spike
        else "Scores are weighted by 1 / their sampling probability, so this alone does not change the mean."
    )
    yield Statement.with_counts("sampling", f"The mix of judged turns changed: {'; '.join(parts)}. {consequence}", changed)


_EXPLANATIONS: Mapping[str, Callable[[IncidentFacts], Iterator[Statement]]] = {
    "flags": _explain_flags,
    "anomalies": _explain_anomalies,
    "judge_flags": _explain_judge_flags,
    "dimensions": _explain_dimensions,
    "failures": _explain_failures,
    "slice_series": _explain_slice_series,
    "slices": _explain_slices,
    "everywhere": _explain_everywhere,
    "deployments": _explain_deployments,
    "moved": _explain_moved,
    "cause": _explain_cause,
    "policy": _explain_policy,
    "sampling": _explain_sampling,
}
_DETAILS = ("everywhere", "moved", "cause", "policy", "sampling")
_CONTEXT = ("slices", "everywhere", "deployments", "moved", "cause", "policy", "sampling")
_ORDERS: Sequence[tuple[Callable[[IncidentFacts], bool], tuple[str, ...]]] = (
    (
        lambda facts: facts.lead_slice is not None,
        ("slice_series", "deployments", "flags", "failures", "judge_flags", "dimensions", *_DETAILS),
    ),
    (lambda facts: facts.is_about_runs, ("failures", "flags", *_CONTEXT)),
    (lambda facts: facts.is_spike, ("anomalies", "failures", *_CONTEXT)),
    (lambda facts: facts.incident.tier == "tier1", ("flags", "failures", *_CONTEXT)),
    (lambda _: True, ("flags", "slices", "deployments", "failures", "judge_flags", "dimensions", *_DETAILS)),
)
"""Orders of explanations, each with the incidents that it applies to. The first that applies is used."""
SLICE_KINDS = frozenset({"slice", "deployments"})
"""Kinds of statements about the changed slice and its deployment."""
REASON_KINDS = frozenset(
    {"tier1_flags", "anomalies", "judge_flag", "sycophancy", "advocacy_suppression"}
    | {"dimensions", "failures", "slice", "deployments"}
)
"""Kinds of statements that are reasons. All others are context."""


def describe_levels(moved: ChangedSeries) -> str | None:
    """Return a changed series with its levels before and since the change; None without levels, as for a spread."""
    level = moved.level
    if level is None:
        return None
    before, after = (format_level(moved.key.tier, value) for value in (level.before, level.after))
    return f"{_shorten_name(moved.name)} {before} → {after}"


def _describe_exchanges(row: SliceRow, unit: str) -> str:
    if not row.exchanges_before and not row.exchanges_after:
        return ""
    return f" ({grouped_count(row.exchanges_after, unit)} since the change, {grouped(row.exchanges_before)} before)"


def _describe_flagged(count: int, flag: str) -> str:
    singular, plural = _FLAG_NOUNS.get(flag, (f"flagged by {flag}", f"flagged by {flag}"))
    return f"{grouped(count)} {_shorten_name(singular if count == 1 else plural)}"


def _prefix_colon(parts: str) -> str:
    return f": {parts}" if parts else ""


def _format_after(count: Count) -> str:
    return f"{grouped(count.after)} of {grouped(count.all_after)}"


def _format_before(count: Count) -> str:
    return (
        f"before {grouped(count.before)} of {grouped(count.all_before)}" if count.all_before else "with none to compare before"
    )


def _shorten_name(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"


def _quote_comment(comment: str | None) -> str:
    """Quote the comment of a deployment; it often says what the release was meant to change."""
    return f": \u201c{_shorten_name(comment)}\u201d" if comment else ""


def _name_term(name: str) -> str:
    return TERMS.get(name) or name.replace("_", " ")


def _describe_sampled(name: str) -> str:
    return _shorten_name(WORDS["sampling_reasons"].get(name) or name.replace("_", " "))


def _format_time(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return _shorten_name(text)


MAX_RELATED_DISTANCE = timedelta(days=2)
"""Maximum distance between the first days of related incidents. It allows for errors, because both days are estimates."""


def find_related(incident: Incident, others: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that overlap an incident, began within two days of it, and share an agent with it if the agents are known."""
    return [other for other in others if other.incident_id != incident.incident_id and _are_related(incident, other)]


def find_suspected_cause(incident: Incident, related: Sequence[Incident]) -> Incident | None:
    """Return the related incident whose cause an incident without a cause probably shares.

    None if the incident has a cause of its own, or if the related incidents disagree.
    """
    if incident.cause is not None:
        return None
    explained = [other for other in related if other.cause is not None]
    return explained[0] if len({other.cause for other in explained}) == 1 else None


def _are_related(incident: Incident, other: Incident) -> bool:
    first = _find_first_day(incident)
    other_first = _find_first_day(other)
    if incident.project != other.project or first is None or other_first is None:
        return False
    return (
        abs(first - other_first) <= MAX_RELATED_DISTANCE
        and first <= _find_last_day(other)
        and other_first <= _find_last_day(incident)
        and _may_share_agent(_list_agents(incident), _list_agents(other))
    )


def _find_first_day(incident: Incident) -> date | None:
    """Return the first day of an incident. Records of earlier versions have it in the evidence."""
    if incident.first_day is not None:
        return incident.first_day.astimezone(UTC).date()
    return next((moved.since for moved in evidence_of(incident).moved), None)


def _find_last_day(incident: Incident) -> date:
    """Return the last day of an incident, or the day of its last check while it continues."""
    return (incident.last_day or incident.checked_at or datetime.max.replace(tzinfo=UTC)).astimezone(UTC).date()


def _may_share_agent(agents: set[str], others: set[str]) -> bool:
    return not agents or not others or bool(agents & others)


def _list_agents(incident: Incident) -> set[str]:
    """Return the agent of an incident, or those of its example exchanges; empty if the evidence names none."""
    if incident.agent is not None:
        return {incident.agent}
    return {exchange.agent for exchange in evidence_of(incident).exchanges if exchange.agent is not None}


class Why(Answer, frozen=True):
    """The explanation of an incident and the recommended actions, derived from its evidence."""

    summary: Annotated[str, Meta(description="The strongest reason.")]
    reasons: Annotated[list[Statement], Meta(description="Strongest reason first.")]
    actions: Annotated[list[Action], Meta(description="First action first.")]

    @property
    def lead(self) -> list[Statement]:
        """The strongest reason, with the changed slice and its deployment if they follow it."""
        first, *others = self.reasons
        return [first, *itertools.takewhile(lambda reason: reason.kind in SLICE_KINDS, others)]

    @property
    def others(self) -> list[Statement]:
        """The other reasons."""
        return self.reasons[len(self.lead) :]

    @property
    def is_explained(self) -> bool:
        """Whether the evidence names a reason."""
        return self.reasons[0].kind != UNEXPLAINED


def why(incident: Incident) -> Why:
    """Explain an incident by its evidence."""
    return explain_facts(IncidentFacts(incident))


def explain_facts(facts: IncidentFacts) -> Why:
    """Explain an incident by facts already read from its evidence."""
    reasons = list_reasons(facts)
    return Why(summary=reasons[0].text, reasons=reasons, actions=recommend_actions(facts))
