"""Evidence of an incident: what moved, what each rule observed, its baseline, and the queries that reproduce it.

The watch builds an `Evidence`, an incident stores it as JSON in `metadata`, and everything that shows an incident reads it back
with `evidence_of`. The outline for lists and charts is the same JSON with only the members `moved` and `rules`.

The observations of the leading series are stored beside the list `moved`, because records of versions before that list have
them there. Such a record is read as a list of one. Unreadable or erased entries are left out.
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
from audit.drift.watched_series import DOWN, DRIFT, MEAN, SEVERITIES, SPIKE, SPREAD, UP, Key, Series
from audit.fingerprints import canonical_json
from schemas.records import Incident

MOVED_TOO = "moved_too"
"""Stands for a rule: the series raised no alarm of its own."""
NO_LABELS, TOO_FEW, EVERYWHERE, FOUND = "no_labels", "too_few_sessions", "everywhere", "found"
"""States of the slices: no label divides the exchanges; too few sessions; no slice stands out; one does."""
FEWEST = 3
"""Fewest exchanges or runs since the change that are mentioned."""
FEWEST_SESSIONS = 3
"""Fewest sessions on each side for the variance of a dimension."""
CERTAIN = 3.0
"""Standard errors from which on a share has risen or a dimension has moved."""
Natural = Annotated[int, msgspec.Meta(ge=0)]
Scalar = str | int | float | bool | None


class Level(NamedTuple):
    """The level of a series before and after, and the spread of one session's mean."""

    before: float
    after: float
    sigma: float


class Day(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A day that a rule saw: its average, or its anomalies, and of how many."""

    day: date
    count: int = 0
    average: float | None = None
    anomalies: int | None = None


class Numbers(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The numbers that a rule saw; each rule has its own."""

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
    runs_before: int | None = None
    runs_after: int | None = None
    having_before: int | None = None
    """Runs that have the property."""
    having_after: int | None = None
    series: int | None = None
    """The number of series of the agent."""
    made_with: dict[str, str] | None = None
    """The rules and thresholds of the diagnoses."""


class Sighting(Numbers, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a rule saw of a series, now or when it last saw the change."""

    since: date
    until: date
    severity: str | None = None
    size: float | None = None
    title: str | None = None
    description: str | None = None
    confirmed: bool | None = None


class Moved(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A series that moved in an incident."""

    series_name: str = msgspec.field(name="series")
    tier: str | None
    agent: str | None
    direction: str | None
    kind: str
    name: str
    before: float | None = msgspec.field(name="from")
    """None if the rule did not observe it, and for a spread."""
    after: float | None = msgspec.field(name="to")
    since: date
    interval: tuple[date, date]
    """The days that may be the first day of the change."""
    until: date
    """The last day on which any rule observed it."""
    severity: str
    """The worst severity so far."""
    rule: str
    """The leading rule."""
    confirmed: bool
    fell_too: bool
    """True if it raised no alarm of its own."""
    leads: bool
    rules: dict[str, Sighting] = {}
    """The observations of each rule."""

    @property
    def key(self) -> Key:
        """The series that moved, and its direction."""
        return _key(self.tier, self.direction, self.agent)

    @property
    def series(self) -> Series:
        """The series that moved, its direction and what moved."""
        return Series(self.key, self.kind)

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse."""
        return self.series.is_worse

    @property
    def seen(self) -> Sighting:
        """The observation of the leading rule."""
        return self.rules.get(self.rule) or next(iter(self.rules.values()))

    @property
    def level(self) -> Level | None:
        """The level before and after; None if the rule did not observe it, and for a spread."""
        return None if self.kind == SPREAD else level_of(self.rule, self.direction, self.seen)


def moved_series(
    series: Series,
    rules: dict[str, Sighting],
    *,
    rule: str,
    severity: str,
    confirmed: bool,
    interval: tuple[date, date],
    fell_too: bool = False,
    leads: bool = False,
) -> Moved:
    """Return the entry of a series that moved, with the days and levels that its rules observed."""
    level = (
        None if series.kind == SPREAD else level_of(rule, series.key.direction, rules.get(rule) or next(iter(rules.values())))
    )
    return Moved(
        series_name=series.key.series,
        tier=series.key.tier,
        agent=series.key.agent,
        direction=series.key.direction,
        kind=series.kind,
        name=series.name,
        before=None if level is None else level.before,
        after=None if level is None else level.after,
        since=min(sighting.since for sighting in rules.values()),
        interval=interval,
        until=max(sighting.until for sighting in rules.values()),
        severity=severity,
        rule=rule,
        confirmed=confirmed,
        fell_too=fell_too,
        leads=leads,
        rules=rules,
    )


def level_of(rule: str, direction: str | None, seen: Sighting) -> Level | None:
    """Return the levels and the standard deviation from a rule's observation; None if it has none."""
    if rule == "consecutive_days":
        if seen.mean is None or seen.stddev is None or seen.deviation is None:
            return None
        off = seen.deviation * seen.stddev
        return Level(seen.mean, seen.mean + (off if direction == UP else -off), seen.stddev)
    if rule == "rate_ratio":
        before, after = seen.baseline_rate, seen.rate
        return None if before is None or after is None else Level(before, after, max(after * (1 - after), 0.0) ** 0.5)
    if rule not in ("sequential", "runs", MOVED_TOO) or seen.mean_before is None or seen.mean_after is None:
        return None
    return Level(seen.mean_before, seen.mean_after, seen.sigma or 0.0)


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
    """An exchange that moved the mean, or a usual one from before."""

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
    """A run that moved a series."""

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
    """The number of something before a change and since it, of how many."""

    before: Natural
    after: Natural
    all_before: Natural
    all_after: Natural

    @property
    def name(self) -> str:
        """The name of the check, reason, failure or sampling reason; empty for any."""
        return ""

    def has_risen(self, *, is_fall: bool = False, fewest: int = FEWEST) -> bool:
        """Return whether the share since the change is significantly above that before, or below it if `is_fall`.

        False without a time before, for fewer than `fewest`, and for counts that exceed their total.
        """
        before, after, all_before, all_after = self.before, self.after, self.all_before, self.all_after
        if is_fall:
            before, after, all_before, all_after = after, before, all_after, all_before
        if not all_before or not all_after or after < fewest or before > all_before or after > all_after:
            return False
        common = (before + after) / (all_before + all_after)
        error = math.sqrt(common * (1 - common) * (1 / all_before + 1 / all_after))
        return after / all_after - before / all_before > CERTAIN * error


class ReasonCount(Count, frozen=True, kw_only=True):
    """Exchanges in which something was found wrong."""

    kind: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """The reason; empty for a kind without further names."""
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
    """The judge's scores of a dimension before and since."""

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
        """The change of its mean; 0 if unknown."""
        return 0.0 if self.mean_before is None or self.mean_after is None else self.mean_after - self.mean_before

    @property
    def errors_off(self) -> float | None:
        """The change of its mean in standard errors; None with too few sessions."""
        if self.mean_before is None or self.mean_after is None:
            return None
        if min(self.sessions_before, self.sessions_after) < FEWEST_SESSIONS:
            return None
        return self.change / max(math.hypot(self.error_before or 0.0, self.error_after or 0.0), 1e-4)

    def has_moved(self, direction: str | None) -> bool:
        """Return whether its mean moved significantly in a direction (None: any)."""
        off = self.errors_off
        return off is not None and abs(off) > CERTAIN and direction in (UP if off > 0 else DOWN, None)


class Amount(msgspec.Struct, frozen=True):
    """Points of the score, with a 95 % interval."""

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
        return f"{self.label}: {({NOT_GIVEN: 'not given', OTHER: 'other values'}).get(self.kind, self.value)}"


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


class WhichPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the traffic that moved."""

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
        if self.state not in (NO_LABELS, TOO_FEW, EVERYWHERE, FOUND) or (self.state == FOUND and not self.slices):
            raise ValueError("no such state")

    @property
    def found(self) -> SliceRow | None:
        """The slice that stands out; None without one."""
        return self.slices[0] if self.state == FOUND and self.slices and self.slices[0].stands_out else None

    @property
    def back_to(self) -> SliceRow | None:
        """The value to go back to, which most exchanges had before, if they were scored; None without one."""
        usual = self.usual
        is_usable = usual is not None and usual.kind == VALUE and usual.mean_before is not None
        return usual if self.found is not None and is_usable else None

    @property
    def listed(self) -> list[SliceRow]:
        """The slices that explain most, with the one to go back to, which explains little because it did not change."""
        names = {(row.label, row.kind, row.value) for row in self.slices}
        back = self.back_to
        is_missing = back is not None and (back.label, back.kind, back.value) not in names
        return [*self.slices[:1], back, *self.slices[1:]] if back is not None and is_missing else self.slices


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
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
    """What the anchors say of the cause, with the numbers that it rests on; empty if the question does not arise."""

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
    """The result of each tier, if several were asked."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The evidence of an incident; what a rule has no use for is empty."""

    rule: str | None = None
    note: str | None = None
    baseline: BaselineNumbers | None = None
    made_with: dict[str, Scalar] = {}
    policies: dict[str, list[str]] = {}
    """Digests of the policies before and after."""
    sampling_mix: list[SamplingCount] = []
    slices: WhichPart | None = None
    deployments: list[Deployed] = []
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
    rules: dict[str, Sighting] = {}
    """The observations of the leading series by rule."""
    moved: list[Moved] = []
    """The series that moved, the leading one first."""
    decided_sizes: dict[str, float | None] = {}
    """The size of the change at the time of a person's decision, by rule, and by series and rule."""

    def lead_of(self, incident: Incident) -> Series:
        """The leading series of the incident."""
        kind = next((entry.kind for entry in self.moved if entry.leads), MEAN)
        return Series(_key(incident.tier, incident.direction, incident.agent), kind)

    def seen_by(self, rule: str) -> Sighting | None:
        """The observation of the leading rule, else that of another rule; None without any."""
        return self.rules.get(rule) or next(iter(self.rules.values()), None)


_decode = msgspec.json.Decoder(Evidence).decode


def evidence_of(incident: Incident) -> Evidence:
    """Read the evidence of an incident of any version; empty if it cannot be read."""
    try:
        evidence = _decode(incident.metadata)
    except ValueError:
        evidence = _convert(incident.metadata)
    of_lead, moved = _in_order(evidence.rules), []
    for entry in evidence.moved:
        rules = of_lead if entry.leads else _in_order(entry.rules)
        if rules and entry.severity in SEVERITIES:
            moved.append(msgspec.structs.replace(entry, rules=rules))
    lead = evidence.lead_of(incident)
    if of_lead and not any(entry.series == lead for entry in moved):
        moved.append(_only_one(incident, lead, of_lead))
    moved.sort(key=lambda entry: entry.series != lead)
    return msgspec.structs.replace(evidence, rules=of_lead, moved=moved)


def _key(tier: str | None, direction: str | None, agent: str | None) -> Key:
    return Key(SPIKE if tier is None else DRIFT, tier, direction, agent)


def _in_order(rules: dict[str, Sighting]) -> dict[str, Sighting]:
    """Drop observations that end before they begin."""
    return {rule: seen for rule, seen in rules.items() if seen.since <= seen.until}


def members_of(evidence: Evidence) -> dict[str, Any]:
    """Return the members of evidence as JSON values."""
    members: dict[str, Any] = msgspec.to_builtins(evidence)
    for entry in members["moved"]:
        if entry["leads"]:
            del entry["rules"]
    return members


def evidence_json(evidence: Evidence) -> str:
    """Write evidence as an incident stores it."""
    return canonical_json(members_of(evidence))


def _only_one(incident: Incident, lead: Series, rules: dict[str, Sighting]) -> Moved:
    """Return the series of an incident from before the list `moved`."""
    rule = incident.rule if incident.rule in rules else next(iter(rules))
    since = rules[rule].since
    return moved_series(
        lead,
        rules,
        rule=rule,
        severity=incident.severity,
        confirmed=incident.confidence == "confirmed",
        interval=(since, since),
        leads=True,
    )


def _convert(text: str) -> Evidence:
    """Convert evidence that strict reading refuses, such as evidence with NaN, without the unreadable parts."""
    try:
        document = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return Evidence()
    return next(_readable(document, Evidence), Evidence())


def _readable(value: Any, kind: Any) -> Iterator[Any]:
    """Yield a JSON value converted to a type, without its unreadable parts; nothing if it has another form."""
    try:
        whole = msgspec.convert(value, kind)
    except ValueError:  # of another form, or a text that is no Unicode
        yield from _readable_parts(value, kind)
    else:
        yield whole


def _readable_parts(value: Any, kind: Any) -> Iterator[Any]:
    for option in (kind, *get_args(kind)):
        if isinstance(value, list) and get_origin(option) is list:
            yield [item for part in value for item in _readable(part, get_args(option)[0])]
            return
        if isinstance(value, dict) and get_origin(option) is dict:
            yield {name: item for name, part in value.items() for item in _readable(part, get_args(option)[1])}
            return
        if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
            fields = [field for field in msgspec.structs.fields(option) if field.encode_name in value]
            members = {field.name: item for field in fields for item in _readable(value[field.encode_name], field.type)}
            with contextlib.suppress(TypeError, ValueError):  # it lacks what makes it one
                yield option(**members)
            return
