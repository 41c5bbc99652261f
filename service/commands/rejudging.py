"""`driftline rejudge`: the judge is asked again about what stayed unscored, after saying what that would cost."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from schemas.errors import SettingsError
from service.commands.options import AsJson, Database, PolicyFile, Project, print_json, settings_of
from service.judging import SIMULATED, open_judge
from service.settings import Settings
from service.terminal import counted, err, out
from service.workspace import Workspace, open_workspace
from streams.engine import Engine
from streams.judges.protocol import Judge
from streams.rejudging import BulkEstimate, estimate_bulk, exchanges_of, unscored


def rejudge(
    project: Project = None,
    reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="Only what is unscored for this reason, e.g. no_judge or timeout.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many exchanges, oldest first.")] = 10_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would cost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before paying.")] = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Have the exchanges judged that stayed unscored; says what it is expected to cost before it asks."""
    settings = settings_of(database, policy)
    with open_workspace(settings) as workspace:
        workspace.runner.run()
        rows = unscored(workspace.store, project, reason, limit)
        expected = estimate_bulk(exchanges_of(workspace.store, rows), workspace.policy)
        if as_json and dry_run:
            print_json(expected.__dict__)
            return
        err.print(_in_words(expected), markup=False, soft_wrap=True)
        if not rows or dry_run:
            return
        if not yes:
            typer.confirm("Ask the judge?", abort=True, err=True)
        outcome = asyncio.run(_judge_again(settings, workspace, rows, project, reason))
    if as_json:
        print_json(outcome)
    else:
        out.print(_outcome_in_words(outcome), markup=False, soft_wrap=True)


async def _judge_again(
    settings: Settings, workspace: Workspace, rows: Sequence[dict[str, Any]], project: str | None, reason: str | None
) -> dict[str, Any]:
    """Ask for the rows to be judged again, wait for it, and answer what came of it."""
    judge, name = await open_judge(settings, workspace.policy, os.environ)
    if judge is None:
        raise SettingsError("there is no judge", hint="Set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server of your own.")
    engine = _engine(workspace, judge, name)
    await engine.start()
    try:
        requested = await engine.rejudge(project, reason, len(rows))
        await engine.drained()
        state = engine.state()
    finally:
        await engine.stop()
    wanted = {(row["connection"], row["exchange_id"]) for row in rows}
    left = [
        row for row in unscored(workspace.store, project, None, 1_000_000) if (row["connection"], row["exchange_id"]) in wanted
    ]
    return {
        "requested": requested,
        "judge": name,
        "still_unscored": dict(Counter(why for row in left for why in row["reasons"])),
        "calls": dict(state.judge_calls),
        "cost_usd": state.spent_usd,
    }


def _engine(workspace: Workspace, judge: Judge, name: str) -> Engine:
    return Engine(workspace.store, workspace.policy, workspace.redactor, workspace.now, judge=judge, judge_name=name)


def _in_words(expected: BulkEstimate) -> str:
    if not expected.exchanges:
        return "nothing is unscored"
    unpriced = f"; the judge of {expected.unpriced} has no known price" if expected.unpriced else ""
    return (
        f"{counted(expected.exchanges, 'exchange')} unscored: about {counted(expected.calls, 'call')} and {expected.expected_usd:.4f} USD, "
        f"{expected.at_most_usd:.4f} USD at most, without Tier 3, which depends on what comes before it; "
        f"the cap of each session holds{unpriced}"
    )


def _outcome_in_words(outcome: dict[str, Any]) -> str:
    note = f" by the {SIMULATED}" if outcome["judge"] == SIMULATED else ""
    calls = ", ".join(f"{count} {name}" for name, count in outcome["calls"].items()) or "none needed"
    left = ", ".join(f"{count} {name}" for name, count in outcome["still_unscored"].items()) or "none"
    return (
        f"{counted(outcome['requested'], 'exchange')} judged again{note}; calls: {calls}; {outcome['cost_usd']:.4f} USD; "
        f"tiers still unscored: {left}"
    )
