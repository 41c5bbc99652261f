"""Exchanges that a stage has encoded and a later one need not decode."""

from __future__ import annotations

import builders
import pytest

from schemas.codec.single_object import encode
from schemas.errors import RecordError
from streams import stage_batches
from streams.stage_batches import decoded_kept, encoded_exchange, encoding_of

EXCHANGE = builders.exchange("s", 1, "It is done.")


def test_an_exchange_is_decoded_once_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding it with the proof of its form was a tenth of a replay."""
    with decoded_kept():
        message = encoding_of(EXCHANGE)
        with monkeypatch.context() as patch:
            patch.delattr(stage_batches, "decode")
            assert EXCHANGE == encoded_exchange(message)
    assert encode(EXCHANGE) == message


def test_nothing_is_kept_after_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a long replay must not grow with its exchanges."""
    with decoded_kept():
        message = encoding_of(EXCHANGE)
    decoded: list[bytes] = []
    monkeypatch.setattr(stage_batches, "decode", lambda one: decoded.append(one) or EXCHANGE)
    assert EXCHANGE == encoded_exchange(message)
    assert [message] == decoded


def test_bytes_that_are_not_kept_are_proven() -> None:
    """What is kept vouches for itself and for nothing else."""
    with decoded_kept():
        message = encoding_of(EXCHANGE)
        with pytest.raises(RecordError):
            encoded_exchange(message + b"\0")
