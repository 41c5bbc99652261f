"""Hashes of identities: they may send a record to be looked up for nothing, and must never let a known one pass as new."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import closing, exchange, score

import analytics.identity.duplicate_matching
from analytics.identity.duplicate_matching import KnownIdentities, find_new_rows, identities_of
from analytics.store.store import AppendResult, Store
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import Record
from schemas.registry import schema_of


def append(store: Store, known: KnownIdentities, *records: Record) -> AppendResult:
    """Append what is not known, as the engine does; `known` follows."""
    topic, schema = "exchanges", schema_of("Exchange")
    messages = [encode(record) for record in records]
    with store.transaction() as transaction:
        known.read(transaction.connection, topic, transaction.end_of(topic))
        frame = decode_batch(messages).frames["Exchange"]
        fresh, conflicts = find_new_rows(transaction.connection, schema, frame, topic, known)
        done = transaction.append(topic, [messages[index] for index in fresh[INDEX].to_list()])
    done.known, done.conflicts = len(records) - fresh.height - len(conflicts), sorted(conflicts)
    written = [records[index] for index in fresh[INDEX].to_list()]
    known.add_identities(topic, {"Exchange": identities_of("Exchange", written)}, store.end_of(topic))
    return done


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=12), st.sets(st.integers(0, 11)))
@settings(deadline=None, max_examples=8)
def test_answers_are_those_of_looking_everything_up(batches: list[list[int]], written_elsewhere: set[int]) -> None:
    """The hashes only save reading: whoever wrote a record, and in whatever batches, what is known is the same."""
    with Store(None) as store, Store(None) as plain:
        known = KnownIdentities()
        for place, numbers in enumerate(batches):
            records = [exchange("s", number) for number in numbers]
            with plain.transaction() as transaction:
                expected = transaction.append("exchanges", [encode(one) for one in records], skip_known=True)
            if place in written_elsewhere:
                with store.transaction() as transaction:
                    done = transaction.append("exchanges", [encode(one) for one in records], skip_known=True)
            else:
                done = append(store, known, *records)
            assert sum(done.written.values()) == sum(expected.written.values())
            assert done.known == expected.known


def test_what_a_log_held_before_is_known() -> None:
    """A server that starts over a log of years must know what it took in years ago."""
    with Store(None) as store:
        append(store, KnownIdentities(), exchange("s", 1))
        again = append(store, KnownIdentities(), exchange("s", 1), exchange("s", 2))
    assert again.known == 1
    assert again.written == {"exchanges": 1}


def test_another_content_is_a_conflict() -> None:
    """A sender that gives two exchanges one id is told, also when the first one came in an earlier commit."""
    with Store(None) as store:
        known = KnownIdentities()
        append(store, known, exchange("s", 1))
        assert append(store, known, exchange("s", 1, content_digest="f" * 16)).conflicts == [0]


def test_many_identities_are_kept_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that wait are sorted in with the others, and positions are read in parts; nothing is lost in between."""
    monkeypatch.setattr(analytics.identity.duplicate_matching, "MAX_UNSORTED", 10)
    monkeypatch.setattr(analytics.identity.duplicate_matching, "MAX_POSITIONS", 7)
    records = [exchange("s", number) for number in range(64)]
    with Store(None) as store:
        known = KnownIdentities()
        for record in records[:32]:
            append(store, known, record)
        append(store, known, *records[32:])
        late = KnownIdentities()
        with store.transaction() as transaction:
            late.read(transaction._connection, "exchanges", store.end_of("exchanges"))
        frame = decode_batch([encode(one) for one in records]).frames["Exchange"]
        assert [_held(known, frame), _held(late, frame)] == [64, 64]
        others = [exchange("t", number) for number in range(64)]
        assert _held(late, decode_batch([encode(one) for one in others]).frames["Exchange"]) == 0
        assert _are_new(late, "exchanges", others)
        assert not _are_new(late, "exchanges", [*others, records[0]])


@pytest.mark.parametrize(
    ("topic", "records"),
    [
        ("exchanges", [closing("s", 1), closing("s", 2)]),
        ("scores", [score("s", 1), score("s", 1, revision=1), score("s", 2)]),
    ],
)
def test_numbers_and_times_are_known_again(topic: str, records: list[Record]) -> None:
    """The log gives them back as other types than decoding does: hashed otherwise, a repetition would pass as new."""
    messages = [encode(one) for one in records]
    with Store(None) as store:
        for known in (KnownIdentities(), KnownIdentities()):
            with store.transaction() as transaction:
                done = transaction.append(topic, messages[:-1], skip_known=True)
                known.read(transaction.connection, topic, transaction.end_of(topic))
            assert done.known + sum(done.written.values()) == len(messages) - 1
        assert [_are_new(known, topic, [one]) for one in records[:-1]] == [False] * (len(records) - 1)
        assert _are_new(known, topic, records[-1:])
        with store.transaction() as transaction:
            again = transaction.append(topic, messages, skip_known=True)
    assert again.known == len(messages) - 1
    assert sum(again.written.values()) == 1


def _are_new(known: KnownIdentities, topic: str, records: Sequence[Record]) -> bool:
    name = type(records[0]).__name__
    return all(known.which_are_new(name, topic, identities_of(name, records)))


def _held(known: KnownIdentities, frame: pl.DataFrame) -> int:
    return known.find_possible(schema_of("Exchange"), "exchanges", frame).height
