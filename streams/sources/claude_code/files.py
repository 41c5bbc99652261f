"""Claude Code transcripts: `<root>/projects/<folder>/<session>.jsonl`, and those of subagents below `<session>/subagents`."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import InputError
from streams.sources.agent_files import jsonl_below, read_agent_file
from streams.sources.claude_code.forks import read_copied
from streams.sources.claude_code.lines import SOURCE, ClaudeCodeDialect
from streams.sources.lines import decode_line, read_lines
from streams.sources.source import Reading, ReadingContext

_LOOKED_AT = 64
"""Lines of a file elsewhere that tell whether it is a transcript."""


def find_claude_code(path: Path) -> list[Path]:
    """The transcripts at a path, sorted: the file itself, or every `*.jsonl` below a folder that is one.

    A file is one by its place, directly in a folder of `projects` or in one of `subagents`, or by the session ids of its first lines.
    Hidden files and symbolic links are left out. InputError when there is nothing at the path.
    """
    if path.is_file():
        return [path]
    return [file for file in jsonl_below(path, "*.jsonl") if _is_in_place(file) or _begins_as_transcript(file)]


def read_claude_code(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript; InputError when the file cannot be opened."""
    try:
        copied = read_copied(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    return read_agent_file(path, context, ClaudeCodeDialect(copied), session_id=path.stem, agent=SOURCE)


def _is_in_place(file: Path) -> bool:
    folder = file.resolve().parent
    return folder.parent.name == "projects" or folder.name == "subagents"


def _begins_as_transcript(file: Path) -> bool:
    """Tell whether one of the first lines names its session and belongs to a conversation.

    A file that cannot be read has no such line.
    """
    try:
        with file.open("rb") as stream:
            for line in read_lines(stream):
                if line.number > _LOOKED_AT:
                    return False
                value = decode_line(line)
                if isinstance(value, dict) and isinstance(value.get("sessionId"), str) and isinstance(value.get("uuid"), str):
                    return True
    except OSError:
        return False
    return False
