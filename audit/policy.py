"""The policy: what agents are judged by, per project. Where things are (paths, ports, keys) is no policy but a setting.

A policy file is YAML: `{version: 1, defaults: {...}, projects: {name: {...}}, redaction: {...}, prices: {model: {...}},
sessionGapMinutes: 30}`. What a project leaves out comes from `defaults`, and what those leave out from the defaults below. Every
score carries the digest of the settings it was made with.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints
from pydantic.alias_generators import to_camel

from audit.fingerprints import canonical_json, digest
from audit.methodology import SHIPPED, Methodology, load_methodology, shipped_methodologies
from audit.patterns import MAX_PATTERN_LENGTH, compile_pattern
from audit.policy_files import Document, Location
from audit.prices import MODEL_NAME, ModelPrice, nano_of, price_of
from schemas.errors import PolicyError
from schemas.limits import NAME

Days = Annotated[int, Field(ge=1, le=3650)]
_MODEL_NAME = compile_pattern(MODEL_NAME, where="prices", ignore_case=False)
ProjectName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


class _PolicyModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True)


class Sampling(_PolicyModel):
    """Which exchanges the judge sees."""

    enabled: bool = True
    """Off: every exchange is scored."""
    routine_interval: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Every n-th turn of those that nothing else selects."""
    always_score_first: Annotated[int, Field(ge=0, le=10_000)] = 5
    """The first n turns of a session."""
    always_score_last: Annotated[int, Field(ge=0, le=50)] = 3
    """The last n turns of a session; that many exchanges are kept in its state."""
    always_score_disagreement: bool = True
    """Exchanges in which the agent pushes back."""
    always_score_long_responses: bool = True
    """Exchanges with more output tokens than the threshold."""
    long_response_threshold: Annotated[int, Field(ge=0, le=10_000_000)] = 500
    """Output tokens beyond which a response is long."""


class ProjectSettings(_PolicyModel):
    """How one project is audited."""

    enabled: bool = True
    """Whether the project is audited. On unless switched off: a connection exists in order to be audited."""
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
    retention_days: Days = 90
    """Days of event time for which exchanges and scores are kept."""
    methodology: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = "default"
    """Name of a shipped methodology, or path of a methodology file, relative to the policy file."""


class SecretPattern(_PolicyModel):
    """A kind of secret of one's own."""

    kind: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """Named in the marker that replaces the secret."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH)]
    """RE2, case-sensitive; what it matches is replaced as a whole."""


class RedactionSettings(_PolicyModel):
    """What is taken out of texts before they are stored or judged."""

    enabled: bool = True
    patterns: Annotated[tuple[SecretPattern, ...], Field(max_length=64)] = ()
    """In addition to the built-in kinds."""


@dataclass(frozen=True, slots=True)
class ProjectPolicy:
    """What is in force for a project, with everything resolved."""

    settings: ProjectSettings
    methodology: Methodology
    redaction: RedactionSettings
    session_gap_minutes: int
    price: ModelPrice | None
    """What the judge's model costs; None is unknown."""
    cap: int | None
    """Nano-USD a session's judge calls may cost; None is no cap."""
    digest: str
    """16 hexadecimal digits over all of the above, the methodology's content included."""


class Policy(_PolicyModel):
    """A policy file; `Policy()` has every default."""

    version: Literal[1] = 1
    defaults: ProjectSettings = ProjectSettings()
    projects: Annotated[dict[ProjectName, ProjectSettings], Field(max_length=10_000)] = {}
    """Only what a project sets itself counts; read `for_project` for what is in force."""
    redaction: RedactionSettings = RedactionSettings()
    session_gap_minutes: Annotated[int, Field(ge=1, le=10_080)] = 30
    """A session is closed when nothing came for longer than this, in event time."""
    prices: Annotated[dict[str, ModelPrice], Field(max_length=1000)] = {}
    """What models cost, by name: wins over the prices that come with the package."""

    _methodologies: dict[str, Methodology] = PrivateAttr(default_factory=lambda: dict(shipped_methodologies()))
    _resolved: dict[str, ProjectPolicy] = PrivateAttr(default_factory=dict)

    def for_project(self, name: str) -> ProjectPolicy:
        """What is in force for the project: its own settings over the defaults, or the defaults for one that sets nothing."""
        known = name if name in self.projects else ""
        if known not in self._resolved:
            self._resolved[known] = self._resolve(self._effective(known))
        return self._resolved[known]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over what is in force for every project."""
        names = ["", *self.projects]
        return digest(canonical_json({name: self.for_project(name).digest for name in names}))

    def _effective(self, name: str) -> ProjectSettings:
        if not name:
            return self.defaults
        own = self.projects[name].model_dump(exclude_unset=True)
        merged = _overlay(self.defaults.model_dump(), own)
        return ProjectSettings.model_validate(merged)

    def _resolve(self, settings: ProjectSettings) -> ProjectPolicy:
        methodology = self._methodologies.get(settings.methodology)
        if methodology is None:
            raise PolicyError(_unknown_methodology(settings.methodology), hint="Paths are resolved when the policy is a file.")
        price, cap = price_of(settings.judge_model, self.prices), settings.cost_cap_per_session
        content = {
            "settings": settings.model_dump(mode="json", by_alias=True, exclude={"methodology"}),
            "methodology": [methodology.name, methodology.digest],
            "redaction": self.redaction.model_dump(mode="json", by_alias=True),
            "sessionGapMinutes": self.session_gap_minutes,
            "price": price and price.model_dump(mode="json", by_alias=True, exclude={"source", "read_on", "aliases"}),
        }
        return ProjectPolicy(
            settings=settings,
            methodology=methodology,
            redaction=self.redaction,
            session_gap_minutes=self.session_gap_minutes,
            price=price,
            cap=None if cap is None else nano_of(cap),
            digest=digest(canonical_json(content)),
        )


def load_policy(path: Path) -> Policy:
    """Load a policy file and the methodologies it names; PolicyError lists each problem as `FILE:LINE: field: reason`."""
    document = Document(path)
    if isinstance(document.value, dict) and "version" not in document.value:
        document.problem(("version",), "is required, and 1 in this version of the format")
    policy = document.validate(Policy)
    for index, secret in enumerate(policy.redaction.patterns):
        _check_secret_pattern(document, index, secret)
    for model in policy.prices:
        if not _MODEL_NAME.matches(model):
            document.problem(("prices", model), f"not the name of a model: it has to match {MODEL_NAME}")
    named: dict[str, Location] = {}
    for name, settings in policy.projects.items():
        if "methodology" in settings.model_fields_set:
            named.setdefault(settings.methodology, ("projects", name, "methodology"))
    named.setdefault(policy.defaults.methodology, ("defaults", "methodology"))
    for reference, location in named.items():
        if reference not in SHIPPED:
            _load_named(document, policy, reference, location)
    document.refuse_problems()
    return policy


def _load_named(document: Document, policy: Policy, reference: str, location: Location) -> None:
    if Path(reference).suffix not in {".yaml", ".yml", ".json"}:
        document.problem(location, _unknown_methodology(reference))
        return
    try:
        policy._methodologies[reference] = load_methodology(document.path.parent / reference)  # noqa: SLF001 - same module
    except PolicyError as error:
        document.problem(location, f"the methodology {reference!r} cannot be used:\n{error}")


def _check_secret_pattern(document: Document, index: int, secret: SecretPattern) -> None:
    location = ("redaction", "patterns", index, "pattern")
    try:
        pattern = compile_pattern(secret.pattern, where=document.place(location), ignore_case=False)
    except PolicyError as error:
        document.note(location, str(error))
        return
    if pattern.matches(""):
        document.problem(location, "matches the empty text, so it says nothing about secrets")


def _unknown_methodology(reference: str) -> str:
    return f"no methodology {reference!r}: shipped are {', '.join(SHIPPED)}; a file's path ends in .yaml, .yml or .json"


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`under` with the values of `over`, mappings merged key by key."""
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged
