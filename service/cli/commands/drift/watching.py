"""`driftline check-drift`: find drift and anomaly spikes, and record incidents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from analytics.sums.daily import refresh_daily
from audit.drift.consecutive_days import DAYS
from service.cli.commands.drift.incident_gate import HELP, FailOn, failing, gate_lines
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    Project,
    clock_of,
    print_json,
    settings_of,
)
from service.cli.entry.exit_codes import fails_when, leave
from service.cli.incident_views import check_view
from service.cli.progress import counting, working
from service.cli.terminal import err, out
from service.read.incidents import drift_check
from service.read.known_projects import require_known
from service.read.project import moment_words
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.write.importing import resume_histories
from streams.watch.checking import Checked
from streams.watch.rounds import recent_projects
from streams.watch.watching import AT_ONCE, Watch


@fails_when("--fail-on is given and such an incident exists")
def check_drift(
    project: Project = None,
    fail_on: Annotated[list[FailOn] | None, typer.Option("--fail-on", metavar="KIND", help=HELP)] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Check for drift and anomaly spikes: compute baselines that are due, apply the rules, and record incidents.

    A server does this on its own. With `--fail-on` it gates a build.
    """
    kinds = fail_on or []
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        require_known(workspace, project)
        as_of_now = workspace.now()
        if as_of is None and workspace.server is None:
            with counting("checking days") as bar:
                resume_histories(workspace, bar)
        checked = check_projects(workspace, None if project is None else [project])
        failed = failing(workspace.store.cursor(), project, kinds)
    if as_json:
        for one in checked:
            print_json(document(drift_check(one, workspace.policy.for_project(one.project).methodology.version)))
    elif checked:
        out.print(check_view(checked))
    else:
        out.say(
            f"No project was checked: none has exchanges or runs in the {DAYS} days before {moment_words(as_of_now)}. "
            "--as-of TIME checks as of another time."
        )
    if failed:
        for line in gate_lines(failed, kinds):
            err.say(line)
    leave(failed=bool(failed))


def check_projects(workspace: Workspace, projects: Sequence[str] | None = None) -> list[Checked]:
    """Check some projects of a database, or all with recent exchanges, as of the workspace's current time."""
    now = workspace.now()
    if workspace.server is not None:
        with working("the server checks"):
            return workspace.server.call("check", list[Checked], projects, now)
    with working("summing days"):
        refresh_daily(workspace.store)
    wanted = recent_projects(workspace.store, now) if projects is None else projects
    return asyncio.run(_check(watch_over(workspace), wanted))


async def _check(watch: Watch, projects: Sequence[str]) -> list[Checked]:
    checked: list[Checked] = []
    with counting("checking projects", len(projects)) as bar:
        for start in range(0, len(projects), AT_ONCE):
            batch = projects[start : start + AT_ONCE]
            checked += await watch.check(batch)
            bar(start + len(batch))
    return checked


def watch_over(workspace: Workspace) -> Watch:
    """Return the watch over a database that this process has."""
    return Watch(workspace.publisher)
