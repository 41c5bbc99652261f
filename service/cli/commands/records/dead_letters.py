"""`driftline dead-letters`: inspect and retry refused records."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from schemas.errors import InputError
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    Kafka,
    Limit,
    PolicyFile,
    Since,
    print_json,
    settings_of,
    since_of,
)
from service.cli.dead_letter_views import letter_view, letters_view, outcome_lines, retried_letters, stored_letter
from service.cli.entry.exit_codes import fails_when, leave
from service.cli.progress import working
from service.cli.terminal import err, leave_quietly, out
from service.read.dead_letters import LetterList, letter_reasons, open_letters
from service.text.answers import document
from service.text.plain import counted
from service.write.dead_letters import Filters, ids_to_retry, letter_box, letter_of
from service.write.dead_letters import retry as retried

letters_app = typer.Typer(no_args_is_help=True, help="List refused records, look at them, retry them.")
Stage = Annotated[
    str | None, typer.Option("--stage", metavar="NAME", help="Only records refused by this stage, e.g. decoding.")
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="CODE", help="Only for this reason, e.g. unknown_schema.")]
Source = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only from this topic or file.")]


@letters_app.command("list")
def list_letters(
    stage: Stage = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    limit: Limit = SHOWN,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Count the open dead letters by stage and reason, and list them, newest first. `--since`: when they were set aside."""
    filters = _filters(stage, reason, source, since)
    with letter_box(settings_of(database, kafka=kafka)) as box:
        cursor, chosen = box.store.cursor(), vars(filters)
        listed = LetterList(reasons=letter_reasons(cursor, chosen), letters=open_letters(cursor, chosen, limit))
    if as_json:
        print_json(document(listed))
    elif listed.letters:
        out.print(letters_view(listed))
    else:
        err.say("no dead letter" if filters == Filters() else "no dead letter matches")


@letters_app.command("show")
def show_letter(
    start: Annotated[str, typer.Argument(metavar="ID", help="Id of the letter, or a unique beginning of it.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the stored bytes unchanged, and nothing else.")] = False,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its source, the reason, what a retry would do, and its bytes."""
    with letter_box(settings_of(database, kafka=kafka)) as box:
        found = letter_of(box.store, start)
        (way,) = box.ways_back([found.letter])
    if raw:
        _write(found.letter.body)
    elif as_json:
        print_json(document(stored_letter(found, way)))
    else:
        out.print(letter_view(found, way), soft_wrap=True)


@letters_app.command("retry")
@fails_when("a letter stays")
def retry_letters(
    starts: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Ids of letters, or their beginnings.")] = None,
    stage: Stage = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    limit: Limit = 10_000,
    database: Database = None,
    policy: PolicyFile = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Retry dead letters, oldest first: put them back where they came from, and say why others stay.

    A letter can be retried if its bytes are whole and unredacted, and this version can read them. No judge is asked, except by a
    server that has the database and a judge.
    """
    filters = _filters(stage, reason, source, since)
    if bool(starts) == (filters != Filters()):
        raise InputError(
            "choose letters by their ids, or by --stage, --reason, --source or --since", hint="Give one or the other."
        )
    with letter_box(settings_of(database, policy, kafka=kafka)) as box:
        ids, done = ids_to_retry(box.store, starts or [], filters, limit)
        with working(f"retrying {counted(len(ids), 'dead letter')}"):
            outcome = retried(box, ids)
    if as_json:
        print_json(document(retried_letters(outcome, done)))
    else:
        for line in outcome_lines(outcome, done):
            out.say(line)
    leave(failed=bool(outcome.stays))


def _filters(stage: str | None, reason: str | None, source: str | None, since: str | None) -> Filters:
    return Filters(stage, reason, source, since_of(since))


def _write(body: bytes) -> None:
    """Write bytes to the output unchanged."""
    try:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()
