"""Evidence of an incident: the changed series, each rule's observations, the baseline, and the queries that reproduce them.

The watch builds an `Evidence`, an incident stores it as JSON in `metadata`, and pages, commands and alerts read it back with
`evidence_of`. The outline for lists and charts is the same JSON with only the members `moved` and `rules`.

The observations of the leading series are stored beside the list `moved`, because older records have no such list, only these
observations. They are read as a list of one series. Unreadable or erased entries are left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

from audit.drift.slices import NOT_GIVEN, OTHER, VALUE
from audit.drift.watched_series import DOWN, DRIFT, SEVERITIES, SPIKE, SPREAD, UP, Key, Series
from audit.fingerprints import canonical_json
from schemas.records import Incident

ALSO_CHANGED = "moved_too"
"""Takes the place of a rule's name if the series raised no alarm of its own."""
NO_LABELS, TOO_FEW, EVERYWHERE, STANDS_OUT = "no_labels", "too_few_sessions", "everywhere", "found"
"""States of the slices: no label divides the exchanges; too few sessions; no slice stands out; a slice stands out."""
_STATES = (NO_LABELS, TOO_FEW, EVERYWHERE, STANDS_OUT)
MIN_COUNT = 3
"""Minimum number of exchanges or runs since the change that are mentioned."""
MIN_SESSIONS = 3
"""Minimum number of sessions on each side for the variance of a dimension."""
SIGNIFICANT_ERRORS = 3.0
"""A change of a share or of a dimension is significant beyond this many standard errors."""
Natural = Annotated[int, msgspec.Meta(ge=0)]
Scalar = str | int | float | bool | None


class Level(NamedTuple):
    """The level of a series before and after, and the spread of one session's mean."""

    before: float
    after: float
    sigma: float


class Day(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A day that a rule observed: its average or its anomalies, and the number of its scores or exchanges."""

    day: date
    count: int = 0
    average: float | None = None
    anomalies: int | None = None


class Numbers(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The numbers that a rule observed; each rule fills some of them."""

    days: list[Day] | None = None
    first_day: date | None = None
    first_day_interval: tuple[date, date] | None = None
    compared_since: date | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None
    mean_before: float | None = None
    mean_after: float | None = None
    sigma: float | None = None
    """Standard deviation of one session's mean."""
    scores_before: int | None = None
    scores_after: int | None = None
    sessions_before: int | None = None
    sessions_after: int | None = None
    spread_before: float | None = None
    spread_after: float | None = None
    log_evidence: float | None = None
    """Log of the ratio of probabilities of the numbers with and without a change."""
    deviation: float | None = None
    """Largest distance of a day, in standard deviations."""
    mean: float | None = None
    stddev: float | None = None
    baseline_id: str | None = None
    baseline_scores: int | None = None
    baseline_rate: float | None = None
    baseline_anomalies: int | None = None
    baseline_exchanges: int | None = None
    baseline_from: date | None = None
    baseline_until: date | None = None
    anomalies: int | None = None
    exchanges: int | None = None
    rate: float | None = None
    ratio: float | msgspec.UnsetType | None = msgspec.UNSET
    """None if the rate was zero before."""
    agent: str | None = None
    agents: int | None = None
    """The number of agents whose series of the tier were compared; None for one."""
    agents_changed: int | None = None
    """The number of those that raised an alarm."""
    runs_before: int | None = None
    runs_after: int | None = None
    having_before: int | None = None
    """Runs that have the property."""
    having_after: int | None = None
    series: int | None = None
    """The number of series that were decided together for each one that was believed; the alarm needs so many times the evidence."""
    made_with: dict[str, str] | None = None
    """The rules and thresholds of the diagnoses."""


class Observation(Numbers, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A rule's observation of a series, of now or of the last time that the rule found the change."""

    since: date
    until: date
    severity: str | None = None
    size: float | None = None
    title: str | None = None
    description: str | None = None
    confirmed: bool | None = None


class ChangedSeries(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A series that changed in an incident."""

    series_name: str = msgspec.field(name="series")
    tier: str | None
    agent: str | None
    direction: str | None
    kind: str
    name: str
    before: float | None = msgspec.field(name="from")
    """The level before; None if the rule did not observe it, and for a spread."""
    after: float | None = msgspec.field(name="to")
    since: date
    interval: tuple[date, date]
    """The days that may be the first day of the change, as first and last."""
    until: date
    """The last day on which any rule observed the change."""
    severity: str
    """The worst severity so far."""
    rule: str
    """The leading rule."""
    confirmed: bool
    fell_too: bool
    """True if the series raised no alarm of its own."""
    leads: bool
    rules: dict[str, Observation] = {}
    slice: str | None = None
    """The slice of the scores that the series is about; None for all of them."""
    """The observations of each rule."""

    @property
    def key(self) -> Key:
        """The name of the series, and the direction of its change."""
        return _key(self.tier, self.direction, self.agent)._replace(slice=self.slice)

    @property
    def series(self) -> Series:
        """The series, the direction of its change, and the kind of change."""
        return Series(self.key, self.kind)

    @property
    def is_worse(self) -> bool | None:
        """True if the series changed for the worse, None if its change is neither better nor worse by itself."""
        return self.series.is_worse

    @property
    def observation(self) -> Observation:
        """The observation of the leading rule; without one, that of the first rule."""
        return leading_observation(self.rule, self.rules)

    @property
    def level(self) -> Level | None:
        """The level before and after; None if the rule did not observe it, and for a spread."""
        return level_of(self.series, self.rule, self.observation)


def build_changed_series(
    series: Series,
    rules: dict[str, Observation],
    *,
    rule: str,
    severity: str,
    confirmed: bool,
    interval: tuple[date, date],
    fell_too: bool = False,
    leads: bool = False,
) -> ChangedSeries:
    """Return the entry of a changed series, with the days and levels that its rules observed."""
    level = level_of(series, rule, leading_observation(rule, rules))
    return ChangedSeries(
        series_name=series.key.series,
        tier=series.key.tier,
        agent=series.key.agent,
        slice=series.key.slice,
        direction=series.key.direction,
        kind=series.kind,
        name=series.name,
        before=None if level is None else level.before,
        after=None if level is None else level.after,
        since=min(observation.since for observation in rules.values()),
        interval=interval,
        until=max(observation.until for observation in rules.values()),
        severity=severity,
        rule=rule,
        confirmed=confirmed,
        fell_too=fell_too,
        leads=leads,
        rules=rules,
    )


def leading_observation(rule: str, rules: dict[str, Observation]) -> Observation:
    """Return the observation of a rule; if it has none, that of the first rule. There must be at least one."""
    return rules.get(rule) or next(iter(rules.values()))


def level_of(series: Series, rule: str, observation: Observation) -> Level | None:
    """Return the level of a series before and after from a rule's observation; None if the rule observes none, and for a spread."""
    if series.kind == SPREAD:
        return None
    if rule == "consecutive_days":
        return _level_off_baseline(observation, series.key.direction)
    if rule == "rate_ratio":
        return _level_of_rate(observation)
    if (
        rule not in ("sequential", "versions", "runs", "sessions", "behaviour", ALSO_CHANGED)
        or observation.mean_before is None
        or observation.mean_after is None
    ):
        return None
    return Level(observation.mean_before, observation.mean_after, observation.sigma or 0.0)


def _level_off_baseline(observation: Observation, direction: str | None) -> Level | None:
    if observation.mean is None or observation.stddev is None or observation.deviation is None:
        return None
    distance = observation.deviation * observation.stddev
    return Level(observation.mean, observation.mean + (distance if direction == UP else -distance), observation.stddev)


def _level_of_rate(observation: Observation) -> Level | None:
    if observation.baseline_rate is None or observation.rate is None:
        return None
    return Level(observation.baseline_rate, observation.rate, max(observation.rate * (1 - observation.rate), 0.0) ** 0.5)


class BaselineNumbers(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The baseline in force, with the numbers of the tier that the incident is about."""

    id: str
    computed_at: str
    window_start: str
    window_end: str
    exchange_count: int
    anomaly_rate: float | None
    mean: float | None = None
    stddev: float | None = None
    count: int | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An exchange that changed the mean, or one from before the change for comparison."""

    score_id: str
    session_id: str
    turn_number: int
    exchange_timestamp: str
    score: float
    exchange_id: str | None = None
    connection: str | None = None
    agent: str | None = None
    weight: float = 1.0
    moved: float = 0.0
    sampling_reason: str | None = None
    reason: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run that changed the mean of a series."""

    run_id: str
    session_id: str
    connection: str | None = None
    agent: str | None = None
    ended_at: str | None = None
    value: float | None = None
    moved: float | None = None
    trust_score: int | None = None
    readiness_level: str | None = None
    primary_failure: str | None = None
    failures: list[str] = []


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """The number of exchanges or runs with a property, before a change and since it, and the number of all of them."""

    before: Natural
    after: Natural
    all_before: Natural
    all_after: Natural

    @property
    def name(self) -> str:
        """The name of the check, reason or failure; empty for a count without a name."""
        return ""

    def has_risen(self, *, is_fall: bool = False, min_count: int = MIN_COUNT) -> bool:
        """Return whether the share since the change is significantly above that before, or below it if `is_fall`.

        False if one side is empty, if the larger share has fewer than `min_count`, and for counts that exceed their total.
        """
        if is_fall:
            return _is_significant_rise(self.after, self.all_after, self.before, self.all_before, min_count)
        return _is_significant_rise(self.before, self.all_before, self.after, self.all_after, min_count)


def _is_significant_rise(before: int, all_before: int, after: int, all_after: int, min_count: int) -> bool:
    """Return whether a share is above an earlier share by more than SIGNIFICANT_ERRORS standard errors of their difference."""
    if not all_before or not all_after or after < min_count or before > all_before or after > all_after:
        return False
    common_share = (before + after) / (all_before + all_after)
    error = math.sqrt(common_share * (1 - common_share) * (1 / all_before + 1 / all_after))
    return after / all_after - before / all_before > SIGNIFICANT_ERRORS * error


class ReasonCount(Count, frozen=True, kw_only=True):
    """Exchanges in which the judge found a fault, by its kind and reason."""

    kind: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """The reason; empty for a kind without reasons."""
        return self.reason


class FailureCount(Count, frozen=True, kw_only=True):
    """Runs with a failure."""

    failure: str

    @property
    def name(self) -> str:
        """The failure."""
        return self.failure


class FlagCount(Count, frozen=True, kw_only=True):
    """Exchanges that a check of Tier 1 flagged."""

    flag: str
    share_before: float | None = None
    share_after: float | None = None

    @property
    def name(self) -> str:
        """The check."""
        return self.flag


class SamplingCount(msgspec.Struct, frozen=True, kw_only=True):
    """Judged exchanges by the reason for which they were sampled."""

    sampling_reason: str
    before: Natural
    after: Natural
    share_before: float | None = None
    share_after: float | None = None


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's scores of a dimension before the change and since it."""

    dimension: str
    judged_before: int
    judged_after: int
    sessions_before: int
    sessions_after: int
    mean_before: float | None = None
    mean_after: float | None = None
    error_before: float | None = None
    error_after: float | None = None

    @property
    def change(self) -> float:
        """The change of the mean; 0 if unknown."""
        return 0.0 if self.mean_before is None or self.mean_after is None else self.mean_after - self.mean_before

    @property
    def z_score(self) -> float | None:
        """The change of the mean in standard errors; None with too few sessions."""
        if self.mean_before is None or self.mean_after is None:
            return None
        if min(self.sessions_before, self.sessions_after) < MIN_SESSIONS:
            return None
        return self.change / max(math.hypot(self.error_before or 0.0, self.error_after or 0.0), 1e-4)

    def has_changed(self, direction: str | None) -> bool:
        """Return whether the mean changed significantly in a direction (None: any)."""
        z_score = self.z_score
        if z_score is None or abs(z_score) <= SIGNIFICANT_ERRORS:
            return False
        return direction is None or direction == (UP if z_score > 0 else DOWN)


class Amount(msgspec.Struct, frozen=True):
    """Points of the score, with a 95% interval."""

    amount: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The amount with its interval."""
        return f"{self.amount:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


class SliceName(msgspec.Struct, frozen=True, rename="camel"):
    """The name of a slice."""

    label: str
    kind: str
    value: str

    @property
    def name(self) -> str:
        """The slice in plain words."""
        value = {NOT_GIVEN: "not given", OTHER: "other values"}.get(self.kind, self.value)
        return f"{self.label}: {value}"


class SliceRow(SliceName, frozen=True, rename="camel"):
    """One slice and its part in the change."""

    share_before: float
    share_after: float
    mix: Amount
    within: Amount
    explained: float
    stands_out: bool
    mean_before: float | None = None
    mean_after: float | None = None
    same_as: list[SliceName] = []
    exchanges_before: int = 0
    exchanges_after: int = 0

    @property
    def shares(self) -> str:
        """Its share of the weight, before and after."""
        return f"{self.share_before:.0%} → {self.share_after:.0%}"


class ChangedMix(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The label whose shares explain a change."""

    label: str
    shares: str
    words: str
    within: Amount | None = None
    all_better: bool = False
    slices: list[SliceRow] = []


class SliceFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the traffic that explains the change."""

    state: str
    slices: list[SliceRow] = []
    """Slices that explain a part of the change, the best explanation first."""
    usual: SliceRow | None = None
    """The slice of the best one's label with the most exchanges before."""
    change: Amount | None = None
    unexplained: float = 0.0
    tried: int = 0
    sessions: dict[str, int] = {}
    """The number of sessions before and after, if these are too few."""
    needed: int = 0
    mix: ChangedMix | None = None
    """None if slices explain the change by themselves, or no slice does."""

    def __post_init__(self) -> None:
        """Refuse an unknown state, and one that the slices contradict."""
        if self.state not in _STATES:
            raise ValueError(f"the state {self.state!r} is unknown; expected one of {', '.join(_STATES)}")
        if self.state == STANDS_OUT and not self.slices:
            raise ValueError(f"the state {self.state!r} requires slices")

    @property
    def found(self) -> SliceRow | None:
        """The slice that stands out; None without one."""
        return self.slices[0] if self.state == STANDS_OUT and self.slices[0].stands_out else None

    @property
    def rollback_target(self) -> SliceRow | None:
        """The slice that most exchanges had before, as the value to go back to.

        None if no slice stands out, or if that slice is no single value or was not scored.
        """
        usual = self.usual
        if self.found is None or usual is None or usual.kind != VALUE or usual.mean_before is None:
            return None
        return usual

    @property
    def listed(self) -> list[SliceRow]:
        """The slices that explain most, with the one to go back to, which explains little because it did not change."""
        target = self.rollback_target
        names = {(row.label, row.kind, row.value) for row in self.slices}
        if target is None or (target.label, target.kind, target.value) in names:
            return self.slices
        return [*self.slices[:1], target, *self.slices[1:]]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment on one of the days on which a change may have begun."""

    label: str
    version: str
    at: str
    by: str
    id: str | None = None
    agent: str | None = None
    comment: str | None = None
    url: str | None = None

    @property
    def name(self) -> str:
        """The name of the deployed version."""
        return f"{self.label} {self.version}" + (f" of {self.agent}" if self.agent else "")

    @property
    def link(self) -> str | None:
        """A link to the deployment, if a browser may open it."""
        return self.url if self.url and self.url.startswith(("https://", "http://")) else None


class Query(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named query with the parameters that reproduce the finding."""

    name: str
    parameters: dict[str, Any]
    sql: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The cause according to the anchors, with the numbers behind it; empty if anchors do not apply to the series."""

    cause: str | msgspec.UnsetType | None = msgspec.UNSET
    reason: str | None = None
    words: str | None = None
    anchors: int | None = None
    rounds_before: int | None = None
    rounds_since: int | None = None
    judge_change: float | None = None
    judge_interval: tuple[float | None, float | None] | None = None
    tier_change: float | None = None
    tiers: dict[str, Cause] | None = None
    """The result of each tier, if several tiers changed."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The evidence of an incident; members that do not apply to the rule are empty."""

    rule: str | None = None
    note: str | None = None
    baseline: BaselineNumbers | None = None
    made_with: dict[str, Scalar] = {}
    policies: dict[str, list[str]] = {}
    """Digests of the policies before and after."""
    sampling_mix: list[SamplingCount] = []
    slices: SliceFindings | None = None
    deployments: list[Deployment] = []
    exchanges: list[Exchange] = []
    """Exchanges with the largest effect, the largest first."""
    runs: list[Run] = []
    usual: list[Exchange] = []
    """Some exchanges from before the change, for comparison."""
    reasons: list[ReasonCount] = []
    failures: list[FailureCount] = []
    dimensions: list[Dimension] = []
    flags: list[FlagCount] = []
    queries: list[Query] = []
    cause: Cause = Cause()
    rules: dict[str, Observation] = {}
    """The observations of the leading series by rule."""
    moved: list[ChangedSeries] = []
    """The changed series, the leading one first."""
    decided_sizes: dict[str, float | None] = {}
    """The size of the change when a person last decided on it or snoozed it, by rule, and by series and rule."""

    def lead_series(self, incident: Incident) -> Series:
        """Return the leading series of the incident."""
        key = _key(incident.tier, incident.direction, incident.agent)
        lead = next((entry for entry in self.moved if entry.leads), None)
        return Series(key) if lead is None else Series(key._replace(slice=lead.slice), lead.kind)

    def observation_of(self, rule: str) -> Observation | None:
        """Return the observation of a rule; if it has none, that of the first rule; None without any."""
        return leading_observation(rule, self.rules) if self.rules else None


_decode = msgspec.json.Decoder(Evidence).decode


def evidence_of(incident: Incident) -> Evidence:
    """Return the evidence of an incident of any version; empty if it cannot be read."""
    try:
        evidence = _decode(incident.metadata)
    except ValueError:
        evidence = _decode_leniently(incident.metadata)
    lead_rules = _drop_reversed(evidence.rules)
    moved = []
    for entry in evidence.moved:
        rules = lead_rules if entry.leads else _drop_reversed(entry.rules)
        if rules and entry.severity in SEVERITIES:
            moved.append(msgspec.structs.replace(entry, rules=rules))
    lead = evidence.lead_series(incident)
    if lead_rules and not any(entry.series == lead for entry in moved):
        moved.append(_build_lead(incident, lead, lead_rules))
    moved.sort(key=lambda entry: entry.series != lead)
    return msgspec.structs.replace(evidence, rules=lead_rules, moved=moved)


def _key(tier: str | None, direction: str | None, agent: str | None) -> Key:
    return Key(SPIKE if tier is None else DRIFT, tier, direction, agent)


def _drop_reversed(rules: dict[str, Observation]) -> dict[str, Observation]:
    """Drop observations that end before they begin."""
    return {rule: observation for rule, observation in rules.items() if observation.since <= observation.until}


def members_of(evidence: Evidence) -> dict[str, Any]:
    """Return the members of evidence as JSON values. The leading series' observations are in `rules` only."""
    members: dict[str, Any] = msgspec.to_builtins(evidence)
    for entry in members["moved"]:
        if entry["leads"]:
            del entry["rules"]
    return members


def evidence_json(evidence: Evidence) -> str:
    """Return evidence as the JSON that an incident stores."""
    return canonical_json(members_of(evidence))


def _build_lead(incident: Incident, lead: Series, rules: dict[str, Observation]) -> ChangedSeries:
    """Return the only series of an older incident, which has no list `moved`."""
    rule = incident.rule if incident.rule in rules else next(iter(rules))
    since = rules[rule].since
    return build_changed_series(
        lead,
        rules,
        rule=rule,
        severity=incident.severity,
        confirmed=incident.confidence == "confirmed",
        interval=(since, since),
        leads=True,
    )


def _decode_leniently(text: str) -> Evidence:
    """Decode evidence that the strict decoder refuses, such as evidence with NaN, without the unreadable parts."""
    try:
        document = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return Evidence()
    return next(_convert(document, Evidence), Evidence())


def _convert(value: Any, target: Any) -> Iterator[Any]:
    """Yield a JSON value converted to a type, without its unreadable parts; nothing if it has another form."""
    try:
        converted = msgspec.convert(value, target)
    except ValueError:  # another form, or a string that is not valid Unicode
        yield from _convert_parts(value, target)
    else:
        yield converted


def _convert_parts(value: Any, target: Any) -> Iterator[Any]:
    """Yield a JSON list or object with each of its parts converted by itself. Of a union, the first option that fits is used."""
    for option in (target, *get_args(target)):
        if isinstance(value, list) and get_origin(option) is list:
            yield [item for part in value for item in _convert(part, get_args(option)[0])]
            return
        if isinstance(value, dict) and get_origin(option) is dict:
            yield {name: item for name, part in value.items() for item in _convert(part, get_args(option)[1])}
            return
        if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
            fields = [field for field in msgspec.structs.fields(option) if field.encode_name in value]
            members = {field.name: item for field in fields for item in _convert(value[field.encode_name], field.type)}
            with contextlib.suppress(TypeError, ValueError):  # a required field is missing
                yield option(**members)
            return
