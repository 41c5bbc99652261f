"""`driftline replay` scores history again under a separate label; `driftline replays` lists the replays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from audit.cost import usd_of
from schemas.bounds import EARLIEST
from schemas.errors import SettingsError
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    DryRun,
    Kafka,
    Limit,
    PolicyFile,
    Project,
    Since,
    Until,
    Yes,
    newest,
    print_json,
    settings_of,
    show_rows,
    since_of,
    until_of,
)
from service.cli.exit_codes import agree, fails_when, leave_interrupted
from service.cli.progress import counting
from service.cli.terminal import ListTable, err, out
from service.setup.judge_setup import SIMULATED, OpenedJudge
from service.text.formats import MISSING, counted
from service.write.replays import OffsetRange, Replay, ReplayRequest, default_workers, list_replays, prepare_replay
from streams.judging.call_budget import StoppedError
from streams.replay.part import PartProgress
from streams.replay.plan import JudgeMode, Outcome, ReplayPlan, Scope
from streams.replay.rescoring import Estimate


@fails_when("you decline")
def replay(
    source: Annotated[
        str, typer.Option("--from", metavar="SOURCE", help="tables, topics, or a folder written by `driftline export`.")
    ] = "tables",
    project: Project = None,
    since: Since = None,
    until: Until = None,
    judge: Annotated[
        JudgeMode,
        typer.Option(
            "--judge",
            help="recorded: use only recorded answers. live: also call the judge where no answer is recorded. "
            "batch: as live, but in batches at half the price. none: use no judge and no recorded answers.",
        ),
    ] = JudgeMode.RECORDED,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="NAME", help="Name of the replay; by default made of policy, judge and source."),
    ] = None,
    from_offset: Annotated[
        str,
        typer.Option(
            "--from-offset",
            metavar="WHERE",
            help="With --from topics: where to begin. An offset, PARTITION:OFFSET,…, or a time.",
        ),
    ] = "",
    to_offset: Annotated[
        str, typer.Option("--to-offset", metavar="WHERE", help="With --from topics: where to end, exclusive.")
    ] = "",
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=256, help="Number of processes; one per core by default.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    kafka: Kafka = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Score history again, into a separate file: with another policy or judge, or to check that the scores can be reproduced.

    To continue an interrupted replay, run the same command again. A complete replay is not run again.
    """
    settings = settings_of(database, policy, kafka=kafka)
    scope = _parse_scope(project, since, until)
    offsets = OffsetRange(from_offset, to_offset)
    planned = prepare_replay(settings, ReplayRequest(source, scope, judge, label, workers or default_workers(), offsets))
    if planned.note:
        err.say(f"note: {planned.note}", style="yellow")
    if planned.outcome is not None:
        err.say(f"{planned.plan.label} is complete: nothing to do")
        _show_outcome(planned, planned.outcome, None, as_json=as_json)
        return
    called_judge = planned.describe_judge() if judge.pays and not dry_run else None
    if dry_run or judge.pays:
        estimate = _show_estimate(planned, dry_run=dry_run, as_json=as_json)
        if dry_run:
            return
        if estimate.calls:
            agree("Call the judge?", yes=yes)
    try:
        with show_progress("replaying", planned.positions) as tell:
            outcome = planned.run(tell)
    except (KeyboardInterrupt, StoppedError):
        err.say("stopped; run the same command to continue")
        leave_interrupted()
    _show_outcome(planned, outcome, called_judge, as_json=as_json)


def replays(
    since: Since = None, until: Until = None, limit: Limit = SHOWN, database: Database = None, as_json: AsJson = False
) -> None:
    """List the replays of a database, newest first: the scope of each, and whether its scores match the live ones."""
    settings = settings_of(database)
    end = until_of(until)
    records = [
        record for record in list_replays(settings.database) if end is None or (_plan_of(record).started_at or EARLIEST) < end
    ]
    records.sort(key=lambda record: _plan_of(record).started_at or EARLIEST, reverse=True)
    folder = str(settings.database.with_name(f"{settings.database.name}.replays"))
    show_rows(
        newest(records, since_of(since), lambda record: _plan_of(record).started_at),
        replays_table,
        as_json=as_json,
        none="no replays in this period" if records or until else "no replays yet: `driftline replay` makes one",
        limit=limit,
        document=lambda record: _replay_document(record, folder),
    )


def _plan_of(record: Outcome | ReplayPlan) -> ReplayPlan:
    return record.plan if isinstance(record, Outcome) else record


def _replay_document(record: Outcome | ReplayPlan, folder: str) -> dict[str, Any]:
    if isinstance(record, Outcome):
        return outcome_document(record, folder)
    return plan_document(record) | {"finished_at": None}


def _show_estimate(planned: Replay, *, dry_run: bool, as_json: bool) -> Estimate:
    """Estimate a replay and print the estimate."""
    with show_progress("estimating", planned.positions) as tell:
        estimate = planned.estimate(tell)
    if dry_run and as_json:
        print_json(estimate_document(planned, estimate))
    else:
        # Of a dry run, the estimate is the result.
        (out if dry_run else err).say(describe_estimate(planned, estimate))
    return estimate


def _show_outcome(planned: Replay, outcome: Outcome, judge: OpenedJudge | None, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome_document(outcome, str(planned.files.result)))
        return
    for line in describe_outcome(outcome, judge):
        out.say(line)


def _parse_scope(project: str | None, since: str | None, until: str | None) -> Scope:
    """Return the exchanges to score. Raises SettingsError for an invalid time."""
    start = since_of(since)
    end = until_of(until)
    if start and end and start >= end:
        raise SettingsError("--since must be before --until", hint="--until is exclusive.")
    return Scope(project, start, end)


def estimate_document(replay: Replay, estimate: Estimate) -> dict[str, Any]:
    """Return an estimate for scripts; an unknown cost is null."""
    is_priced = not estimate.calls or estimate.unpriced < estimate.calls
    return {
        **plan_document(replay.plan),
        "exchanges": estimate.exchanges,
        "sampled": estimate.tasks,
        "reused": estimate.reused,
        "calls": estimate.calls,
        "tier3_open": estimate.open,
        "not_asked": estimate.not_asked,
        "unpriced": estimate.unpriced,
        "expected_usd": usd_of(estimate.expected) if is_priced else None,
        "at_most_usd": usd_of(estimate.at_most) if is_priced else None,
        "pays": replay.plan.asking.pays,
    }


def describe_estimate(replay: Replay, estimate: Estimate) -> str:
    """Return an estimate for people."""
    scorings = counted(estimate.tasks, "scoring")
    exchanges = f"{counted(estimate.exchanges, 'exchange')}, {scorings} by the cascade, including later revisions"
    if replay.plan.asking is JudgeMode.NONE:
        return f"{exchanges}; no judge is called and no recorded answer is used"
    parts = [exchanges, f"{counted(estimate.reused, 'recorded answer')} will be used"]
    if not replay.plan.asking.pays:
        return "; ".join([*parts, "no judge is called"])
    if estimate.calls:
        parts += [_describe_calls(replay.plan, estimate), "the cap of each session applies"]
    else:
        parts.append("every question has a recorded answer")
    if 0 < estimate.unpriced < estimate.calls:
        parts.append(f"the cost of {estimate.unpriced} is unknown and not included")
    if estimate.not_asked:
        questions = counted(estimate.not_asked, "question")
        parts.append(f"{questions} will not be asked: no price is known, or the session's cap is used up")
    return "; ".join(parts)


def _describe_calls(plan: ReplayPlan, estimate: Estimate) -> str:
    batches = " in batches at half the price" if plan.asking is JudgeMode.BATCH else ""
    cost = "at an unknown cost"
    if estimate.unpriced < estimate.calls:
        cost = f"and {usd_of(estimate.expected):.4f} USD, {usd_of(estimate.at_most):.4f} USD at most"
    tier3 = f", without Tier 3 of {estimate.open}, which depends on the earlier tiers" if estimate.open else ""
    return f"about {counted(estimate.calls, 'call')}{batches} {cost}{tier3}"


def plan_document(plan: ReplayPlan) -> dict[str, Any]:
    """Describe the scope of a replay, for scripts."""
    return {
        "label": plan.label,
        "source": plan.origin.kind,
        "place": plan.origin.place,
        "range": plan.range or None,
        "project": plan.scope.project,
        "since": plan.scope.since,
        "until": plan.scope.until,
        "judge": plan.asking.value,
        "policy_digest": plan.policy_digest,
        "started_at": plan.started_at,
    }


def outcome_document(outcome: Outcome, file: str) -> dict[str, Any]:
    """Describe the outcome of a replay, for scripts."""
    return plan_document(outcome.plan) | {
        "file": file,
        "finished_at": outcome.finished_at,
        "exchanges": outcome.exchanges,
        "scores": outcome.scores,
        "dispositions": outcome.dispositions,
        "calls": outcome.calls,
        "cost_usd": outcome.cost_usd,
        "unknown_price": outcome.unknown_price,
        "dead_letters": outcome.dead_letters,
        "digest": outcome.digest,
        "live_scores": outcome.live_scores,
        "live_digest": outcome.live_digest,
        "equal": outcome.is_equal,
    }


def describe_outcome(outcome: Outcome, judge: OpenedJudge | None) -> Iterator[str]:
    """Describe the outcome of a replay, line by line."""
    dispositions = ", ".join(f"{count} {name}" for name, count in outcome.dispositions.items())
    yield f"{counted(outcome.exchanges, 'exchange')} scored again as {outcome.plan.label}: {dispositions}"
    if outcome.plan.asking.pays:
        judge_note = f" by the {SIMULATED}" if judge is not None and judge.name == SIMULATED else ""
        calls = ", ".join(f"{count} {name}" for name, count in outcome.calls.items()) or "none needed"
        unknown_cost = f" plus the unknown cost of {outcome.unknown_price}" if outcome.unknown_price else ""
        yield f"calls{judge_note}: {calls}; {outcome.cost_usd:.4f} USD{unknown_cost}"
    if outcome.dead_letters:
        yield f"{counted(outcome.dead_letters, 'exchange')} could not be scored: see dead_letters in the file"
    yield f"digest       {outcome.digest}  {counted(outcome.scores, 'score')}"
    yield f"live scores  {outcome.live_digest}  {counted(outcome.live_scores, 'score')}"
    yield (
        "equal: byte by byte"
        if outcome.is_equal
        else f"not equal: `driftline compare {outcome.plan.label}` shows the differences"
    )


def replays_table(records: Sequence[Outcome | ReplayPlan]) -> ListTable:
    """Return a table with one replay per row."""
    headers = ["label", "source", "judge", "project", "policy", "started", "exchanges", "cost", "equal to live"]
    cells = [_table_row(record) for record in records]
    return ListTable(headers, cells, right=["exchanges", "cost"], whole=["started"], optional=["policy", "source", "project"])


def _table_row(record: Outcome | ReplayPlan) -> list[Any]:
    plan = _plan_of(record)
    started = MISSING if plan.started_at is None else f"{plan.started_at:%Y-%m-%d %H:%M}"
    cells = [plan.label, plan.origin.kind, plan.asking.value, plan.scope.project or "all", plan.policy_digest, started]
    if isinstance(record, Outcome):
        return [*cells, record.exchanges, f"{record.cost_usd:.4f}", "yes" if record.is_equal else "no"]
    return [*cells, MISSING, MISSING, "not complete"]


@contextlib.contextmanager
def show_progress(activity: str, positions: int) -> Iterator[Callable[[PartProgress], None]]:
    """Show the progress of a replay while the context is open."""
    progress = _ReplayProgress()
    with counting(activity, positions) as bar:

        def tell(report: PartProgress) -> None:
            progress.add(report)
            bar(progress.position, words=progress.describe())

        yield tell


class _ReplayProgress:
    """The positions of the parts, and the exchanges per second."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._exchanges = 0
        self._answers = 0
        self._start = time.monotonic()

    @property
    def position(self) -> int:
        """The number of positions read, in all parts."""
        return sum(self._positions.values())

    def add(self, report: PartProgress) -> None:
        """Add a report from a part."""
        if report.position:
            self._positions[report.number] = report.position
        self._exchanges += report.seen
        self._answers += report.answered

    def describe(self) -> str:
        """Return counts and rate."""
        rate = self._exchanges / max(time.monotonic() - self._start, 0.001)
        answers = f", {self._answers} answers" if self._answers else ""
        return f"{self._exchanges:,} exchanges{answers}, {rate:,.0f}/s"
