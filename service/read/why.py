"""The reasons of an incident in sentences, the most telling first, with actions, and the one line that fits an alert.

The most telling reason is the judge, if the anchors show that it changed. Otherwise it is the first symptom, with counts,
followed by the nearest thing to a cause: the slice of the traffic that changed, with its deployment. Other symptoms come last.

1. A sentence gives counts and their totals, before the change and since. It says what changed at the same time and claims no cause.
   Only anchors tell a change of the agent from one of the judge.
2. Changes that chance may explain are left out: a share must have changed by more than three standard errors.
3. Rules open one incident per kind of change, so a fall of scores and a spike of anomalies with one cause are two incidents, called
   twins. Only drift is checked for its cause, so a spike's first suspect is the cause of its twin.

The page, the API, the command line and alerts share these sentences and the actions (`service.read.incident_actions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from audit.drift.incident_evidence import Count, Moved, SliceRow, evidence_of
from schemas.records import Incident
from service.read.incident_actions import Action, Facts, actions, part_explained, slice_means, slice_rates, which_part_words
from service.text.answers import Answer
from service.text.formats import grouped, grouped_count
from service.text.words import TERMS, WORDS

MOST_NAMED = 4
"""Maximum number of reasons, failures or series named in a sentence."""
MAX_NAME = 120
"""Maximum length of a name chosen by a sender or a judge."""
_FLAGS: Mapping[str, tuple[str, str]] = {
    "constraint_disclosure": ("unexplained refusal", "unexplained refusals"),
    "silent_refusal": ("empty answer", "empty answers"),
    "self_identification": ("denial of being an AI", "denials of being an AI"),
}
"""The flags of Tier 1's checks, in singular and plural."""
UNEXPLAINED = "unexplained"
"""The kind of the sentence for an incident without a known reason."""
_NO_REASON = (
    "The evidence shows no reason: no check, dimension, failure or part of the traffic changed with it beyond chance. "
    "Read the sessions to find one."
)


class BeforeAndAfter(Answer, frozen=True):
    """Numbers of exchanges or runs with a property, before a change and since, each with its total."""

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
    def resting_on(cls, kind: str, text: str, counts: Iterable[Count]) -> Self:
        """Return a reason with the counts behind it."""
        fields = ("name", "before", "all_before", "after", "all_after")
        return cls(kind, text, [BeforeAndAfter(*(getattr(count, field) for field in fields)) for count in counts])


def statements(facts: Facts) -> list[Statement]:
    """Return the reasons in the evidence, the most telling first; without any, a single one that says so."""
    order = next((order for holds, order in _ORDERS if holds(facts)), ())
    is_judge = _is_judge(facts)
    statements_found = [one for kind in dict.fromkeys(("cause", *order) if is_judge else order) for one in _KINDS[kind](facts)]
    if is_judge:
        return statements_found
    if any(one.kind in _TELLING for one in statements_found):
        return (
            _add_part(statements_found)
            if facts.which_part is not None and facts.which_part.found is not None
            else statements_found
        )
    return [Statement(UNEXPLAINED, _NO_REASON), *statements_found]


def _add_part(statements: Sequence[Statement]) -> list[Statement]:
    """Return the reasons with the changed slice and its deployment placed directly after the first symptom."""
    part = [one for one in statements if one.kind in PART]
    others = [one for one in statements if one.kind not in PART]
    symptoms = 1 if others and others[0].kind in _TELLING else 0
    return [*others[:symptoms], *part, *others[symptoms:]]


def _is_judge(facts: Facts) -> bool:
    """Return whether there is a sentence that the judge changed, from the anchors."""
    return facts.incident.cause == "judge" and any(_explain_cause(facts))


def _explain_flags(facts: Facts) -> Iterator[Statement]:
    checks = facts.risen(facts.evidence.flags)[:MOST_NAMED]
    total = facts.reason("flagged")
    if total is not None and facts.risen([total]):
        parts = ", ".join(_describe_flagged(one.after, one.name) for one in checks)
        yield Statement.resting_on(
            "tier1_flags",
            f"{_count_of(total)} exchanges were flagged by Tier 1, {_format_before(total)}{_join_names(parts)}.",
            [total, *checks],
        )
    elif checks:
        first, *others = checks
        text = f"Tier 1 flagged {_describe_flagged(first.after, first.name)} in {grouped(first.all_after)} exchanges, before {grouped(first.before)}"
        rest = [f"{_describe_flagged(one.after, one.name)}, before {grouped(one.before)}" for one in others]
        yield Statement.resting_on("tier1_flags", "; ".join([f"{text} in {grouped(first.all_before)}", *rest]) + ".", checks)


def _explain_anomalies(facts: Facts) -> Iterator[Statement]:
    total = facts.reason("anomalous") or facts.spike
    if total is None or not facts.risen([total]):
        yield from _explain_flags(facts)
        return
    reasons: Sequence[Count] = facts.risen(one for one in facts.evidence.reasons if one.kind == "anomaly")[:MOST_NAMED]
    parts = ", ".join(f"{_quote_name(one.name)} ({grouped(one.after)})" for one in reasons)
    if not reasons:  # evidence of earlier versions has only the checks of Tier 1
        reasons = facts.risen(facts.evidence.flags)[:MOST_NAMED]
        parts = ", ".join(_describe_flagged(one.after, one.name) for one in reasons)
    yield Statement.resting_on(
        "anomalies",
        f"{_count_of(total)} exchanges have an anomaly, {_format_before(total)}{_join_names(parts)}.",
        [total, *reasons],
    )


def _explain_judge_flags(facts: Facts) -> Iterator[Statement]:
    clauses = {
        "judge_flag": "judged turns were flagged by the judge",
        "sycophancy": "turns with thinking agree with the user against their own reasoning",
        "advocacy_suppression": "turns with thinking recommend less than their own reasoning does",
    }
    for kind, clause in clauses.items():
        reason = facts.reason(kind)
        if reason is not None and facts.risen([reason]):
            yield Statement.resting_on(kind, f"{_count_of(reason)} {clause}, {_format_before(reason)}.", [reason])


def _explain_dimensions(facts: Facts) -> Iterator[Statement]:
    """Name the dimensions that changed most, with the number of turns behind the means."""
    changed = facts.dimensions[:MOST_NAMED]
    if not changed:
        return
    verb = "rose" if facts.incident.direction == "up" else "fell"
    parts = [f"{_quote_name(_name_term(one.dimension))} {one.mean_before:.2f} → {one.mean_after:.2f}" for one in changed]
    first = changed[0]
    turns = f"{grouped(first.judged_after)} judged turns since the change, {grouped(first.judged_before)} before"
    then = f", then {', '.join(parts[1:])}" if parts[1:] else ""
    yield Statement("dimensions", f"The judge's scores {verb} most in {parts[0]} ({turns}){then}.")


def _explain_failures(facts: Facts) -> Iterator[Statement]:
    changed = facts.risen(facts.evidence.failures, fewest=2)[:MOST_NAMED]
    if not changed:
        return
    rest = "".join(
        f"; {_quote_name(_name_term(one.name))} in {grouped(one.after)}, before {grouped(one.before)}" for one in changed[1:]
    )
    first = changed[0]
    text = f"{_quote_name(_name_term(first.name))} in {_count_of(first)} runs, {_format_before(first)}{rest}."
    yield Statement.resting_on("failures", text, changed)


def _explain_slices(facts: Facts) -> Iterator[Statement]:
    which = facts.which_part
    best = which.found if which is not None else None
    if which is None or best is None:
        return
    mixed = abs(best.mix.amount) > abs(best.within.amount)
    level = f"rate of anomalies went {slice_rates(best)}" if facts.is_spike else f"mean went {slice_means(best)}"
    how = f"its share went {best.shares}" if mixed else f"its {level}"
    twins = f" Identical slices: {', '.join(_quote_name(one.name) for one in best.same_as)}." if best.same_as else ""
    yield Statement(
        "slice",
        f"{_quote_name(best.name)} explains {part_explained(best)} of the change: {how}{_describe_exchanges(best, facts.unit)}.{twins}",
    )


def _explain_everywhere(facts: Facts) -> Iterator[Statement]:
    which = facts.which_part
    if which is not None and which.state == "everywhere":
        yield Statement("everywhere", which_part_words(which))


def _explain_deployments(facts: Facts) -> Iterator[Statement]:
    deployments = [
        f"{_quote_name(one.name)} ({_format_moment(one.at)}, by {_quote_name(one.by)}{_describe_flag(one.comment)})"
        for one in facts.evidence.deployments
    ]
    if deployments:
        more = f" and {len(deployments) - MOST_NAMED} more" if len(deployments) > MOST_NAMED else ""
        yield Statement(
            "deployments",
            f"It coincides with {'a deployment' if len(deployments) == 1 else 'deployments'}: {', '.join(deployments[:MOST_NAMED])}{more}.",
        )


def _explain_moved(facts: Facts) -> Iterator[Statement]:
    """Name the series that also changed, with levels; shares of runs as shares."""
    others = [text for one in facts.moved[1:] if (text := level_words(one))]
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield Statement("moved_too", f"Also changed on the same days: {', '.join(others[:MOST_NAMED])}{more}.")


def _explain_cause(facts: Facts) -> Iterator[Statement]:
    change = facts.mix_words or facts.cause.words
    if facts.incident.cause and change:
        yield Statement("cause", change)


def _explain_policy(facts: Facts) -> Iterator[Statement]:
    if facts.evidence.note:
        yield Statement("policy", facts.evidence.note)


def _explain_sampling(facts: Facts) -> Iterator[Statement]:
    changed = [one for one in facts.mix if one.has_risen()][:MOST_NAMED]
    if not changed or not (facts.is_judged or facts.is_spike):
        return
    first, *rest = changed
    parts = [f"{_describe_sampled(first.name)} {_count_of(first)}, {_format_before(first)}"]
    parts += [f"{_describe_sampled(one.name)} {grouped(one.after)}, before {grouped(one.before)}" for one in rest]
    consequence = (
        "This alone can raise the number of anomalies that only the judge detects."
        if facts.is_spike
        else "Scores are weighted by their sampling probability, so this alone does not change the mean."
    )
    yield Statement.resting_on("sampling", f"The mix of judged turns changed: {'; '.join(parts)}. {consequence}", changed)


_KINDS: Mapping[str, Callable[[Facts], Iterator[Statement]]] = {
    "flags": _explain_flags,
    "anomalies": _explain_anomalies,
    "judge_flags": _explain_judge_flags,
    "dimensions": _explain_dimensions,
    "failures": _explain_failures,
    "slices": _explain_slices,
    "everywhere": _explain_everywhere,
    "deployments": _explain_deployments,
    "moved": _explain_moved,
    "cause": _explain_cause,
    "policy": _explain_policy,
    "sampling": _explain_sampling,
}
_REST = ("everywhere", "moved", "cause", "policy", "sampling")
_CONTEXT = ("slices", "everywhere", "deployments", "moved", "cause", "policy", "sampling")
_ORDERS: Sequence[tuple[Callable[[Facts], bool], tuple[str, ...]]] = (
    (lambda facts: facts.is_of_runs, ("failures", "flags", *_CONTEXT)),
    (lambda facts: facts.is_spike, ("anomalies", "failures", *_CONTEXT)),
    (lambda facts: facts.incident.tier == "tier1", ("flags", "failures", *_CONTEXT)),
    (lambda _: True, ("flags", "slices", "deployments", "failures", "judge_flags", "dimensions", *_REST)),
)
"""The orders of sentences, each with its condition on the incident; the first one that holds applies."""
PART = frozenset({"slice", "deployments"})
"""Kinds that name the changed slice and its deployment."""
_TELLING = frozenset(
    {"tier1_flags", "anomalies", "judge_flag", "sycophancy", "advocacy_suppression"}
    | {"dimensions", "failures", "slice", "deployments"}
)
"""Kinds that count as a reason; other kinds are context."""


def level_words(moved: Moved) -> str | None:
    """Describe a changed series with its levels before and since; None if the evidence has no levels, as for a spread."""
    level = moved.level
    if level is None:
        return None
    series = moved.key.tier or ""
    is_share = not series or series.startswith(("unsafe", "failure:"))
    before, after = (f"{one:.0%}" if is_share else f"{one:.{1 if series == 'trust' else 2}f}" for one in level[:2])
    return f"{_quote_name(moved.name)} {before} → {after}"


def _describe_exchanges(row: SliceRow, unit: str) -> str:
    if not row.exchanges_before and not row.exchanges_after:
        return ""
    return f" ({grouped_count(row.exchanges_after, unit)} since the change, {grouped(row.exchanges_before)} before)"


def _describe_flagged(count: int, flag: str) -> str:
    singular, many = _FLAGS.get(flag, (f"flagged by {flag}", f"flagged by {flag}"))
    return f"{grouped(count)} {_quote_name(singular if count == 1 else many)}"


def _join_names(parts: str) -> str:
    return f": {parts}" if parts else ""


def _count_of(count: Count) -> str:
    return f"{grouped(count.after)} of {grouped(count.all_after)}"


def _format_before(count: Count) -> str:
    return (
        f"before {grouped(count.before)} of {grouped(count.all_before)}" if count.all_before else "with none to compare before"
    )


def _quote_name(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _describe_flag(comment: str | None) -> str:
    """Quote the comment of a deployment, which often says what the release was meant to change."""
    return f": \u201c{_quote_name(comment)}\u201d" if comment else ""


def _name_term(name: str) -> str:
    return TERMS.get(name) or name.replace("_", " ")


def _describe_sampled(name: str) -> str:
    return _quote_name(WORDS["sampling_reasons"].get(name) or name.replace("_", " "))


def _format_moment(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return _quote_name(at)


APART = timedelta(days=2)
"""The maximum distance between the first days of twins; both days are estimates."""


def twins_of(incident: Incident, others: Iterable[Incident]) -> list[Incident]:
    """Return the twins of an incident: those that overlap it, began within two days of it, and concern the same agents if known."""
    return [one for one in others if one.incident_id != incident.incident_id and _are_twins(incident, one)]


def suspected_cause(incident: Incident, twins: Sequence[Incident]) -> Incident | None:
    """Return the twin whose cause an incident without a cause probably shares.

    None if the incident has its own cause, or if twins disagree.
    """
    if incident.cause is not None:
        return None
    telling = [one for one in twins if one.cause is not None]
    return telling[0] if len({one.cause for one in telling}) == 1 else None


def _are_twins(incident: Incident, other: Incident) -> bool:
    first, second = _find_first_day(incident), _find_first_day(other)
    if incident.project != other.project or first is None or second is None or abs(first - second) > APART:
        return False
    return (
        first <= _find_last_day(other)
        and second <= _find_last_day(incident)
        and _may_share_agents(_list_agents(incident), _list_agents(other))
    )


def _find_first_day(incident: Incident) -> date | None:
    """Return the first day; in records of earlier versions it is in the evidence."""
    if incident.first_day is not None:
        return incident.first_day.astimezone(UTC).date()
    return next((one.since for one in evidence_of(incident).moved), None)


def _find_last_day(incident: Incident) -> date:
    """Return the last day; the day of the last check while the incident continues."""
    return (incident.last_day or incident.checked_at or datetime.max.replace(tzinfo=UTC)).astimezone(UTC).date()


def _may_share_agents(agents: set[str], others: set[str]) -> bool:
    return not agents or not others or bool(agents & others)


def _list_agents(incident: Incident) -> set[str]:
    """Return the agent of an incident, or the agents of its example exchanges; empty if the evidence names none."""
    if incident.agent is not None:
        return {incident.agent}
    return {one.agent for one in evidence_of(incident).exchanges if one.agent is not None}


class Why(Answer, frozen=True):
    """The explanation of an incident and the recommended actions, derived from its evidence."""

    summary: Annotated[str, Meta(description="The most telling reason.")]
    reasons: Annotated[list[Statement], Meta(description="Strongest reason first.")]
    actions: Annotated[list[Action], Meta(description="First action first.")]

    @property
    def lead(self) -> list[Statement]:
        """The most telling reason, with the changed slice and its deployment if these follow it."""
        first, *others = self.reasons
        return [first, *itertools.takewhile(lambda one: one.kind in PART, others)]

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
    return why_of(Facts(incident))


def why_of(facts: Facts) -> Why:
    """Explain an incident by facts already read from its evidence."""
    reasons = statements(facts)
    return Why(summary=reasons[0].text, reasons=reasons, actions=actions(facts))
