"""`driftline rejudge`: judge unscored exchanges, after showing the expected cost."""

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
from audit.spending import SHARED_CAPS
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
from service.read.caps import reached_caps
from service.read.known_projects import require_known
from service.setup.judge_setup import (
    JUDGE_HINT,
    NONE,
    PRICE_HINT,
    SIMULATED,
    OpenedJudge,
    describe_judge,
    is_unpriced,
    open_judge,
)
from service.setup.server_link import RejudgeResult
from service.setup.workspace import Workspace, open_workspace
from service.text.formats import counted, plain
from streams.engine.engine import Engine
from streams.judging.rejudging import (
    BulkEstimate,
    estimate_bulk,
    list_unscored,
    read_earlier_turns,
    read_exchanges,
    unaudited_projects,
)

PROGRESS_INTERVAL = 0.5
"""Seconds between two reports of progress."""
MAX_UNSCORED = 1_000_000
"""Maximum number of unscored exchanges that are read."""
_MAX_PROJECTS = 5
"""Maximum number of projects that a message names."""


@fails_when("you decline")
def rejudge(
    project: Project = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Only exchanges unscored for this reason, for example no_judge, timeout, cost_cap or project_day_cap.",
        ),
    ] = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge unscored exchanges, oldest first. The expected cost is shown before the judge is called."""
    settings = settings_of(database, policy)
    with open_workspace(settings, writes=True) as workspace:
        require_known(workspace, project)
        report_judge(find_judge(workspace), dry_run=dry_run)
        outcome = judge_unscored(workspace, project, reason, limit, dry_run=dry_run, yes=yes, as_json=as_json)
    if outcome is None:
        return
    if as_json:
        print_json(outcome)
    else:
        out.say(describe_outcome(outcome))


def judge_unscored(
    workspace: Workspace,
    project: str | None,
    reason: str | None,
    limit: int = MAX_UNSCORED,
    *,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> dict[str, Any] | None:
    """Show the expected cost, ask for consent, and have the unscored exchanges judged.

    Return the outcome for scripts; None if nothing was judged.
    """
    workspace.runner.run()
    rows = list_unscored(workspace.store, project, reason, limit, without=unaudited_projects(workspace.policy))
    turns = read_earlier_turns(workspace.store, [(row["connection"], row["exchange_id"]) for row in rows])
    bulk = estimate_bulk(read_exchanges(workspace.store, rows), workspace.policy, turns)
    estimate = RejudgeEstimate(bulk, _count_not_asked(rows, workspace.policy))
    if as_json and dry_run:
        print_json(estimate.document())
        return None
    summary = estimate.describe() if rows else _explain_no_match(workspace.store, project, reason)
    if rows and not dry_run and estimate.not_asked == len(rows):
        raise SettingsError(summary, hint=PRICE_HINT)
    # Of a dry run, the estimate is the result.
    (out if dry_run else err).say(f"{summary}. {PRICE_HINT}" if estimate.not_asked else summary)
    if not rows or dry_run:
        return None
    agree("Call the judge?", yes=yes)
    return _judge_rows(workspace, rows, project, reason)


def find_judge(workspace: Workspace) -> OpenedJudge:
    """Return the judge of the server that has the database; without a server, the judge that the settings select."""
    if workspace.server is None:
        return describe_judge(workspace.settings, workspace.policy)
    return OpenedJudge(None, workspace.server.call("judge", str))


def _judge_rows(
    workspace: Workspace, rows: Sequence[dict[str, Any]], project: str | None, reason: str | None
) -> dict[str, Any]:
    """Have the rows judged again, by the server or by this process; return the outcome."""
    if workspace.server is None:
        result = asyncio.run(_judge_here(workspace, rows, project, reason))
    else:
        with working("waiting for the server's judge"):
            result = workspace.server.call("rejudge", RejudgeResult, project, reason, len(rows))
    requested_ids = {(row["connection"], row["exchange_id"]) for row in rows}
    if any(name in SHARED_CAPS for name in result.calls):
        for cap in reached_caps(workspace.store.cursor(), workspace.policy, project, workspace.now()):
            err.say(f"note: {cap.summary}. {cap.consequence}", style="yellow")
    remaining = list_unscored(workspace.store, project, None, MAX_UNSCORED)
    still_unscored = [row for row in remaining if (row["connection"], row["exchange_id"]) in requested_ids]
    return {
        "requested": result.requested,
        "judge": result.judge,
        "still_unscored": _count_reasons(still_unscored),
        "calls": dict(result.calls),
        "cost_usd": result.spent_usd,
        "unknown_price": _count_unpriced(rows, workspace.policy),
    }


def _count_reasons(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(reason for row in rows for reason in row["reasons"]))


async def _judge_here(
    workspace: Workspace, rows: Sequence[dict[str, Any]], project: str | None, reason: str | None
) -> RejudgeResult:
    """Request judgements of the rows from an engine in this process, and wait for them."""
    opened = await open_judge(workspace.settings, workspace.policy, os.environ)
    engine = Engine(
        workspace.store, workspace.policy, workspace.redactor, workspace.now, judge=opened.judge, judge_name=opened.name
    )
    await engine.start()
    try:
        with working("judging") as report:
            requested = await engine.rejudge(project, reason, len(rows))
            reporting = asyncio.create_task(_report_progress(engine, requested, report))
            await engine.wait_until_drained()
            reporting.cancel()
        state = engine.state()
    finally:
        await engine.stop()
    return RejudgeResult(opened.name, requested, state.judge_calls, state.spent_usd)


async def _report_progress(engine: Engine, requested: int, report: Callable[[str], None]) -> None:
    """Report the judge's progress at intervals."""
    while True:
        state = engine.state()
        calls = counted(sum(state.judge_calls.values()), "call")
        report(f"judging {counted(requested, 'exchange')}: {calls}, {state.spent_usd:.4f} USD")
        await asyncio.sleep(PROGRESS_INTERVAL)


@dataclass(frozen=True)
class RejudgeEstimate:
    """The estimate of judging unscored exchanges."""

    bulk: BulkEstimate
    not_asked: int
    """Exchanges for which the judge is not called: its model has no known price, and their session has a cap."""

    def document(self) -> dict[str, Any]:
        """Return the estimate for scripts; an unknown cost is null."""
        document = self.bulk.__dict__ | {"not_asked": self.not_asked}
        return document if self._is_priced else document | {"expected_usd": None, "at_most_usd": None}

    def describe(self) -> str:
        """Return the estimate for people."""
        bulk = self.bulk
        exchanges = counted(bulk.exchanges, "unscored exchange")
        if self.not_asked == bulk.exchanges:
            return f"{exchanges}: not judged, because their sessions have a cap and the price of the judge's model is unknown"
        cost = _format_cost(bulk)
        calls = f"about {counted(bulk.calls, 'call')} {cost}, without Tier 3, which depends on the earlier tiers"
        parts = [f"{exchanges}: {calls}", "the cap of each session applies"]
        if bulk.unpriced and self._is_priced:
            parts.append(f"the cost of {bulk.unpriced} is unknown and not included")
        if self.not_asked:
            parts.append(
                f"{self.not_asked} will not be judged: their sessions have a cap, and the price of the judge's model is unknown"
            )
        return "; ".join(parts)

    @property
    def _is_priced(self) -> bool:
        return self.bulk.unpriced < self.bulk.exchanges


def describe_estimate(bulk: BulkEstimate, max_exchanges: int) -> str:
    """Describe the cost of having the exchanges in files judged, of which at most `max_exchanges` were examined."""
    is_capped = bulk.exchanges == max_exchanges
    number = f"the first {max_exchanges} exchanges" if is_capped else counted(bulk.exchanges, "exchange")
    calls = f"about {counted(bulk.calls, 'call')} {_format_cost(bulk)}, without Tier 3, if all are new and sampled"
    unpriced = f"; the cost of {bulk.unpriced} is unknown and not included" if 0 < bulk.unpriced < bulk.exchanges else ""
    return f"{number} in the files: {calls}{unpriced}"


def _format_cost(bulk: BulkEstimate) -> str:
    if bulk.unpriced >= bulk.exchanges:
        return "at an unknown cost"
    return f"and {bulk.expected_usd:.4f} USD, {bulk.at_most_usd:.4f} USD at most"


def report_judge(judge: OpenedJudge, *, dry_run: bool) -> None:
    """Print a problem of the judge, if any. Raises SettingsError if there is no judge, except in a dry run."""
    if judge.name == NONE and not dry_run:
        raise SettingsError("there is no judge", hint=JUDGE_HINT)
    note = f"there is no judge. {JUDGE_HINT}" if judge.name == NONE else judge.note
    if note:
        err.say(f"note: {note}", style="yellow")


def _count_unpriced(rows: Sequence[dict[str, Any]], policy: Policy) -> int:
    return sum(not policy.for_project(row["project"]).is_priced for row in rows)


def _count_not_asked(rows: Sequence[dict[str, Any]], policy: Policy) -> int:
    return sum(is_unpriced(policy.for_project(row["project"])) for row in rows)


def _explain_no_match(store: Store, project: str | None, reason: str | None) -> str:
    """Report that no exchange is unscored, or that the filters exclude all unscored exchanges."""
    filters = {"--project": project, "--reason": reason}
    filter_text = " ".join(f"{option} {plain(value, 64)}" for option, value in filters.items() if value is not None)
    excluded = list_unscored(store, None, None, MAX_UNSCORED) if filter_text else []
    if not excluded:
        return "no exchange is unscored"
    reasons = ", ".join(sorted(_count_reasons(excluded)))
    in_projects = f" in {_list_projects(excluded)}" if project is not None else ""
    verb = "is" if len(excluded) == 1 else "are"
    return f"nothing matches {filter_text}: {counted(len(excluded), 'exchange')}{in_projects} {verb} unscored for: {reasons}"


def _list_projects(rows: Sequence[dict[str, Any]]) -> str:
    """List the projects of rows, the most frequent ones first, with their number of rows."""
    projects = Counter(row["project"] for row in rows)
    labels = ", ".join(f"{name} ({count})" for name, count in projects.most_common(_MAX_PROJECTS))
    return f"{labels}, …" if len(projects) > _MAX_PROJECTS else labels


def describe_outcome(outcome: dict[str, Any]) -> str:
    """Describe the outcome of judging again, for people."""
    judge = f" by the {SIMULATED}" if outcome["judge"] == SIMULATED else ""
    calls = ", ".join(f"{count} {name}" for name, count in outcome["calls"].items()) or "none needed"
    still_unscored = ", ".join(f"{count} {name}" for name, count in outcome["still_unscored"].items()) or "none"
    unpriced = outcome["unknown_price"]
    unknown_cost = f" plus the unknown cost of {unpriced}" if unpriced else ""
    cost = "cost unknown" if unpriced >= outcome["requested"] else f"{outcome['cost_usd']:.4f} USD{unknown_cost}"
    exchanges = counted(outcome["requested"], "exchange")
    return f"{exchanges} judged again{judge}; calls: {calls}; {cost}; tiers still unscored: {still_unscored}"
