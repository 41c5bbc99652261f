"""The parts of a policy, field by field, with their defaults and bounds."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from audit.cost.prices import MODEL_NAME
from audit.detectors.thresholds import Detectors
from audit.patterns import MAX_PATTERN_LENGTH
from audit.policy.model import PolicyModel
from schemas.bounds.limits import LABEL_NAME, MAX_LABELS

Days = Annotated[int, Field(ge=1, le=3650)]


class Sampling(PolicyModel):
    """The choice of exchanges that the judge sees."""

    enabled: bool = True
    """Off: every exchange is scored."""
    routine_interval: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Every n-th turn of those that nothing else selects, from a start that is drawn for each session."""
    always_score_first: Annotated[int, Field(ge=0, le=10_000)] = 5
    """The first n turns of a session."""
    always_score_last: Annotated[int, Field(ge=0, le=50)] = 3
    """The last n turns of a session, whatever else selects them; that many exchanges are kept in its state."""
    always_score_disagreement: bool = True
    """Exchanges in which the agent pushes back."""
    always_score_long_responses: bool = True
    """Exchanges with more output tokens than the threshold."""
    long_response_threshold: Annotated[int, Field(ge=0, le=10_000_000)] = 500
    """Output tokens beyond which a response is long."""


IncidentRule = Literal["sequential", "consecutive_days", "rate_ratio", "runs"]
"""The rules that find drift of scores and of runs, and anomaly spikes."""


class Anchors(PolicyModel):
    """The rounds that judge a project's anchors again. There are none until a person chooses some: each round is paid for."""

    enabled: bool = True
    """Off: no round begins by itself."""
    count: Annotated[int, Field(ge=1, le=500)] = 20
    """The number that is chosen by default."""
    interval_hours: Annotated[int, Field(ge=1, le=8760)] = 24
    """Hours from one round to the next."""


LabelName = Annotated[str, StringConstraints(pattern=f"^{LABEL_NAME}$")]
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class RatingScale(PolicyModel):
    """The scale of scores that others give in traces."""

    lowest: Annotated[float, Field(allow_inf_nan=False)] = 0
    """The worst score."""
    highest: Annotated[float, Field(allow_inf_nan=False)] = 1
    """The best score."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("highest: must be larger than lowest")
        return self


class Traces(PolicyModel):
    """Rules by which the traces of OpenTelemetry become exchanges and events."""

    settle_seconds: Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)] = 10
    """A trace is complete when its root is there and nothing more came for so long."""
    idle_seconds: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 180
    """A trace whose root has not come is complete when nothing more came for so long."""
    labels: Annotated[dict[LabelName, tuple[AttributeName, ...]], Field(max_length=MAX_LABELS)] = Field(
        default_factory=lambda: {
            "agent_version": ("gen_ai.agent.version", "langfuse.version", "service.version"),
            "prompt_version": ("langfuse.observation.prompt.version", "gen_ai.prompt.version"),
            "deployment": ("deployment.environment.name", "deployment.environment", "langfuse.environment"),
        }
    )
    """The attributes that tell each label, of the span or of its resource; the first that is there counts."""
    ratings: RatingScale = RatingScale()
    """The scale of evaluations in traces (`gen_ai.evaluation.result`), which count as scores from 1 to 5 by a rater of their name."""


class ProjectSettings(PolicyModel):
    """The settings of one project's audit."""

    enabled: bool = True
    """Off: the project is not audited. On by default: a connection exists in order to be audited."""
    judge_model: Annotated[str, StringConstraints(pattern=MODEL_NAME)] = "claude-haiku-4-5"
    """Model that judges Tiers 2, 2.5 and 3."""
    gate_cascade: bool = True
    """Skip Tier 3 for clean routine exchanges."""
    sampling: Sampling = Sampling()
    thinking_block_analysis: bool = True
    """Run Tier 2.5 where there is thinking."""
    bidirectional_scoring: bool = False
    """Take scores from people beside the judge's."""
    wrap_quality_scoring: bool = True
    """Look for the wrap protocol at the end of sessions."""
    cost_cap_per_session: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] | None = 1.0
    """USD a session's judge calls may cost; 0 means no paid call at all, null no cap."""
    heartbeat_interval: Annotated[int, Field(ge=1000, le=86_400_000)] = 300_000
    """Milliseconds between two signs of life of a session."""
    baseline_window_days: Days = 14
    """Days of event time a baseline rests on."""
    incident_rules: Annotated[tuple[IncidentRule, ...], Field(max_length=4)] = (
        "sequential",
        "consecutive_days",
        "rate_ratio",
        "runs",
    )
    """The rules that make incidents: changes of a tier beyond chance, days in a row off the baseline, and anomaly spikes. The
    fourth looks for changes of an agent's finished runs beyond chance: trust, unsafe runs, types of failure. Empty: no
    incidents are made.
    """
    alert_on_suspected: bool = False
    """On: alerts go out about suspected incidents, too. Off: only about confirmed ones."""
    retention_days: Days | None = 90
    """Days of event time for which exchanges, and what belongs to them, are kept; null keeps them for ever."""
    anchors: Anchors = Anchors()
    """Exchanges that are judged again and again, so that a change of the judge is told from one of the agent."""
    traces: Traces = Traces()
    """How traces of OpenTelemetry become exchanges and events."""
    detectors: Detectors = Detectors()
    """From which values on the failure detectors fire."""
    methodology: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = "default"
    """Name of a shipped methodology, or path of a methodology file, relative to the policy file."""


class SecretPattern(PolicyModel):
    """A kind of secret of one's own."""

    kind: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """Named in the marker that replaces the secret."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH)]
    """RE2, case-sensitive; what it matches is replaced as a whole."""


class RedactionSettings(PolicyModel):
    """The redaction of texts before they are stored or judged."""

    enabled: bool = True
    """Off: texts are kept and judged as they come."""
    patterns: Annotated[tuple[SecretPattern, ...], Field(max_length=64)] = ()
    """In addition to the built-in kinds."""
