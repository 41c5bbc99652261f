"""Hashes of identities: a collision costs a lookup, but a known record must never count as new."""

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


def append(store: Store, identities: KnownIdentities, *records: Record) -> AppendResult:
    """Append the new records and update `identities`, as the engine does."""
    topic, schema = "exchanges", schema_of("Exchange")
    messages = [encode(record) for record in records]
    with store.transaction() as transaction:
        identities.read(transaction.connection, topic, transaction.end_of(topic))
        frame = decode_batch(messages).frames["Exchange"]
        fresh, conflicts = find_new_rows(transaction.connection, schema, frame, topic, identities)
        outcome = transaction.append(topic, [messages[index] for index in fresh[INDEX].to_list()])
    outcome.known, outcome.conflicts = len(records) - fresh.height - len(conflicts), sorted(conflicts)
    appended = [records[index] for index in fresh[INDEX].to_list()]
    identities.add_identities(topic, {"Exchange": identities_of("Exchange", appended)}, store.end_of(topic))
    return outcome


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=12), st.sets(st.integers(0, 11)))
@settings(deadline=None, max_examples=8)
def test_answers_equal_those_of_a_full_lookup(batches: list[list[int]], written_elsewhere: set[int]) -> None:
    """The hashes only save reads: the known records must be the same for any writer and batches."""
    with Store(None) as store, Store(None) as plain:
        identities = KnownIdentities()
        for index, numbers in enumerate(batches):
            records = [exchange("s", number) for number in numbers]
            with plain.transaction() as transaction:
                expected = transaction.append("exchanges", [encode(record) for record in records], skip_known=True)
            if index in written_elsewhere:
                with store.transaction() as transaction:
                    outcome = transaction.append("exchanges", [encode(record) for record in records], skip_known=True)
            else:
                outcome = append(store, identities, *records)
            assert sum(outcome.written.values()) == sum(expected.written.values())
            assert outcome.known == expected.known


def test_identities_of_an_existing_log_are_known() -> None:
    """A server must recognize the records of earlier years."""
    with Store(None) as store:
        append(store, KnownIdentities(), exchange("s", 1))
        outcome = append(store, KnownIdentities(), exchange("s", 1), exchange("s", 2))
    assert outcome.known == 1
    assert outcome.written == {"exchanges": 1}


def test_other_content_is_a_conflict() -> None:
    """The sender is told, even if the first record came in an earlier commit."""
    with Store(None) as store:
        identities = KnownIdentities()
        append(store, identities, exchange("s", 1))
        assert append(store, identities, exchange("s", 1, content_digest="f" * 16)).conflicts == [0]


def test_many_identities_stay_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending hashes are merged into the sorted ones, and positions are read in parts; none may be lost."""
    monkeypatch.setattr(analytics.identity.duplicate_matching, "MAX_UNSORTED", 10)
    monkeypatch.setattr(analytics.identity.duplicate_matching, "MAX_POSITIONS", 7)
    records = [exchange("s", number) for number in range(64)]
    with Store(None) as store:
        identities = KnownIdentities()
        for record in records[:32]:
            append(store, identities, record)
        append(store, identities, *records[32:])
        late = KnownIdentities()
        with store.transaction() as transaction:
            late.read(transaction._connection, "exchanges", store.end_of("exchanges"))
        frame = decode_batch([encode(one) for one in records]).frames["Exchange"]
        assert _count_matches(identities, frame) == 64
        assert _count_matches(late, frame) == 64
        other_exchanges = [exchange("t", number) for number in range(64)]
        assert _count_matches(late, decode_batch([encode(one) for one in other_exchanges]).frames["Exchange"]) == 0
        assert _are_new(late, "exchanges", other_exchanges)
        assert not _are_new(late, "exchanges", [*other_exchanges, records[0]])


@pytest.mark.parametrize(
    ("topic", "records"),
    [
        ("exchanges", [closing("s", 1), closing("s", 2)]),
        ("scores", [score("s", 1), score("s", 1, revision=1), score("s", 2)]),
    ],
)
def test_numbers_and_times_are_recognized(topic: str, records: list[Record]) -> None:
    """The log returns other types than decoding does; with another hash a repetition would be new."""
    messages = [encode(record) for record in records]
    with Store(None) as store:
        for identities in (KnownIdentities(), KnownIdentities()):
            with store.transaction() as transaction:
                outcome = transaction.append(topic, messages[:-1], skip_known=True)
                identities.read(transaction.connection, topic, transaction.end_of(topic))
            assert outcome.known + sum(outcome.written.values()) == len(messages) - 1
        assert [_are_new(identities, topic, [record]) for record in records[:-1]] == [False] * (len(records) - 1)
        assert _are_new(identities, topic, records[-1:])
        with store.transaction() as transaction:
            repetition = transaction.append(topic, messages, skip_known=True)
    assert repetition.known == len(messages) - 1
    assert sum(repetition.written.values()) == 1


def _are_new(identities: KnownIdentities, topic: str, records: Sequence[Record]) -> bool:
    name = type(records[0]).__name__
    return all(identities.which_are_new(name, topic, identities_of(name, records)))


def _count_matches(identities: KnownIdentities, frame: pl.DataFrame) -> int:
    return identities.find_possible(schema_of("Exchange"), "exchanges", frame).height
