"""The programs whose transcripts can be imported: where their files are, how to find them and how to read one.

To add a program, write a function that finds its files and one that reads a file, and add an entry to `SOURCES`. The command, its summary,
following and resuming work without further changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from audit.file_kinds import (
    HEAD,
    SQLITE,
    binary_kind,
    detect_non_claude_code,
    detect_non_codex,
    detect_non_transcript,
)
from streams.sources.claude_code_files import (
    find_claude_code,
    is_stream_log,
    read_claude_code,
    read_stream_log,
    session_of_claude_code,
)
from streams.sources.codex import find_codex, read_codex
from streams.sources.codex import read_header as read_header_of_rollout
from streams.sources.copies import SessionFiles, group_by_session
from streams.sources.openclaw.companions import CHECKPOINT, read_header
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.openclaw.storage import find_databases, read_database, session_ranges
from streams.sources.source import EVERY_SESSION, FileSource, Reading, ReadingContext, SessionRange
from streams.sources.zstd import zstd


@dataclass(frozen=True, slots=True)
class TranscriptSource(FileSource):
    """A program whose transcripts can be imported.

    `name` is its name in commands and records, `label` its display name. `folder` is its default folder, and `hint` tells where the
    transcripts are below it. `find` returns the files at a path, and raises InputError if the path does not exist. `ranges` splits a large
    file into at most the given number of session ranges. `session_of` returns the session of a file. `id_field` is the field with the id of
    a line, if lines have one (see `copies`).
    """

    label: str
    folder: str
    hint: str
    find: Callable[[Path], list[Path]]
    session_of: Callable[[Path], str | None] = lambda _path: None
    id_field: str | None = None
    ranges: Callable[[Path, int], list[SessionRange]] = lambda _path, _count: [EVERY_SESSION]

    def files_in(self, paths: Iterable[Path]) -> list[Path]:
        """Return every file under the paths once, in a fixed order. Raises InputError if a path does not exist."""
        files: list[Path] = []
        for path in paths:
            files += [path] if path.is_file() else self.find(path)
        return list(dict.fromkeys(files))

    def session_files_in(self, files: Iterable[Path]) -> list[SessionFiles]:
        """Return the sessions in the files, each with the file to read and its copies."""
        return group_by_session(files, self.session_of, self.id_field)


def _find_openclaw(path: Path) -> list[Path]:
    return [*find_transcripts(path), *find_databases(path)]


def _read_openclaw(path: Path, context: ReadingContext, sessions: SessionRange) -> Iterator[Reading]:
    if path.suffix == ".sqlite" or _is_database(path):
        yield from read_database(path, context, sessions)
    else:
        yield read_transcript(path, context)


def _is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database, whatever its name; False for a file that cannot be read."""
    try:
        with path.open("rb") as stream:
            return binary_kind(stream.read(HEAD)) is SQLITE
    except OSError:
        return False


def _find_openclaw_session(path: Path) -> str | None:
    """Return the session of a transcript; None for a database.

    The header of a checkpoint may have an id of its own, so its session is read from the transcript that its name refers to.
    """
    if path.suffix == ".sqlite":
        return None
    file = path
    if CHECKPOINT in path.name:
        transcript = path.with_name(f"{path.name.partition(CHECKPOINT)[0]}.jsonl")
        if transcript.is_file():
            file = transcript
    try:
        return _read_session_id(file, file.stat().st_ino)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_session_id(path: Path, _inode: int) -> str:
    """Return the session id in a transcript's header. Raises LookupError if it has none. Cached because a header never changes."""
    session = read_header(path).get("id")
    if isinstance(session, str):
        return session
    raise LookupError(path)


def _find_codex_session(path: Path) -> str | None:
    try:
        header = read_header_of_rollout(path)
    except (OSError, zstd.ZstdError):
        return None
    return None if header is None else header.session


def _list_openclaw_ranges(path: Path, count: int) -> list[SessionRange]:
    return session_ranges(path, count) if path.suffix == ".sqlite" else [EVERY_SESSION]


def _read_claude_code(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
    if is_stream_log(path):
        yield from read_stream_log(path, context)
    else:
        yield read_claude_code(path, context)


def _read_codex(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
    yield read_codex(path, context)


OPENCLAW = TranscriptSource(
    name="openclaw",
    label="OpenClaw",
    folder="~/.openclaw",
    description="an OpenClaw transcript or session database",
    patterns=("*.jsonl", "*.sqlite"),
    hint="Transcripts are agents/*/sessions/*.jsonl.",
    detect_mismatch=detect_non_transcript,
    find=_find_openclaw,
    read=_read_openclaw,
    session_of=_find_openclaw_session,
    id_field="id",
    ranges=_list_openclaw_ranges,
)
CLAUDE_CODE = TranscriptSource(
    name="claude-code",
    label="Claude Code",
    folder="~/.claude",
    description="a Claude Code transcript",
    patterns=("*.jsonl",),
    hint="Transcripts are projects/*/*.jsonl.",
    detect_mismatch=detect_non_claude_code,
    find=find_claude_code,
    read=_read_claude_code,
    session_of=session_of_claude_code,
    id_field="uuid",
)
CODEX = TranscriptSource(
    name="codex",
    label="Codex",
    folder="~/.codex",
    description="a Codex rollout",
    patterns=("rollout-*.jsonl", "rollout-*.jsonl.zst", "rollout-*.json"),
    hint="Rollouts are sessions/*/*/*/rollout-*.jsonl.",
    detect_mismatch=detect_non_codex,
    find=find_codex,
    read=_read_codex,
    session_of=_find_codex_session,
)
SOURCES: Mapping[str, TranscriptSource] = {source.name: source for source in (OPENCLAW, CLAUDE_CODE, CODEX)}
"""The programs, by name."""
