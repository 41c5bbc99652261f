"""The policy: what agents are judged by, per project. Where things are (paths, ports, keys) is no policy but a setting.

A policy file is YAML: `{version: 1, defaults: {...}, projects: {name: {...}}, redaction: {...}, prices: {model: {...}},
sessionGapMinutes: 30}`. What a project leaves out comes from `defaults`, and what those leave out from the defaults below. Every
score carries the digest of the settings it was made with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints

from audit.anchors.names import anchor_project, is_reserved
from audit.cost.prices import MODEL_NAME, ModelPrice, nano_of, price_of
from audit.detectors.thresholds import Detectors
from audit.fingerprints import canonical_json, digest
from audit.patterns import compile_pattern
from audit.policy.collector import Collector
from audit.policy.methodology import SHIPPED, Methodology, load_methodology, shipped_methodologies
from audit.policy.model import PolicyModel
from audit.policy.policy_fields import Anchors, ProjectSettings, RedactionSettings, Sampling, SecretPattern
from audit.policy.settings_files import Document, Location
from schemas.bounds.limits import NAME
from schemas.errors import PolicyError

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
_MODEL_NAME = compile_pattern(MODEL_NAME, where="prices", ignore_case=False)
ProjectName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


@dataclass(frozen=True, slots=True)
class ProjectPolicy:
    """The policy in force for a project, with everything resolved."""

    settings: ProjectSettings
    methodology: Methodology
    redaction: RedactionSettings
    session_gap_minutes: int
    price: ModelPrice | None
    """The price of the judge's model; None is unknown."""
    cap: int | None
    """Nano-USD a session's judge calls may cost; None is no cap."""
    digest: str
    """16 hexadecimal digits over all of the above, the methodology's content included."""


MAX_NAMES = 10_000
"""Names of projects whose policy is remembered: records can have any."""


class Policy(PolicyModel):
    """A policy file; `Policy()` has every default."""

    version: Literal[1] = 1
    """Version of the form of the file."""
    defaults: ProjectSettings = ProjectSettings()
    projects: Annotated[dict[ProjectName, ProjectSettings], Field(max_length=10_000)] = Field(default_factory=dict)
    """The settings of projects, by name; the rest comes from the defaults."""
    redaction: RedactionSettings = RedactionSettings()
    session_gap_minutes: Annotated[int, Field(ge=1, le=10_080)] = 30
    """A session is closed when nothing came for longer than this, in event time."""
    collector: Collector = Collector()
    prices: Annotated[dict[str, ModelPrice], Field(max_length=1000)] = Field(default_factory=dict)
    """The prices of models, by name: they win over the prices that come with the package."""

    _methodologies: dict[str, Methodology] = PrivateAttr(default_factory=lambda: dict(shipped_methodologies()))
    _resolved: dict[tuple[str, bool], ProjectPolicy] = PrivateAttr(default_factory=dict)
    _anchored: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, _context: Any, /) -> None:
        """Note the names under which the projects' anchors are judged."""
        self._anchored = {anchor_project(name): name for name in self.projects}

    @cached_property
    def _by_name(self) -> dict[str, ProjectPolicy]:
        """Projects that were found already; a private attribute takes a microsecond to reach, and this is asked twice per exchange."""
        return {}

    def for_project(self, name: str) -> ProjectPolicy:
        """Return the policy in force for the project: its own settings over the defaults, or the defaults alone.

        Anchors are judged as their project is, every one of them and by every tier: exchanges that a round skips cannot be
        compared.
        """
        known = self._by_name
        found = known.get(name)
        if found is None:
            if len(known) >= MAX_NAMES:
                known.clear()
            found = known[name] = self._named(name)
        return found

    def _named(self, name: str) -> ProjectPolicy:
        of_anchors = is_reserved(name)
        base = self._anchored.get(name, "") if of_anchors else name
        key = (base if base in self.projects else "", of_anchors)
        if key not in self._resolved:
            settings = self._effective(key[0])
            self._resolved[key] = self._resolve(_for_anchors(settings) if of_anchors else settings)
        return self._resolved[key]

    @property
    def methodology_files(self) -> frozenset[str]:
        """Paths of the methodology files that are named, as they are written."""
        return frozenset(self._methodologies) - set(SHIPPED)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over what is in force for every project."""
        names = ["", *self.projects]
        return digest(canonical_json({name: self.for_project(name).digest for name in names}))

    def _effective(self, name: str) -> ProjectSettings:
        if not name:
            return self.defaults
        own = self.projects[name].model_dump(exclude_unset=True)
        merged = _overlay(self.defaults.model_dump(exclude_unset=True), own)
        return ProjectSettings.model_validate(merged)

    def _resolve(self, settings: ProjectSettings) -> ProjectPolicy:
        methodology = self._methodologies.get(settings.methodology)
        if methodology is None:
            raise PolicyError(_unknown_methodology(settings.methodology), hint="Paths are resolved when the policy is a file.")
        price, cap = price_of(settings.judge_model, self.prices), settings.cost_cap_per_session
        content = {
            "settings": settings.model_dump(
                mode="json",
                by_alias=True,
                exclude={"methodology", "anchors", "incident_rules", "alert_on_suspected", "detectors", "traces"},
            ),
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


def load_policy(path: Path, content: bytes | None = None, *, confined: Collection[str] | None = None) -> Policy:
    """Load a policy file and the methodologies it names; PolicyError lists each problem as `FILE:LINE: field: reason`.

    `content` is read in place of the file's. If `confined` is given, methodology files lie in the folder of the policy or below it, or
    are among these: a policy that comes over the network must not open other files of this machine.
    """
    document = Document(path, content=content)
    if isinstance(document.value, dict) and "version" not in document.value:
        document.problem(("version",), "is required, and 1 in this version of the format")
    policy = document.validate(Policy)
    for name in filter(is_reserved, policy.projects):
        document.problem(("projects", name), "is reserved for anchors, which follow their project's policy")
    for index, secret in enumerate(policy.redaction.patterns):
        _check_secret_pattern(document, index, secret)
    for model in policy.prices:
        if not _MODEL_NAME.matches(model):
            document.problem(("prices", model), f"not the name of a model: it must match {MODEL_NAME}")
    _check_thresholds(document, policy)
    named: dict[str, Location] = {}
    for name, settings in policy.projects.items():
        if "methodology" in settings.model_fields_set:
            named.setdefault(settings.methodology, ("projects", name, "methodology"))
    named.setdefault(policy.defaults.methodology, ("defaults", "methodology"))
    for reference, location in named.items():
        if reference not in SHIPPED and not _is_outside(document, reference, location, confined):
            _load_named(document, policy, reference, location)
    document.refuse_problems()
    return policy


def _is_outside(document: Document, reference: str, location: Location, confined: Collection[str] | None) -> bool:
    """Note a methodology file that is not where it has to be."""
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


def _load_named(document: Document, policy: Policy, reference: str, location: Location) -> None:
    if Path(reference).suffix not in {".yaml", ".yml", ".json"}:
        document.problem(location, _unknown_methodology(reference))
        return
    try:
        policy._methodologies[reference] = load_methodology(document.path.parent / reference)  # noqa: SLF001 - same module
    except PolicyError as error:
        document.problem(location, f"the methodology {reference!r} cannot be used:\n{error}")


def _check_thresholds(document: Document, policy: Policy) -> None:
    """Note thresholds that contradict each other, where the file sets them."""
    own: dict[Location, Detectors] = {("defaults",): policy.defaults.detectors}
    for name, settings in policy.projects.items():
        if "detectors" in settings.model_fields_set:
            own["projects", name] = policy._effective(name).detectors  # noqa: SLF001 - same module
    for location, detectors in own.items():
        for place, words in detectors.problems():
            document.problem((*location, "detectors", *place), words)


def _check_secret_pattern(document: Document, index: int, secret: SecretPattern) -> None:
    location = ("redaction", "patterns", index, "pattern")
    try:
        pattern = compile_pattern(secret.pattern, where=document.place(location), ignore_case=False)
    except PolicyError as error:
        document.note(location, str(error))
        return
    if pattern.matches(""):
        document.problem(location, "matches the empty text, so it cannot find secrets")


def _unknown_methodology(reference: str) -> str:
    return f"no methodology {reference!r}: shipped are {', '.join(SHIPPED)}; a file's path ends in .yaml, .yml or .json"


def _for_anchors(settings: ProjectSettings) -> ProjectSettings:
    return settings.model_copy(
        update={"gate_cascade": False, "sampling": settings.sampling.model_copy(update={"enabled": False})}
    )


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`under` with the values of `over`, mappings merged key by key."""
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged
