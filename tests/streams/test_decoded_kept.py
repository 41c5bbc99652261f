"""Exchanges at hand while a batch is worked on: a later stage need not decode them, and a replay need not encode them."""

from __future__ import annotations

import builders
import msgspec
import pytest

from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.errors import RecordError
from schemas.records import ScoringTask
from streams import stage_batches
from streams.stage_batches import RecordBatch, decoded_kept, encoded_exchange, is_named, keep, written_task
from streams.steps.intake import IntakeStep

EXCHANGE = builders.exchange("s", 1, "It is done.")
ENCODED = encode(EXCHANGE)


def task_of(answer: str) -> ScoringTask:
    """The task that intake makes of a session's first exchange, with this answer."""
    exchange = msgspec.structs.replace(EXCHANGE, agent_response=answer)
    ((_, task),) = IntakeStep(Policy())(RecordBatch([(7, "files/s", exchange)]), {}).records
    assert isinstance(task, ScoringTask)
    return task


def test_an_exchange_is_decoded_once_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding it with the proof of its form was a tenth of a replay."""
    with decoded_kept():
        keep(ENCODED, EXCHANGE)
        with monkeypatch.context() as patch:
            patch.delattr(stage_batches, "decode")
            assert EXCHANGE == encoded_exchange(ENCODED)


def test_nothing_is_kept_after_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a long replay must not grow with its exchanges."""
    with decoded_kept():
        keep(ENCODED, EXCHANGE)
    decoded: list[bytes] = []
    monkeypatch.setattr(stage_batches, "decode", lambda one: decoded.append(one) or EXCHANGE)
    assert EXCHANGE == encoded_exchange(ENCODED)
    assert [ENCODED] == decoded


def test_bytes_that_are_not_kept_are_proven() -> None:
    """What is kept vouches for itself and for nothing else."""
    with decoded_kept():
        keep(ENCODED, EXCHANGE)
        with pytest.raises(RecordError):
            encoded_exchange(ENCODED + b"\0")


def test_a_task_by_name_is_the_task_that_would_be_written() -> None:
    """A dead letter of a replay must hold what one of the live stage holds."""
    written = task_of("It is done.")
    with decoded_kept(by_name=True):
        named = task_of("It is done.")
        assert is_named(named)
        assert written == written_task(named)
        assert encoded_exchange(written.exchange) == encoded_exchange(named.exchange)
    assert not is_named(written)
    assert written is written_task(written)


def test_a_long_exchange_has_no_name() -> None:
    """Its task may be too large to be written, and then has to fail in a replay as it failed live."""
    with decoded_kept(by_name=True):
        task = task_of("word " * 10_001)
    assert not is_named(task)


def test_a_state_holds_no_name() -> None:
    """Names mean nothing in the next batch."""
    with decoded_kept(by_name=True):
        outcome = IntakeStep(Policy())(RecordBatch([(7, "files/s", msgspec.structs.replace(EXCHANGE, turn_number=9))]), {})
    assert encode(msgspec.structs.replace(EXCHANGE, turn_number=9)) in outcome.states["files/s"]
