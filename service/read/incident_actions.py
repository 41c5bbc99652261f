"""Recommended actions for an incident, proposed by a table of rules from the incident's evidence.

An action has links or a command, and gives its reason with counts in `because`. The table follows the steps of a person on call:
undo the change unless the judge changed, then read examples, check the measurement, and collect more data. For an incident that is
over or decided, only reading is recommended. The rules use nothing but the evidence, neither queries nor a clock. Incidents of earlier
versions have less evidence and get fewer actions.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from audit.drift.incident_evidence import (
    EVERYWHERE,
    NO_LABELS,
    TOO_FEW,
    Cause,
    ChangedSeries,
    Count,
    Deployment,
    Dimension,
    Evidence,
    Exchange,
    Observation,
    ReasonCount,
    Run,
    SliceFindings,
    SliceRow,
    evidence_of,
)
from audit.drift.slices import AGENT, ARRIVAL, VALUE
from audit.drift.watched_series import BEHAVIOUR, SPIKE, SPREAD, TIERS, TOOL_ERRORS, VERSION, format_level, lower_first
from schemas.records import Incident
from service.text.answers import Answer
from service.text.formats import grouped, grouped_count, plain
from service.text.links import Links
from streams.watch.evidence import HISTORY, MIX
from streams.watch.lifecycle import SUSPECTED, is_live
from streams.watch.measures import TRUST
from streams.watch.run_rules import RUNS

JUDGED_TIERS = frozenset(TIERS) - {"tier1"}
"""The tiers that a judge scores."""
MAX_NEW_VERSION_SHARE = 0.05
"""A version with a larger share of the exchanges before a change does not count as new."""
NO_VALUE = "\u2013"
_VERSION_LABEL_PARTS = ("version", "prompt", "release", "build", "commit", "model")
"""A label whose name has one of these parts is the version of something deployed."""
CountT = TypeVar("CountT", bound=Count)


class ComparedSlice(NamedTuple):
    """A slice in a comparison of two slices of the same label. The role says how it appears there."""

    row: SliceRow
    role: str


@dataclass(frozen=True)
class IncidentFacts:
    """An incident, and the facts that its evidence states about it."""

    incident: Incident

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence; empty if it cannot be read."""
        return evidence_of(self.incident)

    @property
    def changed_series(self) -> list[ChangedSeries]:
        """The changed series, the leading one first."""
        return self.evidence.moved

    @property
    def lead_slice(self) -> ChangedSeries | None:
        """The leading series if it is one of a slice, such as a version; None for any other."""
        lead = next(iter(self.changed_series), None)
        return None if lead is None or lead.slice is None else lead

    @property
    def is_worse(self) -> bool | None:
        """Whether the leading series changed for the worse; True if that is unknown, None if it is neither better nor worse by itself."""
        return self.changed_series[0].is_worse if self.changed_series else True

    @property
    def is_spread(self) -> bool:
        """Whether the leading change is one of the spread, while the mean is as before."""
        return bool(self.changed_series) and self.changed_series[0].series.kind == SPREAD

    @property
    def is_spike(self) -> bool:
        """Whether the incident is about the anomaly rate."""
        return self.incident.type == SPIKE

    @property
    def unit(self) -> str:
        """What the counts of slices count: judged turns for a judged tier, otherwise exchanges."""
        return "judged turn" if self.is_judged and not self.is_spike else "exchange"

    @property
    def is_about_runs(self) -> bool:
        """Whether the leading series measures an agent's runs."""
        return self.incident.rule == RUNS

    @property
    def is_judged(self) -> bool:
        """Whether the leading series is a tier that a judge scores."""
        return self.incident.tier in JUDGED_TIERS

    @property
    def observation(self) -> Observation | None:
        """The observation of the rule that raised the incident."""
        return self.evidence.observation_of(self.incident.rule)

    @property
    def since(self) -> str | None:
        """The first day of the change."""
        return None if self.observation is None else f"{self.observation.since}"

    @property
    def sample_size(self) -> str:
        """The numbers of runs, exchanges or scores behind the levels in the title, since the change and before; empty if unknown."""
        observation = self.observation
        if observation is None:
            return ""
        if self.is_spike:
            return "" if self.anomaly_counts is None else _format_counts(self.anomaly_counts, "exchange", f"since {self.since}")
        if self.is_about_runs:
            return self._format_run_counts(observation)
        tier = self.incident.tier or ""
        thing = "score" if not tier.startswith(BEHAVIOUR) else "call" if tier.startswith(BEHAVIOUR + TOOL_ERRORS) else "turn"
        after = _format_scores(observation.scores_after, observation.sessions_after, thing)
        before = _format_scores(observation.scores_before, observation.sessions_before, thing)
        is_beside = self.lead_slice is not None and self.lead_slice.kind == VERSION
        beside = "with other versions" if is_beside else "before"
        return f"{after} since {self.since}, {before} {beside}" if after and before else ""

    def _format_run_counts(self, observation: Observation) -> str:
        after, before = observation.runs_after, observation.runs_before
        if after is None or before is None:
            return ""
        level = self.changed_series[0].level if self.changed_series else None
        if level is None or self.incident.tier == TRUST:
            return f"{grouped_count(after, 'run')} since {self.since}, {grouped(before)} before"
        count = _build_count(observation.having_before, before, observation.having_after, after)
        return "" if count is None else _format_counts(count, "run", f"since {self.since}")

    def find_reason(self, kind: str) -> Count | None:
        """Return the count of a kind of reason that has no names below it; None if the evidence lacks it."""
        return next((reason for reason in self.evidence.reasons if reason.kind == kind), None)

    @property
    def anomaly_counts(self) -> Count | None:
        """The anomaly counts that the rate rule compared; None for another rule."""
        observed = self.observation
        if observed is None:
            return None
        return _build_count(observed.baseline_anomalies, observed.baseline_exchanges, observed.anomalies, observed.exchanges)

    @cached_property
    def sampling_counts(self) -> list[ReasonCount]:
        """The judged exchanges by sampling reason."""
        rows = self.evidence.sampling_mix
        before = sum(row.before for row in rows)
        after = sum(row.after for row in rows)
        return [
            ReasonCount(reason=row.sampling_reason, before=row.before, after=row.after, all_before=before, all_after=after)
            for row in rows
        ]

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The dimensions that changed beyond chance in the incident's direction, largest change first; in any direction for a spread."""
        direction = None if self.is_spread else self.incident.direction
        changed = [dimension for dimension in self.evidence.dimensions if dimension.has_changed(direction)]
        return sorted(changed, key=lambda dimension: (-abs(dimension.change), dimension.dimension))

    @property
    def slice_comparison(self) -> SliceFindings | None:
        """The comparison of slices; None in evidence of versions that did not compare them."""
        return self.evidence.slices

    @property
    def new_version(self) -> SliceRow | None:
        """The slice that stands out if it is a version that had hardly any exchanges before the change; otherwise None."""
        best = self.slice_comparison.found if self.slice_comparison is not None else None
        if best is None or best.kind != VALUE:
            return None
        deployed_labels = {deployment.label for deployment in self.evidence.deployments}
        is_version = best.label in deployed_labels or any(part in best.label for part in _VERSION_LABEL_PARTS)
        is_new = best.share_before <= MAX_NEW_VERSION_SHARE < best.share_after
        return best if is_version and is_new else None

    @property
    def compared_slices(self) -> list[ComparedSlice]:
        """The slice that stands out, and the one with most exchanges before the change; empty unless both exist."""
        comparison = self.slice_comparison
        if comparison is None or comparison.found is None or comparison.rollback_target is None:
            return []
        is_new = self.new_version is not None
        return [
            ComparedSlice(comparison.found, "began with the change" if is_new else "stands out"),
            ComparedSlice(
                comparison.rollback_target, "previous version" if is_new and self.is_worse else "most exchanges before"
            ),
        ]

    @property
    def cause(self) -> Cause:
        """The finding of the anchors, with its numbers."""
        return self.evidence.cause

    @property
    def mix_explanation(self) -> str:
        """The explanation by a changed traffic mix, if that is the cause; otherwise empty."""
        comparison = self.slice_comparison
        if self.incident.cause not in {MIX, HISTORY} or comparison is None or comparison.mix is None:
            return ""
        return comparison.mix.words

    @property
    def anchor_reasons(self) -> list[str]:
        """Why the anchors can or cannot tell the cause, for each affected tier that a judge scores."""
        causes = self.cause.tiers or {self.incident.tier or "": self.cause}
        return [cause.reason for tier, cause in causes.items() if tier in JUDGED_TIERS and cause.reason is not None]

    def select_changed(self, counts: Iterable[CountT], *, min_count: int = 3) -> list[CountT]:
        """Return the counts whose share changed beyond chance: those that rose if the incident is for the worse, fell if it is for the better."""
        directions = (True, False) if self.is_worse is None else (not self.is_worse,)
        return [
            count for count in counts if any(count.has_risen(is_fall=is_fall, min_count=min_count) for is_fall in directions)
        ]


def _format_scores(scores: int | None, sessions: int | None, thing: str) -> str:
    if scores is None or sessions is None:
        return ""
    return f"{grouped_count(scores, thing)} of {grouped_count(sessions, 'session')}"


def _format_counts(count: Count, thing: str, since: str) -> str:
    after = f"{grouped(count.after)} of {grouped_count(count.all_after, thing)} {since}"
    return f"{after}, {grouped(count.before)} of {grouped(count.all_before)} before"


def _build_count(before: int | None, all_before: int | None, after: int | None, all_after: int | None) -> Count | None:
    """Return the counts that a rule recorded; None if one is missing, because a count cannot be derived from a rate."""
    if before is None or all_before is None or after is None or all_after is None:
        return None
    return Count(before=before, all_before=all_before, after=after, all_after=all_after)


def format_slice_counts(row: SliceRow) -> str:
    """Format the exchanges of a slice before and after a change. For a judged tier, only judged exchanges are counted."""
    is_known = row.exchanges_before or row.exchanges_after  # evidence of earlier versions has no judged counts
    return f"{grouped(row.exchanges_before)} → {grouped(row.exchanges_after)}" if is_known else NO_VALUE


def format_slice_means(row: SliceRow) -> str:
    """Format the means of a slice before and after a change."""
    return " → ".join(NO_VALUE if mean is None else f"{mean:.3f}" for mean in (row.mean_before, row.mean_after))


def format_slice_rates(row: SliceRow) -> str:
    """Format the anomaly rates of a slice before and after a change."""
    return " → ".join("none" if mean is None else f"{mean:.1%}" for mean in (row.mean_before, row.mean_after))


def format_explained_share(row: SliceRow) -> str:
    """Format the fraction of a change that a slice explains, capped at 100%."""
    return f"{min(row.explained, 1.0):.0%}"


def describe_slices(comparison: SliceFindings) -> str:
    """Describe the slice that stands out, or why none does, in one or two sentences."""
    if comparison.state == TOO_FEW:
        before = comparison.sessions.get("before", 0)
        after = comparison.sessions.get("after", 0)
        return (
            f"There are too few sessions to compare slices: {before} before and {after} after the change. Each side needs "
            f"{comparison.needed}, and the means must differ."
        )
    if comparison.state == NO_LABELS:
        return (
            "There is nothing to slice by: all exchanges are from one agent and one model, and none has labels. "
            "Send labels such as agent_version with exchanges to see which part changed."
        )
    if comparison.state == EVERYWHERE or not comparison.slices:
        return f"No slice stands out: the change is similar in all {comparison.tried} slices by label, agent and model."
    best = comparison.slices[0]
    is_mix_change = abs(best.mix.amount) > abs(best.within.amount)
    change = (
        f"the mix changed: its share went {best.shares}"
        if is_mix_change
        else f"the mean within the slice went {format_slice_means(best)}"
    )
    identical = f" Identical slices: {', '.join(row.name for row in best.same_as)}." if best.same_as else ""
    return (
        f"{best.name} explains {format_explained_share(best)} of the change: {change}.{identical} "
        f"{comparison.unexplained:+.3f} points of the change remain unexplained."
    )


MAX_EXAMPLES = 3
"""Maximum number of recommended sessions from before the change, and of those since."""
MIN_SESSIONS = 10
"""With fewer judged sessions since the change, judging more is recommended."""
MAX_NOTE_LENGTH = 160
_LINKS = Links()


class Target(Answer, frozen=True):
    """A link of an action."""

    title: str
    path: Annotated[str, Meta(description="Path on this server, or the URL recorded with a deployment.")]
    note: str = ""
    command: Annotated[str | None, Meta(description="The equivalent command.")] = None


class Action(Answer, frozen=True):
    """A recommended action for an incident."""

    id: Annotated[str, Meta(examples=["read_sessions", "roll_back", "anchors"])]
    title: str
    because: Annotated[str, Meta(description="The evidence for it.")]
    links: list[Target] = msgspec.field(default_factory=list)
    command: str | None = None

    @property
    def command_note(self) -> str:
        """A note on what the command does and does not do; empty if its name is clear."""
        return COMMAND_NOTES.get(self.id, "")


COMMAND_NOTES: Mapping[str, str] = {
    "roll_back": "After rolling back, record it so that charts and incidents show it. This command only records the deployment:"
}
"""Notes on commands whose names could be misunderstood, by the id of their action."""
Rule = Callable[[IncidentFacts], Action | None]


def recommend_actions(facts: IncidentFacts) -> list[Action]:
    """Return the recommended actions for an incident, most urgent first."""
    names = ACTION_RULES if is_live(facts.incident) else ACTIONS_WHEN_OVER
    proposals = [ACTION_RULES[name](facts) for name in names]
    return [action for action in proposals if action is not None]


def _propose_reading_sessions(facts: IncidentFacts) -> Action | None:
    """Recommend the clearest examples, from different sessions, and ordinary ones from before the change."""
    examples = _select_examples(facts.evidence.exchanges)
    if facts.is_about_runs or not examples:
        return None
    ordinary = _select_examples(facts.evidence.usual, {exchange.session_id for exchange in examples})
    links = [_link_exchange(facts, exchange, "") for exchange in examples]
    links += [_link_exchange(facts, exchange, "Before the change: ") for exchange in ordinary]
    effect = f"moved {_name_series(facts)} most since {facts.since or 'the change'}"
    if not ordinary:
        because = f"They {effect}."
    elif len(ordinary) == 1:
        because = f"The first ones {effect}; the last one shows the behavior before."
    else:
        because = f"The first {len(examples)} {effect}; the last {len(ordinary)} show the behavior before."
    return Action("read_sessions", f"Read {_count_these(len(links), 'turn')}", because, links)


def _propose_reading_runs(facts: IncidentFacts) -> Action | None:
    if not facts.evidence.runs:
        return None
    project = facts.incident.project
    examples = facts.evidence.runs[:MAX_EXAMPLES]
    links = [_link_run(project, run) for run in examples]
    because = f"They had the largest effect on {_name_series(facts)}."
    if facts.since:
        links.append(
            Target(
                f"All runs since {facts.since}, worst first",
                _LINKS.runs(project, sort="trust", agent=examples[0].agent, since=facts.since),
                command=_write_command("runs", project=project),
            )
        )
        because += " The last link lists all the others."
    return Action("read_runs", f"Read {_count_these(len(examples), 'run')}", because, links)


def _propose_rollback(facts: IncidentFacts) -> Action | None:
    """Recommend rolling back a new version if the change is confined to it, to the version with most exchanges before."""
    lead = facts.lead_slice
    if lead is not None and lead.kind == VERSION and lead.slice is not None and lead.level is not None and lead.is_worse:
        label, _, value = lead.slice.partition(" ")
        after, before = format_level(lead.tier, lead.level.after), format_level(lead.tier, lead.level.before)
        because = (
            f"{lead.slice} is at {after}, and the other versions at {before} on the same days. Roll back in your own deployment system; "
            "Driftline does not deploy."
        )
        command = _write_command("deployments", "add", "VERSION", project=facts.incident.project, label=label)
        return Action(
            "roll_back", plain(f"Roll back {label} {value}"), because, _link_deployments(facts.evidence.deployments), command
        )
    comparison = facts.slice_comparison
    new = facts.new_version
    if comparison is None or new is None or not facts.is_worse or facts.mix_explanation:
        return None
    previous = comparison.rollback_target
    levels = _describe_level(facts, new, new.mean_after, new.exchanges_after, "since the change")
    title = f"Roll back {new.label} from {new.value}"
    if previous is not None:
        levels += f", {_describe_level(facts, previous, previous.mean_before, previous.exchanges_before, 'before')}"
        title += f" to {previous.value}"
    because = (
        f"{levels}. The change coincides with {new.label} {new.value}; counts alone do not prove that it is the cause. "
        "Roll back in your own deployment system; Driftline does not deploy."
    )
    deployments = [
        deployment
        for deployment in facts.evidence.deployments
        if (deployment.label, deployment.version) == (new.label, new.value)
    ]
    links = [*_link_deployments(deployments), _link_section(facts, "part", "Parts of the traffic")]
    version = previous.value if previous is not None else "VERSION"
    command = _write_command("deployments", "add", version, project=facts.incident.project, label=new.label)
    return Action("roll_back", plain(title), because, links, command)


def _describe_level(facts: IncidentFacts, row: SliceRow, mean: float | None, count: int, when: str) -> str:
    """Describe a slice's mean or anomaly rate, and the number of exchanges behind it."""
    sample = grouped_count(count, facts.unit)
    slice_name = f"{row.label} {row.value}"
    if facts.is_spike:
        return f"{slice_name} had an anomaly in {'none' if not mean else f'{mean:.0%}'} of {sample} {when}"
    return f"{slice_name} scored {_format_mean(mean)} on average over {sample} {when}"


def _propose_inspecting_slice(facts: IncidentFacts) -> Action | None:
    """Recommend inspecting the slice that stands out, unless it is a version to roll back."""
    comparison = facts.slice_comparison
    best = comparison.found if comparison is not None else None
    if best is None or facts.new_version is not None or facts.mix_explanation:
        return None
    because = f"{best.name} explains {format_explained_share(best)} of the change, with {best.shares} of the traffic; other parts changed less."
    return Action(
        "look_at_part", f"Begin with {plain(best.name)}", because, [_link_section(facts, "part", "Parts of the traffic")]
    )


def _propose_checking_deployments(facts: IncidentFacts) -> Action | None:
    if not facts.evidence.deployments or _propose_rollback(facts) is not None:
        return None
    names = ", ".join(deployment.name for deployment in facts.evidence.deployments[:MAX_EXAMPLES])
    because = f"Deployed around the start of the change: {names}. Coincidence alone does not prove a cause."
    command = _write_command("deployments", "list", project=facts.incident.project)
    return Action(
        "check_deployment",
        "Check the deployments",
        because,
        _link_deployments(facts.evidence.deployments[:MAX_EXAMPLES]),
        command,
    )


def _propose_checking_judge(facts: IncidentFacts) -> Action | None:
    if facts.incident.cause != "judge":
        return None
    command = _write_command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_judge",
        "Check the judge before the agent",
        f"{_describe_anchors(facts)} Ask the provider what changed, or set another judge model in the policy. Another round of anchors rechecks it.",
        [_link_section(facts, "sure", "How sure that is")],
        command,
    )


def _propose_anchors(facts: IncidentFacts) -> Action | None:
    """Recommend anchors if too few were judged to distinguish a change of the agent from one of the judge."""
    proposals = {
        "no_anchors": ("Add anchors", "add", "No anchors were judged"),
        "few_anchors": ("Add anchors", "add", "Too few anchors were judged before and since"),
        "few_rounds_before": ("Judge the anchors again", "run", "The anchors had too few rounds before the change"),
        "few_rounds_since": ("Judge the anchors again", "run", "The anchors had too few rounds since the change"),
    }
    reason = next((reason for reason in proposals if reason in facts.anchor_reasons), None)
    if reason is None:
        return None
    title, command, why = proposals[reason]
    later = " Anchors that you add now will show it at the next change." if command == "add" else ""
    because = f"{why}, so the judged tiers alone do not show whether the agent or the judge changed.{later}"
    return Action("anchors", title, because, [], _write_command("anchors", command, project=facts.incident.project))


def _propose_checking_mix(facts: IncidentFacts) -> Action | None:
    """Recommend looking into a changed traffic mix. The agent itself needs no repair then."""
    mix = None if facts.slice_comparison is None else facts.slice_comparison.mix
    if mix is None or not facts.mix_explanation:
        return None
    if mix.label == ARRIVAL:
        because = f"{mix.words} Import history with a different level into a separate project, or accept this level as the new normal."
        return Action(
            "check_mix", "Keep imported history separate", because, [_link_section(facts, "part", "Parts of the traffic")]
        )
    because = f"{mix.words} Look for what changed the traffic, such as routing, a campaign or a new customer."
    title = f"Check why the mix of {'agents' if mix.label == AGENT else plain(mix.label)} changed"
    return Action("check_mix", title, because, [_link_section(facts, "part", "Parts of the traffic")])


def _propose_checking_both(facts: IncidentFacts) -> Action | None:
    if facts.cause.reason != "contradiction":
        return None
    command = _write_command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_both",
        "Check both agent and judge",
        _describe_anchors(facts),
        [_link_section(facts, "sure", "How sure that is")],
        command,
    )


def _propose_comparing_policies(facts: IncidentFacts) -> Action | None:
    note = facts.evidence.note
    if not note:
        return None
    return Action(
        "compare_policies",
        "Compare the policies",
        note,
        [
            _link_section(facts, "against", "Their digests, before and after"),
            Target("The policy in force", _LINKS.policy(facts.incident.project)),
        ],
    )


def _propose_more_sampling(facts: IncidentFacts) -> Action | None:
    """Recommend judging more if few sessions were judged since the change, because estimates are wide and slices cannot be compared."""
    observation = facts.observation
    if not facts.is_judged or observation is None:
        return None
    sessions = observation.sessions_after
    if sessions is None or sessions >= MIN_SESSIONS:
        return None
    scores = observation.scores_after
    turns = "" if scores is None else f"{grouped_count(scores, 'judged turn')} of "
    because = (
        f"Only {turns}{grouped_count(sessions, 'session')} {'is' if not turns and sessions == 1 else 'are'} known since the change. With fewer than {MIN_SESSIONS} sessions, "
        "estimates are wide and parts of the traffic are hard to compare. Raise the policy's sampling, such as alwaysScoreFirst or routineInterval, or judge what stayed unscored."
    )
    command = _write_command("rejudge", "--dry-run", project=facts.incident.project)
    return Action(
        "widen_sampling",
        "Judge more turns",
        because,
        [Target("The policy in force", _LINKS.policy(facts.incident.project))],
        command,
    )


def _propose_labels(facts: IncidentFacts) -> Action | None:
    comparison = facts.slice_comparison
    if comparison is None or comparison.state != NO_LABELS:
        return None
    because = f"{describe_slices(comparison)} The next incident then shows which version, prompt or customer changed."
    return Action("send_labels", "Send labels with exchanges", because, [Target("How agents send labels", _LINKS.connect())])


def _propose_rechecking(facts: IncidentFacts) -> Action | None:
    if facts.incident.confidence != SUSPECTED:
        return None
    because = "The incident is only suspected: the evidence is not yet enough for an alarm. More exchanges will confirm it, or it disappears on its own."
    return Action(
        "check_again",
        "Check again after more exchanges",
        because,
        [],
        _write_command("check-drift", project=facts.incident.project),
    )


def _propose_new_normal(facts: IncidentFacts) -> Action | None:
    if facts.is_worse:
        return None
    command = f"driftline incidents new-normal {shlex.quote(facts.incident.incident_id)} --reason {shlex.quote('The change is intended.')}"
    if facts.is_worse is None:
        assessment = "Sessions differ less than before: the weakest may have improved, or the best become worse. First read some from both sides."
    else:
        assessment = "The change is an improvement."
    because = f"{assessment} If it is meant to stay, start comparisons from it; otherwise a fall back to the old level raises no alarm."
    return Action(
        "new_normal",
        "Accept it as the new normal if it is intended",
        because,
        [_link_section(facts, "decide", "Decide")],
        command,
    )


ACTION_RULES: Mapping[str, Rule] = {
    "check_judge": _propose_checking_judge,
    "check_both": _propose_checking_both,
    "check_mix": _propose_checking_mix,
    "roll_back": _propose_rollback,
    "read_sessions": _propose_reading_sessions,
    "read_runs": _propose_reading_runs,
    "look_at_part": _propose_inspecting_slice,
    "check_deployment": _propose_checking_deployments,
    "new_normal": _propose_new_normal,
    "compare_policies": _propose_comparing_policies,
    "anchors": _propose_anchors,
    "widen_sampling": _propose_more_sampling,
    "send_labels": _propose_labels,
    "check_again": _propose_rechecking,
}
"""Rules by the id of their action, in the order in which the actions are shown."""
ACTIONS_WHEN_OVER = ("read_sessions", "read_runs")
"""The actions that remain once an incident is resolved or dismissed."""


def _select_examples(exchanges: Sequence[Exchange], excluded_sessions: AbstractSet[str] = frozenset()) -> list[Exchange]:
    """Return the first exchange of each of the first few sessions."""
    by_session: dict[str, Exchange] = {}
    for exchange in exchanges:
        if exchange.session_id not in excluded_sessions:
            by_session.setdefault(exchange.session_id, exchange)
    return list(by_session.values())[:MAX_EXAMPLES]


def _link_exchange(facts: IncidentFacts, exchange: Exchange, prefix: str) -> Target:
    project = facts.incident.project
    score = "" if facts.is_spike else f"{TIERS.get(facts.incident.tier or '', 'Score')} {exchange.score:.2f}, "
    return Target(
        f"{prefix}{score}{_format_time(exchange.exchange_timestamp)}, turn {exchange.turn_number}",
        _LINKS.session(
            project,
            exchange.session_id,
            exchange.connection,
            exchange=exchange.exchange_id,
            fragment=f"score-{exchange.score_id}",
        ),
        plain(exchange.reason, MAX_NOTE_LENGTH),
        _write_command("scores", project=project, session=exchange.session_id),
    )


def _link_run(project: str, run: Run) -> Target:
    trust = "" if run.trust_score is None else f", trust {run.trust_score:g}"
    failures = ", ".join(name.replace("_", " ") for name in run.failures)
    ended = "" if run.ended_at is None else f", {_format_time(run.ended_at)}"
    return Target(
        f"{run.run_id}{ended}{trust}",
        _LINKS.run(project, run.run_id),
        plain(failures, MAX_NOTE_LENGTH),
        _write_command("run", run.run_id, project=project),
    )


def _link_deployments(deployments: Iterable[Deployment]) -> list[Target]:
    """Return the links recorded with deployments that are safe to open."""
    return [
        Target(plain(deployment.name), deployment.link, plain(deployment.comment, MAX_NOTE_LENGTH))
        for deployment in deployments
        if deployment.link is not None
    ]


def _link_section(facts: IncidentFacts, fragment: str, title: str) -> Target:
    return Target(title, f"{_LINKS.incident(facts.incident.project, facts.incident.incident_id)}#{quote(fragment)}")


def _name_series(facts: IncidentFacts) -> str:
    if facts.is_spike:
        return "the rate of anomalies"
    return lower_first(
        TIERS.get(facts.incident.tier or "") or (facts.changed_series[0].name if facts.changed_series else "the series")
    )


def _describe_anchors(facts: IncidentFacts) -> str:
    return facts.cause.words or "The anchors moved with it."


def _count_these(count: int, thing: str) -> str:
    return f"this {thing}" if count == 1 else f"these {count} {thing}s"


def _format_mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _format_time(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
    except ValueError:
        return plain(text, 32)


def _write_command(*arguments: str, **options: str) -> str:
    """Return a command to copy, quoted for a shell."""
    flags = [f"--{name} {shlex.quote(value)}" for name, value in options.items()]
    return " ".join(["driftline", *(shlex.quote(word) for word in arguments), *flags])
