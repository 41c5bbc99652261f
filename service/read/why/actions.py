"""What to do about an incident: a table of rules, each a condition on the evidence and an action with a link or a command.

A rule gives its grounds in `because`, with counts. The table follows the order of a person on call: undo, unless the judge changed;
then read, check the measure, and learn more. For an incident that is over or decided, only reading is left.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from audit.drift.incident_evidence import Deployed, Exchange, Run, SliceRow
from audit.drift.slices import AGENT, ARRIVAL
from audit.drift.watched_series import SPREAD, TIERS
from service.read.why.facts import Facts, part_explained, which_part_words
from service.text.answers import Answer
from service.text.links import Links
from service.text.plain import plain
from service.text.rounding import counted
from streams.watch.lifecycle import SUSPECTED, is_live

EXAMPLES = 3
"""Sessions to read, since the change and from before it."""
FEW_SESSIONS = 10
"""Judged sessions since the change below which more of them should be judged."""
MAX_NOTE = 160
_LINKS = Links()


class Target(Answer, frozen=True):
    """A link of an action."""

    title: str
    path: Annotated[str, Meta(description="Path on this server, or the address that was recorded with a deployment.")]
    note: str = ""
    command: Annotated[str | None, Meta(description="The same on the command line.")] = None


class Action(Answer, frozen=True):
    """A thing to do about an incident."""

    id: Annotated[str, Meta(examples=["read_sessions", "roll_back", "anchors"])]
    title: str
    because: Annotated[str, Meta(description="The evidence that speaks for it.")]
    links: list[Target] = msgspec.field(default_factory=list)
    command: str | None = None

    @property
    def command_does(self) -> str:
        """Explain a command whose name may promise too much; empty for others."""
        return COMMAND_DOES.get(self.id, "")


COMMAND_DOES: Mapping[str, str] = {
    "roll_back": "Once it is rolled back, tell Driftline, so that charts and incidents know. This command only records it:"
}
"""Explanations of commands whose names may promise too much, by the action's id."""
Rule = Callable[[Facts], Action | None]


def actions(facts: Facts) -> list[Action]:
    """Return the recommended actions for an incident, most urgent first."""
    rules = RULES if is_live(facts.incident) else {name: RULES[name] for name in WHEN_OVER}
    return [made for rule in rules.values() if (made := rule(facts)) is not None]


def _read(facts: Facts) -> Action | None:
    """Read the clearest examples, from different sessions, beside usual ones from before the change."""
    found = _clearest(facts.evidence.exchanges)
    if facts.is_of_runs or not found:
        return None
    usual = _clearest(facts.evidence.usual, {one.session_id for one in found})
    links = [_exchange(facts, one, "") for one in found]
    links += [_exchange(facts, one, "Before the change: ") for one in usual]
    first, last = (
        (f"The first {len(found)}", f"the last {len(usual)}") if len(usual) > 1 else ("The first ones", "the last one")
    )
    moved = f"moved {_series(facts)} most since {facts.since or 'the change'}"
    because = f"{first} {moved}; {last} show{'s' if len(usual) == 1 else ''} how it was before." if usual else f"They {moved}."
    return Action("read_sessions", f"Read {_these(len(links), 'session')}", because, links)


def _read_runs(facts: Facts) -> Action | None:
    if not facts.evidence.runs:
        return None
    project, found = facts.incident.project, facts.evidence.runs[:EXAMPLES]
    links = [_run(project, one) for one in found]
    if facts.since:
        agent = found[0].agent
        links.append(
            Target(
                f"All runs since {facts.since}, the least trusted first",
                _LINKS.runs(project, sort="trust", agent=agent, since=facts.since),
                command=_command("runs", project=project),
            )
        )
    others = " The last link leads to all others." if facts.since else ""
    because = f"They had the largest effect on {_series(facts)}.{others}"
    return Action("read_runs", f"Read {_these(len(found), 'run')}", because, links)


def _roll_back(facts: Facts) -> Action | None:
    """Roll back a new version if the change is confined to it; name the version that most exchanges had before."""
    which, best = facts.which_part, facts.new_version
    if which is None or best is None or not facts.is_worse or facts.mix_words:
        return None
    usual = which.back_to
    told = _level(facts, best, best.mean_after, best.exchanges_after, "since the change")
    if usual is not None:
        told += f", {_level(facts, usual, usual.mean_before, usual.exchanges_before, 'before')}"
    because = f"{told}. The change coincides with {best.label} {best.value}; counts alone do not prove that it is the cause."
    title = f"Roll back {best.label} from {best.value}" + (f" to {usual.value}" if usual is not None else "")
    made = [one for one in facts.evidence.deployments if (one.label, one.version) == (best.label, best.value)]
    links = [*_addresses(made), _on_page(facts, "part", "The parts of the traffic")]
    to = usual.value if usual is not None else "VERSION"
    command = _command("deployments", "add", to, project=facts.incident.project, label=best.label)
    return Action(
        "roll_back",
        plain(title),
        f"{because} Roll back in your own system: Driftline deploys nothing.",
        links,
        command,
    )


def _level(facts: Facts, part: SliceRow, mean: float | None, count: int, when: str) -> str:
    """Describe a slice's level, as mean or anomaly rate, and the number of exchanges behind it."""
    of = counted(count, facts.unit)
    named = f"{part.label} {part.value}"
    if facts.is_spike:
        return f"{named} had an anomaly in {'none' if not mean else f'{mean:.0%}'} of {of} {when}"
    return f"{named} scored {_mean(mean)} on average over {of} {when}"


def _look_inside(facts: Facts) -> Action | None:
    """Look into the slice that stands out, if there is no version to roll back."""
    which = facts.which_part
    best = which.found if which is not None else None
    if best is None or facts.new_version is not None or facts.mix_words:
        return None
    because = (
        f"{best.name} explains {part_explained(best)} of the change, with {best.shares} of the traffic; other parts moved less."
    )
    return Action(
        "look_at_part", f"Begin with {plain(best.name)}", because, [_on_page(facts, "part", "The parts of the traffic")]
    )


def _deployment(facts: Facts) -> Action | None:
    if not facts.evidence.deployments or _roll_back(facts) is not None:
        return None
    names = ", ".join(one.name for one in facts.evidence.deployments[:EXAMPLES])
    because = f"Deployed on the days when the change may have begun: {names}. That they coincide does not make it the cause."
    command = _command("deployments", "list", project=facts.incident.project)
    return Action(
        "check_deployment", "Check what was deployed", because, _addresses(facts.evidence.deployments[:EXAMPLES]), command
    )


def _judge(facts: Facts) -> Action | None:
    if facts.incident.cause != "judge":
        return None
    command = _command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_judge",
        "Check the judge before the agent",
        f"{_words(facts)} Ask its provider what changed, or set another judge model in the policy. Another round of anchors checks it again.",
        [_on_page(facts, "sure", "How sure that is")],
        command,
    )


def _anchors(facts: Facts) -> Action | None:
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
    return Action("anchors", title, because, [], _command("anchors", command, project=facts.incident.project))


def _mix(facts: Facts) -> Action | None:
    """Look into the changed traffic mix, which calls for no repair of an agent."""
    which = facts.which_part
    if which is None or which.mix is None or not facts.mix_words:
        return None
    if which.mix.label == ARRIVAL:
        because = (
            f"{which.mix.words} Import history of another level into a project of its own, or call this level the new normal."
        )
        return Action(
            "check_mix", "Keep imported history apart", because, [_on_page(facts, "part", "The parts of the traffic")]
        )
    because = f"{which.mix.words} Look for what changed the traffic, such as routing, a campaign or a new customer."
    title = f"Check why the mix of {'agents' if which.mix.label == AGENT else plain(which.mix.label)} changed"
    return Action("check_mix", title, because, [_on_page(facts, "part", "The parts of the traffic")])


def _contradiction(facts: Facts) -> Action | None:
    if facts.cause.reason != "contradiction":
        return None
    command = _command("anchors", "run", project=facts.incident.project)
    return Action(
        "check_both", "Check both agent and judge", _words(facts), [_on_page(facts, "sure", "How sure that is")], command
    )


def _policy(facts: Facts) -> Action | None:
    note = facts.evidence.note
    if not note:
        return None
    return Action(
        "compare_policies",
        "Compare the policies",
        note,
        [
            _on_page(facts, "against", "Their digests, before and after"),
            Target("The policy in force", _LINKS.policy(facts.incident.project)),
        ],
    )


def _sampling(facts: Facts) -> Action | None:
    """Judge more if few sessions were judged since the change: estimates are then wide, and slices cannot be compared."""
    sessions, scores = (None, None) if facts.seen is None else (facts.seen.sessions_after, facts.seen.scores_after)
    if not facts.is_judged or sessions is None or sessions >= FEW_SESSIONS:
        return None
    turns = "" if scores is None else f"{counted(scores, 'judged turn')} of "
    because = (
        f"Only {turns}{counted(sessions, 'session')} {'is' if not turns and sessions == 1 else 'are'} known since the change. With fewer than {FEW_SESSIONS} sessions, "
        "estimates are wide and parts of the traffic are hard to compare. Raise the policy's sampling, such as alwaysScoreFirst or routineInterval, or judge what stayed unscored."
    )
    command = _command("rejudge", "--dry-run", project=facts.incident.project)
    return Action(
        "widen_sampling",
        "Judge more turns",
        because,
        [Target("The policy in force", _LINKS.policy(facts.incident.project))],
        command,
    )


def _labels(facts: Facts) -> Action | None:
    which = facts.which_part
    if which is None or which.state != "no_labels":
        return None
    because = f"{which_part_words(which)} The next incident then says which version, prompt or customer changed."
    return Action("send_labels", "Send labels with exchanges", because, [Target("How agents send labels", _LINKS.connect())])


def _again(facts: Facts) -> Action | None:
    if facts.incident.confidence != SUSPECTED:
        return None
    because = "It is only suspected: the evidence does not yet suffice for an alarm. More exchanges confirm it, or it disappears by itself."
    return Action(
        "check_again", "Check again after more exchanges", because, [], _command("check-drift", project=facts.incident.project)
    )


def _normal(facts: Facts) -> Action | None:
    if facts.is_worse:
        return None
    command = f"driftline incidents new-normal {shlex.quote(facts.incident.incident_id)} --reason {shlex.quote('The change is wanted.')}"
    better = "Sessions differ less than before: the weaker may have improved, or the best become worse. Read some of both sides first."
    if not (facts.moved and facts.moved[0].series.kind == SPREAD):
        better = "The change is for the better."
    because = f"{better} If it is meant to stay, comparisons should begin with it; otherwise falling back raises no alarm."
    return Action(
        "new_normal", "Make it the new normal if it is wanted", because, [_on_page(facts, "decide", "Decide")], command
    )


RULES: Mapping[str, Rule] = {
    "check_judge": _judge,
    "check_both": _contradiction,
    "check_mix": _mix,
    "roll_back": _roll_back,
    "read_sessions": _read,
    "read_runs": _read_runs,
    "look_at_part": _look_inside,
    "check_deployment": _deployment,
    "new_normal": _normal,
    "compare_policies": _policy,
    "anchors": _anchors,
    "widen_sampling": _sampling,
    "send_labels": _labels,
    "check_again": _again,
}
"""The rules by the id of their action, in the order in which actions are shown."""
WHEN_OVER = ("read_sessions", "read_runs")
"""The actions that remain once an incident is resolved or dismissed."""


def _clearest(found: Sequence[Exchange], besides: AbstractSet[str] = frozenset()) -> list[Exchange]:
    """Return the first examples from different sessions, leaving out the sessions in `besides`."""
    first: dict[str, Exchange] = {}
    for one in found:
        if one.session_id not in besides:
            first.setdefault(one.session_id, one)
    return list(first.values())[:EXAMPLES]


def _exchange(facts: Facts, one: Exchange, prefix: str) -> Target:
    project = facts.incident.project
    measured = "" if facts.is_spike else f"{_series(facts)} {one.score:.2f}, "
    return Target(
        f"{prefix}{measured}{_moment(one.exchange_timestamp)}, turn {one.turn_number}",
        _LINKS.session(project, one.session_id, one.connection, exchange=one.exchange_id, fragment=f"score-{one.score_id}"),
        plain(one.reason, MAX_NOTE),
        _command("scores", project=project, session=one.session_id),
    )


def _run(project: str, one: Run) -> Target:
    trust = "" if one.trust_score is None else f", trust {one.trust_score:g}"
    failures = ", ".join(name.replace("_", " ") for name in one.failures)
    ended = "" if one.ended_at is None else f", {_moment(one.ended_at)}"
    return Target(
        f"{one.run_id}{ended}{trust}",
        _LINKS.run(project, one.run_id),
        plain(failures, MAX_NOTE),
        _command("run", one.run_id, project=project),
    )


def _addresses(made: Iterable[Deployed]) -> list[Target]:
    """Return the addresses recorded with deployments that a browser may open."""
    return [Target(plain(one.name), one.link, plain(one.comment, MAX_NOTE)) for one in made if one.link is not None]


def _on_page(facts: Facts, part: str, title: str) -> Target:
    return Target(title, f"{_LINKS.incident(facts.incident.project, facts.incident.incident_id)}#{quote(part)}")


def _series(facts: Facts) -> str:
    if facts.is_spike:
        return "the rate of anomalies"
    return TIERS.get(facts.incident.tier or "") or (facts.moved[0].name if facts.moved else "the series")


def _words(facts: Facts) -> str:
    return facts.cause.words or "The anchors moved with it."


def _these(count: int, thing: str) -> str:
    return f"this {thing}" if count == 1 else f"these {count} {thing}s"


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _moment(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M}"
    except ValueError:
        return plain(at, 32)


def _command(*words: str, **options: str) -> str:
    """Return a command to copy, with senders' names quoted for a shell."""
    given = [f"--{name} {shlex.quote(value)}" for name, value in options.items()]
    return " ".join(["driftline", *(shlex.quote(word) for word in words), *given])
