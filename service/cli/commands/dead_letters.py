"""`driftline dead-letters`: list refused records, show them as text or as a hex dump, and retry them."""

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
    print_json,
    settings_of,
    since_of,
)
from service.cli.exit_codes import fails_when, leave
from service.cli.progress import working
from service.cli.terminal import err, leave_quietly, out, table
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
from service.write.dead_letters import Filters, Found, Outcome, ids_to_retry, letter_box, letter_of
from service.write.dead_letters import retry as retried
from streams.log.dead_letters import Return, Stays, is_whole

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
    limit: Limit = SHOWN,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Count the open dead letters by stage and reason, and list them, newest first. --since applies to the time of rejection."""
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
    start: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter, or its unique beginning.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write only the stored bytes, unchanged.")] = False,
    database: Database = None,
    kafka: Kafka = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its source, the reason, the expected result of a retry, and its bytes."""
    with letter_box(settings_of(database, kafka=kafka)) as box:
        stored = letter_of(box.store, start)
        (way,) = box.ways_back([stored.letter])
    if raw:
        _write(stored.letter.body)
    elif as_json:
        print_json(document(stored_letter(stored, way)))
    else:
        out.print(letter_view(stored, way), soft_wrap=True)


@letters_app.command("retry")
@fails_when("a dead letter cannot be retried")
def retry_letters(
    starts: Annotated[
        list[str] | None, typer.Argument(metavar="[ID…]", help="Ids of dead letters, or their unique beginnings.")
    ] = None,
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
    """Retry dead letters, oldest first: publish them again to their topic, and report why others cannot be retried.

    A dead letter can be retried if its bytes are complete and unredacted, and this version can read them. No judge is called, unless a
    server with a judge has the database.
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


LINES = 200
"""Lines of a text that are shown."""
WIDTH = 400
"""Characters of a line that are shown."""
DUMPED = 1024
"""Bytes of a hex dump."""
_IN_A_ROW = 16
_BLANKS = "\t\r\n"
_NAMED = 12
"""Letters of a retry that are named; beyond that the reasons are counted."""


def letters_view(listed: LetterList) -> RenderableType:
    """Show the number of letters per reason, then the newest of them."""
    letters = listed.letters
    total = sum(reason.letters for reason in listed.reasons)
    counts = table(["letters", "stage", "reason", "first", "last"], map(_reason_cells, listed.reasons), right=["letters"])
    heading = Text(
        f"The newest {len(letters)} of {total}" if len(letters) < total else counted(total, "dead letter"), style="bold"
    )
    headers = ["id", "set aside", "from", "stage", "reason", "bytes", "why"]
    cells = [
        [
            letter.id[:8],
            f"{letter.rejected_at:%Y-%m-%d %H:%M}",
            place_of(letter),
            letter.stage,
            letter.reason,
            f"{letter.size:,}",
            letter.detail,
        ]
        for letter in letters
    ]
    return Group(counts, "", heading, table(headers, cells, right=["bytes"]))


def place_of(letter: OpenLetter | DeadLetter) -> str:
    """Return topic, partition and offset, or file and line."""
    source = plain(letter.source, 80)
    return f"{source}:{letter.position}" if letter.partition is None else f"{source}[{letter.partition}] at {letter.position}"


def letter_view(stored: Found, way: Return | Stays) -> RenderableType:
    """Show one letter: its place, the reason, the expected outcome of a retry, and its bytes."""
    letter = stored.letter
    fields = {
        "id": letter.dead_letter_id,
        "from": place_of(letter),
        "set aside": f"{letter.rejected_at:%Y-%m-%d %H:%M:%S} by {plain(letter.stage)}",
        "reason": f"{letter.reason}: {letter.detail}",
        "size": f"{letter.size:,} bytes, {kept(letter)}",
        "sha-256": letter.digest,
        "retry": fate_of(stored, way),
    }
    width = max(map(len, fields))
    lines = [Text(f"{name:<{width}}  {plain(value, 1200)}") for name, value in fields.items()]
    return Group(*lines, "", *(Text(line) for line in body_lines(letter.body)))


def stored_letter(stored: Found, way: Return | Stays) -> StoredLetter:
    """Return a letter for scripts: its fields, its bytes in hexadecimal, and as text if they are text."""
    return StoredLetter.of(
        msgspec.structs.asdict(stored.letter),
        id=stored.letter.dead_letter_id,
        body=_as_text(stored.letter.body),
        body_hex=stored.letter.body.hex(),
        whole=is_whole(stored.letter),
        retried_at=stored.retried_at,
        retry=fate_of(stored, way),
    )


def kept(letter: DeadLetter) -> str:
    """Describe how much of the bytes was kept."""
    if is_whole(letter):
        return "all stored unchanged"
    if len(letter.body) < letter.size:
        return f"{len(letter.body):,} stored, without secrets"
    return "stored without secrets, or different from the digest"


def fate_of(stored: Found, way: Return | Stays) -> str:
    """Describe the expected outcome of a retry, or its time if it was done."""
    if stored.retried_at is not None:
        return f"done at {stored.retried_at:%Y-%m-%d %H:%M:%S}"
    if isinstance(way, Stays):
        return f"not possible: {way.reason}"
    return f"possible, as {_with_article(type(way.record).__name__)} onto {way.topic}"


def outcome_lines(outcome: Outcome, done: Sequence[str]) -> Iterator[str]:
    """Describe the outcome of a retry, letter by letter if they are few, with a sentence at the end."""
    for stay in outcome.stays[:_NAMED]:
        yield f"{stay.letter.dead_letter_id[:8]} not retried: {plain(stay.reason, 400)}"
    if len(outcome.stays) > _NAMED:
        yield f"… and {len(outcome.stays) - _NAMED} more not retried"
    for letter_id in done:
        yield f"{letter_id[:8]} was retried before"
    summary = f"{counted(len(outcome.returned), 'dead letter')} retried, {len(outcome.stays)} not retried"
    yield f"{summary}; {counted(outcome.again, 'record')} refused again" if outcome.again else summary


def retried_letters(outcome: Outcome, done: Sequence[str]) -> RetriedLetters:
    """Return the outcome of a retry for scripts."""
    return RetriedLetters(
        put_back=[
            ReturnedLetter(id=way.letter.dead_letter_id, topic=way.topic, record=type(way.record).__name__)
            for way in outcome.returned
        ],
        stay=[KeptLetter(id=way.letter.dead_letter_id, reason=way.reason) for way in outcome.stays],
        put_back_before=list(done),
        set_aside_again=outcome.again,
    )


def body_lines(body: bytes) -> Iterator[str]:
    """Return the bytes as lines that are safe on a terminal: the lines of a text, or a hex dump of the first bytes."""
    if not body:
        yield "(no bytes)"
    elif (text := _as_text(body)) is not None:
        lines = text.splitlines() or [""]
        yield from (plain(line.replace("\t", "    "), WIDTH) for line in lines[:LINES])
        if len(lines) > LINES:
            yield f"… and {len(lines) - LINES} more lines; --raw writes all"
    else:
        for start in range(0, min(len(body), DUMPED), _IN_A_ROW):
            row = body[start : start + _IN_A_ROW]
            shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
            yield f"{start:08x}  {row.hex(' '):<{3 * _IN_A_ROW}} {shown}"
        if len(body) > DUMPED:
            yield f"… and {len(body) - DUMPED:,} more bytes; --raw writes all"


def _as_text(body: bytes) -> str | None:
    """Return the bytes as text; None if they are not text, or contain control characters typical of binary data."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    controls = sum(character < " " and character not in _BLANKS for character in text)
    return None if controls * 10 > len(text) else text


def _reason_cells(reason: LetterReason) -> list[object]:
    moments = (f"{at:%Y-%m-%d %H:%M}" for at in (reason.first_at, reason.last_at))
    return [f"{reason.letters:,}", reason.stage, reason.reason, *moments]


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
