"""`driftline policy check` and `driftline tune`: check a policy file, and fit the detectors' thresholds to an agent's own history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analytics.queries import query_rows
from audit.cost import ModelPrice
from audit.detectors.thresholds import Thresholds
from audit.detectors.tuning import MIN_RUNS, proposed_policy
from audit.policy import ProjectPolicy, ProjectSettings, is_methodology, load_methodology, load_policy
from schemas.errors import InputError
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    Limit,
    OfProject,
    PolicyFile,
    clock_of,
    print_json,
    settings_of,
)
from service.cli.terminal import err, out, table
from service.read.known_projects import require_known
from service.read.runs import format_run_id
from service.read.tuning import ProfileTuning, RunsLeftOut, tune_agent
from service.setup.judge_setup import OTHERS, PRICE_HINT, unpriced_note
from service.setup.workspace import Workspace, open_workspace
from service.text.formats import MISSING, counted, plain

policy_app = typer.Typer(no_args_is_help=True, help="Check the policy that governs auditing.")


def tune(
    project: OfProject,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent; every agent of the project by default.")
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0, max=0.5, help="Share of runs that a proposed threshold may flag; 0.01 is one in a hundred."
        ),
    ] = 0.01,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="Number of days whose runs are used.")] = 90,
    limit: Limit = 10_000,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Propose detector thresholds that fit an agent's runs, with the number of runs that the present and the proposed ones flag.

    The command reads an agent's newest runs, prints lines for the policy, and changes nothing. It skips the days of confirmed incidents
    and treats all other history as normal, so review the runs that a proposal would no longer flag.
    """
    with open_workspace(settings_of(database, policy), now=clock_of(as_of)) as workspace:
        require_known(workspace, project)
        since = workspace.now() - timedelta(days=days)
        for name in _agents(workspace, project, agent):
            answer = tune_agent(
                workspace.store.cursor(), workspace.policy, project, name, since=since, limit=limit, share=share
            )
            if not answer.profiles and agent is not None:
                others = " but " + " and ".join(map(_left_out_words, answer.left_out)) if answer.left_out else ""
                raise InputError(
                    f"there are no runs of agent {plain(agent)!r} in the {days} days before {workspace.now():%Y-%m-%d}{others}",
                    hint="Change --days or --as-of; `driftline runs` lists the runs.",
                )
            if not as_json:
                for runs in answer.left_out:
                    out.print(f"Left out: {_left_out_words(runs)}.", markup=False, soft_wrap=True)
            for tuning in answer.profiles:
                _show(project, name, tuning, share, left_out=answer.left_out if as_json else None)


def _left_out_words(left_out: RunsLeftOut) -> str:
    days = f"since {left_out.first}" if left_out.last is None else f"from {left_out.first} to {left_out.last}"
    return f"{counted(left_out.runs, 'run')} {days}, the days of incident {left_out.incident_id}"


def _agents(workspace: Workspace, project: str, agent: str | None) -> Sequence[str | None]:
    """Return the agents to tune; InputError if the project, or the named agent, has no run."""
    names = [row["agent"] for row in query_rows(workspace.store.cursor(), "agents_with_runs", {"project": project})]
    if not names:
        raise InputError(
            f"project {project} has no runs yet", hint="A session becomes one when it ends: driftline finalize SESSION."
        )
    if agent is None:
        return names
    if agent not in names:
        there = ", ".join(plain(name) for name in names[:10] if name)
        raise InputError(
            f"--agent: project {project} has no runs of {plain(agent)!r}",
            hint=f"It has runs of: {there or 'unnamed agents only'}.",
        )
    return [agent]


def _show(
    project: str, agent: str | None, tuning: ProfileTuning, share: float, *, left_out: Sequence[RunsLeftOut] | None
) -> None:
    """Show a tuning; as JSON with the runs that are `left_out`."""
    changes: dict[str, Any] = {}
    if agent is not None:
        changes = proposed_policy(tuning.rows, tuning.profile.name, agent)
    if left_out is not None:
        print_json(
            {
                "project": project,
                "agent": agent,
                "profile": tuning.profile.version,
                "runs": tuning.runs,
                "left_out": left_out,
                "thresholds": tuning.rows,
                "proposed_policy": {"projects": {project: changes}} if changes else None,
            }
        )
        return
    out.print(tuning_view(agent, tuning))
    if tuning.runs < MIN_RUNS:
        out.print(f"Too few runs for a proposal: {tuning.runs} of {MIN_RUNS}.", markup=False)
    elif changes:
        out.print(
            f"Proposed for the policy: each flags at most {share:.1%} of these {counted(tuning.runs, 'run')}.", markup=False
        )
        out.print(yaml.safe_dump({"projects": {project: changes}}, sort_keys=False), markup=False, highlight=False)
    else:
        out.print("The thresholds fit these runs: nothing to change.")


def tuning_view(agent: str | None, tuning: ProfileTuning) -> RenderableType:
    """Show the thresholds of one profile, one per line: values of the runs, runs flagged now, proposal."""
    headers = ["threshold", "now", "median", "p95", "p99", "most", "flags", "proposed", "would flag", "newest flagged runs"]
    fields = Thresholds.model_fields
    rows = [
        [
            str(fields[row.threshold].alias),
            _number(row.value),
            *map(_number, (row.median, row.p95, row.p99, row.most)),
            _share(row.flagged, tuning.runs),
            _number(row.proposed) if row.is_changed else "same",
            _share(row.proposed_flagged, tuning.runs),
            ", ".join(format_run_id(number) for number in row.runs) or MISSING,
        ]
        for row in tuning.rows
        if row.value is not None
    ]
    title = f"{agent or 'runs without an agent'}: {counted(tuning.runs, 'run')}, thresholds {tuning.profile.version}"
    return Group(Text(title, style="bold"), table(headers, rows, right=headers[1:-1]))


def _number(value: float | None) -> str:
    return "off" if value is None else f"{value:,.0f}"


def _share(count: int, runs: int) -> str:
    return f"{count} ({count / runs:.1%})"


@policy_app.command("check")
def policy_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Policy file or methodology file.")],
    as_json: AsJson = False,
) -> None:
    """Check a policy file with its methodologies, or one methodology, and show the settings in force per project."""
    document, shown, note = _methodology(file) if is_methodology(file) else _policy(file)
    if note:
        err.say(f"note: {note}. {PRICE_HINT}", style="yellow")
    if as_json:
        print_json(document)
        return
    out.print(shown)
    out.print(f"{plain(file)} can be used", style="green")


def _methodology(file: Path) -> tuple[dict[str, Any], Table, str]:
    """Describe a methodology file as a document and as a table, without notes."""
    methodology = load_methodology(file)
    document = {"methodology": methodology.name, "version": methodology.version, "digest": methodology.digest}
    return document, table(list(document), [list(document.values())]), ""


def _policy(file: Path) -> tuple[dict[str, Any], Table, str]:
    """Describe the settings in force per project as a document and as a table, with notes on judges that cannot be asked."""
    policy = load_policy(file)
    document = {name or OTHERS: _in_force(policy.for_project(name)) for name in ["", *policy.projects]}
    headers = ["audit", "methodology", "sampling", "judge", "cap", "price", "digest"]
    shown = table(["project", *headers], [[name, *map(row.get, headers)] for name, row in document.items()])
    return document, shown, unpriced_note(policy)


def _in_force(project_policy: ProjectPolicy) -> dict[str, Any]:
    """Return the settings of a project: in short, and in full."""
    sampling = project_policy.settings.sampling
    return {
        "audit": "on" if project_policy.settings.enabled else "off",
        "methodology": f"{project_policy.methodology.name} {project_policy.methodology.version}",
        "sampling": f"1 routine turn in {sampling.routine_interval}" if sampling.enabled else "everything",
        "judge": project_policy.settings.judge_model,
        "cap": _caps(project_policy.settings),
        "price": _price(project_policy.price),
        "digest": project_policy.digest,
        "settings": project_policy.settings.model_dump(by_alias=True),
    }


def _caps(settings: ProjectSettings) -> str:
    """Return the caps of a project in USD: per session, day and month."""
    caps = {"": settings.cost_cap_per_session, " a day": settings.cost_caps.day, " a month": settings.cost_caps.month}
    return ", ".join(f"{cap:g} USD{period}" for period, cap in caps.items() if cap is not None) or "none"


def _price(price: ModelPrice | None) -> str:
    """Return the price in USD per million tokens of input and of output."""
    return "not known" if price is None else f"{price.input:g} / {price.output:g} USD"
