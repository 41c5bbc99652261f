"""What the dialects of agents other than OpenClaw share: finding and reading transcripts, and checking the fields of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from audit.times import parse_timestamp
from schemas.bounds import MAX_DEPTH, MAX_ID, NOT_UNICODE, has_surrogates, is_too_deep
from schemas.contract import IDENTIFIER
from schemas.errors import InputError
from streams.sources.lines import Line, Problem, json_type, open_stream, read_lines, visible_files
from streams.sources.openclaw.entry import Entry, build_entry
from streams.sources.openclaw.events import events_of
from streams.sources.openclaw.reader import Dialect, read_session
from streams.sources.openclaw.text import Unwrapped
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

EVENTS = "events"
"""Kind of an entry whose body holds ready-made events."""
INTERNAL = {"provenance": {"kind": "internal_system"}}
"""Fields of a message in the user's role that the program wrote."""
SUBAGENT = {"provenance": {"kind": "subagent_task"}}
"""Fields of a message in the user's role that another agent wrote."""
MAX_PARSED_CHARACTERS = 1024 * 1024
"""Maximum length of a text that is parsed as JSON."""
Json = dict[str, Any]
_COPY_HINT = "Check whether the file was copied completely."
_MAX_UNKNOWN_KINDS = 256
"""Maximum number of unknown kinds that are reported per file."""
_SHOWN_CHARACTERS = 128
"""Characters of an unknown kind that a fault quotes."""


def find_transcripts(path: Path, *patterns: str) -> list[Path]:
    """Return the files below a folder that match a pattern, sorted. Hidden files and symbolic links are left out.

    Raises InputError if the folder does not exist.
    """
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
    split_lines: Callable[[BinaryIO], Iterable[Line]] = read_lines,
) -> Reading:
    """Return the records of one transcript.

    `session_id` and `agent` are defaults, which the lines and the context may override. `split_lines` splits the file into lines, and raises
    ValueError if the file is malformed. Raises InputError if the file cannot be opened, decompressed or split.
    """
    try:
        modified_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        with open_stream(path) as stream:
            return read_session(
                split_lines(stream),
                context,
                session_id=session_id[:MAX_ID],
                agent=agent,
                is_abandoned=context.ingested_at - modified_at > context.session_gap,
                dialect=dialect,
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    except zstd.ZstdError as error:
        raise InputError(f"{path}: cannot be decompressed ({error})", hint=_COPY_HINT) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", hint=_COPY_HINT) from error


class AgentDialect:
    """Base class of dialects whose programs add no metadata to user messages. No tags follow from their texts."""

    parent_field = "parentUuid"
    derives = False
    ends_turns = False

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """Return the events of an entry."""
        if entry.kind == EVENTS:
            return [dict(event) for event in entry.body["events"]]
        return events_of(entry, is_retry=is_retry, wrapped=wrapped)

    def unwrap(self, text: str) -> Unwrapped:
        """Return a user's message unchanged."""
        return Unwrapped(text, multi_user=False)

    def tags(self, _question: str, _response: str) -> set[str]:
        """Return no tags."""
        return set()


class UnknownKinds:
    """The unknown kinds of lines and blocks in one file.

    New versions of a program introduce new kinds. Each kind is reported once per file, however many lines have it.
    """

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, kind: str) -> list[Problem]:
        """Return the problem of a line of this kind; nothing if the kind was reported before."""
        if kind in self._reported or len(self._reported) >= _MAX_UNKNOWN_KINDS:
            return []
        self._reported.add(kind)
        quoted = kind[:_SHOWN_CHARACTERS]
        return [Problem("unknown_kind", f"{quoted}: this version of Driftline does not know this kind and skips its lines")]


def find_id_problem(name: str, value: Any) -> Problem | None:
    """Return the problem of a required id; None if the id is valid."""
    if value is None:
        return Problem("missing_field", f"{name}: is missing")
    if not isinstance(value, str):
        return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")
    if fault := IDENTIFIER.fault(value):
        return Problem("bounds", f"{name}: {fault}")
    return Problem("bounds", f"{name}: {NOT_UNICODE}") if has_surrogates(value) else None


def is_identifier(value: Any) -> bool:
    """Return whether the value is a valid id."""
    return find_id_problem("", value) is None


def parse_time(value: Any) -> datetime | None:
    """Return the time in a field; None if it has no valid time."""
    if not isinstance(value, str | int | float):
        return None
    try:
        return parse_timestamp(value) or None
    except ValueError:
        return None


def read_number(value: Any) -> int | float | None:
    """Return the number in a field; None for any other value, including true and false."""
    return value if type(value) is int or type(value) is float else None


def parse_object(text: Any) -> Json | None:
    """Return the JSON object in a text; None if the text is anything else, is too long, or nests too deep."""
    if not isinstance(text, str) or len(text) > MAX_PARSED_CHARACTERS or not text.lstrip().startswith("{"):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(value, dict) or is_too_deep(value, MAX_DEPTH - 8):
        return None
    return value


class EntryPosition(NamedTuple):
    """The position of an entry: its parent, whether the entry names a parent, and whether it is beside the conversation."""

    parent: str | None = None
    linked: bool = False
    side: bool = False


def build_agent_entry(
    kind: str,
    entry_id: str,
    line: Json,
    *,
    position: EntryPosition = EntryPosition(),  # noqa: B008 - it is immutable
    is_copy: bool = False,
    body: Json | None = None,
    message: Json | None = None,
    blocks: Sequence[Json] = (),
    own_blocks: Sequence[Json] | None = None,
) -> Entry:
    """Return an entry with the time of its line.

    `own_blocks` are the blocks of the line itself, if `blocks` also repeats earlier lines. They identify the entry when it is repeated.
    """
    message = {} if message is None else message
    identity = [kind, message.get("role"), list(blocks if own_blocks is None else own_blocks)]
    return build_entry(
        kind,
        entry_id,
        parent=position.parent,
        linked=position.linked,
        side=position.side,
        at=parse_time(line.get("timestamp")),
        body={**(body or {}), "timestamp": line.get("timestamp")},
        message=message,
        blocks=list(blocks),
        digest=blake2b(msgspec.json.encode(identity, order="deterministic"), digest_size=16).digest(),
        is_copy=is_copy,
    )


def build_call_block(call_id: Any, name: Any, arguments: Any) -> Json:
    """Return the block of a tool call, with the fields that are valid."""
    block: Json = {"type": "toolCall"}
    if isinstance(call_id, str):
        block["id"] = call_id
    if isinstance(name, str):
        block["name"] = name
    if arguments is not None:
        block["arguments"] = arguments
    return block
