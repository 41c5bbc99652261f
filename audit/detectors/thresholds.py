"""Thresholds of the detectors: policy, by project and agent, with defaults for each kind of source.

1. **events**: sessions that are delivered as events. The defaults are those of the published diagnosis rules, which assume that
   a recorder was written for them.
2. **transcripts**: sessions read from the records of an agent's own program (OpenClaw, Claude Code, Codex). There every request
   to the model repeats the whole conversation, sessions last for weeks, and repeating a command is often right. So tokens are
   counted by exchange and without those of the previous request, and calls are repeated only without another call in between.
   The limits were chosen from real runs, see docs/decisions/0044-thresholds.md.

A diagnosis states its profile, and what the policy changed in it. `ToolRules` are the policy's rules for tools, which are the same for both
kinds of source and off by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from pydantic import Field

from audit.fingerprints import canonical_json
from audit.settings_files import PolicyModel

MIN_SATURATION = 50.0
"""Minimum of any threshold for the saturation of a context, in percent."""
TRANSCRIPT_SOURCES = frozenset({"claude-code", "codex", "openclaw"})
"""The values of `source` in events of transcripts."""

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=2**53)]
Percent = Annotated[float, Field(ge=MIN_SATURATION, le=100, allow_inf_nan=False)]
ToolName = Annotated[str, Field(min_length=1, max_length=256)]
ToolNames = Annotated[tuple[ToolName, ...], Field(max_length=200)]
ANY = "*"
"""Stands for any text in the name of a tool or an agent."""


class Thresholds(PolicyModel):
    """The thresholds of the detectors, with the defaults for sessions that are delivered as events."""

    loop_calls: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """Identical calls from which they are a loop."""
    critical_loop_calls: Annotated[int, Field(ge=2, le=1_000_000)] = 5
    """Identical calls from which a loop is critical."""
    critical_retries: Count | None = 3
    """Retry events (of a transcript: in one exchange) from which a loop is critical; null: never."""
    polling_tools: Annotated[tuple[ToolName, ...], Field(max_length=100)] = ()
    """Further tools that may be called repeatedly without being a loop or duplicates. Those of transcripts are in `audit/diagnosis/events.py`."""
    lost_memories: Count = 1
    """Lost memories from which memory is degraded."""
    severe_lost_memories: Count = 3
    """Lost memories from which the degradation is severe."""
    unused_outputs: Count = 1
    """Unused tool outputs from which they are ignored."""
    severe_unused_outputs: Count = 2
    """Unused tool outputs from which ignoring them is severe."""
    saturation: Percent = 85.0
    """Percent of the context's size from which it is polluted; a compaction always counts."""
    severe_saturation: Percent = 95.0
    """Percent of the context's size from which the pollution is severe."""
    polluted_contexts: Count = 1
    """Polluted contexts from which they are a failure."""
    session_tokens: Tokens | None = 12_000
    """Tokens from which a session is too expensive; null: no limit."""
    critical_session_tokens: Tokens | None = 30_000
    """Tokens from which its cost is critical; null: never."""
    exchange_tokens: Tokens | None = None
    """New tokens in one exchange from which a session is too expensive; null: no limit."""
    critical_exchange_tokens: Tokens | None = None
    """New tokens in one exchange from which its cost is critical; null: never."""
    duplicate_calls: Count = 3
    """Duplicate calls (of a transcript: in one exchange) from which a session is too expensive."""
    failed_skills: Count = 1
    """Failed skills from which they are a failure."""
    severe_failed_skills: Count = 2
    """Failed skills from which the failure is severe."""
    alternating_rounds: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    """Rounds of two calls in turn (A, B, A, B are two) from which they are a finding; null: disabled."""
    near_duplicate_calls: Count | None = None
    """Calls that nearly repeat one before them from which they are a finding; null: disabled."""
    near_duplicate_similarity: Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)] = 0.9
    """Share of words that calls have in common from which one nearly repeats the other."""


class TranscriptThresholds(Thresholds):
    """The same thresholds, with the defaults for sessions that are read from transcripts."""

    session_tokens: Tokens | None = None
    """Tokens from which a session is too expensive; null: no limit."""
    critical_session_tokens: Tokens | None = None
    """Tokens from which its cost is critical; null: never."""
    exchange_tokens: Tokens | None = 50_000
    """New tokens in one exchange from which a session is too expensive; null: no limit."""
    critical_exchange_tokens: Tokens | None = 150_000
    """New tokens in one exchange from which its cost is critical; null: never."""


EVENTS = Thresholds()
"""Defaults for sessions that are delivered as events."""
TRANSCRIPTS = TranscriptThresholds()
"""Defaults for sessions that are read from transcripts."""
ProfileName = Literal["events", "transcripts"]
PROFILES: dict[ProfileName, Thresholds] = {"events": EVENTS, "transcripts": TRANSCRIPTS}
PROFILE_VERSIONS: dict[ProfileName, int] = {"events": 1, "transcripts": 1}
"""The version of each profile; raise it with every change of the defaults."""
SEVERER = {
    "loop_calls": "critical_loop_calls",
    "lost_memories": "severe_lost_memories",
    "unused_outputs": "severe_unused_outputs",
    "saturation": "severe_saturation",
    "session_tokens": "critical_session_tokens",
    "exchange_tokens": "critical_exchange_tokens",
    "failed_skills": "severe_failed_skills",
}
"""Thresholds, each with the severer one that it must not exceed."""


class ToolRules(PolicyModel):
    """What an agent may do with tools, whatever the source; a call that breaks a rule is a finding. `*` in a name stands for any text."""

    allowed: ToolNames | None = None
    """Tools that may be called; null: every tool."""
    denied: ToolNames = ()
    """Tools that must not be called, even if they are allowed."""
    approval_required: ToolNames = ()
    """Tools that may be called only after an approval. An approval counts for one call."""
    approvals: ToolNames = ()
    """Tools whose call is an approval, beside events of the type `approval`."""
    external: ToolNames = ()
    """Tools that send their arguments to others, so that these must contain no secret."""
    definitions: bool = False
    """On: the descriptions of tools in traces are read; one that changes within a session is a finding, one that changes between sessions a notice."""


NO_RULES = ToolRules()


class AgentDetectors(PolicyModel):
    """The settings of a project or an agent for each profile; other values are the profile's defaults."""

    events: Thresholds = EVENTS
    """For sessions that are delivered as events."""
    transcripts: TranscriptThresholds = TRANSCRIPTS
    """For sessions that are read from transcripts."""
    tools: ToolRules = NO_RULES
    """Rules for tools, for sessions of both kinds."""

    def changed(self, name: ProfileName | Literal["tools"]) -> dict[str, Any]:
        """Return the settings of a profile, or the rules for tools, that were set here, by field."""
        return _list_explicit_values(getattr(self, name)) if name in self.model_fields_set else {}


AgentName = Annotated[str, Field(min_length=1, max_length=256)]
Settings = TypeVar("Settings", bound=PolicyModel)
TOOLS: Final = "tools"
"""Name of the rules for tools among the changes of a profile."""


class Detectors(AgentDetectors):
    """The thresholds of a project, with overrides for single agents."""

    agents: Annotated[dict[AgentName, AgentDetectors], Field(max_length=1000)] = Field(default_factory=dict)
    """Overrides by the agent's name, in which `*` stands for any text. If several names match, a later one overrides an earlier
    one, and the exact name all others.
    """

    def profile(self, name: ProfileName, agent: str | None) -> Profile:
        """Return the profile for a session of an agent."""
        changes = self.changed(name)
        rules = self.changed(TOOLS)
        for overrides in self._overrides_of(agent or ""):
            changes |= overrides.changed(name)
            rules |= overrides.changed(TOOLS)
        return Profile.of(name, changes, rules) if changes or rules else DEFAULTS[name]

    @property
    def reads_definitions(self) -> bool:
        """True if the descriptions of tools are read for any agent."""
        return any(detectors.tools.definitions for detectors in (self, *self.agents.values()))

    def _overrides_of(self, agent: str) -> Iterator[AgentDetectors]:
        """Yield the overrides whose name matches an agent's, the exact name last."""
        yield from (overrides for name, overrides in self.agents.items() if ANY in name and matches_name(name, agent))
        if agent in self.agents:
            yield self.agents[agent]

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the contradictions between thresholds: the location within this part of the policy, and the message."""
        for agent in (None, *self.agents):
            for name in PROFILES:
                path = (name,) if agent is None else ("agents", agent, name)
                for field, reason in _find_contradictions(self.profile(name, agent).thresholds):
                    yield (*path, field), reason


class Profile(msgspec.Struct, frozen=True):
    """The thresholds and rules for a session's diagnosis, with their origin."""

    name: ProfileName
    thresholds: Thresholds
    changes: dict[str, Any] = {}
    """The settings of the policy that differ from the defaults, by their names in the policy."""
    rules: ToolRules = NO_RULES

    @classmethod
    def of(cls, name: ProfileName, changes: dict[str, Any], rules: dict[str, Any] | None = None) -> Profile:
        """Return the named profile with changes and rules, by the field names of `Thresholds` and `ToolRules`."""
        thresholds, different = _apply_changes(PROFILES[name], changes)
        tool_rules, different_rules = _apply_changes(NO_RULES, rules or {})
        return cls(name, thresholds, different | ({TOOLS: different_rules} if different_rules else {}), tool_rules)

    @property
    def version(self) -> str:
        """The name and version of the profile."""
        return f"{self.name}-{PROFILE_VERSIONS[self.name]}"

    @property
    def changes_json(self) -> str | None:
        """The changes as canonical JSON; None without any."""
        return canonical_json(self.changes) if self.changes else None


DEFAULTS: dict[ProfileName, Profile] = {name: Profile(name, thresholds) for name, thresholds in PROFILES.items()}
"""The profiles without changes by a policy."""


def source_of(sources: Iterable[str | None]) -> str | None:
    """Return the program whose transcript a session was read from, by its events' sources; None without one."""
    return next((source for source in sources if source in TRANSCRIPT_SOURCES), None)


def profile_name(source: str | None) -> ProfileName:
    """Return the profile for sessions of this source."""
    return "transcripts" if source in TRANSCRIPT_SOURCES else "events"


def default_profile(source: str | None) -> Profile:
    """Return the profile for sessions of this source without changes by a policy."""
    return DEFAULTS[profile_name(source)]


def recorded_profile(version: str | None, changes_json: str | None) -> Profile | None:
    """Return the profile that a diagnosis names; None if it names none, or one of another version."""
    default = next((profile for profile in DEFAULTS.values() if profile.version == version), None)
    if default is None or changes_json is None:
        return default
    changes = msgspec.json.decode(changes_json)
    rules = ToolRules.model_validate_json(canonical_json(changes.pop(TOOLS, {})))
    thresholds = type(default.thresholds).model_validate_json(canonical_json(changes))
    return Profile.of(default.name, _list_explicit_values(thresholds), _list_explicit_values(rules))


def matches_name(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in which `*` stands for any text and nothing else is special."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def _list_explicit_values(settings: PolicyModel) -> dict[str, Any]:
    """Return the values that were set, by field."""
    return {field: getattr(settings, field) for field in settings.model_fields_set}


def _apply_changes(default: Settings, changes: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with changes by field, and those that differ from the defaults by their names in the policy."""
    different = {field: value for field, value in changes.items() if value != getattr(default, field)}
    changed = default.model_copy(update=different)
    return changed, changed.model_dump(mode="json", by_alias=True, include=set(different))


def _find_contradictions(thresholds: Thresholds) -> Iterator[tuple[str, str]]:
    """Yield the fields that exceed the severer threshold of their kind, with the message."""
    for lower, upper in SEVERER.items():
        lower_value = getattr(thresholds, lower)
        upper_value = getattr(thresholds, upper)
        if lower_value is not None and upper_value is not None and upper_value < lower_value:
            fields = Thresholds.model_fields
            yield str(fields[lower].alias), f"{lower_value} is above {fields[upper].alias}, which is {upper_value}"
