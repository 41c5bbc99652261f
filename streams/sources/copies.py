"""Sessions that have several files: backups, checkpoints, archives, sync conflicts, or a copied folder.

1. Files that name the same session are read as one session, regardless of their names and folders.
2. If lines have ids, the session contains each line of its files once. The program's own file, `<session id>.jsonl`, comes first. A line
   that only a copy has is inserted after the line that precedes it in the copy. So the session is complete even if the program shortened
   its own file after a checkpoint.
3. If lines have no ids, only the file with the most lines is read.
4. Ties go to the file with the shortest path, then to the first by name. The order in which files are given does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from streams.sources.lines import Line, decode_line, open_lines
from streams.sources.zstd import zstd

Key = bytes
"""Identity of a line across files: a digest of its id, or of its bytes if it has no id."""
_BEFORE = b"before"
"""Stands for the position before all lines of a transcript. It is shorter than any real key."""
_AFTER = b"after"
"""Stands for the position after all lines of a transcript."""


class SessionFiles(NamedTuple):
    """The main file of a session, and its copies."""

    path: Path
    copies: tuple[Path, ...] = ()


def group_by_session(
    files: Iterable[Path], session_of: Callable[[Path], str | None], id_field: str | None
) -> list[SessionFiles]:
    """Return the files grouped by session, in the order of the files.

    `session_of` returns the session of a file; None if the file has several sessions or none, so that it is a group of its own. `id_field`
    names the field with the id of a line, if lines have ids.
    """
    groups: dict[str | Path, list[Path]] = {}
    for file in files:
        groups.setdefault(session_of(file) or file, []).append(file)
    sessions = []
    for session, group in groups.items():
        if len(group) > 1:
            main_file, *copies = sorted(group, key=lambda file: _sort_key(file, str(session), id_field))
            sessions.append(SessionFiles(main_file, tuple(copies)))
        else:
            sessions.append(SessionFiles(group[0]))
    return sessions


def _sort_key(file: Path, session: str, id_field: str | None) -> tuple[bool, int, int, str]:
    """Return the sort key that puts the main file of a session first (rules 2 to 4)."""
    is_own_file = id_field is not None and file.name == f"{session}.jsonl"
    return not is_own_file, -len(_read_keys(file, id_field)), len(str(file)), str(file)


def merge_copies(path: Path, lines: Iterable[Line], copies: Sequence[Path], id_field: str) -> Iterator[Line]:
    """Yield the lines of a transcript, and insert the lines that only its copies have.

    An inserted line follows the line that precedes it in the copy.
    """
    if not copies:
        yield from lines
        return
    known_keys = set(_read_keys(path, id_field))
    insertions: _Insertions = defaultdict(list)
    for copy in copies:
        # A copy that shares no line is appended at the end, so that earlier results do not change.
        has_common_line = not known_keys.isdisjoint(_read_keys(copy, id_field))
        start = _BEFORE if has_common_line else _AFTER
        _collect_insertions(copy, id_field, known_keys, insertions, start)
    yield from _take_insertions(_BEFORE, insertions)
    for line in lines:
        yield line
        yield from _take_insertions(_build_key(line, id_field), insertions)
    yield from _take_insertions(_AFTER, insertions)


def _collect_insertions(copy: Path, id_field: str, known_keys: set[Key], insertions: _Insertions, start: Key) -> None:
    """Add the lines that only this copy has to the insertions, and their keys to the known ones.

    `start` is the position of lines at the beginning of the copy. Unreadable parts of a copy are skipped.
    """
    previous = start
    try:
        with open_lines(copy) as lines:
            for line in lines:
                body = decode_line(line)
                if (
                    not isinstance(body, dict) or body.get("type") == "session"
                ):  # the copy's own header is not part of the session
                    continue
                key = _build_key(line, id_field)
                if key not in known_keys:
                    known_keys.add(key)
                    insertions[previous].append((key, line))
                previous = key
    except (OSError, zstd.ZstdError):
        return


def _take_insertions(key: Key, insertions: _Insertions) -> Iterator[Line]:
    """Remove and yield the lines to insert after a line, each followed by its own insertions."""
    pending = [*reversed(insertions.pop(key, []))]
    while pending:
        line_key, line = pending.pop()
        yield line
        pending += reversed(insertions.pop(line_key, []))


def count_lines_only_in_copies(session_files: SessionFiles) -> int:
    """Return the number of distinct lines that only the copies have. The lines of these files have no ids."""
    copied_keys: set[Key] = set()
    for copy in session_files.copies:
        copied_keys |= _read_keys(copy, None)
    return len(copied_keys - _read_keys(session_files.path, None))


def _read_keys(path: Path, id_field: str | None) -> frozenset[Key]:
    """Return the keys of a file's lines; none if the file cannot be read."""
    try:
        stat = path.stat()
        return _read_keys_cached(path, id_field, stat.st_size, stat.st_mtime_ns)
    except (OSError, zstd.ZstdError):
        return frozenset()


@lru_cache(maxsize=256)
def _read_keys_cached(path: Path, id_field: str | None, _size: int, _modified_ns: int) -> frozenset[Key]:
    with open_lines(path) as lines:
        return frozenset(_build_key(line, id_field) for line in lines if line.ended)


def _build_key(line: Line, id_field: str | None) -> Key:
    identity = line.body
    if id_field is not None:
        body = decode_line(line)
        line_id = body.get(id_field) if isinstance(body, dict) else None
        if isinstance(line_id, str):
            identity = f"id {line_id}".encode("utf-8", "replace")
    return blake2b(identity, digest_size=16).digest()


_Insertions = dict[Key, list[tuple[Key, Line]]]
"""The lines to insert after each line, with their keys, by the key of the line before them."""
