"""All commands by topic, with the place of their code. This module loads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.setup.version import TRIAL


class Command(NamedTuple):
    """The place of a command's code, and its line in the list of all commands."""

    place: str
    """Its place below the package: a function, or an app with commands of its own."""
    summary: str
    package: str = "service.cli.commands"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The commands on one topic, by name."""

    title: str
    commands: Mapping[str, Command]


GROUPS = (
    CommandGroup(
        "Start here",
        {
            "demo": Command("demo.command.demo", "Audit a made-up fleet: offline, no key, about a minute.", TRIAL),
            "doctor": Command("server.doctor.doctor", "Check the configuration: what is set, what is missing, what to do."),
            "serve": Command(
                "server.serving.serve", "Run the server: take records over HTTP, score them, serve the API and the pages."
            ),
            "help": Command("start.helping.help_on", "Explain a command, or the exit codes of all of them."),
            "completion": Command(
                "start.completing.completion", "Print the script that lets a shell complete commands, options and values."
            ),
        },
    ),
    CommandGroup(
        "Bring records in",
        {
            "import": Command("records.imports.app", "Import transcripts of agents, their events, or tables of exchanges."),
            "connections": Command("server.connections.connections_app", "Connections that send records, and their tokens."),
            "dead-letters": Command("records.dead_letters.letters_app", "List refused records, look at them, retry them."),
            "deployments": Command(
                "drift.deployments.deployments_app", "Record and list deployments: charts mark them, and incidents name them."
            ),
        },
    ),
    CommandGroup(
        "See what agents did",
        {
            "runs": Command("runs.listing.runs", "List the runs, newest first: readiness, trust, primary failure."),
            "run": Command("runs.sessions.run", "Show one run: verdict, causes, evidence, remedies."),
            "scores": Command("runs.listing.scores", "List the scores, newest first: tiers, sampling, anomalies."),
            "wrap-quality": Command("runs.sessions.wrap_quality", "Show how well sessions were wrapped up."),
            "costs": Command("drift.costs.costs", "Show what judging cost, by session, project, day or model."),
            "diagnose": Command("runs.diagnosing.diagnose", "Diagnose sessions without a database."),
            "finalize": Command("runs.sessions.finalize", "End a session manually and diagnose it."),
            "tune": Command("runs.tuning.tune", "Fit the detectors' thresholds to an agent's runs."),
            "sql": Command("drift.querying.sql", "Run a SQL statement or a named query over the database."),
            "banner": Command("drift.banner.banner", "Print the banner that an agent sees when a session begins."),
        },
    ),
    CommandGroup(
        "Find drift, gate a build",
        {
            "projects": Command(
                "drift.projects.projects", "List the projects, the worst first: health, last days, what changed."
            ),
            "incidents": Command(
                "drift.incidents.incidents_app", "Incidents of drift and anomaly spikes: list, show, decide, assign, comment."
            ),
            "check-drift": Command("drift.watching.check_drift", "Check for drift and anomaly spikes, and record incidents."),
            "check": Command("runs.sessions.check", "Gate a build on the readiness or trust of runs."),
            "alerts": Command("server.alerts.alerts_app", "Test the alert channels, and list alerts."),
            "anchors": Command(
                "drift.anchors.anchors_app", "Exchanges that are judged again and again: has the judge changed, or the agent?"
            ),
        },
    ),
    CommandGroup(
        "Judge and evaluate",
        {
            "rejudge": Command("records.rejudging.rejudge", "Judge exchanges that stayed unscored."),
            "evaluate": Command("runs.evaluating.evaluate", "Evaluate finished sessions against test cases."),
            "evaluations": Command(
                "runs.evaluations.evaluations", "List evaluations, show one, or sum them up by case or model."
            ),
            "review": Command("drift.reviewing.review_app", "Review exchanges yourself: show the next one, score it."),
            "agreement": Command("drift.reviewing.agreement", "Show how far people and the judge agree."),
            "replay": Command("records.replaying.replay", "Score history again, into a separate file."),
            "replays": Command("records.replaying.replays", "List the replays of a database, and whether their scores match."),
            "compare": Command("drift.comparing.compare", "Compare two scorings of the same exchanges."),
            "simulate-judge": Command(
                "simulator.command.simulate_judge", "Serve a simulated judge on this machine, without a key.", TRIAL
            ),
        },
    ),
    CommandGroup(
        "Keep, copy, delete data",
        {
            "export": Command("records.exporting.export", "Write every topic's table as a Parquet file."),
            "export-runs": Command("runs.sessions.export", "Write every run as files."),
            "backup": Command("records.backing_up.backup", "Copy the database and its tokens, also while a server is running."),
            "retention": Command("records.retaining.retention_app", "Delete records that are past their retention."),
            "erase": Command("records.retaining.erase", "Erase all records of a session or a connection for good."),
            "compact": Command("records.retaining.compact", "Shrink a closed database."),
            "rebuild": Command("records.database.rebuild", "Compute everything derived again, by the present rules."),
        },
    ),
    CommandGroup(
        "Administer",
        {
            "policy": Command("records.database.policy_app", "The policy that agents are judged by."),
            "operators": Command("server.connections.operators_app", "Operators who read and decide, and their tokens."),
            "worker": Command("server.working.worker", "Run stages on Kafka."),
            "topics": Command("records.topics.topics_app", "The topics on Kafka: create, describe, check."),
        },
    ),
)
COMMANDS: Mapping[str, Command] = {name: command for group in GROUPS for name, command in group.commands.items()}
"""Every command by its name."""


def place_of(name: str) -> tuple[str, str]:
    """Return the module of a command, and its name there."""
    module, attribute = COMMANDS[name].place.rsplit(".", 1)
    return f"{COMMANDS[name].package}.{module}", attribute


def group_of(name: str) -> CommandGroup:
    """Return the group of a command."""
    return next(group for group in GROUPS if name in group.commands)
