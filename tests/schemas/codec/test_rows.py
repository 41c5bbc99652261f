"""Rows of frames, by columns and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import polars as pl
import pytest

from schemas.codec import rows
from schemas.codec.arrow import decode_batch, decode_own
from schemas.codec.rows import rows_as_messages, rows_as_records
from schemas.codec.single_object import encode
from schemas.errors import RecordError
from schemas.records import DimensionScore, Record, Score

Encoder = Callable[[Iterable[Record]], list[bytes]]
MANY = 20


@pytest.fixture
def scores(samples: Any, encode_all: Encoder) -> pl.DataFrame:
    """More scores than are taken one by one."""
    return decode_batch(encode_all(samples.records("Score", MANY))).frames["Score"]


def test_a_column_of_another_type_is_taken_row_by_row(scores: pl.DataFrame) -> None:
    """A query may answer with a wider number: its records are the same."""
    wider = scores.with_columns(pl.col("revision").cast(pl.Int64), pl.col("turn_number").cast(pl.Int64))
    assert list(rows_as_records("Score", scores)) == list(rows_as_records("Score", wider))
    assert list(rows_as_messages("Score", scores)) == list(rows_as_messages("Score", wider))


def test_a_null_that_a_record_may_not_have_is_named(scores: pl.DataFrame) -> None:
    """Columns know nothing of what must be there, and the words have to say which field is at fault."""
    broken = scores.with_columns(pl.lit(None, pl.String).alias("project"))
    with pytest.raises(RecordError, match="project"):
        list(rows_as_records("Score", broken))


def test_a_frame_of_more_than_one_slice_keeps_its_order(
    samples: Any, encode_all: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of some rows at a time are in memory; the last slice may be so short that its rows go one by one."""
    monkeypatch.setattr(rows, "_AT_ONCE", MANY)
    messages = encode_all(samples.records("Score", 2 * MANY + 3))
    frame = decode_batch(messages).frames["Score"]
    assert messages == list(rows_as_messages("Score", frame))
    assert messages == list(map(encode, rows_as_records("Score", frame)))


def test_a_type_is_known_where_the_column_that_defines_it_is_empty(scores: pl.DataFrame) -> None:
    """A schema spells a record type out once, and names it in the fields after that."""
    records = [
        msgspec.structs.replace(one, tier2_dimensions=(), tier3_dimensions=(DimensionScore(dimension="fit", score=4.0),))
        for one in rows_as_records("Score", scores)
        if isinstance(one, Score)
    ]
    frame = decode_batch(list(map(encode, records))).frames["Score"]
    assert records == list(rows_as_records("Score", frame))
    assert list(map(encode, records)) == list(rows_as_messages("Score", frame))


def test_what_this_process_has_encoded_decodes_as_anything_does(samples: Any, encode_all: Encoder) -> None:
    """The proof is left out, and nothing else: columns, places and types are the same, of one record type and of several."""
    scores, events = encode_all(samples.records("Score", MANY)), encode_all(samples.records("AgentEvent", 3))
    for messages in (scores, events, scores + events, events[:1]):
        proven, own = decode_batch(messages), decode_own(messages)
        assert proven.frames.keys() == own.frames.keys()
        assert all(
            frame.equals(own.frames[name]) and frame.schema == own.frames[name].schema for name, frame in proven.frames.items()
        )
