"""Several accounts of one session: backups, checkpoints, archives, conflicts of a sync, the same folder copied elsewhere.

1. Files that name the same session are accounts of it, whatever they are called and wherever they lie: they are read as one session.
2. Where lines have ids of their own, the session is all lines of all accounts, each once: a line that only a copy has stands behind the one
   that it follows there. So the account is complete even where the program shortened its file after a checkpoint. The file that the
   program writes, `<session id>.jsonl`, is the one that is read, and the others add to it.
3. Where lines have no ids, only one account can be read: the most complete one, which has the most lines.
4. Of equal files the one with the shorter path is read, then the one that sorts first: the order in which files are given says nothing.
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
"""The identity of a line in any account: a digest of its id, else of its bytes."""


_BEFORE, _AFTER = b"before", b"after"
"""Places before and behind all lines of a transcript: no key is as short."""


class Account(NamedTuple):
    """The file that a session is read from, and the other accounts of that session."""

    path: Path
    copies: tuple[Path, ...] = ()


def find_accounts(files: Iterable[Path], session_of: Callable[[Path], str | None], id_field: str | None) -> list[Account]:
    """Return the accounts of the sessions in some files, in the order of the files.

    `session_of` gives the session of a file, None if it may be several or none; `id_field` names the field of a line's id.
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
    """Yield the lines of a transcript with those that only its copies have, each behind the line that it follows there."""
    if not copies:
        yield from lines
        return
    keys = set(_keys_or_none(path, id_field))
    following: dict[Key, list[tuple[Key, Line]]] = defaultdict(list)
    for copy in copies:
        # A copy without a line in common tells its own story: it follows, so that what was read before stays as it is.
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
    """Add the lines that only this copy has. What cannot be read in it is left out: the transcript itself is what counts."""
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
    """Return the number of lines that only the copies of an account have, where lines have no ids."""
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
