"""`driftline replay` scores history again under a separate label; `driftline replays` lists the replays."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

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
from service.cli.entry.exit_codes import agree, fails_when, leave_interrupted
from service.cli.replay_wording import (
    estimate_document,
    estimate_in_words,
    outcome_document,
    outcome_in_words,
    plan_document,
    replays_table,
    telling,
)
from service.cli.terminal import err, out
from service.setup.judge_setup import OpenedJudge
from service.write.replays import OffsetRange, Replay, Wanted, default_workers, replay_of, replays_in
from streams.judging.call_budget import StoppedError
from streams.replay.plan import Asking, Outcome, Plan, Scope


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
            help="recorded: use only recorded answers; live, batch: ask the judge for the others, one by one "
            "or in batches at half the price; none: neither ask nor look up.",
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
    found = replay_of(settings, Wanted(source, scope, judge, label, workers or default_workers(), offsets))
    if found.note:
        err.say(f"note: {found.note}", style="yellow")
    if found.outcome is not None:
        err.say(f"{found.plan.label} is complete: nothing to do")
        _show(found, found.outcome, None, as_json=as_json)
        return
    asked = found.who_judges() if judge.pays and not dry_run else None
    if (dry_run or judge.pays) and not _agreed(found, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    try:
        with telling("replaying", found.positions) as tell:
            outcome = found.run(tell)
    except (KeyboardInterrupt, StoppedError):
        err.say("stopped; run the same command to continue")
        leave_interrupted()
    _show(found, outcome, asked, as_json=as_json)


def replays(since: Since = None, limit: Limit = SHOWN, database: Database = None, as_json: AsJson = False) -> None:
    """List the replays of a database, newest first: the scope of each, and whether its scores match the live ones."""
    settings, start = settings_of(database), since_of(since)
    found = sorted(replays_in(settings.database), key=lambda one: _started(one) or EARLIEST, reverse=True)
    shown = newest(found, start, _started)
    folder = str(settings.database.with_name(f"{settings.database.name}.replays"))
    none = "no replays since then" if found else "no replays yet: `driftline replay` makes one"
    show_rows(shown, replays_table, as_json=as_json, none=none, limit=limit, document=lambda one: _document(one, folder))


def _started(found: Outcome | Plan) -> datetime | None:
    return (found.plan if isinstance(found, Outcome) else found).started_at


def _document(found: Outcome | Plan, folder: str) -> dict[str, Any]:
    return outcome_document(found, folder) if isinstance(found, Outcome) else plan_document(found) | {"finished_at": None}


def _agreed(found: Replay, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show the replay's estimate and, if it may cost anything, ask for consent. Tell whether to go on."""
    with telling("estimating", found.positions) as tell:
        expected = found.estimate(tell)
    if dry_run and as_json:
        print_json(estimate_document(found, expected))
        return False
    err.say(estimate_in_words(found, expected))
    if dry_run:
        return False
    if expected.calls:
        agree("Ask the judge?", yes=yes)
    return True


def _show(found: Replay, outcome: Outcome, judge: OpenedJudge | None, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome_document(outcome, str(found.files.result)))
        return
    for line in outcome_in_words(outcome, judge):
        out.say(line)


def _scope(project: str | None, since: str | None, until: str | None) -> Scope:
    """Return the scope to score; SettingsError names the option of an invalid time."""
    start, end = since_of(since), until_of(until)
    if start and end and start >= end:
        raise SettingsError("--since must be before --until", hint="--until is exclusive.")
    return Scope(project, start, end)
