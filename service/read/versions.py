"""Deployments and versions of agents: is the newest version of an agent better than the previous one?

1. The version of an exchange is the value of a label such as agent_version. If an agent's exchanges have no version label, it is the version
   of the last deployment before them.
2. Versions are compared rather than periods, because two versions may run side by side. If there are several labels, the one whose value
   changed last is compared.
3. The scores are those of Tier 2, or of Tier 1 without a judge. Their interval treats sessions as clusters (`audit.drift.slices`). The
   interval of unsafe runs is Newcombe's (`audit.comparison`). A difference within chance counts as none, and with too few sessions there is
   no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, get_args

from analytics.queries import query_rows
from audit.comparison import Ends, share_difference
from audit.drift.slices import MIN_SESSIONS, Moments, Part, explain
from audit.drift.watched_series import TIERS
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment
from service.text.formats import grouped_count, signed
from streams.upkeep.annotations import MAX_LISTED, VERSIONS, deployments


class DeployedVersion(Answer, frozen=True):
    """A deployment."""

    id: str
    project: str
    label: str
    version: str
    agent: str | None
    at: Moment
    by: str
    comment: str | None
    url: str | None


class RecordedDeployment(Answer, frozen=True):
    """A recorded deployment. `known` is true if it had been recorded before."""

    deployment: DeployedVersion
    known: bool


class DeploymentList(Answer, frozen=True):
    """Deployments, newest first."""

    deployments: list[DeployedVersion]
    count: int


def deployed_version(row: Mapping[str, Any]) -> DeployedVersion:
    """Return a deployment from its row or the fields of its record."""
    return DeployedVersion.of(row, id=row["deployment_id"], at=row["occurred_at"], by=row["deployed_by"])


def deployed_versions(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MAX_LISTED,
) -> list[DeployedVersion]:
    """Return the deployments of a project, newest first; `since` is inclusive, `until` is not."""
    return [deployed_version(row) for row in deployments(cursor, project, since, until, limit)]


Row = Mapping[str, Any]
Verdict = Literal["worse", "mixed", "better", "no difference", "too early", "first"]
BEFORE_DEPLOYMENT = "before the first deployment"
"""Name of the version of exchanges before the first deployment."""
VERSION_NAMES = {"agent_version": "Version", "prompt_version": "Prompt", "tool_version": "Tool"}
"""Display names of the version labels."""
_JUDGED_TIER, _RULE_TIER = "tier2", "tier1"
MAX_EXCHANGES = 20_000
"""Approximate maximum number of exchanges in a comparison. It is far more than an interval needs, and is read in a fraction of a second."""
_MAX_SAMPLED_EXCHANGES = 25 * MAX_EXCHANGES
"""Sessions are sampled from this many newest exchanges, rounded up to whole days, so that not all ids are read."""


@dataclass(frozen=True)
class Version:
    """A version of an agent with its figures in a period."""

    row: Row
    """The version's row of the query `agent_versions`."""

    @property
    def label(self) -> str:
        """The label whose value is the version."""
        return str(self.row["label"])

    @property
    def value(self) -> str | None:
        """The label's value; None before the first deployment."""
        value: str | None = self.row["version"]
        return value

    @property
    def name(self) -> str:
        """The display name."""
        return self.value if self.value is not None else BEFORE_DEPLOYMENT

    @property
    def began_at(self) -> datetime:
        """The time of its deployment, or of its first exchange."""
        began: datetime = self.row["began_at"]
        return began

    @property
    def mean(self) -> float | None:
        """The weighted mean score; None without scores."""
        return self.row["t"] / self.row["w"] if self.row["w"] else None

    @property
    def unsafe(self) -> tuple[int, int]:
        """The number of unsafe runs and of all runs."""
        return self.row["unsafe_runs"], self.row["runs"]

    @property
    def moments(self) -> Moments:
        """The scores as sums over sessions."""
        w, t, ww, wt, tt = (float(self.row[name]) for name in ("w", "t", "ww", "wt", "tt"))
        return Moments(self.row["sessions"], self.row["exchanges"], w, t, ww, wt, tt, ww, wt, wt, tt)


@dataclass(frozen=True)
class AgentVersions:
    """The versions of an agent, newest first."""

    agent: str
    tier: str
    """The tier of the scores."""
    versions: list[Version]

    @property
    def newest(self) -> Version:
        """The newest version."""
        return self.versions[0]

    @property
    def previous(self) -> Version | None:
        """The version before the newest; None if there is only one."""
        return self.versions[1] if len(self.versions) > 1 else None

    @property
    def is_scored(self) -> bool:
        """Whether either version has scores of the tier."""
        return any(version.row["judged"] for version in self.versions[:2])

    @cached_property
    def score_change(self) -> Part | None:
        """The change of the mean score with its interval; None with too few sessions."""
        if self.previous is None or self._has_few_sessions:
            return None
        explained = explain({}, {}, (self.previous.moments, self.newest.moments))
        return Part(0.0, 0.0, 0.0) if explained is None else explained.change

    @cached_property
    def unsafe_change(self) -> Ends | None:
        """The interval of the change in the share of unsafe runs; None unless both versions have runs."""
        return None if self.previous is None else share_difference(self.previous.unsafe, self.newest.unsafe)

    @property
    def verdict(self) -> Verdict:
        """The verdict in one word."""
        if self.previous is None:
            return "first"
        sides = []
        if self.score_change is not None:
            sides.append(_find_side(self.score_change[1:]))
        if self.unsafe_change is not None:
            sides.append(-_find_side(self.unsafe_change))
        if not any(sides):
            return "too early" if self.score_change is None else "no difference"
        if 1 in sides and -1 in sides:
            return "mixed"
        return "better" if 1 in sides else "worse"

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with its numbers."""
        previous = self.previous
        newest = f"{VERSION_NAMES.get(self.newest.label, self.newest.label)} {self.newest.name}"
        if previous is None:
            return f"{newest} is the only version so far, so there is nothing to compare it with."
        verdicts = {
            "better": f"{newest} is better than {previous.name}",
            "worse": f"{newest} is worse than {previous.name}",
            "mixed": f"{newest} is better than {previous.name} in one measure and worse in the other",
            "no difference": f"{newest} is no different from {previous.name} beyond chance",
            "too early": f"Too early to tell whether {_lower_first(newest)} is better than {previous.name}",
        }
        parts = "; ".join(part for part in (self._describe_scores(previous), self._describe_runs(previous)) if part)
        return f"{verdicts[self.verdict]}: {parts}."

    @property
    def _has_few_sessions(self) -> bool:
        return any(version.row["sessions"] < MIN_SESSIONS for version in self.versions[:2])

    def _describe_scores(self, previous: Version) -> str:
        newest = self.newest
        name = TIERS[self.tier]
        sizes = f"{_describe_sample(newest)}, before {_describe_sample(previous)}"
        if newest.mean is None or previous.mean is None or self.score_change is None:
            return f"{name} of {sizes}; it takes {MIN_SESSIONS} sessions of each"
        change = self.score_change
        # Three decimals: the change of rounded means can differ from the rounded change.
        interval = f"{signed(change.amount, 3)}, 95%: {signed(change.low, 2)} to {signed(change.high, 2)}"
        return f"{name} {newest.mean:.3f}, before {previous.mean:.3f} ({interval}; {sizes})"

    def _describe_runs(self, previous: Version) -> str:
        if not self.newest.unsafe[1] and not previous.unsafe[1]:
            return ""
        sentence = "{} of {} runs unsafe, before {} of {}".format(*self.newest.unsafe, *previous.unsafe)
        if self.unsafe_change is None:
            return sentence
        low, high = self.unsafe_change
        return f"{sentence} (95%: {signed(100 * low)} to {signed(100 * high)} points)"


@dataclass(frozen=True)
class VersionComparison:
    """The versions of agents, and the part of the period that was read."""

    agents: list[AgentVersions]
    since: datetime | None = None
    """The time from which exchanges were read, if later than requested."""
    one_in: int = 1
    """The sample: one in this many sessions was read."""


def agent_versions(
    cursor: duckdb.DuckDBPyConnection, project: str, since: datetime, until: datetime, agent: str | None = None
) -> VersionComparison:
    """Return the versions of a project's agents in a period, for all agents or one ('' for exchanges without an agent).

    With more than MAX_EXCHANGES in the period, only a sample of sessions is read; with more than _MAX_SAMPLED_EXCHANGES, only sessions of
    the newest days.
    """
    params = {"project": project, "labels": list(VERSIONS), "until": until}
    rows = query_rows(
        cursor, "version_days", {**params, "since": since, "most": MAX_EXCHANGES, "reach": _MAX_SAMPLED_EXCHANGES}
    )
    if not rows or not rows[0]["is_versioned"]:
        return VersionComparison([])
    start, one_in = rows[0]["since"], rows[0]["one_in"]
    params |= {"since": start, "one_in": one_in, "agent": agent}

    def read_versions(tier: str) -> list[AgentVersions]:
        return group_versions(query_rows(cursor, "agent_versions", {**params, "tier": tier}), tier)

    agents = read_versions(_JUDGED_TIER)
    if not all(versions.is_scored for versions in agents):
        by_rules = {versions.agent: versions for versions in read_versions(_RULE_TIER)}
        agents = [versions if versions.is_scored else by_rules[versions.agent] for versions in agents]
    return VersionComparison(agents, start if start > since else None, one_in)


def sort_by_verdict(agents: Iterable[AgentVersions]) -> list[AgentVersions]:
    """Sort agents: those whose newest version is worse come first."""
    verdicts = get_args(Verdict)
    return sorted(agents, key=lambda entry: (verdicts.index(entry.verdict), entry.agent))


def group_versions(rows: Iterable[Row], tier: str) -> list[AgentVersions]:
    """Group rows of the query `agent_versions` by agent, with the versions of the label that changed last."""
    labels: dict[str, dict[str, list[Version]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        labels[row["agent"]][row["label"]].append(Version(row))
    return [
        AgentVersions(agent, tier, max(by_label.values(), key=lambda rows: (len(rows) > 1, rows[0].began_at)))
        for agent, by_label in labels.items()
    ]


def _find_side(interval: Iterable[float]) -> int:
    """Return the sign of an interval; 0 if it contains 0."""
    low, high = interval
    if low > 0:
        return 1
    return -1 if high < 0 else 0


def _describe_sample(version: Version) -> str:
    return f"{grouped_count(version.row['judged'], 'score')} of {grouped_count(version.row['sessions'], 'session')}"


def _lower_first(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:]}"
