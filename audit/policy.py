"""The policy: how agents are judged in each project; and methodologies. Paths, ports and keys are settings, not policy.

A policy file is YAML: `{version: 1, defaults: {...}, projects: {name: {...}}, redaction: {...}, prices: {model: {...}},
sessionGapMinutes: 30}`. Settings that a project omits come from `defaults`, and settings that `defaults` omits have the values
below. Every score carries the digest of its settings.

`collector` assigns spans that an OpenTelemetry Collector writes to Kafka to a project, because they carry no token. A trace
belongs to one connection: spans of a trace that are filed under two connections become two traces. So a route usually names
only a project. It names a connection only for services that share no trace with others.

A methodology lists the checks and judge dimensions of a project beyond the common ones. It is a file: schemaVersion, tier1
(pattern checks), tier2 (id, description), tier3 (id, description, when) and a judgeContext for the judge. Its dimensions are
added to those of the default methodology.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel

from audit.anchors import anchor_project, is_reserved, refuse_reserved_name
from audit.cost import MODEL_NAME, ListedPrice, ModelPrice, nano_of
from audit.detectors.thresholds import Detectors
from audit.exchanges.tier1 import STRUCTURAL_CHECKS
from audit.fingerprints import canonical_json, digest
from audit.judges import ENVIRONMENT, JUDGE_ID, JudgeSettings, ResolvedJudge, resolve_judge
from audit.patterns import MAX_PATTERN_LENGTH, Pattern, compile_pattern, straighten
from audit.settings_files import Document, Location, PolicyModel
from schemas.bounds import LABEL_NAME, MAX_ID, MAX_LABELS, NAME
from schemas.errors import PolicyError

SHIPPED = ("default", "prawduct", "tilt")

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
PatternText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH)]


class When(StrEnum):
    """To which exchanges a Tier 3 dimension applies."""

    ALWAYS = "always"
    EXECUTION_TASK = "execution_task"
    IMPLEMENTATION_TASK = "implementation_task"
    DISAGREEMENT = "disagreement"
    HIGH_STAKES = "high_stakes"
    CODE_CHANGE = "code_change"
    MULTI_USER = "multi_user"


class _FileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


class PatternCheck(_FileModel):
    """A Tier 1 check of a methodology: fires when one of its patterns is in the user message or the response."""

    id: Identifier
    """Its name in flags and columns; no other check or dimension has it."""
    type: Literal["pattern"]
    """The type of the check; there is only one."""
    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1, max_length=32)]
    """RE2, over texts in lower case with straight apostrophes."""
    description: str = ""
    """For people: what it looks for."""


class Dimension(_FileModel):
    """A dimension that the judge is asked about."""

    id: Identifier
    """Its name in answers and columns; no other check or dimension has it."""
    description: Words
    """The question to the judge, word for word; it says what the ends of the scale mean."""


class BehaviouralDimension(Dimension):
    """A Tier 3 dimension with the exchanges it applies to."""

    when: Annotated[When, Field(strict=False)]
    """To which exchanges it applies."""


class MethodologyFile(_FileModel):
    """A methodology as it is written."""

    schema_version: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=32)]
    """Version of what is measured: every score carries it. Raise it with every change."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}$")] | None = None
    """The name in scores; without it the name of the file."""
    tier1: Annotated[tuple[PatternCheck, ...], Field(max_length=32)] = ()
    """Checks beside those that hold for everybody."""
    tier2: Annotated[tuple[Dimension, ...], Field(max_length=16)] = ()
    """Dimensions beside the default ones, scored from 0 to 1."""
    tier3: Annotated[tuple[BehaviouralDimension, ...], Field(max_length=16)] = ()
    """Dimensions beside the default ones, scored from 1 to 5."""
    judge_context: Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)] = ""
    """Information for the judge about the agents and their tasks."""
    wrap_up: bool = False
    """Whether sessions must end with the wrap protocol."""


@dataclass(frozen=True, slots=True)
class CustomCheck:
    """A compiled Tier 1 check of a methodology, for straightened text."""

    id: str
    description: str
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Methodology:
    """The measures of a project: a methodology file on top of the default dimensions."""

    name: str
    version: str
    """The file's schemaVersion."""
    digest: str
    """Digest of its content, including the default dimensions but not its name."""
    tier1: tuple[CustomCheck, ...]
    """The methodology's own checks; the structural ones are always there."""
    tier2: tuple[Dimension, ...]
    tier3: tuple[BehaviouralDimension, ...]
    judge_context: str
    wrap_up: bool
    """Whether sessions must end with the wrap protocol. It changes no score, so the digest leaves it out."""


def load_methodology(path: Path) -> Methodology:
    """Load a methodology file; raises PolicyError with each problem as `FILE:LINE: field: reason`."""
    return _load_methodology(path, base=shipped_methodologies()["default"])


def is_methodology(path: Path) -> bool:
    """Return whether a file is a methodology, which has a schemaVersion. Raises PolicyError if it cannot be read."""
    value = Document(path).value
    return isinstance(value, dict) and "schemaVersion" in value


@cache
def shipped_methodologies() -> Mapping[str, Methodology]:
    """Return the shipped methodologies by name."""
    loaded: dict[str, Methodology] = {}
    for name in SHIPPED:
        with resources.as_file(resources.files("audit").joinpath("methodologies", f"{name}.yaml")) as path:
            loaded[name] = _load_methodology(path, base=loaded.get("default"))
    return loaded


def _load_methodology(path: Path, *, base: Methodology | None) -> Methodology:
    document = Document(path)
    file = document.validate(MethodologyFile)
    tier2_base = base.tier2 if base else ()
    tier3_base = base.tier3 if base else ()
    built_in = [*(check.id for check in STRUCTURAL_CHECKS), *(item.id for item in (*tier2_base, *tier3_base))]
    _check_ids(document, file, reserved_ids=built_in)
    checks = tuple(_compile_check(document, check, ("tier1", index)) for index, check in enumerate(file.tier1))
    document.refuse_problems()
    effective = file.model_copy(update={"name": None, "tier2": tier2_base + file.tier2, "tier3": tier3_base + file.tier3})
    return Methodology(
        name=file.name or path.stem,
        version=file.schema_version,
        digest=digest(canonical_json(effective.model_dump(mode="json", by_alias=True, exclude={"wrap_up"}))),
        tier1=checks,
        tier2=effective.tier2,
        tier3=effective.tier3,
        judge_context=file.judge_context,
        wrap_up=file.wrap_up,
    )


def _check_ids(document: Document, file: MethodologyFile, *, reserved_ids: Iterable[str]) -> None:
    """Report duplicate ids: ids name columns of the results, so they must be unique in all tiers."""
    owners = dict.fromkeys(reserved_ids, "a built-in check or dimension")
    tiers: dict[str, tuple[PatternCheck | Dimension, ...]] = {"tier1": file.tier1, "tier2": file.tier2, "tier3": file.tier3}
    for tier, items in tiers.items():
        for index, item in enumerate(items):
            if item.id in owners:
                document.problem((tier, index, "id"), f"{item.id!r} is already the id of {owners[item.id]}")
            owners.setdefault(item.id, f"{tier}[{index}]")


def _compile_check(document: Document, check: PatternCheck, location: Location) -> CustomCheck:
    patterns = []
    for index, text in enumerate(check.patterns):
        pattern_location = (*location, "patterns", index)
        where = f"{document.describe_location(pattern_location)}: check {check.id!r}"
        try:
            patterns.append(compile_pattern(straighten(text), where=where))
        except PolicyError as error:
            document.note(pattern_location, str(error))
    return CustomCheck(id=check.id, description=check.description, patterns=tuple(patterns))


__all__ = [
    "Anchors",
    "Policy",
    "ProjectPolicy",
    "ProjectSettings",
    "RedactionSettings",
    "Sampling",
    "SecretPattern",
    "load_policy",
]
JudgedTier = Literal["tier2", "tier2_5", "tier3"]
JUDGED_TIERS: tuple[JudgedTier, ...] = get_args(JudgedTier)
JudgeName = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
"""The name of a judge: `<judge>/<model>`, an entry of `judges`, or a model of the Messages API."""
JudgeId = Annotated[str, StringConstraints(pattern=JUDGE_ID)]
_MODEL_NAME = compile_pattern(MODEL_NAME, where="prices", ignore_case=False)
ProjectName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
OwnName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), AfterValidator(refuse_reserved_name)]
"""The name of a connection or project that records may be filed under."""

MAX_NAMES = 10_000
"""Number of projects whose policy is cached; records may name any project."""

Days = Annotated[int, Field(ge=1, le=3650)]
UsdCap = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]

IncidentRule = Literal["sequential", "consecutive_days", "rate_ratio", "runs", "sessions", "behaviour"]
"""The rules that find drift of scores, of runs, of judged sessions and of behaviour, and anomaly spikes."""

MAX_WATCHED_LABELS = 8
LabelName = Annotated[str, StringConstraints(pattern=f"^{LABEL_NAME}$")]
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=256)]

ANY = "*"
"""Suffix of a service's name that matches anything."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]


class Sampling(PolicyModel):
    """The choice of exchanges that the judge sees."""

    enabled: bool = True
    """Off: every exchange is scored."""
    routine_interval: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Every n-th turn that no other rule selects is judged, counted from a start that is drawn for each session."""
    always_score_first: Annotated[int, Field(ge=0, le=10_000)] = 5
    """The first n turns of a session."""
    always_score_last: Annotated[int, Field(ge=0, le=50)] = 3
    """The last n turns of a session, even if another rule selects them; the session's state keeps this many exchanges."""
    always_score_disagreement: bool = True
    """Exchanges in which the agent pushes back."""
    always_score_long_responses: bool = True
    """Exchanges with more output tokens than the threshold."""
    always_score_tool_trouble: bool = True
    """Exchanges with a tool call that failed, was repeated or has no answer."""
    long_response_threshold: Annotated[int, Field(ge=0, le=10_000_000)] = 500
    """Output tokens beyond which a response is long."""


class Context(PolicyModel):
    """The context that the judge is shown with an exchange."""

    turns: Annotated[int, Field(ge=0, le=10)] = 2
    """The turns of the session before it, at most this many."""
    tool_calls: bool = True
    """The tool calls of its turn, if the source records them."""
    max_tokens: Annotated[int, Field(ge=100, le=8_000)] = 800
    """Tokens of both together, at three bytes each; longer texts are cut."""


class Anchors(PolicyModel):
    """The rounds that judge a project's anchors again. There are none until a person chooses some: each round is paid for."""

    enabled: bool = True
    """Off: no round begins by itself."""
    count: Annotated[int, Field(ge=1, le=500)] = 20
    """The number of anchors that are chosen by default."""
    interval_hours: Annotated[int, Field(ge=1, le=8760)] = 24
    """Hours from one round to the next."""


class SessionJudging(PolicyModel):
    """The ended sessions that are judged as a whole, on six dimensions, without a written case."""

    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0
    """The share of the ended sessions that is judged, from 0 (none) to 1 (each)."""
    cost_cap: Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False)] | None = 0.5
    """Maximum cost of judging one session as a whole in USD, beside `costCapPerSession`; null is no cap."""
    judge: JudgeName | None = None
    """The judge to ask; null is that of `judgeModel`."""


class CostCaps(PolicyModel):
    """Maximum costs of judge calls in USD, over all sessions; 0 allows no paid call, null is no cap.

    A call counts on the UTC day and in the month of its reservation.
    """

    day: UsdCap | None = None
    """Maximum cost of a UTC day."""
    month: UsdCap | None = None
    """Maximum cost of a UTC month."""


class RatingScale(PolicyModel):
    """The scale of the scores that evaluators write into traces."""

    lowest: Annotated[float, Field(allow_inf_nan=False)] = 0
    """The worst score."""
    highest: Annotated[float, Field(allow_inf_nan=False)] = 1
    """The best score."""

    @model_validator(mode="after")
    def _require_ascending(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("highest: must be larger than lowest")
        return self


class Traces(PolicyModel):
    """Rules by which the traces of OpenTelemetry become exchanges and events."""

    settle_seconds: Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)] = 10
    """A trace with its root is complete after this many seconds without a new span."""
    idle_seconds: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 180
    """A trace without its root is complete after this many seconds without a new span."""
    labels: Annotated[dict[LabelName, tuple[AttributeName, ...]], Field(max_length=MAX_LABELS)] = Field(
        default_factory=lambda: {
            "agent_version": ("gen_ai.agent.version", "langfuse.version", "service.version"),
            "prompt_version": ("langfuse.observation.prompt.version", "gen_ai.prompt.version"),
            "deployment": ("deployment.environment.name", "deployment.environment", "langfuse.environment"),
        }
    )
    """The attributes of a span or of its resource from which each label is read; the first attribute that exists is used."""
    ratings: RatingScale = RatingScale()
    """The scale of evaluations in traces (`gen_ai.evaluation.result`), which count as scores from 1 to 5 by a rater of their name."""


WEEK, MAX_MAINTENANCE = timedelta(days=7), timedelta(days=31)
MAX_WINDOWS = 50
"""Maintenance windows of a project."""


class MinAlertedChange(PolicyModel):
    """The smallest change of a mean that is worth waking somebody. A change alerts if it reaches one of the first two, or the third."""

    sigmas: Annotated[float, Field(ge=0, le=100)] = 0.5
    """In standard deviations of one session's mean."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.02
    """As a share of the scale, so 0.08 points of Tier 3, which goes from 1 to 5."""
    points: Mapping[Literal["tier1", "tier2", "tier2_5", "tier3"], Annotated[float, Field(ge=0, le=4)]] = {}
    """In points, by tier; replaces the other two for this tier."""

    def is_reached(self, tier: str, size: float, sigma: float, bounds: tuple[float, float]) -> bool:
        """Return whether a change of a tier's mean on a scale is large enough."""
        low, high = bounds
        smallest = self.points.get(tier, min(self.sigmas * sigma, self.share * (high - low)))  # type: ignore[call-overload]
        return bool(abs(size) >= smallest)


class Maintenance(PolicyModel):
    """A time in which changes are expected: no alerts are sent, and incidents that are found are marked."""

    start: Annotated[AwareDatetime, Field(alias="from", strict=False)]
    """Its start, with the offset from UTC."""
    until: Annotated[AwareDatetime, Field(strict=False)]
    """Its end, exclusive."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Shown with incidents that were found in it."""
    weekly: bool = False
    """On: it recurs each week from the start on, at the same times in UTC."""

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        longest = WEEK if self.weekly else MAX_MAINTENANCE
        if not timedelta() < self.until - self.start <= longest:
            raise ValueError(f"until: must be after from, by at most {longest.days} days")
        return self

    def end_of(self, moment: datetime) -> datetime | None:
        """Return the end of the window in which a moment falls; None if it falls in none."""
        offset = moment - self.start
        if self.weekly and offset >= timedelta():
            offset %= WEEK
        if not timedelta() <= offset < self.until - self.start:
            return None
        return moment - offset + (self.until - self.start)


class ProjectSettings(PolicyModel):
    """The settings of one project's audit."""

    enabled: bool = True
    """Off: the project is not audited. On by default: a connection exists in order to be audited."""
    judge_model: JudgeName = "claude-haiku-4-5"
    """Model that judges Tiers 2, 2.5 and 3."""
    tier_judges: Annotated[dict[JudgedTier, JudgeName], Field(max_length=3)] = Field(default_factory=dict)
    """Judges of single tiers, where they are not that of `judgeModel`."""
    gate_cascade: bool = True
    """Skip Tier 3 for clean routine exchanges."""
    combine_tiers: bool = False
    """Ask about Tiers 2 and 3 in one call where the gate of Tier 3 is open before any call. It is a yardstick of its own: scores are not
    compared with those of separate calls."""
    sampling: Sampling = Sampling()
    context: Context = Context()
    """The tool calls and earlier turns that the judge is shown."""
    thinking_block_analysis: bool = True
    """Run Tier 2.5 for exchanges with thinking."""
    bidirectional_scoring: bool = False
    """Accept scores from people in addition to the judge's."""
    wrap_quality_scoring: bool | None = None
    """Look for the wrap protocol at the end of sessions; null does so if the methodology asks for it."""
    cost_cap_per_session: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] | None = 1.0
    """Maximum cost of a session's judge calls in USD; 0 allows no paid call, null is no cap."""
    cost_caps: CostCaps = CostCaps()
    """Maximum costs of the project's judge calls in a day and in a month: exchanges, anchors, evaluations and replays."""
    judge_within_hours: Annotated[int, Field(ge=1, le=168)] | None = None
    """Hours within which routine turns are judged in batches, at half the price; null judges each turn at once. Urgent turns never wait."""
    heartbeat_interval: Annotated[int, Field(ge=1000, le=86_400_000)] = 300_000
    """Milliseconds between two heartbeats of a session."""
    baseline_window_days: Days = 14
    """Days of event time from which a baseline is computed."""
    incident_rules: Annotated[tuple[IncidentRule, ...], Field(max_length=6)] = (
        "sequential",
        "consecutive_days",
        "rate_ratio",
        "runs",
        "sessions",
        "behaviour",
    )
    """The rules that open incidents: changes of a tier beyond chance, days in a row off the baseline, and anomaly spikes. The
    fourth rule finds changes of an agent's finished runs beyond chance: trust, unsafe runs, types of failure; the fifth those of
    sessions that are judged as a whole; the sixth those of what agents do: tool errors, failed turns, refusals, tokens. If
    empty, no incidents are opened.
    """
    watched_labels: Annotated[tuple[LabelName, ...], Field(max_length=MAX_WATCHED_LABELS)] = (
        "agent_version",
        "prompt_version",
        "tool_version",
        "task",
        "language",
    )
    """The labels of exchanges, beside agent and model, by which the watch compares. They should have few values: a label with a value per
    customer or per request makes sums as many as exchanges. A change applies to new scores, and to old ones when they are replayed.
    """
    min_alerted_change: MinAlertedChange = MinAlertedChange()
    """The smallest change of a tier's mean that alerts; smaller ones are listed as suspected, however certain they are."""
    alert_on_suspected: bool = False
    """On: alerts are also sent for suspected incidents. Off: only for confirmed ones."""
    alert_from: Literal["warning", "critical"] = "warning"
    """The lowest severity of incidents that alert. Less severe ones are listed all the same."""
    maintenance: Annotated[tuple[Maintenance, ...], Field(max_length=MAX_WINDOWS)] = ()
    """Times in which changes are expected. Those under `defaults` are for all projects, beside a project's own."""
    retention_days: Days | None = 90
    """Days of event time for which exchanges and the records about them are kept; null keeps them for ever."""
    anchors: Anchors = Anchors()
    """Exchanges that are judged repeatedly, so that a change of the judge can be distinguished from a change of the agent."""
    session_judging: SessionJudging = SessionJudging()
    """Ended sessions that are judged as a whole, beside their exchanges."""
    traces: Traces = Traces()
    """The conversion of OpenTelemetry traces into exchanges and events."""
    detectors: Detectors = Detectors()
    """The thresholds of the failure detectors."""
    methodology: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = "default"
    """Name of a shipped methodology, or path of a methodology file, relative to the policy file."""


class SecretPattern(PolicyModel):
    """A custom kind of secret."""

    kind: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """The name of the kind in the marker that replaces the secret."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH)]
    """RE2, case-sensitive; the entire match is replaced."""


class RedactionSettings(PolicyModel):
    """The redaction of texts before they are stored or judged."""

    enabled: bool = True
    """Off: texts are stored and judged unchanged."""
    patterns: Annotated[tuple[SecretPattern, ...], Field(max_length=64)] = ()
    """Custom kinds of secrets, in addition to the built-in ones."""


@dataclass(frozen=True, slots=True)
class ProjectPolicy:
    """The policy of a project, with all values resolved."""

    settings: ProjectSettings
    methodology: Methodology
    redaction: RedactionSettings
    session_gap_minutes: int
    judges: Mapping[str, ResolvedJudge]
    """The judge of each tier that asks one."""
    session_judge: ResolvedJudge
    """The judge of whole sessions, whether or not any are judged."""
    cap: int | None
    """Nano-USD that the judge calls of a session may cost; None is no cap."""
    has_shared_cap: bool
    """True if the calls count toward a cap of the project or of the installation."""
    digest: str
    """16 hexadecimal digits of a digest of what scores depend on, including the methodology's content."""

    @property
    def judge(self) -> ResolvedJudge:
        """The judge of Tier 2, which every judged exchange is shown."""
        return self.judges["tier2"]

    @property
    def expects_wrap_up(self) -> bool:
        """Whether sessions are searched for the wrap protocol."""
        is_on = self.settings.wrap_quality_scoring
        return self.methodology.wrap_up if is_on is None else is_on

    @property
    def used_judges(self) -> tuple[ResolvedJudge, ...]:
        """The judges of the tiers, and that of whole sessions if any are judged."""
        return *self.judges.values(), *([self.session_judge] if self.settings.session_judging.sample else [])

    @property
    def combines_tiers(self) -> bool:
        """Whether one call may answer Tiers 2 and 3, which needs one judge for both."""
        return self.settings.combine_tiers and self.judges["tier2"].name == self.judges["tier3"].name

    @property
    def price(self) -> ModelPrice | None:
        """The price of the judge of Tier 2."""
        return self.judge.price

    @property
    def is_priced(self) -> bool:
        """True if the prices of all judges are known."""
        return all(judge.price is not None for judge in self.used_judges)

    def price_of(self, judge_name: str) -> ModelPrice | None:
        """Return the price of a judge of the project by its full name; None if it is unknown."""
        return next((judge.price for judge in self.judges.values() if judge.name == judge_name), None)


class CollectorRoute(PolicyModel):
    """A rule for spans that are filed differently. A route has at least one condition, and all of its conditions must hold."""

    topic: Text | None = None
    """Name of the topic, as it is on the cluster."""
    service: Text | None = None
    """`service.name` of the resource; with `*` at the end, its prefix."""
    headers: Annotated[dict[Text, Text], Field(max_length=8)] = Field(default_factory=dict)
    """Headers of the message on Kafka, by name, with the value of each."""
    connection: OwnName | None = None
    """The connection; null is that of the section. A trace that is filed under two connections becomes two traces."""
    project: OwnName | None = None
    """The project; null is that of the section."""
    agent: Text | None = None
    """The agent, which overrides that of the spans; null is that of the section."""

    @model_validator(mode="after")
    def _require_condition(self) -> CollectorRoute:
        if self.topic is None and self.service is None and not self.headers:
            raise ValueError("needs a topic, a service or headers; names for all spans belong above the routes")
        return self

    def matches(self, origin: Origin) -> bool:
        """Return whether all conditions match."""
        return (
            self.topic in (None, origin.topic)
            and self._matches_service(origin.service)
            and all(origin.headers.get(name) == value for name, value in self.headers.items())
        )

    def _matches_service(self, service: str) -> bool:
        if self.service is None:
            return True
        return service.startswith(self.service.removesuffix(ANY)) if self.service.endswith(ANY) else service == self.service


class Collector(PolicyModel):
    """The names under which spans are filed that an OpenTelemetry Collector writes to Kafka."""

    connection: OwnName = "collector"
    """The connection. A single connection for all spans keeps each trace together."""
    project: OwnName = "default"
    """The project of spans that match no route."""
    agent: Text | None = None
    """The agent, which overrides that of the spans; null uses the agent that the spans name."""
    routes: Annotated[tuple[CollectorRoute, ...], Field(max_length=1000)] = ()
    """Rules for spans that are filed differently; the first matching route applies."""

    def filing(self, origin: Origin) -> SpanFiling:
        """Return the names under which spans from this origin are filed."""
        route = next((route for route in self.routes if route.matches(origin)), None)
        if route is None:
            return SpanFiling(self.connection, self.project, self.agent)
        return SpanFiling(route.connection or self.connection, route.project or self.project, route.agent or self.agent)


class Policy(PolicyModel):
    """A policy file; `Policy()` has every default."""

    version: Literal[1] = 1
    """Version of the file format."""
    defaults: ProjectSettings = ProjectSettings()
    projects: Annotated[dict[ProjectName, ProjectSettings], Field(max_length=10_000)] = Field(default_factory=dict)
    """The settings of projects, by name; omitted settings come from the defaults."""
    redaction: RedactionSettings = RedactionSettings()
    session_gap_minutes: Annotated[int, Field(ge=1, le=10_080)] = 30
    """A session is closed after this many minutes of event time without a record."""
    cost_caps: CostCaps = CostCaps()
    """Maximum costs of the judge calls of all projects together in a day and in a month."""
    collector: Collector = Collector()
    judges: Annotated[dict[JudgeId, JudgeSettings], Field(max_length=100)] = Field(default_factory=dict)
    """Judges beside that of the environment, by name: their APIs, addresses, keys and prices."""
    prices: Annotated[dict[str, ListedPrice], Field(max_length=1000)] = Field(default_factory=dict)
    """The prices of models, by name; they override the shipped prices."""

    _methodologies: dict[str, Methodology] = PrivateAttr(default_factory=lambda: dict(shipped_methodologies()))
    _resolved: dict[tuple[str, bool], ProjectPolicy] = PrivateAttr(default_factory=dict)
    _anchored: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, _context: Any, /) -> None:
        """Add the names under which the projects' anchors are judged."""
        self._anchored = {anchor_project(name): name for name in self.projects}

    @cached_property
    def _by_name(self) -> dict[str, ProjectPolicy]:
        """Cached policies; not a private attribute, which takes a microsecond to read, twice per exchange."""
        return {}

    def maintenance_at(self, project: str, moment: datetime) -> Maintenance | None:
        """Return the maintenance window, of a project or of all, in which a moment falls; None if it falls in none."""
        windows = (*self.for_project(project).settings.maintenance, *self.defaults.maintenance)
        return next((window for window in windows if window.end_of(moment) is not None), None)

    def for_project(self, name: str) -> ProjectPolicy:
        """Return the policy of a project: its own settings over the defaults, or the defaults alone.

        Anchors are judged like their project, but every one of them and by every tier: exchanges that a round skips cannot be
        compared.
        """
        cache = self._by_name
        policy = cache.get(name)
        if policy is None:
            if len(cache) >= MAX_NAMES:
                cache.clear()
            policy = self._find_policy(name)
            cache[name] = policy
        return policy

    def _find_policy(self, name: str) -> ProjectPolicy:
        """Return the policy of a project by its name; projects without their own settings share one."""
        is_anchors = is_reserved(name)
        base = self._anchored.get(name, "") if is_anchors else name
        project = base if base in self.projects else ""
        key = (project, is_anchors)
        if key not in self._resolved:
            settings = self._merge_settings(project)
            self._resolved[key] = self._resolve(_adapt_to_anchors(settings) if is_anchors else settings)
        return self._resolved[key]

    @property
    def methodology_files(self) -> frozenset[str]:
        """Paths of the methodology files that the policy names, as written."""
        return frozenset(self._methodologies) - set(SHIPPED)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of a digest of the policies of all projects."""
        names = ["", *self.projects]
        return digest(canonical_json({name: self.for_project(name).digest for name in names}))

    def resolve_judge(self, name: str) -> ResolvedJudge:
        """Return the judge of a name; see `audit.judges`."""
        return resolve_judge(name, self.judges, self.prices)

    @property
    def used_judges(self) -> list[ResolvedJudge]:
        """The judges of all projects, each once, in the order of the policy."""
        policies = [self.for_project(name) for name in ("", *self.projects)]
        used = [judge for policy in policies for judge in policy.used_judges]
        return list({judge.name: judge for judge in used}.values())

    def _merge_settings(self, name: str) -> ProjectSettings:
        """Return a project's settings with the defaults for what it omits; those of an empty name are the defaults."""
        if not name:
            return self.defaults
        overrides = self.projects[name].model_dump(exclude_unset=True)
        merged = _merge(self.defaults.model_dump(exclude_unset=True), overrides)
        return ProjectSettings.model_validate(merged)

    def _resolve(self, settings: ProjectSettings) -> ProjectPolicy:
        methodology = self._methodologies.get(settings.methodology)
        if methodology is None:
            raise PolicyError(_unknown_methodology(settings.methodology), hint="Paths are resolved when the policy is a file.")
        judges: dict[str, ResolvedJudge] = {
            tier: self.resolve_judge(settings.tier_judges.get(tier, settings.judge_model)) for tier in JUDGED_TIERS
        }
        cap = settings.cost_cap_per_session
        content = {
            "settings": settings.model_dump(
                mode="json",
                by_alias=True,
                exclude={
                    "methodology",
                    "anchors",
                    "tier_judges",
                    "combine_tiers",
                    "cost_caps",
                    "judge_within_hours",
                    "incident_rules",
                    "watched_labels",
                    "min_alerted_change",
                    "alert_on_suspected",
                    "alert_from",
                    "maintenance",
                    "detectors",
                    "session_judging",
                    "traces",
                },
            ),
            "methodology": [methodology.name, methodology.digest],
            "redaction": self.redaction.model_dump(mode="json", by_alias=True),
            "sessionGapMinutes": self.session_gap_minutes,
            **({"combineTiers": True} if settings.combine_tiers else {}),
            **_judge_content(judges, settings),
        }
        return ProjectPolicy(
            settings=settings,
            methodology=methodology,
            redaction=self.redaction,
            session_gap_minutes=self.session_gap_minutes,
            judges=judges,
            session_judge=self.resolve_judge(settings.session_judging.judge or settings.judge_model),
            cap=None if cap is None else nano_of(cap),
            has_shared_cap=settings.cost_caps != CostCaps() or self.cost_caps != CostCaps(),
            digest=digest(canonical_json(content)),
        )


def _judge_content(judges: Mapping[str, ResolvedJudge], settings: ProjectSettings) -> dict[str, Any]:
    """Return what the digest of a policy holds of its judges.

    One judge of the environment for all tiers is written as it was before there were others, so that its digest stays the same.
    """
    prices = {
        tier: judge.price and judge.price.model_dump(mode="json", by_alias=True, exclude={"source", "read_on", "aliases"})
        for tier, judge in judges.items()
    }
    if not settings.tier_judges and judges["tier2"].judge_id == ENVIRONMENT:
        return {"price": prices["tier2"]}
    names = {tier: [judge.name, judge.settings and judge.settings.model_dump(mode="json")] for tier, judge in judges.items()}
    return {"judges": names, "prices": prices}


def _adapt_to_anchors(settings: ProjectSettings) -> ProjectSettings:
    """Return the settings with which every anchor is judged by every tier; the anchors of a round are no turns of one conversation."""
    update = {
        "gate_cascade": False,
        "judge_within_hours": None,
        "sampling": settings.sampling.model_copy(update={"enabled": False}),
        "context": settings.context.model_copy(update={"turns": 0}),
    }
    return settings.model_copy(update=update)


def _merge(defaults: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; values of `settings` win over those of `defaults`."""
    merged = dict(defaults)
    for key, value in settings.items():
        are_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if are_mappings else value
    return merged


def _unknown_methodology(reference: str) -> str:
    return f"no methodology {reference!r}: shipped are {', '.join(SHIPPED)}; a file's path ends in .yaml, .yml or .json"


def load_policy(path: Path, content: bytes | None = None, *, confined: Collection[str] | None = None) -> Policy:
    """Load a policy file and its methodologies; raises PolicyError with each problem as `FILE:LINE: field: reason`.

    `content` is parsed instead of the file's. If `confined` is given, methodology files must be in or below the folder of the
    policy, or among these: a policy from the network must not open other files of this machine.
    """
    document = Document(path, content=content)
    if isinstance(document.value, dict) and "version" not in document.value:
        document.problem(("version",), "is required; it must be 1")
    policy = document.validate(Policy)
    for name in filter(is_reserved, policy.projects):
        document.problem(("projects", name), "is reserved for anchors, which follow their project's policy")
    for index, secret in enumerate(policy.redaction.patterns):
        _check_secret_pattern(document, index, secret)
    for model in policy.prices:
        if not _MODEL_NAME.matches(model):
            document.problem(("prices", model), f"is not a valid name of a model, which must match {MODEL_NAME}")
    _check_thresholds(document, policy)
    _check_combined_tiers(document, policy)
    for reference, location in _methodology_references(policy).items():
        if reference not in SHIPPED and not _is_outside(document, reference, location, confined):
            _load_referenced(document, policy, reference, location)
    document.refuse_problems()
    return policy


def _methodology_references(policy: Policy) -> dict[str, Location]:
    """Return the methodologies that a policy names, each with the first location of its name."""
    references: dict[str, Location] = {}
    for name, settings in policy.projects.items():
        if "methodology" in settings.model_fields_set:
            references.setdefault(settings.methodology, ("projects", name, "methodology"))
    references.setdefault(policy.defaults.methodology, ("defaults", "methodology"))
    return references


def _check_secret_pattern(document: Document, index: int, secret: SecretPattern) -> None:
    location = ("redaction", "patterns", index, "pattern")
    try:
        pattern = compile_pattern(secret.pattern, where=document.describe_location(location), ignore_case=False)
    except PolicyError as error:
        document.note(location, str(error))
        return
    if pattern.matches(""):
        document.problem(location, "matches the empty text, so it cannot find secrets")


def _check_thresholds(document: Document, policy: Policy) -> None:
    """Add a problem for thresholds that contradict each other, if the file sets them."""
    detectors_by_location: dict[Location, Detectors] = {("defaults",): policy.defaults.detectors}
    for name, settings in policy.projects.items():
        if "detectors" in settings.model_fields_set:
            detectors_by_location["projects", name] = policy._merge_settings(name).detectors  # noqa: SLF001 - same module
    for location, detectors in detectors_by_location.items():
        for path, reason in detectors.problems():
            document.problem((*location, "detectors", *path), reason)


def _check_combined_tiers(document: Document, policy: Policy) -> None:
    """Add a problem for tiers that are to be judged in one call, but by two judges."""
    for name in ("", *policy.projects):
        if not (policy.defaults.combine_tiers or (name and policy.projects[name].combine_tiers)):
            continue
        settings = policy._merge_settings(name)  # noqa: SLF001 - same module
        names = [policy.resolve_judge(settings.tier_judges.get(tier, settings.judge_model)).name for tier in ("tier2", "tier3")]
        if settings.combine_tiers and names[0] != names[1]:
            location = ("projects", name) if name else ("defaults",)
            reason = (
                f"needs one judge for Tiers 2 and 3, but they have {names[0]} and {names[1]}: change tierJudges or remove it"
            )
            document.problem((*location, "combineTiers"), reason)


def _is_outside(document: Document, reference: str, location: Location, confined: Collection[str] | None) -> bool:
    """Return whether a methodology file is outside the allowed folders and files, and if so note it as a problem."""
    if confined is None or reference in confined:
        return False
    folder = document.path.parent.resolve()
    try:
        if (folder / reference).resolve().is_relative_to(folder):
            return False
    except ValueError:  # YAML can write characters that no path has
        pass
    document.problem(location, "must be a file in the folder of the policy or below it")
    return True


def _load_referenced(document: Document, policy: Policy, reference: str, location: Location) -> None:
    if Path(reference).suffix not in {".yaml", ".yml", ".json"}:
        document.problem(location, _unknown_methodology(reference))
        return
    try:
        policy._methodologies[reference] = load_methodology(document.path.parent / reference)  # noqa: SLF001 - same module
    except PolicyError as error:
        document.problem(location, f"the methodology {reference!r} cannot be used:\n{error}")


class Origin(NamedTuple):
    """The origin of spans: the topic, the headers of the message and the `service.name` of the resource, empty without one."""

    topic: str
    headers: Mapping[str, str]
    service: str


class SpanFiling(NamedTuple):
    """The names under which spans are filed; without an agent, the spans name it."""

    connection: str
    project: str
    agent: str | None
