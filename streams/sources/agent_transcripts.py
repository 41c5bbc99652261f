"""Transcripts of other agents: what their dialects share, from finding files below a folder to the checks of a line's fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from audit.times import parse_timestamp
from schemas.bounds import MAX_DEPTH, MAX_ID, NOT_UNICODE, has_surrogates, is_too_deep
from schemas.contract import IDENTIFIER
from schemas.errors import InputError
from streams.sources.lines import Line, Problem, json_type, open_stream, read_lines, visible_files
from streams.sources.openclaw.entry import Entry, entry_of
from streams.sources.openclaw.events import events_of
from streams.sources.openclaw.reader import Dialect, read_session
from streams.sources.openclaw.text import Unwrapped
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

EVENTS = "events"
"""Kind of an entry whose body holds its events: no line of a transcript comes to one by itself."""
INTERNAL = {"provenance": {"kind": "internal_system"}}
"""Fields of a message that the program wrote in the user's place."""
SUBAGENT = {"provenance": {"kind": "subagent_task"}}
"""Fields of a message by which an agent asks another."""
MAX_PARSED = 1024 * 1024
"""Characters of the longest text that is read as JSON."""
Json = dict[str, Any]
_MAX_KINDS = 256
_SHOWN = 128


def jsonl_below(path: Path, *patterns: str) -> list[Path]:
    """The files of these names below a folder, sorted, without hidden ones and symbolic links; InputError where there is no folder."""
    if not path.is_dir():
        raise InputError(f"{path}: does not exist", hint="Give a transcript, or a folder of them.")
    return visible_files(path, patterns)


def read_agent_file(
    path: Path,
    context: ReadingContext,
    dialect: Dialect,
    *,
    session_id: str,
    agent: str,
    lines_of: Callable[[BinaryIO], Iterable[Line]] = read_lines,
) -> Reading:
    """Read one transcript; InputError when it cannot be opened, decompressed or is none.

    `session_id` and `agent` count where the lines, or the context, say nothing else. `lines_of` takes the file apart; its ValueError says
    why it is none.
    """
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        is_left = context.ingested_at - written > context.session_gap
        with open_stream(path) as stream:
            return read_session(
                lines_of(stream), context, session_id=session_id[:MAX_ID], agent=agent, is_left=is_left, dialect=dialect
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    except zstd.ZstdError as error:
        raise InputError(
            f"{path}: cannot be decompressed ({error})", hint="Check whether the file was copied completely."
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", hint="Check whether the file was copied completely.") from error


class AgentDialect:
    """Base of the dialects of agents that wrap nothing around texts and tag nothing by them."""

    parent_field = "parentUuid"
    derives = False
    ends_turns = False

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """The events of the entry."""
        if entry.kind == EVENTS:
            return [dict(event) for event in entry.body["events"]]
        return events_of(entry, is_retry=is_retry, wrapped=wrapped)

    def unwrap(self, text: str) -> Unwrapped:
        """The message as it is."""
        return Unwrapped(text, multi_user=False)

    def tags(self, _question: str, _response: str) -> set[str]:
        """None."""
        return set()


class UnknownKinds:
    """Unknown kinds of lines and blocks, each reported once.

    A new version of a program brings new kinds. Each is worth one fault a file: that it is unknown is reported then, and a
    file of a thousand such lines is no thousand faults.
    """

    def __init__(self) -> None:
        self._met: set[str] = set()

    def report(self, kind: str) -> list[Problem]:
        """Return the problem of a line of this kind; none if one was reported before."""
        if kind in self._met or len(self._met) >= _MAX_KINDS:
            return []
        self._met.add(kind)
        return [
            Problem("unknown_kind", f"{kind[:_SHOWN]}: is no kind that this version of Driftline reads; such lines are skipped")
        ]


def id_problem(name: str, value: Any) -> Problem | None:
    """Return the problem of an id that a line must have; None if there is none."""
    if value is None:
        return Problem("missing_field", f"{name}: is missing")
    if not isinstance(value, str):
        return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")
    if fault := IDENTIFIER.fault(value):
        return Problem("bounds", f"{name}: {fault}")
    return Problem("bounds", f"{name}: {NOT_UNICODE}") if has_surrogates(value) else None


def is_identifier(value: Any) -> bool:
    """Tell whether the value can be an id."""
    return id_problem("", value) is None


def moment(value: Any) -> datetime | None:
    """The time in a field; None where there is none."""
    if isinstance(value, str | int | float):
        try:
            return parse_timestamp(value) or None
        except ValueError:
            return None
    return None


def number_of(value: Any) -> int | float | None:
    """The number that a field is; None for anything else, and for true and false."""
    return value if type(value) is int or type(value) is float else None


def parsed_object(text: Any) -> Json | None:
    """The JSON object that a text is; None where it is something else, too long or nested too deep."""
    if not isinstance(text, str) or len(text) > MAX_PARSED or not text.lstrip().startswith("{"):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return value if isinstance(value, dict) and not is_too_deep(value, MAX_DEPTH - 8) else None


def make_entry(
    kind: str,
    entry_id: str,
    line: Json,
    *,
    parent: str | None = None,
    linked: bool = False,
    side: bool = False,
    is_copy: bool = False,
    body: Json | None = None,
    message: Json | None = None,
    blocks: Sequence[Json] = (),
    own: Sequence[Json] | None = None,
) -> Entry:
    """An entry of a line: its time is that of the line. `body` are its own fields, `message` those of a message.

    `own` are the blocks that the line itself has, where `blocks` repeats what others said: by them it is known again.
    """
    message = message or {}
    fields = {**(body or {}), "timestamp": line.get("timestamp")}
    content = msgspec.json.encode([kind, message.get("role"), list(blocks if own is None else own)], order="deterministic")
    return entry_of(
        kind,
        entry_id,
        parent=parent,
        linked=linked,
        side=side,
        at=moment(line.get("timestamp")),
        body=fields,
        message=message,
        blocks=list(blocks),
        digest=blake2b(content, digest_size=16).digest(),
        is_copy=is_copy,
    )


def call_block(call_id: Any, name: Any, arguments: Any) -> Json:
    """The block of a tool's call, with its valid fields."""
    block: Json = {"type": "toolCall"}
    if isinstance(call_id, str):
        block["id"] = call_id
    if isinstance(name, str):
        block["name"] = name
    if arguments is not None:
        block["arguments"] = arguments
    return block
