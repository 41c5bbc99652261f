"""What Driftline says of real runs: of healthy ones, how many are unsafe; of ones with a planted failure, how many name it.

python -m openclaw.verdicts FOLDER --healthy 200 --planted 200      in tests/; plays them, unless FOLDER was played
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

HEALTHY_UNSAFE, PLANTED_NAMED = 0.02, 0.95
"""The bar: at most so many of the healthy runs are unsafe, at least so many of the planted failures are named."""


@dataclass(frozen=True)
class Verdict:
    """A run that was played, and what the diagnosis of its import says."""

    run: Run
    diagnosis: SessionDiagnosis

    @property
    def names_it(self) -> bool:
        """Whether the failure that was planted is among the causes."""
        return self.run.planted in {cause.type for cause in self.diagnosis.causes}


def events_of(state: Path) -> dict[str, list[AgentEvent]]:
    """The events of each session as an import of the next day reads them."""
    redactor = Redactor(RedactionSettings())
    context = ReadingContext("conn", "ops", None, datetime.now(UTC) + timedelta(days=1), timedelta(minutes=30), redactor)
    found: dict[str, list[AgentEvent]] = {}
    for path in find_databases(state):
        for reading in read_database(path, context):
            assert not reading.faults
            found[reading.session_ids[0]] = reading.events
    return found


def diagnosis_of(events: Iterable[AgentEvent], profile: Profile | None = None) -> SessionDiagnosis:
    """The diagnosis of a session's events by a profile, else by the default of their source."""
    listed = list(events)
    thresholds = (profile or default_profile(source_of(event.source for event in listed))).thresholds
    evidence = SessionEvidence.held_to(thresholds)
    fold_columns({None: evidence}, [fold_row(None, event, event.seq) for event in listed])
    return diagnose(evidence, thresholds)


def verdicts(fleet: Fleet) -> list[Verdict]:
    """The verdict on each run that left a session."""
    runs = fleet.by_session()
    return [
        Verdict(runs[session], diagnosis_of(events)) for session, events in events_of(fleet.state).items() if session in runs
    ]


def report(found: list[Verdict]) -> str:
    """The shares with their 95 % intervals, and what was said of whom."""
    healthy = [verdict for verdict in found if verdict.run.planted is None]
    planted = [verdict for verdict in found if verdict.run.planted is not None]
    unsafe = [verdict for verdict in healthy if verdict.diagnosis.readiness_level == "unsafe_for_production"]
    ready = [verdict for verdict in healthy if verdict.diagnosis.readiness_level == "ready_for_runtime"]
    lines = [
        f"healthy runs that are unsafe: {_share(len(unsafe), len(healthy))}; bar: at most {HEALTHY_UNSAFE:.0%}",
        f"healthy runs that are ready: {_share(len(ready), len(healthy))}",
        f"planted failures that are named: {_share(sum(verdict.names_it for verdict in planted), len(planted))}; bar: at least {PLANTED_NAMED:.0%}",
    ]
    by_type: dict[str, list[Verdict]] = defaultdict(list)
    for one in planted:
        by_type[str(one.run.planted)].append(one)
    lines += [
        f"  {name}: {_share(sum(verdict.names_it for verdict in them), len(them))}" for name, them in sorted(by_type.items())
    ]
    alarms = Counter(
        (verdict.run.kind, cause.type, cause.severity) for verdict in healthy for cause in verdict.diagnosis.causes
    )
    lines += [
        "causes in healthy runs:",
        *(f"  {kind}: {cause} {severity} {n}" for (kind, cause, severity), n in alarms.most_common()),
    ]
    missed = Counter((verdict.run.kind, str(verdict.run.planted)) for verdict in planted if not verdict.names_it)
    lines += ["planted and not named:", *(f"  {kind}: {name} {n}" for (kind, name), n in missed.most_common())]
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    """A share with its 95 % interval (Wilson)."""
    if not total:
        return "none were played"
    z, p = 1.96, count / total
    middle, spread = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    low, high = ((middle + side * spread) / (1 + z * z / total) for side in (-1, 1))
    return f"{count} of {total} ({p:.1%}, {max(low, 0):.1%} to {min(high, 1):.1%})"


def main() -> None:
    """Play what was not played, and print what is said of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--planted", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first conversation")
    given = parser.parse_args()
    if (given.folder / RUNS).exists():
        runs = [Run(**run) for run in json.loads((given.folder / RUNS).read_text("utf-8"))]
        fleet = Fleet(given.folder / "state", runs)
    else:
        fleet = play(installed(), given.folder, conversations(given.healthy, given.planted, first=given.first))
    print(report(verdicts(fleet)))  # noqa: T201 - what the command is for


if __name__ == "__main__":
    main()
