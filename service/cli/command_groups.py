"""All commands by topic, with the location of their code, and the start page that lists them. This module loads no command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.setup.version import TRIAL


class Command(NamedTuple):
    """The location of a command's code, and its line in the list of all commands."""

    location: str
    """Module and name below the package, of a function or of an app with subcommands."""
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
            "demo": Command("demo.command.demo", "Audit a synthetic fleet: offline, no key, about a minute.", TRIAL),
            "doctor": Command("doctor.doctor", "Check the configuration and suggest fixes."),
            "serve": Command(
                "serving.serve", "Run the server: accept records over HTTP, score them, and serve the API and the pages."
            ),
            "help": Command("helping.help_on", "Explain a command, or the exit codes."),
            "completion": Command("helping.completion", "Print the shell completion script."),
        },
    ),
    CommandGroup(
        "Bring records in",
        {
            "import": Command("importing.imports_app", "Import transcripts of agents, their events, or tables of exchanges."),
            "connections": Command("access.connections_app", "Manage connections, which send records, and their tokens."),
            "dead-letters": Command("dead_letters.letters_app", "List, show and retry rejected records."),
            "deployments": Command(
                "deployments.deployments_app", "Record and list deployments, which charts mark and incidents name."
            ),
            "annotations": Command(
                "annotations.annotations_app", "Mark times and ranges of a project on its charts, with a text."
            ),
        },
    ),
    CommandGroup(
        "See what agents did",
        {
            "sessions": Command("listing.sessions_app", "List the sessions: turns, events, anomalies, first question."),
            "runs": Command("listing.runs", "List the runs, newest first: readiness, trust, primary failure."),
            "run": Command("finished_runs.run", "Show one run: verdict, causes, evidence, remedies."),
            "failures": Command(
                "failures.failures", "List what failed, in groups: tool and error, or cause; size, trend, examples."
            ),
            "scores": Command("listing.scores", "List the scores, newest first: tiers, sampling, anomalies."),
            "watch": Command("watching.watch_app", "Watch the fleet or a list: each new or changed row as it comes."),
            "wrap-quality": Command("finished_runs.wrap_quality", "Show the quality of session wrap-ups."),
            "costs": Command("listing.costs", "Show the cost of judging or of the agents, by project, day, model and more."),
            "diagnose": Command("diagnosing.diagnose", "Diagnose sessions without a database."),
            "finalize": Command("finished_runs.finalize", "End a session manually and diagnose it."),
            "tune": Command("policy.tune", "Propose detector thresholds that fit an agent's runs."),
            "mcp": Command("mcp.mcp", "Serve assistants over the Model Context Protocol: what got worse, why, evidence, SQL."),
            "sql": Command("querying.sql", "Run a SQL statement or a named query over the database."),
            "banner": Command("projects.banner", "Print the banner that an agent sees when a session begins."),
        },
    ),
    CommandGroup(
        "Find drift, gate a build",
        {
            "projects": Command("projects.projects", "List the projects, worst health first: reason, last days, changes."),
            "incidents": Command(
                "incidents.incidents_app", "List, show, decide, assign and comment on incidents of drift and anomaly spikes."
            ),
            "check-drift": Command("incidents.check_drift", "Check for drift and anomaly spikes, and record incidents."),
            "check": Command("finished_runs.check", "Gate a build on the readiness or trust of runs."),
            "cases": Command("gating.cases_app", "Freeze an incident as test cases."),
            "gate": Command("gating.gate", "Gate a build on the cases of an incident: is it worse than before?"),
            "alerts": Command("alerts.alerts_app", "Test the receivers of alerts, and list alerts."),
            "anchors": Command(
                "anchors.anchors_app",
                "Choose and judge anchors, exchanges that are judged repeatedly to tell a changed judge from a changed agent.",
            ),
        },
    ),
    CommandGroup(
        "Judge and evaluate",
        {
            "rejudge": Command("rejudging.rejudge", "Judge unscored exchanges."),
            "judges": Command("judges.judges_app", "Test the judge with planted attempts and answers of known quality."),
            "evaluate": Command("evaluating.evaluate", "Evaluate finished sessions against test cases."),
            "evaluations": Command(
                "evaluations.evaluations", "List evaluations, show one, or summarize them by case, model or people."
            ),
            "review": Command("reviewing.review_app", "Show the next exchange to review, and record your score."),
            "agreement": Command("reviewing.agreement", "Show the agreement of people and the judge."),
            "replay": Command("replaying.replay", "Score history again, into a separate file."),
            "replays": Command(
                "replaying.replays", "List the replays of a database, and whether their scores match the live ones."
            ),
            "compare": Command("comparing.compare", "Compare two scorings of the same exchanges."),
            "simulate-judge": Command(
                "simulator.command.simulate_judge", "Serve a simulated judge on this machine, without a key.", TRIAL
            ),
        },
    ),
    CommandGroup(
        "Keep, copy, delete data",
        {
            "export": Command("copying.export", "Write every topic's table as a Parquet file, with a signed manifest."),
            "verify": Command("copying.verify", "Check that exports are as they were written, without a database."),
            "signing-key": Command("copying.signing_key", "Print the public key that signs exports."),
            "text-key": Command("copying.text_key", "Make the key that encrypts texts on the topics."),
            "export-runs": Command("finished_runs.export", "Write every run as files."),
            "backup": Command("copying.backup", "Copy the database and its tokens. A server may be running."),
            "retention": Command("database.retention_app", "Delete records that are past their retention."),
            "erase": Command("database.erase", "Erase all records of a session or a connection permanently."),
            "compact": Command("database.compact", "Shrink a closed database."),
            "rebuild": Command("database.rebuild", "Recompute all derived records with the current rules."),
        },
    ),
    CommandGroup(
        "Administer",
        {
            "policy": Command("policy.policy_app", "Check the policy that governs auditing."),
            "operators": Command("access.operators_app", "Manage operators, who read and decide, and their tokens."),
            "links": Command("access.links_app", "Manage links that open one page to people without an account."),
            "worker": Command("serving.worker", "Run stages on Kafka."),
            "lake": Command("lake.lake_app", "Write the topics into a lake of Delta tables, and keep it in order."),
            "topics": Command("topics.topics_app", "Create, describe and check the topics on Kafka."),
        },
    ),
)
COMMANDS: Mapping[str, Command] = {name: command for group in GROUPS for name, command in group.commands.items()}
"""Every command by its name."""


def location_of(name: str) -> tuple[str, str]:
    """Return the module of a command's function or app, and its name in the module."""
    module, attribute = COMMANDS[name].location.rsplit(".", 1)
    return f"{COMMANDS[name].package}.{module}", attribute


def group_of(name: str) -> CommandGroup:
    """Return the group of a command."""
    return next(group for group in GROUPS if name in group.commands)


FIRST_STEPS = (
    ("driftline demo", "audit a synthetic fleet: offline, no key, a minute"),
    ("driftline import claude-code ~/.claude", "or openclaw, codex, exchanges, events: your own sessions"),
    ("driftline serve", "the pages in a browser, and an endpoint for agents"),
    ("driftline doctor", "check the configuration and suggest fixes"),
)
"""Commands to begin with, each with its purpose."""
_COMMAND_WIDTH = max(len(command) for command, _ in FIRST_STEPS)
_TITLE_WIDTH = max(len(group.title) for group in GROUPS)


def start_page() -> str:
    """Return the start page: the first steps, and every command by topic."""
    return "\n".join(_start_lines())


def _start_lines() -> Iterator[str]:
    yield "Driftline tells you which of your agents got worse, since when, and why."
    yield ""
    yield "Start with one of these:"
    yield from (f"  {command:<{_COMMAND_WIDTH}}  {purpose}" for command, purpose in FIRST_STEPS)
    yield ""
    yield "Commands by topic:"
    yield from (f"  {group.title:<{_TITLE_WIDTH}}  {'  '.join(group.commands)}" for group in GROUPS)
    yield ""
    yield "`driftline help COMMAND` explains a command; `driftline --help` lists all commands."
    yield "`driftline completion bash` (or zsh, fish) prints a script for tab completion."
