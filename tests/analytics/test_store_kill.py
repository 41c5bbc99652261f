"""The store under kill -9: what was acknowledged is there once, what was not is there whole or not at all."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.effort import times

from analytics.store.store import Store
from analytics.store.tables import full_name
from schemas.registry import schema_of

ROUNDS = times(8, soak=50)
"""Each mark once; a soak run adds random ones."""
PER_BATCH = 200
WRITER = """
    import sys
    from datetime import UTC, datetime
    from pathlib import Path

    from analytics.store.store import Store
    from schemas.codec.single_object import encode
    from schemas.records import AgentEvent, SessionClosed

    PER_BATCH = int(sys.argv[2])
    NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)

    def event(number):
        return encode(AgentEvent(
            connection="c", project="p", session_id=f"s{number // PER_BATCH}", event_id=f"e{number}", seq=number,
            event="tool_call", occurred_at=NOON, ingested_at=NOON, payload="x" * 500,
        ))

    def closing(batch):
        return encode(SessionClosed(
            connection="c", project="p", session_id=f"s{batch}", closed_at=NOON, ingested_at=NOON, reason="explicit"
        ))

    def say(*words):
        print(*words, flush=True)

    with Store(Path(sys.argv[1])) as store:
        say("open")
        with store.transaction() as transaction:
            batch = transaction.watermark("writer", "agent-events")
        while True:
            with store.transaction() as transaction:
                say("begun", batch)
                events = [event(number) for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH)]
                transaction.append("agent-events", [*events, closing(batch)])
                say("appended", batch)
                transaction.set_states("writer", {"batches": str(batch + 1).encode(), f"s{batch}": b"done"}, batch)
                say("states", batch)
                transaction.set_watermark("writer", "agent-events", batch + 1)
                say("committing", batch)
            say("acknowledged", batch)
            if batch % 4 == 3:
                store.checkpoint()
                say("checkpointed", batch)
            batch += 1
"""
MARKS = ("open", "begun", "appended", "states", "committing", "acknowledged", "checkpointed")


def write_until_killed(path: Path, mark: str, times: int) -> int:
    """Kill a process that writes batches when it has reached the mark `times` times; return the number of acknowledged batches."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(PER_BATCH)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, batch = line.strip().partition(" ")
            acknowledged = int(batch) + 1 if word == "acknowledged" else acknowledged
            times -= word == mark
            if times == 0:
                process.kill()
                break
        # Lines printed before the kill count as well.
        for line in process.stdout:
            word, _, batch = line.strip().partition(" ")
            acknowledged = int(batch) + 1 if word == "acknowledged" else acknowledged
    assert process.returncode == -signal.SIGKILL
    return acknowledged


def batches_in(path: Path) -> int:
    """Return the number of batches in the file, after asserting that each is complete, unique and at its position."""
    with Store(path) as store:
        cursor = store.cursor()
        with store.transaction() as transaction:
            batches = transaction.watermark("writer", "agent-events")
            states = transaction.states("writer", ["batches", *(f"s{batch}" for batch in range(batches + 2))])
        events = cursor.execute(
            f"SELECT event_id, seq, _offset FROM {full_name(schema_of('AgentEvent'))} ORDER BY seq"
        ).fetchall()
        closings = cursor.execute(
            f"SELECT session_id, _offset FROM {full_name(schema_of('SessionClosed'))} ORDER BY _offset"
        ).fetchall()
        # A batch has a closing after its events, so each batch shifts the positions of the next ones by one more.
        assert events == [(f"e{number}", number, number + number // PER_BATCH) for number in range(batches * PER_BATCH)]
        assert closings == [(f"s{batch}", batch * (PER_BATCH + 1) + PER_BATCH) for batch in range(batches)]
        assert store.end_of("agent-events") == batches * (PER_BATCH + 1)
        expected_states = (
            {"batches": str(batches).encode()} | {f"s{batch}": b"done" for batch in range(batches)} if batches else {}
        )
        assert states == expected_states
        cursor.close()
    return batches


@pytest.mark.slow
def test_acknowledged_records_survive_and_none_is_half_written(path: Path) -> None:
    """After a power failure, watermark and rows must agree."""
    rng = random.Random(20261001)
    batches_before = 0
    killed_at = set()
    for round_number in range(ROUNDS):
        # Each mark once, then at random.
        mark = MARKS[round_number] if round_number < len(MARKS) else rng.choice(MARKS[1:])
        acknowledged = write_until_killed(path, mark, 1 if mark == "open" else rng.randint(1, 3))
        batches = batches_in(path)
        # At most one more: the process may have died between the commit and its acknowledgement.
        assert max(batches_before, acknowledged) <= batches <= max(batches_before, acknowledged) + 1
        batches_before = batches
        killed_at.add(mark)
    assert killed_at == set(MARKS)
    assert batches_before >= ROUNDS // 2
