"""Every command of the command line, by topic, and the place of its code. Nothing is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands on one topic."""

    title: str
    commands: Mapping[str, str]
    """The place of each command below `service.cli.commands`: a function, or an app with commands of its own."""


GROUPS = (
    CommandGroup(
        "Start here",
        {
            "demo": "server.demo.demo",
            "doctor": "server.doctor.doctor",
            "serve": "server.serving.serve",
            "help": "start.helping.help_on",
            "completion": "start.completing.completion",
        },
    ),
    CommandGroup(
        "Bring records in",
        {
            "import": "records.imports.app",
            "connections": "server.connections.connections_app",
            "dead-letters": "records.dead_letters.letters_app",
            "deployments": "drift.deployments.deployments_app",
        },
    ),
    CommandGroup(
        "See what agents did",
        {
            "runs": "runs.listing.runs",
            "run": "runs.sessions.run",
            "scores": "runs.listing.scores",
            "wrap-quality": "runs.sessions.wrap_quality",
            "costs": "drift.costs.costs",
            "diagnose": "runs.diagnosing.diagnose",
            "finalize": "runs.sessions.finalize",
            "tune": "runs.tuning.tune",
            "sql": "drift.querying.sql",
            "banner": "drift.banner.banner",
        },
    ),
    CommandGroup(
        "Find drift, gate a build",
        {
            "projects": "drift.projects.projects",
            "incidents": "drift.incidents.incidents_app",
            "check-drift": "drift.watching.check_drift",
            "check": "runs.sessions.check",
            "alerts": "server.alerts.alerts_app",
            "anchors": "drift.anchors.anchors_app",
        },
    ),
    CommandGroup(
        "Judge and evaluate",
        {
            "rejudge": "records.rejudging.rejudge",
            "evaluate": "runs.evaluating.evaluate",
            "evaluations": "runs.evaluations.evaluations",
            "review": "drift.reviewing.review_app",
            "agreement": "drift.reviewing.agreement",
            "replay": "records.replaying.replay",
            "replays": "records.replaying.replays",
            "compare": "drift.comparing.compare",
            "simulate-judge": "server.simulating.simulate_judge",
        },
    ),
    CommandGroup(
        "Keep, copy, delete data",
        {
            "export": "records.exporting.export",
            "export-runs": "runs.sessions.export",
            "backup": "records.backing_up.backup",
            "retention": "records.retaining.retention_app",
            "erase": "records.retaining.erase",
            "compact": "records.retaining.compact",
            "rebuild": "records.database.rebuild",
        },
    ),
    CommandGroup(
        "Administer",
        {
            "policy": "records.database.policy_app",
            "operators": "server.connections.operators_app",
            "worker": "server.working.worker",
            "topics": "records.topics.topics_app",
        },
    ),
)
COMMANDS: Mapping[str, str] = {name: place for group in GROUPS for name, place in group.commands.items()}
"""The place of every command by its name."""


def place_of(name: str) -> tuple[str, str]:
    """Return the module of a command, and its name there."""
    module, attribute = COMMANDS[name].rsplit(".", 1)
    return f"service.cli.commands.{module}", attribute


def group_of(name: str) -> CommandGroup:
    """Return the group of a command."""
    return next(group for group in GROUPS if name in group.commands)
