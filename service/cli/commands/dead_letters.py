"""`driftline dead-letters`: list rejected records, show them as text or as a hex dump, and retry them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from schemas.errors import InputError
from schemas.records import DeadLetter
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    Kafka,
    Limit,
    PolicyFile,
    Since,
    Until,
    print_json,
    settings_of,
    since_of,
    until_of,
)
from service.cli.exit_codes import fails_when, leave
from service.cli.progress import working
from service.cli.terminal import ListTable, err, leave_quietly, out, table
from service.read.installation import (
    KeptLetter,
    LetterList,
    LetterReason,
    OpenLetter,
    RetriedLetters,
    ReturnedLetter,
    StoredLetter,
    letter_reasons,
    open_letters,
)
from service.text.answers import document
from service.text.formats import counted, plain
from service.write.dead_letters import (
    Filters,
    Outcome,
    StoredDeadLetter,
    find_dead_letter,
    open_dead_letters,
    retry,
    select_for_retry,
)
from streams.log.dead_letters import Retry, RetryRefusal, is_whole

letters_app = typer.Typer(no_args_is_help=True, help="List, show and retry rejected records.")
Stage = Annotated[
    str | None, typer.Option("--stage", metavar="NAME", help="Only records rejected by this stage, for example decoding.")
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="CODE", help="Only records rejected for this reason, for example unknown_schema."),
]
Source = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only records from this topic or file.")]


@letters_app.command("list")
def list_letters(
    stage: Stage = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = SHOWN,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Count the open dead letters by stage and reason, and list them, newest first. --since and --until apply to the time of rejection."""
    filters = _filters(stage, reason, source, since, until)
    with open_dead_letters(settings_of(database, kafka=kafka)) as box:
        cursor = box.store.cursor()
        listed = LetterList(reasons=letter_reasons(cursor, vars(filters)), letters=open_letters(cursor, vars(filters), limit))
    if as_json:
        print_json(document(listed))
    elif listed.letters:
        out.print(letters_view(listed))
    else:
        err.say("no dead letter" if filters == Filters() else "no dead letter matches")


@letters_app.command("show")
def show_letter(
    start: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter, or its unique beginning.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write only the stored bytes, unchanged.")] = False,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its source, the reason, the expected result of a retry, and its bytes."""
    with open_dead_letters(settings_of(database, kafka=kafka)) as box:
        stored = find_dead_letter(box.store, start)
        [plan] = box.plan_retries([stored.letter])
    if raw:
        _write_bytes(stored.letter.body)
    elif as_json:
        print_json(document(stored_letter(stored, plan)))
    else:
        out.print(letter_view(stored, plan), soft_wrap=True)


@letters_app.command("retry")
@fails_when("a dead letter cannot be retried")
def retry_letters(
    starts: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of dead letters, or their unique beginnings.")
    ] = None,
    stage: Stage = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 10_000,
    database: Database = None,
    policy: PolicyFile = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Retry dead letters, oldest first: publish them again to their topic, and report why others cannot be retried.

    A dead letter can be retried if its bytes are complete and unredacted, and this version can read them. No judge is called, unless a
    server with a judge has the database.
    """
    filters = _filters(stage, reason, source, since, until)
    if bool(starts) == (filters != Filters()):
        raise InputError(
            "select dead letters either by their ids or by --stage, --reason, --source, --since or --until",
            hint="Give ids or options.",
        )
    with open_dead_letters(settings_of(database, policy, kafka=kafka)) as box:
        ids, retried_before = select_for_retry(box.store, starts or [], filters, limit)
        with working(f"retrying {counted(len(ids), 'dead letter')}"):
            outcome = retry(box, ids)
    if as_json:
        print_json(document(retried_letters(outcome, retried_before)))
    else:
        for line in outcome_lines(outcome, retried_before):
            out.say(line)
    leave(failed=bool(outcome.stays))


def _filters(stage: str | None, reason: str | None, source: str | None, since: str | None, until: str | None) -> Filters:
    return Filters(stage, reason, source, since_of(since), until_of(until))


def _write_bytes(body: bytes) -> None:
    """Write bytes to standard output unchanged."""
    try:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()


MAX_LINES = 200
"""Maximum number of lines shown of a text."""
MAX_LINE_LENGTH = 400
"""Maximum number of characters shown of a line."""
MAX_DUMPED_BYTES = 1024
"""Maximum number of bytes in a hex dump."""
_BYTES_PER_ROW = 16
_WHITESPACE = "\t\r\n"
_MAX_LISTED = 12
"""Maximum number of dead letters listed after a retry; the others are counted."""


def letters_view(listed: LetterList) -> RenderableType:
    """Return a table of the number of dead letters per reason, and a table of the newest ones."""
    letters = listed.letters
    total = sum(reason.letters for reason in listed.reasons)
    counts = table(["letters", "stage", "reason", "first", "last"], map(_reason_cells, listed.reasons), right=["letters"])
    heading = Text(
        f"The newest {len(letters)} of {total}" if len(letters) < total else counted(total, "dead letter"), style="bold"
    )
    headers = ["id", "rejected", "from", "stage", "reason", "bytes", "detail"]
    cells = [
        [
            letter.id[:8],
            f"{letter.rejected_at:%Y-%m-%d %H:%M}",
            describe_origin(letter),
            letter.stage,
            letter.reason,
            f"{letter.size:,}",
            letter.detail,
        ]
        for letter in letters
    ]
    newest = ListTable(headers, cells, right=["bytes"], whole=["id", "rejected"], optional=["bytes", "stage"])
    return Group(counts, "", heading, newest)


def describe_origin(letter: OpenLetter | DeadLetter) -> str:
    """Return the topic, partition and offset of a dead letter, or its file and line."""
    source = plain(letter.source, 80)
    return f"{source}:{letter.position}" if letter.partition is None else f"{source}[{letter.partition}] at {letter.position}"


def letter_view(stored: StoredDeadLetter, plan: Retry | RetryRefusal) -> RenderableType:
    """Show one dead letter: its origin, the reason, the expected outcome of a retry, and its bytes."""
    letter = stored.letter
    fields = {
        "id": letter.dead_letter_id,
        "from": describe_origin(letter),
        "rejected": f"{letter.rejected_at:%Y-%m-%d %H:%M:%S} by {plain(letter.stage)}",
        "reason": f"{letter.reason}: {letter.detail}",
        "size": f"{letter.size:,} bytes, {describe_storage(letter)}",
        "sha-256": letter.digest,
        "retry": describe_retry(stored, plan),
    }
    width = max(map(len, fields))
    lines = [Text(f"{name:<{width}}  {plain(value, 1200)}") for name, value in fields.items()]
    return Group(*lines, "", *(Text(line) for line in body_lines(letter.body)))


def stored_letter(stored: StoredDeadLetter, plan: Retry | RetryRefusal) -> StoredLetter:
    """Return a dead letter for scripts: its fields, and its bytes in hexadecimal and, if they are text, as text."""
    return StoredLetter.of(
        msgspec.structs.asdict(stored.letter),
        id=stored.letter.dead_letter_id,
        body=_decode_text(stored.letter.body),
        body_hex=stored.letter.body.hex(),
        whole=is_whole(stored.letter),
        retried_at=stored.retried_at,
        retry=describe_retry(stored, plan),
    )


def describe_storage(letter: DeadLetter) -> str:
    """Describe how much of the bytes is stored."""
    if is_whole(letter):
        return "all stored unchanged"
    if len(letter.body) < letter.size:
        return f"{len(letter.body):,} stored, without secrets"
    return "stored without secrets, or different from the digest"


def describe_retry(stored: StoredDeadLetter, plan: Retry | RetryRefusal) -> str:
    """Describe the expected outcome of a retry, or the time of a past one."""
    if stored.retried_at is not None:
        return f"done at {stored.retried_at:%Y-%m-%d %H:%M:%S}"
    if isinstance(plan, RetryRefusal):
        return f"not possible: {plan.reason}"
    return f"possible, as {_with_article(type(plan.record).__name__)} onto {plan.topic}"


def outcome_lines(outcome: Outcome, retried_before: Sequence[str]) -> Iterator[str]:
    """Describe the outcome of a retry: the first dead letters that were not retried, and a summary at the end."""
    for stay in outcome.stays[:_MAX_LISTED]:
        yield f"{stay.dead_letter.dead_letter_id[:8]} not retried: {plain(stay.reason, 400)}"
    if len(outcome.stays) > _MAX_LISTED:
        yield f"… and {len(outcome.stays) - _MAX_LISTED} more not retried"
    for letter_id in retried_before:
        yield f"{letter_id[:8]} was retried before"
    summary = f"{counted(len(outcome.returned), 'dead letter')} retried, {len(outcome.stays)} not retried"
    if outcome.rejected_again:
        summary += f"; {counted(outcome.rejected_again, 'record')} rejected again"
    yield summary


def retried_letters(outcome: Outcome, retried_before: Sequence[str]) -> RetriedLetters:
    """Return the outcome of a retry for scripts."""
    return RetriedLetters(
        put_back=[
            ReturnedLetter(id=plan.dead_letter.dead_letter_id, topic=plan.topic, record=type(plan.record).__name__)
            for plan in outcome.returned
        ],
        stay=[KeptLetter(id=plan.dead_letter.dead_letter_id, reason=plan.reason) for plan in outcome.stays],
        put_back_before=list(retried_before),
        set_aside_again=outcome.rejected_again,
    )


def body_lines(body: bytes) -> Iterator[str]:
    """Return the bytes as lines that are safe on a terminal: the lines of a text, or a hex dump of the first bytes."""
    if not body:
        yield "(no bytes)"
        return
    text = _decode_text(body)
    yield from _hex_lines(body) if text is None else _text_lines(text)


def _text_lines(text: str) -> Iterator[str]:
    lines = text.splitlines() or [""]
    yield from (plain(line.replace("\t", "    "), MAX_LINE_LENGTH) for line in lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        yield f"… and {len(lines) - MAX_LINES} more lines; --raw writes all"


def _hex_lines(body: bytes) -> Iterator[str]:
    for start in range(0, min(len(body), MAX_DUMPED_BYTES), _BYTES_PER_ROW):
        row = body[start : start + _BYTES_PER_ROW]
        characters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{3 * _BYTES_PER_ROW}} {characters}"
    if len(body) > MAX_DUMPED_BYTES:
        yield f"… and {len(body) - MAX_DUMPED_BYTES:,} more bytes; --raw writes all"


def _decode_text(body: bytes) -> str | None:
    """Return the bytes as text; None if they are not UTF-8, or if more than a tenth are control characters, as in binary data."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    controls = sum(character < " " and character not in _WHITESPACE for character in text)
    return None if controls * 10 > len(text) else text


def _reason_cells(reason: LetterReason) -> list[object]:
    moments = (f"{at:%Y-%m-%d %H:%M}" for at in (reason.first_at, reason.last_at))
    return [f"{reason.letters:,}", reason.stage, reason.reason, *moments]


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
