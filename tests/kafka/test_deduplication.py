"""Duplicates in a session: a worker recognises them by type, identity and revision, whichever version of Driftline read them first."""

from __future__ import annotations

import xxhash
from msgspec.structs import replace
from support import builders as build

from schemas.records import Exchange
from streams.kafka.decoding import ENTRY_BYTES, WINDOW, deduplicate

FIRST = build.exchange("s", 1)
SECOND = replace(FIRST, revision=1, agent_response="It is done, and checked.", content_digest="1" * 16)


def offsets_of(records: list[Exchange], windows: dict[str, bytes]) -> tuple[list[int], dict[str, bytes]]:
    """Return the offsets of the new records, and the windows of the sessions after them."""
    result = deduplicate(build.batch("exchanges", records), windows)
    return [offset for offset, _, _ in result.batch.records()], {key: window.packed() for key, window in result.windows.items()}


def test_a_revision_is_not_a_duplicate_of_the_previous_one() -> None:
    """A worker that died repeats its chunk, revisions included."""
    new, windows = offsets_of([FIRST, SECOND, FIRST, SECOND], {})
    assert new == [0, 1]
    assert offsets_of([SECOND, FIRST], windows)[0] == []
    assert offsets_of([FIRST, replace(SECOND, revision=2, content_digest="2" * 16)], windows)[0] == [1]


def test_a_state_without_revisions_recognises_its_exchanges() -> None:
    """States survive an upgrade: exchanges that were scored before it must not be scored again."""
    identity = f"Exchange\x1f{FIRST.connection}\x1f{FIRST.exchange_id}".encode()
    window = xxhash.xxh3_64_digest(identity) + xxhash.xxh3_64_digest(FIRST.content_digest.encode())
    assert offsets_of([FIRST, SECOND], {"local/s": window})[0] == [1]


def test_a_window_has_only_the_newest_records() -> None:
    """The state of a session must not grow with the session."""
    records = [build.exchange("s", turn) for turn in range(WINDOW + 3)]
    _, windows = offsets_of(records, {})
    assert len(windows["local/s"]) == WINDOW * ENTRY_BYTES
    assert offsets_of(records, windows)[0] == [0, 1, 2]
