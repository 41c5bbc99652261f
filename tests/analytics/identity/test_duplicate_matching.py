"""What the log holds is recognised in another account of it, and what contradicts it is told with the fields that do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import polars as pl
import pytest
from support import builders as build

from analytics.identity.duplicate_matching import KnownIdentities, RecentMatches, find_contradictions
from analytics.store.store import AppendResult, Store
from audit.diagnosis.duplicate_rules import read_digest
from audit.fingerprints import canonical_json
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Exchange, Record

LATER = timedelta(seconds=2)


def append(store: Store, topic: str, *records: Record) -> AppendResult:
    """Append what the log does not know."""
    with store.transaction() as transaction:
        return transaction.append(topic, [encode(one) for one in records], skip_known=True)


def read(number: int, **fields: Any) -> Exchange:
    """An exchange as an import reads it."""
    one = build.exchange("s", number, **fields)
    texts = (one.user_message, one.agent_response, one.agent_thinking)
    fields["content_digest"] = read_digest(*texts, one.occurred_at)
    return build.exchange("s", number, **fields)


def told(number: int, **fields: Any) -> Exchange:
    """The same exchange as a plugin tells it: a moment later, and under a digest of its own."""
    fields.setdefault("occurred_at", build.START + timedelta(minutes=number) + LATER)
    return build.exchange("s", number, content_digest=f"{number:016}", **fields)


def event(number: int, **fields: Any) -> AgentEvent:
    """A result of a tool, from a hook unless the fields say of which entry it is."""
    origin = {} if "entry_id" in fields else {"told_by": "hook"}
    raw = {"event": "tool_output", "event_id": f"e{number}", "tool": "exec", "tool_call_id": f"t{number}"}
    return build.event("s", number, **(raw | origin | fields))


@pytest.mark.parametrize("is_read_first", [True, False])
def test_an_exchange_that_was_told_and_read_is_known(*, is_read_first: bool) -> None:
    """Thousands are when a folder is imported after a plugin has run for a month; one of them says something else."""
    one, other = (read, told) if is_read_first else (told, read)
    with Store(None) as store:
        append(store, "exchanges", *(one(number) for number in range(20)))
        changed = other(7, agent_response="It is not.", agent_model="n")
        done = append(store, "exchanges", *(changed if number == 7 else other(number) for number in range(21)))
        assert done.written == {"exchanges": 1}
        assert done.known == 19
        assert done.conflicts == [7]
        assert done.differing == {7: ("agent_response",)}


def test_a_record_is_told_what_it_contradicts() -> None:
    """The sender of one exchange asks afterwards."""
    with Store(None) as store, store.transaction() as transaction:
        transaction.append("exchanges", [encode(read(1))])
        transaction.append("agent-events", [encode(event(1, result="full"))])
        ask = transaction.connection
        assert find_contradictions(ask, "exchanges", told(1)) == ()
        assert find_contradictions(ask, "exchanges", told(2, agent_response="No.")) == ()
        assert find_contradictions(
            ask, "exchanges", msgspec.structs.replace(told(1, agent_response="No."), session_id="t")
        ) == (
            "session_id",
            "agent_response",
        )
        assert find_contradictions(ask, "agent-events", event(1, result="empty")) == ("result",)
        assert find_contradictions(ask, "diagnoses", build.closing("s", 1)) == ()


def test_a_payload_that_is_no_object_is_compared_as_it_is() -> None:
    """Producers write payloads themselves, and one of them writes nonsense."""
    broken = msgspec.structs.replace(event(1), payload="[1]")
    with Store(None) as store:
        append(store, "agent-events", broken)
        done = append(store, "agent-events", msgspec.structs.replace(broken, payload="{"))
        assert done.conflicts == [0]


@pytest.mark.parametrize("by_hook_first", [True, False])
def test_events_that_a_hook_and_the_transcript_tell_of_are_there_once(*, by_hook_first: bool) -> None:
    """Under two ids they would be two results, two failures of memory, two compactions."""
    hooked = [event(number) for number in range(3)]
    written = [event(number, event_id=f"r{number}", entry_id=f"r{number}") for number in range(4)]
    first, second = (hooked, written) if by_hook_first else (written, hooked)
    with Store(None) as store:
        append(store, "agent-events", *first)
        done = append(store, "agent-events", *second)
        assert done.written["agent_events"] == (1 if by_hook_first else 0)
        assert done.known == 3
        again = append(store, "agent-events", *second)
        assert (again.written["agent_events"], again.known) == (0, len(second)), "and delivered again, as before"


def test_events_of_other_senders_have_no_twins() -> None:
    """Only OpenClaw's transcripts and hooks tell of the same thing under two ids."""
    plain = [msgspec.structs.replace(event(number), payload=canonical_json({"tool_call_id": "t"})) for number in range(2)]
    with Store(None) as store:
        append(store, "agent-events", plain[0])
        assert append(store, "agent-events", plain[1]).written == {"agent_events": 1}


def test_what_another_log_took_lands_as_it_is() -> None:
    """Over Kafka the workers tell repetitions by their digests alone: what a topic holds may not be known here and a conflict there."""
    with Store(None) as store:
        append(store, "exchanges", read(1))
        with store.transaction() as transaction:
            seen = KnownIdentities()
            transaction.read_identities("exchanges", seen)
            frame = decode_batch([encode(told(1)), encode(told(2))]).frames["Exchange"]
            placed = frame.with_columns(
                pl.lit(0, pl.Int32).alias("_partition"), (pl.col(INDEX).cast(pl.Int64) + 1).alias("_offset")
            )
            landed = transaction.flush("exchanges", {"Exchange": placed}, seen)
            assert landed.conflicts == [0]
            assert landed.written == {"exchanges": 1}


@pytest.mark.parametrize("nonsense", ['["entry_id":"r1"', '{"entry_id":"r1', '["told_by", {"entry_id":"r1"}]'], ids=str)
def test_a_payload_of_nonsense_ends_no_delivery(nonsense: str) -> None:
    """One record that a producer wrote would have every later event of its session refused."""
    with Store(None) as store:
        append(store, "agent-events", msgspec.structs.replace(event(1), payload=nonsense))
        assert append(store, "agent-events", event(2)).written == {"agent_events": 1}
        assert append(store, "agent-events", msgspec.structs.replace(event(3), payload=nonsense)).written == {"agent_events": 1}


def test_what_another_connection_or_session_tells_has_no_twin_here() -> None:
    """A sender that claims to be a hook, or a transcript, drops nothing of anybody else."""
    with Store(None) as store:
        append(store, "agent-events", event(1))
        for fields in ({"connection": "other"}, {"session_id": "other"}):
            written = msgspec.structs.replace(event(1, event_id="r1", entry_id="r1"), **fields)
            assert append(store, "agent-events", written).written == {"agent_events": 1}


def test_a_loop_that_goes_on_after_an_import_is_counted_whole() -> None:
    """Each further round looks like one that was imported, to the argument: none of them may vanish."""
    call: dict[str, Any] = {"event": "tool_call", "tool_call_id": "call_0", "arguments": {"command": "ls"}}

    def at(number: int, minutes: float, **fields: Any) -> AgentEvent:
        moment = build.START + timedelta(minutes=minutes)
        return msgspec.structs.replace(event(number, **(call | fields)), occurred_at=moment, ingested_at=moment + LATER)

    read_at = build.START + timedelta(minutes=2)
    entries = [at(number, number / 2, event_id=f"r{number}", entry_id=f"r{number}") for number in range(3)]
    with Store(None) as store:
        append(store, "agent-events", *(msgspec.structs.replace(one, ingested_at=read_at) for one in entries))
        for number in range(4, 10):
            assert append(store, "agent-events", at(number, number)).written == {"agent_events": 1}


def test_an_event_has_one_twin_over_all_deliveries() -> None:
    """A transcript that is imported in parts: one step that a hook told of would swallow the same step in each part."""

    def step(name: str, second: int, **fields: Any) -> AgentEvent:
        one = build.event("s", 0, **({"event": "error_event", "action": "error", "event_id": name} | fields))
        moment = build.START + timedelta(seconds=second)
        return msgspec.structs.replace(one, occurred_at=moment, ingested_at=build.START + timedelta(minutes=5))

    first, second = step("r1", 1, entry_id="r1"), step("r2", 2, entry_id="r2")
    with Store(None) as store:
        append(store, "agent-events", step("h", 0, told_by="hook"))
        assert [append(store, "agent-events", one).written["agent_events"] for one in (first, second, first, second)] == [
            0,
            1,
            0,
            0,
        ]


@pytest.mark.parametrize("size", [1, 2, 5, 8, 24])
def test_batches_of_any_size_leave_the_same_out(size: int) -> None:
    """Where a file is cut into batches must not decide what counts: here every third step was told by a hook, under one call id."""
    moments = [build.START + timedelta(seconds=20 * number) for number in range(24)]
    came = moments[-1] + LATER

    def told_of(name: str, number: int, **fields: Any) -> AgentEvent:
        one = build.event(
            "s", number, **({"event": "tool_output", "tool": "exec", "tool_call_id": "call_0", "event_id": name} | fields)
        )
        return msgspec.structs.replace(one, occurred_at=moments[number], ingested_at=came)

    entries = [told_of(f"r{number}", number, entry_id=f"r{number}") for number in range(24)]
    with Store(None) as store:
        append(store, "agent-events", *(told_of(f"h{number}", number, told_by="hook") for number in range(0, 24, 3)))
        done = [append(store, "agent-events", *entries[first : first + size]) for first in range(0, 24, size)]
        assert sum(one.written["agent_events"] for one in done) == 16
        assert sum(one.known for one in done) == 8


def test_pairs_are_forgotten_within_bounds() -> None:
    """A server runs for months."""
    recent_matches = RecentMatches()
    for number in range(RecentMatches.PAIRS + 1):
        recent_matches.add(number, -number - 1)
    assert [recent_matches.has_duplicate(-1), recent_matches.has_duplicate(-2)] == [False, True]
    assert recent_matches.find_known({7: 0, 8: 1, 9: 2}, {0: -2}) == [8]
