"""Verdicts on real runs: how many healthy runs are unsafe, and how many planted failures are named.

Run `python -m openclaw.verdicts FOLDER --healthy 200 --planted 200` in tests/. It plays the runs unless FOLDER has them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from audit.detectors.thresholds import Profile, default_profile, source_of
from audit.diagnosis.diagnosis import SessionDiagnosis, diagnose
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from openclaw.fleet_runs import RUNS, Fleet, Run, conversations, play
from openclaw.install import installed
from schemas.records import AgentEvent
from streams.sources.openclaw.storage import find_databases, read_database
from streams.sources.source import ReadingContext

MAX_UNSAFE_SHARE = 0.02
"""The largest accepted share of unsafe runs among healthy ones."""
MIN_NAMED_SHARE = 0.95
"""The smallest accepted share of planted failures that are named."""


@dataclass(frozen=True)
class Verdict:
    """A played run with the diagnosis of its import."""

    run: Run
    diagnosis: SessionDiagnosis

    @property
    def names_planted_failure(self) -> bool:
        """Return whether the planted failure is among the causes."""
        return self.run.planted in {cause.type for cause in self.diagnosis.causes}


def events_of(state: Path) -> dict[str, list[AgentEvent]]:
    """Return the events by session, as an import on the next day reads them."""
    redactor = Redactor(RedactionSettings())
    context = ReadingContext("conn", "ops", None, datetime.now(UTC) + timedelta(days=1), timedelta(minutes=30), redactor)
    events: dict[str, list[AgentEvent]] = {}
    for path in find_databases(state):
        for reading in read_database(path, context):
            assert not reading.faults
            events[reading.session_ids[0]] = list(reading.events)
    return events


def diagnosis_of(events: Iterable[AgentEvent], profile: Profile | None = None) -> SessionDiagnosis:
    """Diagnose the events of a session with a profile, or with the default profile of their source."""
    session_events = list(events)
    profile = profile or default_profile(source_of(event.source for event in session_events))
    evidence = SessionEvidence.held_to(profile)
    fold_columns({None: evidence}, [fold_row(None, event, event.seq) for event in session_events])
    return diagnose(evidence, profile.thresholds)


def verdicts(fleet: Fleet) -> list[Verdict]:
    """Return the verdict on each run that has a session."""
    runs = fleet.by_session()
    return [
        Verdict(runs[session], diagnosis_of(events)) for session, events in events_of(fleet.state).items() if session in runs
    ]


def report(verdicts: list[Verdict]) -> str:
    """Return the shares with their 95 % intervals, the causes in healthy runs and the missed failures."""
    healthy = [verdict for verdict in verdicts if verdict.run.planted is None]
    planted = [verdict for verdict in verdicts if verdict.run.planted is not None]
    unsafe = [verdict for verdict in healthy if verdict.diagnosis.readiness_level == "unsafe_for_production"]
    ready = [verdict for verdict in healthy if verdict.diagnosis.readiness_level == "ready_for_runtime"]
    lines = [
        f"healthy runs that are unsafe: {_format_share(len(unsafe), len(healthy))}; bar: at most {MAX_UNSAFE_SHARE:.0%}",
        f"healthy runs that are ready: {_format_share(len(ready), len(healthy))}",
        f"planted failures that are named: {_format_share(sum(verdict.names_planted_failure for verdict in planted), len(planted))}; bar: at least {MIN_NAMED_SHARE:.0%}",
    ]
    by_type: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in planted:
        by_type[str(verdict.run.planted)].append(verdict)
    lines += [
        f"  {name}: {_format_share(sum(verdict.names_planted_failure for verdict in of_type), len(of_type))}"
        for name, of_type in sorted(by_type.items())
    ]
    alarms = Counter(
        (verdict.run.kind, cause.type, cause.severity) for verdict in healthy for cause in verdict.diagnosis.causes
    )
    lines += [
        "causes in healthy runs:",
        *(f"  {kind}: {cause} {severity} {n}" for (kind, cause, severity), n in alarms.most_common()),
    ]
    missed = Counter((verdict.run.kind, str(verdict.run.planted)) for verdict in planted if not verdict.names_planted_failure)
    lines += ["planted and not named:", *(f"  {kind}: {name} {n}" for (kind, name), n in missed.most_common())]
    return "\n".join(lines)


def _format_share(count: int, total: int) -> str:
    """Format a share with its 95 % Wilson interval."""
    if not total:
        return "none were played"
    z, p = 1.96, count / total
    middle, spread = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    low, high = ((middle + side * spread) / (1 + z * z / total) for side in (-1, 1))
    return f"{count} of {total} ({p:.1%}, {max(low, 0):.1%} to {min(high, 1):.1%})"


def main() -> None:
    """Play the runs that are missing, and print the report on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--planted", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first conversation")
    options = parser.parse_args()
    if (options.folder / RUNS).exists():
        runs = [Run(**run) for run in json.loads((options.folder / RUNS).read_text("utf-8"))]
        fleet = Fleet(options.folder / "state", runs)
    else:
        fleet = play(installed(), options.folder, conversations(options.healthy, options.planted, first=options.first))
    print(report(verdicts(fleet)))  # noqa: T201 - what the command is for


if __name__ == "__main__":
    main()
