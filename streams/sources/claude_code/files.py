"""Claude Code transcripts: `<root>/projects/<folder>/<session>.jsonl`, and those of subagents below `<session>/subagents`."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from pathlib import Path

from schemas.errors import InputError
from streams.sources.agent_files import jsonl_below, read_agent_file
from streams.sources.claude_code.forks import read_copied, read_head
from streams.sources.claude_code.lines import SOURCE, ClaudeCodeDialect
from streams.sources.claude_code.stream_logs import is_stream_line
from streams.sources.copies import join_accounts
from streams.sources.folders import may_be_copy
from streams.sources.lines import decode_line, read_lines
from streams.sources.source import Reading, ReadingContext

_LOOKED_AT = 64
"""Lines of a file elsewhere that tell whether it is a transcript."""


def find_claude_code(path: Path) -> list[Path]:
    """The transcripts at a path, sorted: the file itself, or every `*.jsonl` below a folder that is one, and backups.

    A file is one by its place, directly in a folder of `projects` or in one of `subagents`, or by the session ids of its first lines;
    logs of `claude -p --output-format stream-json` are taken as well.
    Hidden files and symbolic links are left out. InputError when there is nothing at the path.
    """
    if path.is_file():
        return [path]
    files = (file for file in jsonl_below(path, "*.jsonl*") if may_be_copy(file.name))
    return [file for file in files if (file.suffix == ".jsonl" and _is_in_place(file)) or _form_of(file)]


def read_claude_code(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript; InputError when the file cannot be opened."""
    try:
        copied = read_copied(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    return read_agent_file(
        path,
        context,
        ClaudeCodeDialect(copied),
        session_id=path.stem,
        agent=SOURCE,
        lines_of=lambda stream: join_accounts(path, read_lines(stream), context.copies, ClaudeCodeDialect.id_field),
    )


def session_of_claude_code(path: Path) -> str | None:
    """Return the session that a transcript tells of, or the first run of a log; None where nothing names one."""
    head = read_head(path)
    if head is not None and head.session:
        return head.session
    try:
        return _first_run(path, path.stat().st_ino)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _first_run(path: Path, _inode: int) -> str:
    """The run that a log begins with; LookupError where it is none. What is there never changes, so it is remembered."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line)
            if line.number > _LOOKED_AT or (isinstance(value, dict) and "sessionId" in value):
                break
            if isinstance(value, dict) and is_stream_line(value):
                return f"log {value['session_id']} {value.get('uuid')}"
    raise LookupError(path)


def _is_in_place(file: Path) -> bool:
    folder = file.resolve().parent
    return folder.parent.name == "projects" or folder.name == "subagents"


def is_stream_log(path: Path) -> bool:
    """Tell whether a file is a log of `claude -p --output-format stream-json`, by its first lines."""
    return _form_of(path) is _Form.LOG


class _Form(Enum):
    TRANSCRIPT = auto()
    LOG = auto()


def _form_of(file: Path) -> _Form | None:
    """Tell what the first lines show a file to be: a line that names its session and its place in a conversation, or one of a log.

    None for other files, and for one that cannot be read.
    """
    try:
        with file.open("rb") as stream:
            for line in read_lines(stream):
                if line.number > _LOOKED_AT:
                    return None
                value = decode_line(line)
                if isinstance(value, dict) and isinstance(value.get("sessionId"), str) and isinstance(value.get("uuid"), str):
                    return _Form.TRANSCRIPT
                if is_stream_line(value):
                    return _Form.LOG
    except OSError:
        return None
    return None
