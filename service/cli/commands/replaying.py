"""`driftline replay` scores history again under a separate label; `driftline replays` lists the replays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table

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
from service.cli.terminal import err, out, table
from service.setup.judge_setup import SIMULATED, OpenedJudge
from service.text.formats import MISSING, counted
from service.write.replays import OffsetRange, Replay, ReplayRequest, default_workers, replay_of, replays_in
from streams.judging.call_budget import StoppedError
from streams.replay.part import Heard
from streams.replay.plan import Asking, Outcome, Plan, Scope
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
        Asking,
        typer.Option(
            "--judge",
            help="recorded: use only recorded answers; live, batch: call the judge for the others, singly "
            "or in batches at half the price; none: neither call nor look up.",
        ),
    ] = Asking.RECORDED,
    label: Annotated[
        str | None, typer.Option("--label", metavar="NAME", help="Name of the replay; by default policy, judge and source.")
    ] = None,
    from_offset: Annotated[
        str,
        typer.Option("--from-offset", metavar="WHERE", help="With --from topics: an offset, PARTITION:OFFSET,…, or a time."),
    ] = "",
    to_offset: Annotated[str, typer.Option("--to-offset", metavar="WHERE", help="The same for the end; exclusive.")] = "",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=256, help="Processes; one per core by default.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    kafka: Kafka = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Score history again, into a separate file: by another policy or judge, or to prove that the scores can be reproduced.

    Run the same command again to continue an interrupted replay; a complete one is not run again.
    """
    settings = settings_of(database, policy, kafka=kafka)
    scope = _scope(project, since, until)
    offsets = OffsetRange(from_offset, to_offset)
    planned = replay_of(settings, ReplayRequest(source, scope, judge, label, workers or default_workers(), offsets))
    if planned.note:
        err.say(f"note: {planned.note}", style="yellow")
    if planned.outcome is not None:
        err.say(f"{planned.plan.label} is complete: nothing to do")
        _show(planned, planned.outcome, None, as_json=as_json)
        return
    asked_judge = planned.who_judges() if judge.pays and not dry_run else None
    if (dry_run or judge.pays) and not _agreed(planned, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    try:
        with telling("replaying", planned.positions) as tell:
            outcome = planned.run(tell)
    except (KeyboardInterrupt, StoppedError):
        err.say("stopped; run the same command to continue")
        leave_interrupted()
    _show(planned, outcome, asked_judge, as_json=as_json)


def replays(since: Since = None, limit: Limit = SHOWN, database: Database = None, as_json: AsJson = False) -> None:
    """List the replays of a database, newest first: the scope of each, and whether its scores match the live ones."""
    settings, start = settings_of(database), since_of(since)
    stored = sorted(replays_in(settings.database), key=lambda replay_record: _started(replay_record) or EARLIEST, reverse=True)
    shown = newest(stored, start, _started)
    folder = str(settings.database.with_name(f"{settings.database.name}.replays"))
    none = "no replays since then" if stored else "no replays yet: `driftline replay` makes one"
    show_rows(
        shown,
        replays_table,
        as_json=as_json,
        none=none,
        limit=limit,
        document=lambda replay_record: _document(replay_record, folder),
    )


def _started(replay_record: Outcome | Plan) -> datetime | None:
    return (replay_record.plan if isinstance(replay_record, Outcome) else replay_record).started_at


def _document(replay_record: Outcome | Plan, folder: str) -> dict[str, Any]:
    return (
        outcome_document(replay_record, folder)
        if isinstance(replay_record, Outcome)
        else plan_document(replay_record) | {"finished_at": None}
    )


def _agreed(planned: Replay, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show the replay's estimate and, if it may cost anything, ask for consent. Tell whether to go on."""
    with telling("estimating", planned.positions) as tell:
        expected = planned.estimate(tell)
    if dry_run and as_json:
        print_json(estimate_document(planned, expected))
        return False
    err.say(estimate_in_words(planned, expected))
    if dry_run:
        return False
    if expected.calls:
        agree("Ask the judge?", yes=yes)
    return True


def _show(planned: Replay, outcome: Outcome, judge: OpenedJudge | None, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome_document(outcome, str(planned.files.result)))
        return
    for line in outcome_in_words(outcome, judge):
        out.say(line)


def _scope(project: str | None, since: str | None, until: str | None) -> Scope:
    """Return the scope to score; SettingsError names the option of an invalid time."""
    start, end = since_of(since), until_of(until)
    if start and end and start >= end:
        raise SettingsError("--since must be before --until", hint="--until is exclusive.")
    return Scope(project, start, end)


def estimate_document(replay: Replay, estimate: Estimate) -> dict[str, Any]:
    """Return an estimate for scripts; an unknown cost is null."""
    asks = replay.plan.asking.pays
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
        "pays": asks,
    }


def estimate_in_words(replay: Replay, estimate: Estimate) -> str:
    """Return an estimate for people."""
    sampled = f"{counted(estimate.exchanges, 'exchange')}, {counted(estimate.tasks, 'scoring')} by the cascade, later revisions included"
    parts = [sampled, f"{counted(estimate.reused, 'recorded answer')} will be used"]
    if replay.plan.asking is Asking.NONE:
        return f"{sampled}; no judge is asked and no recorded answer is used"
    if not replay.plan.asking.pays:
        return "; ".join([*parts, "no judge is asked"])
    if estimate.calls:
        known_cost = f"and {usd_of(estimate.expected):.4f} USD, {usd_of(estimate.at_most):.4f} USD at most"
        cost = known_cost if estimate.unpriced < estimate.calls else "at an unknown cost"
        half = " in batches at half the price" if replay.plan.asking is Asking.BATCH else ""
        more = f", without Tier 3 of {estimate.open}, which depends on the earlier tiers" if estimate.open else ""
        parts += [f"about {counted(estimate.calls, 'call')}{half} {cost}{more}", "the cap of each session holds"]
    else:
        parts.append("no questions are left")
    if 0 < estimate.unpriced < estimate.calls:
        parts.append(f"the cost of {estimate.unpriced} is not known and not included")
    if estimate.not_asked:
        parts.append(f"{counted(estimate.not_asked, 'question')} will not be asked: no price is known, or a cap leaves no room")
    return "; ".join(parts)


def plan_document(plan: Plan) -> dict[str, Any]:
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


def outcome_in_words(outcome: Outcome, judge: OpenedJudge | None) -> Iterator[str]:
    """Describe the outcome of a replay, line by line."""
    what = ", ".join(f"{count} {name}" for name, count in outcome.dispositions.items())
    yield f"{counted(outcome.exchanges, 'exchange')} scored again as {outcome.plan.label}: {what}"
    if outcome.plan.asking.pays:
        by = f" by the {SIMULATED}" if judge is not None and judge.name == SIMULATED else ""
        calls = ", ".join(f"{count} {name}" for name, count in outcome.calls.items()) or "none needed"
        unknown = f" plus the unknown cost of {outcome.unknown_price}" if outcome.unknown_price else ""
        yield f"calls{by}: {calls}; {outcome.cost_usd:.4f} USD{unknown}"
    if outcome.dead_letters:
        yield f"{counted(outcome.dead_letters, 'exchange')} could not be scored: see dead_letters in the file"
    yield f"digest       {outcome.digest}  {counted(outcome.scores, 'score')}"
    yield f"live scores  {outcome.live_digest}  {counted(outcome.live_scores, 'score')}"
    yield (
        "equal: byte by byte"
        if outcome.is_equal
        else f"not equal: `driftline compare live {outcome.plan.label}` shows what differs"
    )


def replays_table(records: Sequence[Outcome | Plan]) -> Table:
    """Show each replay on a line."""
    headers = ["label", "source", "judge", "project", "policy", "started", "exchanges", "cost", "equal to live"]
    return table(headers, [_row(record) for record in records], right=["exchanges", "cost"])


def _row(record: Outcome | Plan) -> list[Any]:
    plan = record.plan if isinstance(record, Outcome) else record
    started = MISSING if plan.started_at is None else f"{plan.started_at:%Y-%m-%d %H:%M}"
    cells = [plan.label, plan.origin.kind, plan.asking.value, plan.scope.project or "all", plan.policy_digest, started]
    if isinstance(record, Outcome):
        return [*cells, record.exchanges, f"{record.cost_usd:.4f}", "yes" if record.is_equal else "no"]
    return [*cells, MISSING, MISSING, "not complete"]


@contextlib.contextmanager
def telling(what: str, positions: int) -> Iterator[Callable[[Heard], None]]:
    """Show the progress of a replay while the context is open."""
    progress = _Progress()
    with counting(what, positions) as bar:

        def tell(heard: Heard) -> None:
            progress.take(heard)
            bar(progress.done, words=progress.told())

        yield tell


class _Progress:
    """The positions of the parts, and their rate."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}
        self._seen = self._answered = 0
        self._since = time.monotonic()

    @property
    def done(self) -> int:
        """Return the positions reached, in all parts."""
        return sum(self._reached.values())

    def take(self, heard: Heard) -> None:
        """Record news of a part."""
        if heard.position:
            self._reached[heard.number] = heard.position
        self._seen += heard.seen
        self._answered += heard.answered

    def told(self) -> str:
        """Return counts and rate."""
        rate = self._seen / max(time.monotonic() - self._since, 0.001)
        answered = f", {self._answered} answers" if self._answered else ""
        return f"{self._seen:,} exchanges{answered}, {rate:,.0f}/s"
