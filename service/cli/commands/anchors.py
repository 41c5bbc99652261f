"""`driftline anchors`: exchanges that are judged repeatedly, to tell a changed judge from a changed agent."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
from typing import Annotated, Any

import typer

from schemas.errors import InputError, SettingsError
from service.cli.commands.options import AsJson, Database, OfProject, PolicyFile, print_json, settings_of
from service.cli.progress import working
from service.cli.terminal import err, out, table
from service.read.judges import AnchoredExchange, JudgeOfTier, Round, anchored_exchange, project_anchors
from service.read.known_projects import require_known
from service.setup.judge_setup import JUDGE_HINT, open_judge
from service.setup.workspace import Workspace, open_workspace
from service.text.answers import document
from service.text.formats import MISSING, counted, plain
from streams.engine.engine import Engine
from streams.upkeep.anchors import candidates, choose, find_exchanges, run_round, withdraw

anchors_app = typer.Typer(
    no_args_is_help=True,
    help="Choose and judge anchors, exchanges that are judged repeatedly to tell a changed judge from a changed agent.",
)


@anchors_app.command("list")
def list_anchors(project: OfProject, database: Database = None, as_json: AsJson = False) -> None:
    """List the anchors of a project, their last round, and the verdict on the judge."""
    with open_workspace(settings_of(database)) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        answer = project_anchors(cursor, project)
    if as_json:
        print_json(document(answer))
    elif not answer.anchors:
        err.say(f"no anchor in project {plain(project, 64)} yet (driftline anchors add)")
    else:
        headers = ["anchor", "connection", "exchange", "judged", "by", "since"]
        out.print(table(headers, [_row(anchor) for anchor in answer.anchors]))
        out.print(_last_round(answer.rounds), markup=False)
        for judge in answer.judge:
            out.say(_in_words(judge))


@anchors_app.command("add")
def add_anchors(
    project: OfProject,
    exchanges: Annotated[list[str] | None, typer.Argument(metavar="EXCHANGE", help="Ids of exchanges.")] = None,
    connection: Annotated[str | None, typer.Option("--connection", metavar="NAME", help="Connection of the exchanges.")] = None,
    count: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=500, help="Without ids: number of exchanges to choose, spread over the judge's scores."
        ),
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Choose anchors: the given exchanges, or as many as the policy sets. Each round costs at most one session's cap."""
    if exchanges and count is not None:
        raise InputError("give either exchanges or --count", hint="Leave one of them out.")
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            if exchanges:
                chosen = find_exchanges(cursor, project, exchanges, connection)
            else:
                wanted = count or workspace.policy.for_project(project).settings.anchors.count
                chosen = candidates(cursor, project, wanted)
        made = asyncio.run(choose(workspace.publisher, project, chosen, getpass.getuser()))
    if as_json:
        print_json([document(anchored_exchange(anchor)) for anchor in made])
    elif made:
        out.print(f"{counted(len(made), 'anchor')} chosen; the server judges them from now on, as does `driftline anchors run`")
    else:
        err.print("no exchange can become an anchor: it must have been judged, and not be an anchor already")


@anchors_app.command("withdraw")
def withdraw_anchor(
    anchor_id: Annotated[str, typer.Argument(metavar="ANCHOR", help="Id of the anchor.")],
    project: OfProject,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop judging an anchor. Its results are kept."""
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        withdrawn = asyncio.run(withdraw(workspace.publisher, project, anchor_id, getpass.getuser()))
    if withdrawn is None:
        raise InputError(f"no anchor {plain(anchor_id)!r} in project {project}", hint="`driftline anchors list` shows them.")
    if as_json:
        print_json(document(anchored_exchange(withdrawn)))
    else:
        out.say(f"{plain(withdrawn.exchange_id)} is no longer judged")


@anchors_app.command("run")
def run_anchors(project: OfProject, database: Database = None, policy: PolicyFile = None, as_json: AsJson = False) -> None:
    """Judge the anchors again, and wait for the results. If a server has the database, its judge is used."""
    with open_workspace(settings_of(database, policy), writes=True) as workspace:
        require_known(workspace, project)
        with working("judging the anchors again"):
            if workspace.server is None:
                judged = asyncio.run(_round(workspace, project))
            else:
                judged = workspace.server.call("judge_anchors", int, project)
        with contextlib.closing(workspace.store.cursor()) as cursor:
            answer = project_anchors(cursor, project)
    if as_json:
        shown = document(answer)
        print_json({"anchors": judged, "rounds": shown["rounds"], "judge": shown["judge"]})
        return
    out.print(f"{counted(judged, 'anchor')} judged again")
    for judge in answer.judge:
        out.say(_in_words(judge))


async def _round(workspace: Workspace, project: str) -> int:
    """Have the anchors judged; return their number when that is done. SettingsError without a judge."""
    opened = await open_judge(workspace.settings, workspace.policy, os.environ)
    if opened.judge is None:
        raise SettingsError("there is no judge", hint=JUDGE_HINT)
    store, policy, redactor = workspace.store, workspace.policy, workspace.redactor
    engine = Engine(store, policy, redactor, workspace.now, judge=opened.judge, judge_name=opened.name)
    await engine.start()
    try:
        begun = await run_round(engine, project)
        await engine.wait_until_drained()
        return begun.exchanges
    finally:
        await engine.stop()


def _row(anchor: AnchoredExchange) -> list[Any]:
    active = "yes" if anchor.active else "no more"
    chosen_at = f"{anchor.occurred_at:%Y-%m-%d %H:%M}"
    return [anchor.anchor_id, anchor.connection, anchor.exchange_id, active, anchor.chosen_by, chosen_at]


def _last_round(rounds: list[Round]) -> str:
    if not rounds:
        return "No rounds yet."
    last = rounds[0]
    cost = "unknown cost" if last.cost_usd is None else f"{last.cost_usd:.4f} USD"
    scored = f"{last.scored} of {last.anchors} scored"
    return f"{counted(len(rounds), 'round')}; the last one {last.at:%Y-%m-%d %H:%M}: {scored}, {cost}"


def _in_words(judge: JudgeOfTier) -> str:
    """Describe the anchors' finding about the judge of a tier."""
    size = MISSING
    if judge.low is not None:
        size = f"{judge.size:+.3f} of the scale ({judge.low:+.3f} to {judge.high:+.3f}, {counted(judge.anchors, 'anchor')})"
    if judge.changed:
        return f"{judge.tier}: the judge has scored {judge.direction} since {judge.since:%Y-%m-%d %H:%M}, by {size}"
    return f"{judge.tier}: no change of the judge is proven; last round against the earlier ones: {size}"
