"""The programs whose transcripts are read: where each keeps them, how its files are found, how one is read.

A further program is a row in `SOURCES`, a function that finds its files and one that reads one of them. The command, the summary,
following and taking up again come with the row.
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
    unlike_claude_code,
    unlike_codex,
    unlike_transcript,
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
from streams.sources.copies import Account, find_accounts
from streams.sources.openclaw.companions import CHECKPOINT, read_header
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.openclaw.storage import find_databases, read_database, session_ranges
from streams.sources.source import EVERY_SESSION, FileSource, Reading, ReadingContext, SessionRange
from streams.sources.zstd import zstd


@dataclass(frozen=True, slots=True)
class TranscriptSource(FileSource):
    """One program. `name` is what commands call it, too, `label` what people do; `folder` is where it keeps its files, `hint` which.

    `find` gives the files at a path, Raises InputError if there is nothing; `ranges` gives at most so many ranges of sessions that a large
    file is read by, each whole in memory. `session_of` gives the session that a file tells of, `id_field` the field of a line's id, where
    lines have one (`copies`).
    """

    label: str
    folder: str
    hint: str
    find: Callable[[Path], list[Path]]
    session_of: Callable[[Path], str | None] = lambda _path: None
    id_field: str | None = None
    ranges: Callable[[Path, int], list[SessionRange]] = lambda _path, _count: [EVERY_SESSION]

    def files_in(self, paths: Iterable[Path]) -> list[Path]:
        """Return every file under the paths, each once, in a fixed order; InputError for a missing path."""
        return list(dict.fromkeys(file for path in paths for file in ([path] if path.is_file() else self.find(path))))

    def accounts_in(self, files: Iterable[Path]) -> list[Account]:
        """Return the accounts of sessions in the files: one file is read of each, and the others are its copies."""
        return find_accounts(files, self.session_of, self.id_field)


def _find_openclaw(path: Path) -> list[Path]:
    return [*find_transcripts(path), *find_databases(path)]


def _read_openclaw(path: Path, context: ReadingContext, sessions: SessionRange) -> Iterator[Reading]:
    if path.suffix == ".sqlite" or _is_database(path):
        yield from read_database(path, context, sessions)
    else:
        yield read_transcript(path, context)


def _is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database, whatever its name; one that cannot be read says so when it is read."""
    try:
        with path.open("rb") as stream:
            return binary_kind(stream.read(HEAD)) is SQLITE
    except OSError:
        return False


def _session_of_openclaw(path: Path) -> str | None:
    """Return the session of a transcript; a checkpoint may have an id of its own, and its name says whose it is."""
    if path.suffix == ".sqlite":
        return None
    whose = path.with_name(f"{path.name.partition(CHECKPOINT)[0]}.jsonl") if CHECKPOINT in path.name else path
    file = whose if whose.is_file() else path
    try:
        return _session_in(file, file.stat().st_ino)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _session_in(path: Path, _inode: int) -> str:
    """Return the session that a transcript's header names. Raises LookupError if it names none. A header never changes, so it is remembered."""
    session = read_header(path).get("id")
    if isinstance(session, str):
        return session
    raise LookupError(path)


def _session_of_codex(path: Path) -> str | None:
    try:
        header = read_header_of_rollout(path)
    except (OSError, zstd.ZstdError):
        return None
    return None if header is None else header.session


def _openclaw_ranges(path: Path, count: int) -> list[SessionRange]:
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
    unlike=unlike_transcript,
    find=_find_openclaw,
    read=_read_openclaw,
    session_of=_session_of_openclaw,
    id_field="id",
    ranges=_openclaw_ranges,
)
CLAUDE_CODE = TranscriptSource(
    name="claude-code",
    label="Claude Code",
    folder="~/.claude",
    description="a Claude Code transcript",
    patterns=("*.jsonl",),
    hint="Transcripts are projects/*/*.jsonl.",
    unlike=unlike_claude_code,
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
    unlike=unlike_codex,
    find=find_codex,
    read=_read_codex,
    session_of=_session_of_codex,
)
SOURCES: Mapping[str, TranscriptSource] = {source.name: source for source in (OPENCLAW, CLAUDE_CODE, CODEX)}
"""The programs by their names."""
