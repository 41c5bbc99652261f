"""`driftline deployments`: record and list releases, so that charts and incidents can name them."""

from __future__ import annotations

import getpass
from typing import Annotated

import msgspec
import typer

from audit.times import iso_time
from service.cli.commands.options import (
    AsJson,
    Database,
    ListOptions,
    OfProject,
    PolicyFile,
    print_json,
    settings_of,
    with_option_group,
)
from service.cli.list_views import print_of_project
from service.cli.terminal import out
from service.read.known_projects import require_known
from service.read.versions import deployed_version, deployed_versions
from service.setup.workspace import open_workspace, utc_now
from service.text.answers import document
from service.text.formats import plain
from service.text.window import moment_of
from streams.log.admission import EncodedRecords, encode_validated
from streams.upkeep.annotations import DEFAULT_LABEL, TOPIC, deployment, find_repeated_deployment

deployments_app = typer.Typer(no_args_is_help=True, help="Record and list deployments, which charts mark and incidents name.")


@deployments_app.command("add")
def add_deployment(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The deployed version.")],
    project: OfProject,
    label: Annotated[
        str, typer.Option("--label", metavar="NAME", help="Label of exchanges that holds the version.")
    ] = DEFAULT_LABEL,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The deployed agent; all agents by default.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Time of the deployment, in the format of --since. By default now; then the newest version is not recorded again.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="WHO", help="Name of the person who deployed it; your account by default.")
    ] = None,
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Description of the change.")] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Link to more information.")] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Record a deployment. Recording it again changes nothing."""
    moment = None if at is None else moment_of(at, "--at", utc_now())
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        made = deployment(
            project=project,
            version=version,
            by=by or getpass.getuser(),
            now=workspace.now(),
            redactor=workspace.redactor,
            label=label,
            agent=agent,
            at=moment,
            comment=comment,
            url=url,
        )
        before = None if moment else find_repeated_deployment(workspace.store, made)
        if before is None:
            accepted = EncodedRecords()
            accepted.add(TOPIC, encode_validated(made))
            workspace.runner.publish(accepted)
    shown = deployed_version(before or msgspec.structs.asdict(made))
    if as_json:
        print_json(document(shown))
    else:
        state = "known already" if before else "recorded"
        out.print(f"{plain(shown.label)} {plain(shown.version)} at {iso_time(shown.at)}: {state}", markup=False)


@deployments_app.command("list")
@with_option_group
def list_deployments(project: OfProject, options: ListOptions) -> None:
    """List the deployments of a project, newest first."""
    names = ("at", "label", "version", "agent", "by", "comment", "url")
    print_of_project(project, options, deployed_versions, names, whole=["at"], optional=["url", "by"], none="no deployment")
