"""`driftline runs`, `scores` and `costs`: lists that load no rules, so that they start fast."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from schemas.bounds import EARLIEST
from schemas.errors import SettingsError
from service.cli.commands.options import (
    Agent,
    AgentVersion,
    Anomalies,
    Failure,
    ListOptions,
    PolicyFile,
    Project,
    Tool,
    ToolErrors,
    ViewOptions,
    offer_older,
    show_rows,
    with_option_group,
)
from service.cli.list_views import ListView, note_cold_days, open_for_display, printed
from service.cli.terminal import out
from service.cli.views import (
    RUN_KEYS,
    SCORE_KEYS,
    SESSION_KEYS,
    agent_costs_table,
    caps_table,
    costs_table,
    runs_table,
    scores_table,
    sessions_table,
)
from service.read.runs import Run, runs_of
from service.read.scores import Score, ScoreFilter, judge_costs, project_scores
from service.setup.workspace import Workspace
from service.text.answers import document
from service.text.formats import MISSING, counted, plain


@with_option_group
def list_runs(
    project: Project = None,
    agent: Agent = None,
    version: AgentVersion = None,
    failure: Failure = None,
    tool: Tool = None,
    tool_errors: ToolErrors = False,
    *,
    options: ViewOptions,
) -> ListView[Run]:
    """List the runs, most recently ended first: readiness level, trust score, primary failure, tool calls."""
    named = {"agent": agent_of(agent), "failure": failure_of(failure), "tool": tool, "version": version}

    def read(workspace: Workspace, first: datetime | None) -> list[Run]:
        between = (first, options.end)
        runs = runs_of(workspace.store, project, newest=options.limit + 1, between=between, tool_error=tool_errors, **named)
        return sorted(runs, key=_last_at, reverse=True)

    return ListView(
        read=read,
        table=runs_table,
        keys=RUN_KEYS,
        identify=lambda run: (run.project, run.run_id),
        options=options,
        none=f"no runs{of_project(project)}{describe_filters(options, *named.values(), tool_errors)}: "
        "a session becomes a run when it ends (driftline finalize SESSION)",
        project=project,
        time_of=_last_at,
        is_detailed=bool(tool or version or tool_errors),
    )


runs = printed(list_runs)
sessions_app = typer.Typer(no_args_is_help=True, help="List the sessions.")


@with_option_group
def session_list(
    project: Project = None,
    agent: Agent = None,
    version: AgentVersion = None,
    failure: Failure = None,
    tool: Tool = None,
    tool_errors: ToolErrors = False,
    anomalies: Anomalies = False,
    *,
    options: ViewOptions,
) -> ListView[Any]:
    """List the sessions, most recently active first: turns, events, anomalies, failure of the run, first question."""
    from service.read.sessions import SessionFilter, recent_sessions  # noqa: PLC0415 - it loads rules, which the other lists do not need

    agent_name, primary_failure = agent_of(agent), failure_of(failure)

    def read(workspace: Workspace, start: datetime | None) -> list[Any]:
        filters = SessionFilter(
            start=start or EARLIEST,
            # Clocks of senders may be ahead.
            end=options.end or workspace.now() + timedelta(days=1),
            agent=agent_name,
            version=version,
            tool=tool,
            tool_error=tool_errors,
            failure=primary_failure,
            anomalies=anomalies,
            limit=options.limit + 1,
        )
        return recent_sessions(workspace.store.cursor(), project, filters)

    selected = (agent, version, failure, tool, tool_errors, anomalies)
    return ListView(
        read=read,
        table=sessions_table,
        keys=SESSION_KEYS,
        identify=lambda session: (session.connection, session.session_id),
        options=options,
        none=f"no sessions{of_project(project)}{describe_filters(options, *selected)}",
        project=project,
        time_of=lambda session: session.last_at,
        is_detailed=True,
    )


sessions_app.command("list")(printed(session_list))


@with_option_group
def list_scores(
    project: Project = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session.")] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="WORDS",
            help="Only exchanges with all of these words: in the question, the answer or a tool's name.",
        ),
    ] = None,
    agent: Agent = None,
    version: AgentVersion = None,
    tool: Tool = None,
    tool_errors: ToolErrors = False,
    anomalies: Anomalies = False,
    *,
    options: ViewOptions,
) -> ListView[Score]:
    """List the scores, newest exchange first: tiers, sampling reasons, anomalies."""
    filters = ScoreFilter(
        start=options.start,
        end=options.end,
        session=session,
        text=text,
        agent=agent_of(agent),
        version=version,
        tool=tool,
        tool_error=tool_errors,
        anomalies=anomalies,
        limit=options.limit + 1,
    )
    return ListView(
        read=lambda workspace, start: project_scores(workspace.store.cursor(), project, replace(filters, start=start)),
        table=scores_table,
        keys=SCORE_KEYS,
        identify=lambda score: score.score_id,
        options=options,
        none="no score matches",
        project=project,
        time_of=lambda score: score.exchange_at,
        is_detailed=True,
    )


scores = printed(list_scores)


def agent_of(name: str | None) -> str | None:
    """Return the agent that `--agent` filters by: `-` stands for records without a name."""
    return "" if name == "-" else name


def failure_of(name: str | None) -> str | None:
    """Return the primary failure that `--failure` filters by: `-` stands for runs without a failure. Raises SettingsError if unknown."""
    if name is None or name == "-":
        return None if name is None else ""
    from audit.detectors.detectors import FAILURE_TYPES  # noqa: PLC0415 - lists without this filter load no rules

    if name not in FAILURE_TYPES:
        near = get_close_matches(name, FAILURE_TYPES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"--failure {plain(name, 64)}: is no failure", hint=f"{hint}One of {', '.join(FAILURE_TYPES)}, or -."
        )
    return name


def describe_filters(options: ListOptions, *others: str | bool | None) -> str:
    """Return what a message about an empty list says of its filters. None and False stand for no filter."""
    times = (("since", options.start), ("until", options.end))
    period = [f"{name} {time:%Y-%m-%d %H:%M}" for name, time in times if time is not None]
    matching = ["that match"] if any(value not in (None, False) for value in others) else []
    return f" {' '.join([*period, *matching]) or 'yet'}"


def _last_at(run: Run) -> datetime:
    return run.last_at


def of_project(project: str | None) -> str:
    """Return ` of project NAME` for a message; empty without a project."""
    return "" if project is None else f" of project {project}"


class By(StrEnum):
    """Groups that costs can be summed by."""

    SESSION = "session"
    PROJECT = "project"
    DAY = "day"
    MODEL = "model"
    AGENT = "agent"
    VERSION = "version"


JUDGING_GROUPS = {
    By.SESSION: ("project", "connection", "session_id"),
    By.PROJECT: ("project",),
    By.DAY: ("day",),
    By.MODEL: ("model",),
}
"""The fields that name a group of judging costs."""
AGENT_GROUPS = (By.PROJECT, By.AGENT, By.VERSION, By.MODEL, By.DAY)
"""The groups of the costs of agents."""


@with_option_group
def costs(
    by: Annotated[
        By, typer.Option("--by", help="What to group by; agent and version only with --agents. Days are UTC.")
    ] = By.PROJECT,
    agents: Annotated[
        bool,
        typer.Option("--agents", help="Show what the agents' models cost, in place of judging; the last 30 days by default."),
    ] = False,
    project: Project = None,
    policy: PolicyFile = None,
    *,
    options: ListOptions,
) -> None:
    """Show the cost of judging, or of the agents: calls, tokens and money.

    Days are listed newest first, other groups by cost, highest first. --since and --until apply to the time of the judge's answer, or with
    --agents to that of the exchange. The caps of the current day and month (costCaps in the policy) follow, with the spending that counts
    toward them. The cost of the agents is the list price of the tokens of their exchanges, and at most what they cost, because tokens from
    a cache are cheaper. Set the prices of other models with `prices` in the policy.
    """
    allowed = AGENT_GROUPS if agents else tuple(JUDGING_GROUPS)
    if by not in allowed:
        other = "the agents are not grouped by session" if agents else f"judging is not grouped by {by.value}"
        hint = f"Use one of {', '.join(allowed)}" + ("." if agents else ", or add --agents.")
        raise SettingsError(f"--by {by.value}: {other}", hint=hint)
    show = _show_agent_costs if agents else _show_judging_costs
    with open_for_display(options.database, project, policy) as workspace:
        show(workspace, by, project, options)


def _show_judging_costs(workspace: Workspace, by: By, project: str | None, options: ListOptions) -> None:
    from service.read.caps import shared_caps  # noqa: PLC0415 - it loads the policy, which the other lists do not need

    start, end = options.start, options.end
    rows = judge_costs(workspace.store.cursor(), by.value, project, start, end)
    if start is not None and end is None and not rows:
        older = judge_costs(workspace.store.cursor(), By.DAY.value, project, end=start)
        offer_older(start, older[-1].day if older else None)
    caps = [] if options.as_json else shared_caps(workspace.store.cursor(), workspace.policy, project, workspace.now())
    if by is By.DAY:
        rows.reverse()
    none = f"no judge calls{of_project(project)}{' in this period' if start or end else ''}: no cost"
    as_table = partial(costs_table, JUDGING_GROUPS[by])
    show_rows(rows, as_table, as_json=options.as_json, none=none, limit=options.limit, document=document)
    if caps:
        out.print(caps_table(caps))


def _show_agent_costs(workspace: Workspace, by: By, project: str | None, options: ListOptions) -> None:
    """Show the costs of the agents, and below them that of judging in the same period."""
    from service.read.agent_costs import (  # noqa: PLC0415 - it loads prices, which the other lists do not need
        DEFAULT_PERIOD,
        read_agent_costs,
        sum_agent_costs,
        sum_known_usd,
    )

    last = options.end or workspace.now()
    first = options.start or last - DEFAULT_PERIOD
    rows = read_agent_costs(workspace.store.cursor(), project, first, last, workspace.policy.prices)
    note_cold_days(workspace, project, first, last)
    groups = sum_agent_costs(rows, [by.value])
    if by is By.DAY:
        groups.reverse()
    period = f"from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    none = f"no exchanges{of_project(project)} {period}: no cost"
    as_table = partial(agent_costs_table, by.value)
    show_rows(groups, as_table, as_json=options.as_json, none=none, limit=options.limit, document=document)
    if groups and not options.as_json:
        judging = judge_costs(workspace.store.cursor(), "all", project, first, last)
        judging_usd = judging[0].cost_usd if judging else 0.0
        agents, judge = (MISSING if usd is None else f"{usd:.4f} USD" for usd in (sum_known_usd(rows), judging_usd))
        unknown = sum(row["exchanges"] if row["cost_usd"] is None else row["unknown_tokens"] for row in rows)
        without = f", without {counted(unknown, 'exchange')} of unknown cost" if unknown else ""
        out.say(f"\nAgents: at most {agents}{without}. Judging: {judge}. {period[0].upper()}{period[1:]}.")
