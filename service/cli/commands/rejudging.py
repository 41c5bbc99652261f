"""`driftline rejudge`: ask the judge again about unscored exchanges, after showing the expected cost."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from analytics.store.store import Store
from audit.policy import Policy
from schemas.errors import SettingsError
from service.cli.commands.options import (
    AsJson,
    Database,
    DryRun,
    Limit,
    PolicyFile,
    Project,
    Yes,
    print_json,
    settings_of,
)
from service.cli.exit_codes import agree, fails_when
from service.cli.progress import working
from service.cli.terminal import err, out
from service.read.known_projects import require_known
from service.setup.judge_setup import NAME_A_JUDGE, NONE, PRICE_IT, SIMULATED, OpenedJudge, is_unpriced, open_judge, who_judges
from service.setup.server_link import RejudgeResult
from service.setup.workspace import Workspace, open_workspace
from service.text.formats import counted, plain
from streams.engine.engine import Engine
from streams.judging.rejudging import BulkEstimate, estimate_bulk, exchanges_of, not_audited, unscored

TOLD_SECONDS = 0.5
"""Seconds between two reports of progress."""
ALL = 1_000_000
"""Maximum number of rows searched for remaining exchanges."""
_NAMED = 5
"""Projects that a message names."""


@fails_when("you decline")
def rejudge(
    project: Project = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Only exchanges unscored for this reason, e.g. no_judge or timeout; cost_cap: left out by a session's cap.",
        ),
    ] = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge exchanges that stayed unscored, oldest first. The expected cost is shown before the judge is asked."""
    settings = settings_of(database, policy)
    with open_workspace(settings, writes=True) as workspace:
        require_known(workspace, project)
        judge = judge_of(workspace)
        say_who_judges(judge, dry_run=dry_run)
        outcome = judge_unscored(workspace, project, reason, limit, dry_run=dry_run, yes=yes, as_json=as_json)
    if outcome is None:
        return
    if as_json:
        print_json(outcome)
    else:
        out.say(outcome_in_words(outcome))


def judge_unscored(
    workspace: Workspace,
    project: str | None,
    reason: str | None,
    limit: int = ALL,
    *,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> dict[str, Any] | None:
    """Show the expected cost, ask for consent, and have the unscored exchanges judged; None if nothing was judged."""
    workspace.runner.run()
    rows = unscored(workspace.store, project, reason, limit, without=not_audited(workspace.policy))
    expected = Expected(
        estimate_bulk(exchanges_of(workspace.store, rows), workspace.policy), _not_asked(rows, workspace.policy)
    )
    if as_json and dry_run:
        print_json(expected.document())
        return None
    summary = expected.in_words() if rows else _nothing(workspace.store, project, reason)
    if rows and not dry_run and expected.not_asked == len(rows):
        raise SettingsError(summary, hint=PRICE_IT)
    err.say(f"{summary}. {PRICE_IT}" if expected.not_asked else summary)
    if not rows or dry_run:
        return None
    agree("Ask the judge?", yes=yes)
    return _judged_again(workspace, rows, project, reason)


def judge_of(workspace: Workspace) -> OpenedJudge:
    """Return the judge from the settings, or of the server that has the database."""
    if workspace.server is None:
        return who_judges(workspace.settings, workspace.policy)
    return OpenedJudge(None, workspace.server.call("judge", str))


def _judged_again(
    workspace: Workspace, rows: Sequence[dict[str, Any]], project: str | None, reason: str | None
) -> dict[str, Any]:
    """Have the rows judged again; return the result."""
    if workspace.server is None:
        done = asyncio.run(_judge_again(workspace, rows, project, reason))
    else:
        with working("the server's judge scores them"):
            done = workspace.server.call("rejudge", RejudgeResult, project, reason, len(rows))
    wanted = {(row["connection"], row["exchange_id"]) for row in rows}
    left = [row for row in unscored(workspace.store, project, None, ALL) if (row["connection"], row["exchange_id"]) in wanted]
    return {
        "requested": done.requested,
        "judge": done.judge,
        "still_unscored": dict(Counter(why for row in left for why in row["reasons"])),
        "calls": dict(done.calls),
        "cost_usd": done.spent_usd,
        "unknown_price": _unpriced(rows, workspace.policy),
    }


async def _judge_again(
    workspace: Workspace, rows: Sequence[dict[str, Any]], project: str | None, reason: str | None
) -> RejudgeResult:
    """Request new judgements of the rows and wait for them."""
    opened = await open_judge(workspace.settings, workspace.policy, os.environ)
    engine = Engine(
        workspace.store, workspace.policy, workspace.redactor, workspace.now, judge=opened.judge, judge_name=opened.name
    )
    await engine.start()
    try:
        with working("judging") as tell:
            requested = await engine.rejudge(project, reason, len(rows))
            telling = asyncio.create_task(_tell(engine, requested, tell))
            await engine.wait_until_drained()
            telling.cancel()
        state = engine.state()
    finally:
        await engine.stop()
    return RejudgeResult(opened.name, requested, state.judge_calls, state.spent_usd)


async def _tell(engine: Engine, requested: int, tell: Callable[[str], None]) -> None:
    """Report the judge's progress at intervals."""
    while True:
        state = engine.state()
        calls = counted(sum(state.judge_calls.values()), "call")
        tell(f"judging {counted(requested, 'exchange')}: {calls}, {state.spent_usd:.4f} USD")
        await asyncio.sleep(TOLD_SECONDS)


@dataclass(frozen=True)
class Expected:
    """The estimate of judging again."""

    bulk: BulkEstimate
    not_asked: int
    """Exchanges that are not asked about: their judge's model has no known price, and their session has a cap."""

    def document(self) -> dict[str, Any]:
        """For scripts; an unknown cost is null."""
        unknown_costs: dict[str, Any] = {} if self._is_priced else {"expected_usd": None, "at_most_usd": None}
        return self.bulk.__dict__ | unknown_costs | {"not_asked": self.not_asked}

    def in_words(self) -> str:
        """For people."""
        bulk, unscored_ones = self.bulk, f"{counted(self.bulk.exchanges, 'exchange')} unscored"
        if self.not_asked == bulk.exchanges:
            return (
                f"{unscored_ones}: not judged, because their sessions have a cap and the price of the judge's model is unknown"
            )
        known_cost = f"and {bulk.expected_usd:.4f} USD, {bulk.at_most_usd:.4f} USD at most"
        cost = known_cost if self._is_priced else "at an unknown cost"
        calls = f"about {counted(bulk.calls, 'call')} {cost}, without Tier 3, which depends on the earlier tiers"
        parts = [f"{unscored_ones}: {calls}", "the cap of each session holds"]
        if bulk.unpriced and self._is_priced:
            parts.append(f"the cost of {bulk.unpriced} is not known and not included")
        if self.not_asked:
            parts.append(
                f"{self.not_asked} will not be judged: their sessions have a cap, and the price of the judge's model is unknown"
            )
        return "; ".join(parts)

    @property
    def _is_priced(self) -> bool:
        return self.bulk.unpriced < self.bulk.exchanges


def expected_in_words(bulk: BulkEstimate, most: int) -> str:
    """Describe the cost of having files' exchanges judged, of which at most `most` were examined."""
    number = f"the first {most} exchanges" if bulk.exchanges == most else counted(bulk.exchanges, "exchange")
    known_cost = f"and {bulk.expected_usd:.4f} USD, {bulk.at_most_usd:.4f} USD at most"
    cost = known_cost if bulk.unpriced < bulk.exchanges else "at an unknown cost"
    more = f"; the cost of {bulk.unpriced} is not known and not included" if 0 < bulk.unpriced < bulk.exchanges else ""
    calls = f"about {counted(bulk.calls, 'call')} {cost}, without Tier 3, if all are new and sampled"
    return f"{number} in the files: {calls}{more}"


def say_who_judges(judge: OpenedJudge, *, dry_run: bool) -> None:
    """Report a fault of the judge before the estimate; SettingsError if there is no judge."""
    if judge.name == NONE and not dry_run:
        raise SettingsError("there is no judge", hint=NAME_A_JUDGE)
    if note := f"there is no judge. {NAME_A_JUDGE}" if judge.name == NONE else judge.note:
        err.say(f"note: {note}", style="yellow")


def _unpriced(rows: Sequence[dict[str, Any]], policy: Policy) -> int:
    return sum(policy.for_project(row["project"]).price is None for row in rows)


def _not_asked(rows: Sequence[dict[str, Any]], policy: Policy) -> int:
    return sum(is_unpriced(policy.for_project(row["project"])) for row in rows)


def _nothing(store: Store, project: str | None, reason: str | None) -> str:
    """Report that there is nothing to judge; if a filter is the cause, report what it left out."""
    filters = {"--project": project, "--reason": reason}
    filter_text = " ".join(f"{name} {plain(value, 64)}" for name, value in filters.items() if value is not None)
    others = unscored(store, None, None, ALL) if filter_text else []
    if not others:
        return "nothing is unscored"
    reasons = Counter(why for row in others for why in row["reasons"])
    projects = Counter(row["project"] for row in others)
    named = ", ".join(f"{name} ({count})" for name, count in projects.most_common(_NAMED)) + (
        ", …" if len(projects) > _NAMED else ""
    )
    where = f" in {named}" if project is not None else ""
    verb = "is" if len(others) == 1 else "are"
    return f"nothing matches {filter_text}: {counted(len(others), 'exchange')}{where} {verb} unscored for: {', '.join(sorted(reasons))}"


def outcome_in_words(outcome: dict[str, Any]) -> str:
    """Describe the outcome of judging again."""
    note = f" by the {SIMULATED}" if outcome["judge"] == SIMULATED else ""
    calls = ", ".join(f"{count} {name}" for name, count in outcome["calls"].items()) or "none needed"
    left = ", ".join(f"{count} {name}" for name, count in outcome["still_unscored"].items()) or "none"
    unknown = outcome["unknown_price"]
    more = f" plus the unknown cost of {unknown}" if unknown else ""
    cost = "cost not known" if unknown >= outcome["requested"] else f"{outcome['cost_usd']:.4f} USD{more}"
    return (
        f"{counted(outcome['requested'], 'exchange')} judged again{note}; calls: {calls}; {cost}; tiers still unscored: {left}"
    )
