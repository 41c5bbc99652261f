"""The policy file of a server: comparing and checking another text, estimating its effect, and saving it.

1. A text is checked completely before it is written, relative to the folder of the file, because methodologies are files beside it.
2. The text is written to a temporary file, which then replaces the policy file, so a reader finds either the old or the new text.
   The previous text is kept under the same name with the suffix `.previous`, and can be restored in the same way.
3. A save names the text on which it is based. If the file has changed meanwhile, nothing is written.
4. A running server keeps its policy until it restarts: see `service.server.server_lifecycle`.
5. The effect is the share of the last week's exchanges that another policy would have judged, and the cost per week. The estimate
   applies both policies to a sample of stored sessions. It calls the code that intake uses (`audit.exchanges.tier1` and
   `audit.exchanges.sampling`).
6. Where the detectors change, the newest runs are diagnosed again. Where rules for incidents are turned off, their open incidents are listed.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from analytics.queries import query_records, query_rows
from analytics.sums.daily import query_days
from audit.cost import ModelPrice, Usage, usd_of
from audit.exchanges.sampling import Candidate, SamplingState, close, decide
from audit.exchanges.tier1 import check_structure
from audit.policy import Policy, ProjectPolicy, load_policy
from schemas.errors import DriftlineError, PolicyError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.tuning import DiagnosisEffect, compare_diagnoses
from service.text.answers import Answer
from streams.stage_batches import session_key
from streams.watch.lifecycle import is_live

OTHER_PROJECTS = ""
"""Pseudo-project: all projects that neither policy names."""
SERVER_WIDE = "*"
"""Pseudo-project: the settings that belong to no project, which are redaction, prices, the session gap and spans on Kafka."""
NO_FILE = "The server was started without a policy file, so every default is in force. Set DRIFTLINE_POLICY to a file."
SKELETON = "version: 1\n"
"""The initial text if there is no file: every default."""
CONTEXT_LINES = 3
"""Unchanged lines around each change in a diff."""
EFFECT_DAYS = 7
"""Days covered by an estimate."""
MAX_EFFECT_PROJECTS = 20
"""Maximum number of projects estimated."""
MAX_COMPARED_RUNS = 200
"""Runs of a project that are diagnosed again."""
SAMPLED_EXCHANGES = 5_000
"""Exchanges in the sample of a project. A share has a standard error of 0.7 percentage points, a little more if sessions differ."""
NO_RECORD = b"-"
"""Placeholder for the encoded exchange, which sampling only passes through."""
ESTIMATED_SETTINGS = ("enabled", "judgeModel", "prices.", "sampling.")
"""Prefixes of the settings whose effect is estimated. The effects of cap and gate depend on the judge's answers."""
Row = Mapping[str, Any]
_write_lock = threading.Lock()


class SettingChange(Answer, frozen=True):
    """A setting that would change."""

    setting: Annotated[str, Meta(examples=["sampling.routineInterval"])]
    before: Annotated[Any, Meta(examples=[3])]
    after: Annotated[Any, Meta(examples=[5])]
    projects: Annotated[
        list[str],
        Meta(description='Names of projects. "" stands for all projects that are not named, "*" for the whole server.'),
    ]


def compare_policies(before: Policy, after: Policy) -> list[SettingChange]:
    """Return the settings that differ between two policies, each with the projects in which it differs in the same way."""
    changes: dict[tuple[str, str, str], SettingChange] = {}
    for project in (SERVER_WIDE, OTHER_PROJECTS, *sorted({*before.projects, *after.projects})):
        settings_before = settings_in_force(before, project)
        settings_after = settings_in_force(after, project)
        for setting in settings_before.keys() | settings_after.keys():
            old = settings_before.get(setting)
            new = settings_after.get(setting)
            if old != new:
                key = (setting, repr(old), repr(new))
                changes.setdefault(key, SettingChange(setting, old, new, [])).projects.append(project)
    return [change for _, change in sorted(changes.items())]


def settings_in_force(policy: Policy, project: str) -> dict[str, Any]:
    """Return the settings in force for a project by their names in the file.

    For SERVER_WIDE, return the settings that belong to no project.
    """
    if project == SERVER_WIDE:
        sections = policy.model_dump(
            mode="json", by_alias=True, include={"redaction", "collector", "prices", "session_gap_minutes"}
        )
        return dict(_flatten("", sections))
    resolved = policy.for_project(project)
    settings = dict(_flatten("", resolved.settings.model_dump(mode="json", by_alias=True)))
    return settings | {"methodology": f"{resolved.settings.methodology} ({resolved.methodology.digest[:8]})"}


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _flatten(f"{path}.{name}" if path else str(name), inner)


class StaleError(DriftlineError):
    """The file has changed since the save's base text was read."""

    hint = "Load the policy again and repeat your change."


class ReadOnlyError(DriftlineError):
    """The file cannot be written; the message gives the reason."""

    hint = "Download the checked text and replace the file at its origin."


class PolicyProblem(Answer, frozen=True):
    """A problem in a policy text."""

    line: Annotated[int | None, Meta(examples=[4])]
    problem: Annotated[str, Meta(examples=["defaults.sampling.routineIntervall: unknown field; did you mean routineInterval?"])]


class StoredPolicy(Answer, frozen=True):
    """The policy file, and whether it is in force."""

    path: Annotated[str | None, Meta(description="null: the server has no policy file.", examples=["policy.yaml"])]
    text: str
    fingerprint: Annotated[str, Meta(description="SHA-256 of the text.")]
    read_only_because: Annotated[str | None, Meta(description="null: it can be saved.")]
    has_previous: Annotated[bool, Meta(description="Whether the text from before the last save can be restored.")]
    in_force: Annotated[
        bool, Meta(description="Whether the server uses this text now. If not, it will use it from its next start.")
    ]
    problems: Annotated[list[PolicyProblem], Meta(description="Problems that prevent the server from starting with this text.")]


class SavedPolicy(Answer, frozen=True):
    """The file after a change."""

    fingerprint: str
    changes: list[SettingChange]
    in_force: bool


class EffectivePolicy(Answer, frozen=True):
    """The settings in force for a project."""

    project: str | None
    digest: Annotated[str, Meta(description="The policy digest in every score of the project.")]
    settings: Annotated[dict[str, Any], Meta(examples=[{"sampling.routineInterval": 3}])]


class AppliedPolicy(Answer, frozen=True):
    """The server is restarting."""

    restarting: bool


class PolicyFile:
    """The policy file at a path, or no file. It is never kept open, because others may replace it at any time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @property
    def display_path(self) -> Path:
        """The path that messages show; a default name without a file."""
        return self.path or Path("policy.yaml")

    def text(self) -> str:
        """Return the text of the file, or `SKELETON` without a file. Raises PolicyError if it cannot be read."""
        return SKELETON if self.path is None else _read_text(self.path)

    def previous(self) -> str | None:
        """Return the text from before the last save; None before the first save."""
        if self.path is None or not _previous_path(self.path).is_file():
            return None
        return _read_text(_previous_path(self.path))

    def why_read_only(self) -> str:
        """Return the reason why the file cannot be written; empty if it can."""
        if self.path is None:
            return NO_FILE
        target = self.path.resolve()
        if not target.exists():
            return f"{self.path} does not exist."
        if os.access(target, os.W_OK) and os.access(target.parent, os.W_OK):
            return ""
        return (
            f"{self.path} is read-only for the server, as are files from a Kubernetes ConfigMap or an image. "
            "Change the file at its origin."
        )

    def save(self, text: str, base: str) -> None:
        """Write a checked text to the file and keep the previous one.

        `base` is the fingerprint of the text on which the new text is based. Raises StaleError if the file has another text now,
        and ReadOnlyError if it cannot be written; the file is then unchanged.
        """
        reason = self.why_read_only()
        if self.path is None or reason:
            raise ReadOnlyError(reason)
        with _write_lock:
            current = _read_text(self.path)
            if fingerprint(current) != base:
                raise StaleError("the policy file has changed in the meantime")
            try:
                _replace_text(_previous_path(self.path), current)
                _replace_text(self.path.resolve(), text)
            except OSError as error:
                raise ReadOnlyError(f"{self.path}: {error.strerror}") from error


def check_text(file: PolicyFile, text: str, known_files: Collection[str]) -> Policy | list[PolicyProblem]:
    """Return the policy in a text, or its problems by line.

    Methodology files outside the file's folder are rejected, except `known_files`.
    """
    try:
        return load_policy(file.display_path, text.encode(), confined=known_files)
    except PolicyError as error:
        return _find_problems(file.display_path, str(error))
    except UnicodeEncodeError:
        return [PolicyProblem(None, "the text contains half of a surrogate pair, which is not valid Unicode")]


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, by which a save identifies its base text."""
    return hashlib.sha256(text.encode()).hexdigest()


def diff_lines(before: str, after: str) -> list[str]:
    """Return the lines of a unified diff of two texts, without file names; empty if they are equal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=CONTEXT_LINES, lineterm="")
    return list(lines)[2:]


def _find_problems(file: Path, message: str) -> list[PolicyProblem]:
    """Return the problems in a PolicyError's message. Lines without a position belong to the previous problem."""
    position = re.compile(rf"{re.escape(str(file))}:(\d+): (.*)", re.DOTALL)
    problems: list[PolicyProblem] = []
    for line in message.splitlines():
        match = position.fullmatch(line)
        if match:
            problems.append(PolicyProblem(int(match[1]), match[2]))
        elif problems:
            problems[-1] = PolicyProblem(problems[-1].line, f"{problems[-1].problem}\n{line}")
        else:
            problems.append(PolicyProblem(None, line))
    return problems


def _previous_path(path: Path) -> Path:
    target = path.resolve()
    return target.with_name(f"{target.name}.previous")


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}", hint="Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: is not UTF-8", hint="Save the file as UTF-8.") from error


def _replace_text(path: Path, text: str) -> None:
    """Replace a file in one step, keeping its permissions; durable on return."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename is durable only once the folder is synced.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class PolicyEffect(Answer, frozen=True):
    """A rough estimate for a project, from its exchanges of the last days."""

    project: str
    exchanges: int
    judged_before: Annotated[float, Meta(description="Share of the exchanges.")]
    judged_after: float
    usd_per_week_before: Annotated[float | None, Meta(description="null: the price or the number of tokens is unknown.")]
    usd_per_week_after: float | None


class IncidentEffect(Answer, frozen=True):
    """An open incident that depends on a rule which a policy turns off."""

    project: str
    incident_id: str
    title: str
    rule: str


class PolicyTrial(Answer, frozen=True):
    """The result of a trial; nothing was saved."""

    valid: bool
    problems: list[PolicyProblem]
    comparison: Annotated[list[str], Meta(description="Lines of a unified diff against the file.")]
    changes: Annotated[list[SettingChange], Meta(description="Changed settings, compared with the file.")]
    effects: Annotated[list[PolicyEffect], Meta(description=f"Estimated from the last {EFFECT_DAYS} days.")]
    diagnoses: Annotated[
        list[DiagnosisEffect],
        Meta(
            description=f"For changed detectors: the {MAX_COMPARED_RUNS} newest runs of the last {EFFECT_DAYS} days, diagnosed again."
        ),
    ]
    incidents: Annotated[list[IncidentEffect], Meta(description="Open incidents of rules that would be off.")]


def estimate_effects(
    cursor: duckdb.DuckDBPyConnection,
    before: Policy,
    after: Policy,
    *,
    changes: Sequence[SettingChange],
    projects: Sequence[str],
    now: datetime,
) -> list[PolicyEffect]:
    """Estimate the effect on the projects that a change concerns and that have exchanges, at most MAX_EFFECT_PROJECTS."""
    effects = (
        _estimate_effect(cursor, project, before.for_project(project), after.for_project(project), now)
        for project in find_concerned(changes, ESTIMATED_SETTINGS, before, after, projects)
    )
    return [effect for effect in effects if effect is not None]


def find_concerned(
    changes: Sequence[SettingChange], settings: tuple[str, ...], before: Policy, after: Policy, projects: Sequence[str]
) -> list[str]:
    """Return the projects, at most MAX_EFFECT_PROJECTS, that changes of these settings (prefixes of their names) concern."""
    named = {*before.projects, *after.projects}
    concerned: set[str] = set()
    for change in changes:
        if change.setting.startswith(settings):
            concerned.update(change.projects)
    if OTHER_PROJECTS in concerned:
        concerned.update(project for project in projects if project not in named)
    return [project for project in projects if project in concerned][:MAX_EFFECT_PROJECTS]


def compare_policy_diagnoses(
    cursor: duckdb.DuckDBPyConnection,
    before: Policy,
    after: Policy,
    *,
    changes: Sequence[SettingChange],
    projects: Sequence[str],
    now: datetime,
) -> list[DiagnosisEffect]:
    """Diagnose the newest runs again where a change concerns the detectors."""
    since = now - timedelta(days=EFFECT_DAYS)
    effects = (
        compare_diagnoses(
            cursor,
            project,
            *(policy.for_project(project).settings.detectors for policy in (before, after)),
            since=since,
            limit=MAX_COMPARED_RUNS,
        )
        for project in find_concerned(changes, ("detectors.",), before, after, projects)
    )
    return [effect for effect in effects if effect is not None]


def find_lost_incidents(
    cursor: duckdb.DuckDBPyConnection,
    before: Policy,
    after: Policy,
    *,
    changes: Sequence[SettingChange],
    projects: Sequence[str],
) -> list[IncidentEffect]:
    """Return the open incidents of rules that a change turns off."""
    return [
        IncidentEffect(project, incident.incident_id, incident.title, incident.rule)
        for project in find_concerned(changes, ("incidentRules",), before, after, projects)
        for incident in query_records(cursor, "watched_incidents", Incident, {"projects": [project]})
        if is_live(incident) and incident.rule not in after.for_project(project).settings.incident_rules
    ]


def _estimate_effect(
    cursor: duckdb.DuckDBPyConnection, project: str, before: ProjectPolicy, after: ProjectPolicy, now: datetime
) -> PolicyEffect | None:
    start = now - timedelta(days=EFFECT_DAYS)
    sample = query_rows(cursor, "session_sample", {"project": project, "from": start, "to": now, "limit": SAMPLED_EXCHANGES})
    if not sample:
        return None
    judged_before = _count_judged(sample, before)
    judged_after = _count_judged(sample, after)
    usage = _read_usage(cursor, project, start, now)
    cost_before = _cost_per_week(usage, before.price)
    has_new_price = before.settings.judge_model != after.settings.judge_model or before.price != after.price
    cost_of_usage = _cost_per_week(usage, after.price) if has_new_price else cost_before
    cost_after = None
    if cost_of_usage is not None and judged_before:
        cost_after = cost_of_usage * judged_after / judged_before
    return PolicyEffect(
        project=project,
        exchanges=sample[0]["total"],
        judged_before=judged_before / len(sample),
        judged_after=judged_after / len(sample),
        usd_per_week_before=cost_before,
        usd_per_week_after=cost_after,
    )


def _count_judged(sample: Sequence[Row], policy: ProjectPolicy) -> int:
    """Return the number of exchanges in a sample that a policy would have judged if each session ended with the sample."""
    if not policy.settings.enabled:
        return 0
    sessions = groupby(sample, key=lambda row: session_key(row["connection"], row["session_id"]))
    return sum(len(_sample_session(key, rows, policy)) for key, rows in sessions)


def _sample_session(session: str, rows: Iterable[Row], policy: ProjectPolicy) -> set[str]:
    """Return the ids of a session's exchanges that a policy would have judged."""
    state = SamplingState()
    judged: set[str] = set()
    for row in rows:
        tier1 = check_structure(row["user_message"], row["agent_response"], policy.methodology)
        # The columns of `session_sample` have the names of the candidate's fields.
        # Attempts to sway the judge are too rare to change an estimate, and looking for them takes longer than all else.
        computed = {"session": session, "revision": 0, "tier1_flags": tier1.flags, "is_tampering": False, "record": NO_RECORD}
        candidate = msgspec.convert({**row, **computed}, Candidate)
        decision, state = decide(state, candidate, policy.settings.sampling)
        if decision.sampled:
            judged.add(candidate.exchange_id)
    last_turns, _ = close(state, policy.settings.sampling)
    return judged.union(deferred.exchange_id for deferred in last_turns)


def _read_usage(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> Usage:
    """Return the tokens of the judge's calls about the exchanges of a period, whenever it answered."""
    rows = query_days(cursor, "window_costs", {"project": project, "by": "day", "from": start, "to": end})
    names = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
    return Usage(*(sum(row[name] for row in rows) for name in names))


def _cost_per_week(usage: Usage, price: ModelPrice | None) -> float | None:
    """Return the cost in USD of the tokens used in the week; None without a price."""
    cost = None if price is None else price.cost_of_calls(usage)
    return None if cost is None else usd_of(cost)
