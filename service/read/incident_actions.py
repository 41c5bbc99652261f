"""Recommended actions for an incident: facts from its evidence, and a table of rules, each with a condition and an action.

An action has a link or a command, and its reason with counts in `because`. The table follows the order in which a person on
call works: undo, unless the judge changed; then read, check the measure, and learn more. For an incident that is over or
decided, only reading is recommended. Everything is derived from the incident's evidence, without queries or a clock; older
incidents have less evidence and get less.
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
    Count,
    Deployed,
    Dimension,
    Evidence,
    Exchange,
    Moved,
    ReasonCount,
    Run,
    Sighting,
    SliceRow,
    WhichPart,
    evidence_of,
)
from audit.drift.slices import AGENT, ARRIVAL, VALUE
from audit.drift.watched_series import SPIKE, SPREAD, TIERS
from schemas.records import Incident
from service.text.answers import Answer
from service.text.formats import grouped, grouped_count, plain
from service.text.links import Links
from streams.watch.evidence import HISTORY, MIX
from streams.watch.lifecycle import SUSPECTED, is_live
from streams.watch.measures import TRUST
from streams.watch.rules import RUNS

JUDGED = frozenset(TIERS) - {"tier1"}
"""The tiers that a judge scores."""
NEW_SHARE = 0.05
"""The maximum share of exchanges before a change for a version to count as new."""
MISSING = "\u2013"
_ROLLED_OUT = ("version", "prompt", "release", "build", "commit", "model")
"""Substrings in the names of labels whose values are deployed."""
CountT = TypeVar("CountT", bound=Count)


class ComparedSlice(NamedTuple):
    """A slice that the explanation compares with another slice of the same label, and its role."""

    row: SliceRow
    role: str


@dataclass(frozen=True)
class Facts:
    """An incident with its evidence, part by part."""

    incident: Incident

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence; empty if it cannot be read."""
        return evidence_of(self.incident)

    @property
    def moved(self) -> list[Moved]:
        """The changed series, the leading one first."""
        return self.evidence.moved

    @property
    def is_worse(self) -> bool:
        """True if the leading series changed for the worse, or if that is unknown."""
        return self.moved[0].is_worse if self.moved else True

    @property
    def is_spike(self) -> bool:
        """Whether the incident is about the anomaly rate."""
        return self.incident.type == SPIKE

    @property
    def unit(self) -> str:
        """The unit of the counts: judged turns for a judged tier, otherwise exchanges."""
        return "judged turn" if self.is_judged and not self.is_spike else "exchange"

    @property
    def is_of_runs(self) -> bool:
        """Whether the leading series is of an agent's runs."""
        return self.incident.rule == RUNS

    @property
    def is_judged(self) -> bool:
        """Whether the leading series is a tier that a judge scores."""
        return self.incident.tier in JUDGED

    @property
    def seen(self) -> Sighting | None:
        """The observation of the rule that raised the incident."""
        return self.evidence.seen_by(self.incident.rule)

    @property
    def since(self) -> str | None:
        """The first day of the change."""
        return None if self.seen is None else f"{self.seen.since}"

    @property
    def extent(self) -> str:
        """The numbers of runs, exchanges or scores behind the title's levels, since the change and before; empty if unknown."""
        seen, since = self.seen, f"since {self.since}"
        if seen is None:
            return ""
        if self.is_spike:
            return "" if self.spike is None else _sum_both(self.spike, "exchange", since)
        if self.is_of_runs:
            return self._runs_extent(seen, since)
        sides = [(seen.scores_after, seen.sessions_after), (seen.scores_before, seen.sessions_before)]
        texts = [
            f"{grouped_count(n, 'score')} of {grouped_count(of, 'session')}"
            for n, of in sides
            if n is not None and of is not None
        ]
        return f"{texts[0]} {since}, {texts[1]} before" if len(texts) == len(sides) else ""

    def _runs_extent(self, seen: Sighting, since: str) -> str:
        after, before = seen.runs_after, seen.runs_before
        level = self.moved[0].level if self.moved else None
        if after is None or before is None:
            return ""
        if level is None or self.incident.tier == TRUST:
            return f"{grouped_count(after, 'run')} {since}, {grouped(before)} before"
        having = _count(seen.having_before, before, seen.having_after, after)
        return "" if having is None else _sum_both(having, "run", since)

    def reason(self, kind: str) -> Count | None:
        """Return the count of a kind of reason that needs no further name."""
        return next((one for one in self.evidence.reasons if one.kind == kind), None)

    @property
    def spike(self) -> Count | None:
        """The anomaly counts that the rate rule compared; None for another rule."""
        seen = self.seen
        if seen is None:
            return None
        return _count(seen.baseline_anomalies, seen.baseline_exchanges, seen.anomalies, seen.exchanges)

    @cached_property
    def mix(self) -> list[ReasonCount]:
        """The judged exchanges by the reason for which they were sampled."""
        rows = self.evidence.sampling_mix
        before, after = sum(row.before for row in rows), sum(row.after for row in rows)
        return [
            ReasonCount(reason=row.sampling_reason, before=row.before, after=row.after, all_before=before, all_after=after)
            for row in rows
        ]

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The dimensions that changed with the tier by more than chance, the largest change first."""
        moved = [one for one in self.evidence.dimensions if one.has_moved(self.incident.direction)]
        return sorted(moved, key=lambda one: (-abs(one.change), one.dimension))

    @property
    def which_part(self) -> WhichPart | None:
        """The comparison of slices; None in evidence from versions without it."""
        return self.evidence.slices

    @property
    def new_version(self) -> SliceRow | None:
        """The changed slice if it is a version that hardly existed before the change; otherwise None."""
        best = self.which_part.found if self.which_part is not None else None
        if best is None:
            return None
        is_version = best.label in {one.label for one in self.evidence.deployments} or any(
            part in best.label for part in _ROLLED_OUT
        )
        return best if best.kind == VALUE and is_version and best.share_before <= NEW_SHARE < best.share_after else None

    @property
    def compared(self) -> list[ComparedSlice]:
        """The changed slice, and the slice that most exchanges had before; empty unless both exist."""
        which = self.which_part
        if which is None or which.found is None or which.back_to is None:
            return []
        is_new = self.new_version is not None
        return [
            ComparedSlice(which.found, "began with the change" if is_new else "stands out"),
            ComparedSlice(which.back_to, "to go back to" if is_new and self.is_worse else "most exchanges before"),
        ]

    @property
    def cause(self) -> Cause:
        """The finding of the anchors, with the numbers."""
        return self.evidence.cause

    @property
    def mix_words(self) -> str:
        """The explanation by a changed traffic mix, if that is the cause; otherwise empty."""
        which = self.which_part
        return which.mix.words if self.incident.cause in {MIX, HISTORY} and which is not None and which.mix is not None else ""

    @property
    def cause_reasons(self) -> list[str]:
        """The reasons why anchors can or cannot tell the cause, for each affected tier that a judge scores."""
        tiers = self.cause.tiers or {self.incident.tier or "": self.cause}
        return [one.reason for tier, one in tiers.items() if tier in JUDGED and one.reason is not None]

    def risen(self, counts: Iterable[CountT], *, fewest: int = 3) -> list[CountT]:
        """Return the counts whose share changed with the incident by more than chance: rose if it is for the worse, otherwise fell."""
        return [one for one in counts if one.has_risen(is_fall=not self.is_worse, fewest=fewest)]


def _sum_both(count: Count, thing: str, since: str) -> str:
    after = f"{grouped(count.after)} of {grouped_count(count.all_after, thing)} {since}"
    return f"{after}, {grouped(count.before)} of {grouped(count.all_before)} before"


def _count(before: int | None, all_before: int | None, after: int | None, all_after: int | None) -> Count | None:
    """Return the counts that a rule recorded; None if it did not, because counts are never computed from a rate."""
    if before is None or all_before is None or after is None or all_after is None:
        return None
    return Count(before=before, all_before=all_before, after=after, all_after=all_after)


def slice_counts(row: SliceRow) -> str:
    """Return the exchanges of a slice, before and after; those with a judged score if the change is of one."""
    is_known = row.exchanges_before or row.exchanges_after  # evidence of earlier versions has no judged counts
    return f"{grouped(row.exchanges_before)} → {grouped(row.exchanges_after)}" if is_known else MISSING


def slice_means(row: SliceRow) -> str:
    """Return the means of a slice, before and after."""
    return " → ".join(MISSING if mean is None else f"{mean:.3f}" for mean in (row.mean_before, row.mean_after))


def slice_rates(row: SliceRow) -> str:
    """Return the means of a slice as rates of anomalies, before and after."""
    return " → ".join("none" if mean is None else f"{mean:.1%}" for mean in (row.mean_before, row.mean_after))


def part_explained(best: SliceRow) -> str:
    """Format the fraction of a change that a slice explains, at most all of it."""
    return f"{min(best.explained, 1.0):.0%}"


def which_part_words(which: WhichPart) -> str:
    """Describe the changed slice in one or two sentences."""
    if which.state == TOO_FEW:
        before, after = which.sessions.get("before", 0), which.sessions.get("after", 0)
        return (
            f"There are too few sessions to compare slices: {before} before and {after} after the change; each side needs "
            f"{which.needed}, and the means must differ."
        )
    if which.state == NO_LABELS:
        return (
            "There is nothing to slice by: all exchanges are from one agent and one model, and none has labels. "
            "Send labels such as agent_version with exchanges to see which part changed."
        )
    if which.state == EVERYWHERE or not which.slices:
        return f"No slice stands out: the change is similar in all {which.tried} slices by label, agent and model."
    best = which.slices[0]
    mixed = abs(best.mix.amount) > abs(best.within.amount)
    how = f"the mix changed: its share went {best.shares}" if mixed else f"the mean within the slice went {slice_means(best)}"
    twins = f" Identical slices: {', '.join(one.name for one in best.same_as)}." if best.same_as else ""
    return (
        f"{best.name} explains {part_explained(best)} of the change: {how}.{twins} "
        f"{which.unexplained:+.3f} points of the change remain unexplained."
    )


EXAMPLES = 3
"""Maximum number of sessions to recommend, from before the change and since."""
FEW_SESSIONS = 10
"""If fewer sessions were judged since the change, judging more is recommended."""
MAX_NOTE = 160
_LINKS = Links()


class Target(Answer, frozen=True):
    """A link of an action."""

    title: str
    path: Annotated[str, Meta(description="Path on this server, or the URL recorded with a deployment.")]
    note: str = ""
    command: Annotated[str | None, Meta(description="The same on the command line.")] = None


class Action(Answer, frozen=True):
    """A recommended action for an incident."""

    id: Annotated[str, Meta(examples=["read_sessions", "roll_back", "anchors"])]
    title: str
    because: Annotated[str, Meta(description="The evidence for it.")]
    links: list[Target] = msgspec.field(default_factory=list)
    command: str | None = None

    @property
    def command_does(self) -> str:
        """A note on what the command does, if its name may promise too much; otherwise empty."""
        return COMMAND_DOES.get(self.id, "")


COMMAND_DOES: Mapping[str, str] = {
    "roll_back": "After rolling back, record it so that charts and incidents show it. This command only records the deployment:"
}
"""Explanations of commands whose names may promise too much, by the action's id."""
Rule = Callable[[Facts], Action | None]


def actions(facts: Facts) -> list[Action]:
    """Return the recommended actions for an incident, most urgent first."""
    names = RULES if is_live(facts.incident) else WHEN_OVER
    proposals = [RULES[name](facts) for name in names]
    return [action for action in proposals if action is not None]


def _read(facts: Facts) -> Action | None:
    """Read the clearest examples, from different sessions, beside usual ones from before the change."""
    examples = _clearest_exchanges(facts.evidence.exchanges)
    if facts.is_of_runs or not examples:
        return None
    usual = _clearest_exchanges(facts.evidence.usual, {one.session_id for one in examples})
    links = [_exchange(facts, one, "") for one in examples]
    links += [_exchange(facts, one, "Before the change: ") for one in usual]
    first, last = (
        (f"The first {len(examples)}", f"the last {len(usual)}") if len(usual) > 1 else ("The first ones", "the last one")
    )
    moved = f"moved {_name_series(facts)} most since {facts.since or 'the change'}"
    because = (
        f"{first} {moved}; {last} show{'s' if len(usual) == 1 else ''} the behaviour before." if usual else f"They {moved}."
    )
    return Action("read_sessions", f"Read {_refer_to(len(links), 'session')}", because, links)


def _read_runs(facts: Facts) -> Action | None:
    if not facts.evidence.runs:
        return None
    project, examples = facts.incident.project, facts.evidence.runs[:EXAMPLES]
    links = [_run(project, one) for one in examples]
    if facts.since:
        agent = examples[0].agent
        links.append(
            Target(
                f"All runs since {facts.since}, the least trusted first",
                _LINKS.runs(project, sort="trust", agent=agent, since=facts.since),
                command=_write_command("runs", project=project),
            )
        )
    others = " The last link lists all the others." if facts.since else ""
    because = f"They had the largest effect on {_name_series(facts)}.{others}"
    return Action("read_runs", f"Read {_refer_to(len(examples), 'run')}", because, links)


def _propose_rollback(facts: Facts) -> Action | None:
    """Roll back a new version if the change is confined to it; name the version that most exchanges had before."""
    which, best = facts.which_part, facts.new_version
    if which is None or best is None or not facts.is_worse or facts.mix_words:
        return None
    usual = which.back_to
    sentence = _describe_level(facts, best, best.mean_after, best.exchanges_after, "since the change")
    if usual is not None:
        sentence += f", {_describe_level(facts, usual, usual.mean_before, usual.exchanges_before, 'before')}"
    because = (
        f"{sentence}. The change coincides with {best.label} {best.value}; counts alone do not prove that it is the cause."
    )
    title = f"Roll back {best.label} from {best.value}" + (f" to {usual.value}" if usual is not None else "")
    deployments = [
        deployment
        for deployment in facts.evidence.deployments
        if (deployment.label, deployment.version) == (best.label, best.value)
    ]
    links = [*_build_addresses(deployments), _link_page(facts, "part", "Parts of the traffic")]
    to = usual.value if usual is not None else "VERSION"
    command = _write_command("deployments", "add", to, project=facts.incident.project, label=best.label)
    return Action(
        "roll_back",
        plain(title),
        f"{because} Roll back in your own deployment system; Driftline does not deploy.",
        links,
        command,
    )


def _describe_level(facts: Facts, part: SliceRow, mean: float | None, count: int, when: str) -> str:
    """Describe a slice's level, as mean or anomaly rate, and the number of exchanges behind it."""
    of = grouped_count(count, facts.unit)
    slice_name = f"{part.label} {part.value}"
    if facts.is_spike:
        return f"{slice_name} had an anomaly in {'none' if not mean else f'{mean:.0%}'} of {of} {when}"
    return f"{slice_name} scored {_format_mean(mean)} on average over {of} {when}"


def _propose_look_inside(facts: Facts) -> Action | None:
    """Look into the slice that stands out, if there is no version to roll back."""
    which = facts.which_part
    best = which.found if which is not None else None
    if best is None or facts.new_version is not None or facts.mix_words:
        return None
    because = f"{best.name} explains {part_explained(best)} of the change, with {best.shares} of the traffic; other parts changed less."
    return Action(
        "look_at_part", f"Begin with {plain(best.name)}", because, [_link_page(facts, "part", "Parts of the traffic")]
    )


def _propose_deployment(facts: Facts) -> Action | None:
    if not facts.evidence.deployments or _propose_rollback(facts) is not None:
        return None
    names = ", ".join(one.name for one in facts.evidence.deployments[:EXAMPLES])
    because = f"Deployed around the start of the change: {names}. Coincidence alone does not prove a cause."
    command = _write_command("deployments", "list", project=facts.incident.project)
    return Action(
        "check_deployment", "Check the deployments", because, _build_addresses(facts.evidence.deployments[:EXAMPLES]), command
    )


def _propose_judge(facts: Facts) -> Action | None:
    if facts.incident.cause != "judge":
        return None
    command = _write_command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_judge",
        "Check the judge before the agent",
        f"{_name_values(facts)} Ask the provider what changed, or set another judge model in the policy. Another round of anchors rechecks it.",
        [_link_page(facts, "sure", "How sure that is")],
        command,
    )


def _propose_anchors(facts: Facts) -> Action | None:
    """Add anchors if too few were judged to tell a change of the agent from one of the judge."""
    lacking = {
        "no_anchors": ("Add anchors", "add", "No anchors were judged"),
        "few_anchors": ("Add anchors", "add", "Too few anchors were judged before and since"),
        "few_rounds_before": ("Judge the anchors again", "run", "The anchors had too few rounds before the change"),
        "few_rounds_since": ("Judge the anchors again", "run", "The anchors had too few rounds since the change"),
    }
    reason = next((one for one in lacking if one in facts.cause_reasons), None)
    if reason is None:
        return None
    title, command, why = lacking[reason]
    later = " Anchors that you add now will show it at the next change." if command == "add" else ""
    because = f"{why}, so the judged tiers alone do not show whether the agent or the judge changed.{later}"
    return Action("anchors", title, because, [], _write_command("anchors", command, project=facts.incident.project))


def _propose_mix(facts: Facts) -> Action | None:
    """Look into the changed traffic mix, which calls for no repair of an agent."""
    which = facts.which_part
    if which is None or which.mix is None or not facts.mix_words:
        return None
    if which.mix.label == ARRIVAL:
        because = f"{which.mix.words} Import history with a different level into a separate project, or accept this level as the new normal."
        return Action(
            "check_mix", "Keep imported history separate", because, [_link_page(facts, "part", "Parts of the traffic")]
        )
    because = f"{which.mix.words} Look for what changed the traffic, such as routing, a campaign or a new customer."
    title = f"Check why the mix of {'agents' if which.mix.label == AGENT else plain(which.mix.label)} changed"
    return Action("check_mix", title, because, [_link_page(facts, "part", "Parts of the traffic")])


def _propose_contradiction(facts: Facts) -> Action | None:
    if facts.cause.reason != "contradiction":
        return None
    command = _write_command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_both",
        "Check both agent and judge",
        _name_values(facts),
        [_link_page(facts, "sure", "How sure that is")],
        command,
    )


def _propose_policy(facts: Facts) -> Action | None:
    note = facts.evidence.note
    if not note:
        return None
    return Action(
        "compare_policies",
        "Compare the policies",
        note,
        [
            _link_page(facts, "against", "Their digests, before and after"),
            Target("The policy in force", _LINKS.policy(facts.incident.project)),
        ],
    )


def _propose_sampling(facts: Facts) -> Action | None:
    """Judge more if few sessions were judged since the change: estimates are then wide, and slices cannot be compared."""
    sessions, scores = (None, None) if facts.seen is None else (facts.seen.sessions_after, facts.seen.scores_after)
    if not facts.is_judged or sessions is None or sessions >= FEW_SESSIONS:
        return None
    turns = "" if scores is None else f"{grouped_count(scores, 'judged turn')} of "
    because = (
        f"Only {turns}{grouped_count(sessions, 'session')} {'is' if not turns and sessions == 1 else 'are'} known since the change. With fewer than {FEW_SESSIONS} sessions, "
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


def _propose_labels(facts: Facts) -> Action | None:
    which = facts.which_part
    if which is None or which.state != "no_labels":
        return None
    because = f"{which_part_words(which)} The next incident then says which version, prompt or customer changed."
    return Action("send_labels", "Send labels with exchanges", because, [Target("How agents send labels", _LINKS.connect())])


def _propose_again(facts: Facts) -> Action | None:
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


def _propose_normal(facts: Facts) -> Action | None:
    if facts.is_worse:
        return None
    command = f"driftline incidents new-normal {shlex.quote(facts.incident.incident_id)} --reason {shlex.quote('The change is intended.')}"
    better = "Sessions differ less than before: the weakest may have improved, or the best become worse. First read some from both sides."
    if not (facts.moved and facts.moved[0].series.kind == SPREAD):
        better = "The change is an improvement."
    because = (
        f"{better} If it is meant to stay, start comparisons from it; otherwise a fall back to the old level raises no alarm."
    )
    return Action(
        "new_normal", "Accept it as the new normal if it is intended", because, [_link_page(facts, "decide", "Decide")], command
    )


RULES: Mapping[str, Rule] = {
    "check_judge": _propose_judge,
    "check_both": _propose_contradiction,
    "check_mix": _propose_mix,
    "roll_back": _propose_rollback,
    "read_sessions": _read,
    "read_runs": _read_runs,
    "look_at_part": _propose_look_inside,
    "check_deployment": _propose_deployment,
    "new_normal": _propose_normal,
    "compare_policies": _propose_policy,
    "anchors": _propose_anchors,
    "widen_sampling": _propose_sampling,
    "send_labels": _propose_labels,
    "check_again": _propose_again,
}
"""The rules by the id of their action, in the order in which actions are shown."""
WHEN_OVER = ("read_sessions", "read_runs")
"""The actions that remain once an incident is resolved or dismissed."""


def _clearest_exchanges(exchanges: Sequence[Exchange], besides: AbstractSet[str] = frozenset()) -> list[Exchange]:
    """Return the first examples from different sessions, leaving out the sessions in `besides`."""
    first: dict[str, Exchange] = {}
    for exchange in exchanges:
        if exchange.session_id not in besides:
            first.setdefault(exchange.session_id, exchange)
    return list(first.values())[:EXAMPLES]


def _exchange(facts: Facts, exchange: Exchange, prefix: str) -> Target:
    project = facts.incident.project
    measured = "" if facts.is_spike else f"{_name_series(facts)} {exchange.score:.2f}, "
    return Target(
        f"{prefix}{measured}{_format_moment(exchange.exchange_timestamp)}, turn {exchange.turn_number}",
        _LINKS.session(
            project,
            exchange.session_id,
            exchange.connection,
            exchange=exchange.exchange_id,
            fragment=f"score-{exchange.score_id}",
        ),
        plain(exchange.reason, MAX_NOTE),
        _write_command("scores", project=project, session=exchange.session_id),
    )


def _run(project: str, run: Run) -> Target:
    trust = "" if run.trust_score is None else f", trust {run.trust_score:g}"
    failures = ", ".join(name.replace("_", " ") for name in run.failures)
    ended = "" if run.ended_at is None else f", {_format_moment(run.ended_at)}"
    return Target(
        f"{run.run_id}{ended}{trust}",
        _LINKS.run(project, run.run_id),
        plain(failures, MAX_NOTE),
        _write_command("run", run.run_id, project=project),
    )


def _build_addresses(made: Iterable[Deployed]) -> list[Target]:
    """Return the addresses recorded with deployments that a browser may open."""
    return [Target(plain(one.name), one.link, plain(one.comment, MAX_NOTE)) for one in made if one.link is not None]


def _link_page(facts: Facts, part: str, title: str) -> Target:
    return Target(title, f"{_LINKS.incident(facts.incident.project, facts.incident.incident_id)}#{quote(part)}")


def _name_series(facts: Facts) -> str:
    if facts.is_spike:
        return "the rate of anomalies"
    return TIERS.get(facts.incident.tier or "") or (facts.moved[0].name if facts.moved else "the series")


def _name_values(facts: Facts) -> str:
    return facts.cause.words or "The anchors moved with it."


def _refer_to(count: int, thing: str) -> str:
    return f"this {thing}" if count == 1 else f"these {count} {thing}s"


def _format_mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _format_moment(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M}"
    except ValueError:
        return plain(at, 32)


def _write_command(*arguments: str, **options: str) -> str:
    """Return a command to copy, with senders' names quoted for a shell."""
    flags = [f"--{name} {shlex.quote(value)}" for name, value in options.items()]
    return " ".join(["driftline", *(shlex.quote(word) for word in arguments), *flags])
