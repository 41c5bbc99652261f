"""Several files of one session: backups, checkpoints, archives, sync conflicts, or a copied folder.

1. Files that name the same session are read as one session, whatever their names and folders.
2. If lines have ids, the session has every line of every file once. A line that only a copy has follows the line before it in that copy, so
   the session is complete even if the program shortened its file after a checkpoint. The program's own file, `<session id>.jsonl`, is read,
   and the copies add to it.
3. If lines have no ids, only one file is read: the one with the most lines.
4. Among equal files, the one with the shortest path is read, then the first by name, independent of the order in which files are given.
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
"""Identity of a line in every file: a digest of its id, else of its bytes."""


_BEFORE, _AFTER = b"before", b"after"
"""Positions before and after all lines of a transcript. Real keys are longer."""


class Account(NamedTuple):
    """The file that a session is read from, and its copies."""

    path: Path
    copies: tuple[Path, ...] = ()


def find_accounts(files: Iterable[Path], session_of: Callable[[Path], str | None], id_field: str | None) -> list[Account]:
    """Return the accounts of the sessions in the files, in the order of the files.

    `session_of` gives the session of a file; None if it has several or none. `id_field` names the field of a line's id, if there is one.
    """
    groups: dict[str | Path, list[Path]] = {}
    for file in files:
        groups.setdefault(session_of(file) or file, []).append(file)
    accounts = []
    for session, group in groups.items():
        if len(group) > 1:
            ordered = sorted(group, key=lambda file: _rank(file, str(session), id_field))
            accounts.append(Account(ordered[0], tuple(ordered[1:])))
        else:
            accounts.append(Account(group[0]))
    return accounts


def _rank(file: Path, session: str, id_field: str | None) -> tuple[bool, int, int, str]:
    is_own = id_field is not None and file.name == f"{session}.jsonl"
    return not is_own, -len(_keys_or_none(file, id_field)), len(str(file)), str(file)


def join_accounts(path: Path, lines: Iterable[Line], copies: Sequence[Path], id_field: str) -> Iterator[Line]:
    """Yield the lines of a transcript, with the lines that only its copies have after those they follow there."""
    if not copies:
        yield from lines
        return
    keys = set(_keys_or_none(path, id_field))
    following: dict[Key, list[tuple[Key, Line]]] = defaultdict(list)
    for copy in copies:
        # A copy without a common line is appended, so that earlier results do not change.
        shares = not keys.isdisjoint(_keys_or_none(copy, id_field))
        _collect_extra(copy, id_field, keys, following, first=_BEFORE if shares else _AFTER)
    yield from _lines_after(_BEFORE, following)
    for line in lines:
        yield line
        yield from _lines_after(_key(line, id_field), following)
    yield from _lines_after(_AFTER, following)


def _collect_extra(
    copy: Path, id_field: str, keys: set[Key], following: dict[Key, list[tuple[Key, Line]]], *, first: Key
) -> None:
    """Add the lines that only this copy has. Unreadable parts of a copy are skipped."""
    previous = first
    try:
        with open_lines(copy) as lines:
            for line in lines:
                body = decode_line(line)
                if not isinstance(body, dict) or body.get("type") == "session":  # a header of its own
                    continue
                key = _key(line, id_field)
                if key not in keys:
                    keys.add(key)
                    following[previous].append((key, line))
                previous = key
    except (OSError, zstd.ZstdError):
        return


def _lines_after(key: Key, following: dict[Key, list[tuple[Key, Line]]]) -> Iterator[Line]:
    """Yield the extra lines after a line, each followed by those after it."""
    pending = [*reversed(following.pop(key, []))]
    while pending:
        line_key, line = pending.pop()
        yield line
        pending += reversed(following.pop(line_key, []))


def count_own_lines(account: Account) -> int:
    """Return the number of lines that only the copies have, for lines without ids."""
    keys = set(_keys_or_none(account.path, None))
    return len({key for copy in account.copies for key in _keys_or_none(copy, None)} - keys)


def _keys_or_none(path: Path, id_field: str | None) -> frozenset[Key]:
    try:
        stat = path.stat()
        return _keys_of(path, id_field, stat.st_size, stat.st_mtime_ns)
    except (OSError, zstd.ZstdError):
        return frozenset()


@lru_cache(maxsize=256)
def _keys_of(path: Path, id_field: str | None, _size: int, _modified_ns: int) -> frozenset[Key]:
    with open_lines(path) as lines:
        return frozenset(_key(line, id_field) for line in lines if line.ended)


def _key(line: Line, id_field: str | None) -> Key:
    identity = line.body
    if id_field is not None:
        body = decode_line(line)
        line_id = body.get(id_field) if isinstance(body, dict) else None
        if isinstance(line_id, str):
            identity = f"id {line_id}".encode("utf-8", "replace")
    return blake2b(identity, digest_size=16).digest()
