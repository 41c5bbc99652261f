"""An event reported by two sources is stored once; a contradicting report is a conflict that names the differing fields."""

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
    """Append records, skipping known ones."""
    with store.transaction() as transaction:
        return transaction.append(topic, [encode(record) for record in records], skip_known=True)


def imported_exchange(number: int, **fields: Any) -> Exchange:
    """Return an exchange as an import reads it."""
    stored_exchange = build.exchange("s", number, **fields)
    texts = (stored_exchange.user_message, stored_exchange.agent_response, stored_exchange.agent_thinking)
    fields["content_digest"] = read_digest(*texts, stored_exchange.occurred_at)
    return build.exchange("s", number, **fields)


def reported_exchange(number: int, **fields: Any) -> Exchange:
    """Return the same exchange as a plugin reports it: seconds later and with its own digest."""
    fields.setdefault("occurred_at", build.START + timedelta(minutes=number) + LATER)
    return build.exchange("s", number, content_digest=f"{number:016}", **fields)


def event(number: int, **fields: Any) -> AgentEvent:
    """Return a tool result, reported by a hook unless the fields have an `entry_id`."""
    origin = {} if "entry_id" in fields else {"told_by": "hook"}
    raw = {"event": "tool_output", "event_id": f"e{number}", "tool": "exec", "tool_call_id": f"t{number}"}
    return build.event("s", number, **(raw | origin | fields))


@pytest.mark.parametrize("is_read_first", [True, False])
def test_an_exchange_reported_and_imported_is_known(*, is_read_first: bool) -> None:
    """Thousands match when a folder is imported after a month with the plugin; one of them conflicts."""
    build_stored, build_repeated = (
        (imported_exchange, reported_exchange) if is_read_first else (reported_exchange, imported_exchange)
    )
    with Store(None) as store:
        append(store, "exchanges", *(build_stored(number) for number in range(20)))
        changed = build_repeated(7, agent_response="It is not.", agent_model="n")
        outcome = append(store, "exchanges", *(changed if number == 7 else build_repeated(number) for number in range(21)))
        assert outcome.written == {"exchanges": 1}
        assert outcome.known == 19
        assert outcome.conflicts == [7]
        assert outcome.differing == {7: ("agent_response",)}


def test_a_conflict_names_the_fields() -> None:
    """The sender of a single exchange asks for the reason afterwards."""
    with Store(None) as store, store.transaction() as transaction:
        transaction.append("exchanges", [encode(imported_exchange(1))])
        transaction.append("agent-events", [encode(event(1, result="full"))])
        connection = transaction.connection
        assert find_contradictions(connection, "exchanges", reported_exchange(1)) == ()
        assert find_contradictions(connection, "exchanges", reported_exchange(2, agent_response="No.")) == ()
        assert find_contradictions(
            connection, "exchanges", msgspec.structs.replace(reported_exchange(1, agent_response="No."), session_id="t")
        ) == (
            "session_id",
            "agent_response",
        )
        assert find_contradictions(connection, "agent-events", event(1, result="empty")) == ("result",)
        assert find_contradictions(connection, "diagnoses", build.closing("s", 1)) == ()


def test_a_payload_that_is_not_an_object_is_compared_verbatim() -> None:
    """Producers write payloads themselves, and some are invalid."""
    broken = msgspec.structs.replace(event(1), payload="[1]")
    with Store(None) as store:
        append(store, "agent-events", broken)
        outcome = append(store, "agent-events", msgspec.structs.replace(broken, payload="{"))
        assert outcome.conflicts == [0]


@pytest.mark.parametrize("by_hook_first", [True, False])
def test_events_reported_by_hook_and_transcript_are_stored_once(*, by_hook_first: bool) -> None:
    """Under two ids they would count as two results, two memory failures or two compactions."""
    hooked = [event(number) for number in range(3)]
    entries = [event(number, event_id=f"r{number}", entry_id=f"r{number}") for number in range(4)]
    earlier, later = (hooked, entries) if by_hook_first else (entries, hooked)
    with Store(None) as store:
        append(store, "agent-events", *earlier)
        outcome = append(store, "agent-events", *later)
        assert outcome.written["agent_events"] == (1 if by_hook_first else 0)
        assert outcome.known == 3
        repetition = append(store, "agent-events", *later)
        assert repetition.written["agent_events"] == 0
        assert repetition.known == len(later)


def test_events_of_other_senders_are_never_duplicates() -> None:
    """Only OpenClaw's transcripts and hooks report the same event under two ids."""
    plain = [msgspec.structs.replace(event(number), payload=canonical_json({"tool_call_id": "t"})) for number in range(2)]
    with Store(None) as store:
        append(store, "agent-events", plain[0])
        outcome = append(store, "agent-events", plain[1])
    assert outcome.written == {"agent_events": 1}


def test_records_of_another_log_are_stored_unchanged() -> None:
    """Workers on Kafka compare digests only: a known record of the topic must not become a conflict here."""
    with Store(None) as store:
        append(store, "exchanges", imported_exchange(1))
        with store.transaction() as transaction:
            identities = KnownIdentities()
            transaction.read_identities("exchanges", identities)
            frame = decode_batch([encode(reported_exchange(1)), encode(reported_exchange(2))]).frames["Exchange"]
            frame_with_offsets = frame.with_columns(
                pl.lit(0, pl.Int32).alias("_partition"), (pl.col(INDEX).cast(pl.Int64) + 1).alias("_offset")
            )
            outcome = transaction.flush("exchanges", {"Exchange": frame_with_offsets}, identities)
            assert outcome.conflicts == [0]
            assert outcome.written == {"exchanges": 1}


@pytest.mark.parametrize("nonsense", ['["entry_id":"r1"', '{"entry_id":"r1', '["told_by", {"entry_id":"r1"}]'], ids=str)
def test_an_invalid_payload_blocks_no_delivery(nonsense: str) -> None:
    """A single record would otherwise cause every later event of its session to be refused."""
    with Store(None) as store:
        append(store, "agent-events", msgspec.structs.replace(event(1), payload=nonsense))
        valid = append(store, "agent-events", event(2))
        invalid = append(store, "agent-events", msgspec.structs.replace(event(3), payload=nonsense))
    assert valid.written == {"agent_events": 1}
    assert invalid.written == {"agent_events": 1}


def test_reports_of_another_connection_or_session_are_no_duplicates() -> None:
    """A sender that claims to be a hook or a transcript must not drop other senders' events."""
    with Store(None) as store:
        append(store, "agent-events", event(1))
        for fields in ({"connection": "other"}, {"session_id": "other"}):
            entry = msgspec.structs.replace(event(1, event_id="r1", entry_id="r1"), **fields)
            outcome = append(store, "agent-events", entry)
            assert outcome.written == {"agent_events": 1}


def test_a_loop_that_continues_after_an_import_is_counted_completely() -> None:
    """Each further round equals an imported one in every argument, but none may be dropped."""
    call: dict[str, Any] = {"event": "tool_call", "tool_call_id": "call_0", "arguments": {"command": "ls"}}

    def timed_event(number: int, minutes: float, **fields: Any) -> AgentEvent:
        moment = build.START + timedelta(minutes=minutes)
        return msgspec.structs.replace(event(number, **(call | fields)), occurred_at=moment, ingested_at=moment + LATER)

    read_at = build.START + timedelta(minutes=2)
    entries = [timed_event(number, number / 2, event_id=f"r{number}", entry_id=f"r{number}") for number in range(3)]
    with Store(None) as store:
        append(store, "agent-events", *(msgspec.structs.replace(entry, ingested_at=read_at) for entry in entries))
        rounds = [append(store, "agent-events", timed_event(number, number)) for number in range(4, 10)]
    assert [outcome.written for outcome in rounds] == [{"agent_events": 1}] * 6


def test_an_event_has_one_duplicate_over_all_deliveries() -> None:
    """With a transcript imported in parts, one hook event would otherwise drop an entry of each part."""

    def error_event(name: str, seconds: int, **fields: Any) -> AgentEvent:
        stored_event = build.event("s", 0, **({"event": "error_event", "action": "error", "event_id": name} | fields))
        moment = build.START + timedelta(seconds=seconds)
        return msgspec.structs.replace(stored_event, occurred_at=moment, ingested_at=build.START + timedelta(minutes=5))

    first_entry, second_entry = error_event("r1", 1, entry_id="r1"), error_event("r2", 2, entry_id="r2")
    with Store(None) as store:
        append(store, "agent-events", error_event("h", 0, told_by="hook"))
        duplicate = append(store, "agent-events", first_entry)
        distinct = append(store, "agent-events", second_entry)
        redelivered = append(store, "agent-events", first_entry, second_entry)
    assert duplicate.written["agent_events"] == 0
    assert distinct.written["agent_events"] == 1
    assert redelivered.written["agent_events"] == 0


@pytest.mark.parametrize("size", [1, 2, 5, 8, 24])
def test_batch_sizes_do_not_change_the_duplicates(size: int) -> None:
    """A hook reported every third step, all with one call id."""
    moments = [build.START + timedelta(seconds=20 * number) for number in range(24)]
    arrival = moments[-1] + LATER

    def reported_event(name: str, number: int, **fields: Any) -> AgentEvent:
        hook_event = build.event(
            "s", number, **({"event": "tool_output", "tool": "exec", "tool_call_id": "call_0", "event_id": name} | fields)
        )
        return msgspec.structs.replace(hook_event, occurred_at=moments[number], ingested_at=arrival)

    entries = [reported_event(f"r{number}", number, entry_id=f"r{number}") for number in range(24)]
    with Store(None) as store:
        append(store, "agent-events", *(reported_event(f"h{number}", number, told_by="hook") for number in range(0, 24, 3)))
        outcomes = [append(store, "agent-events", *entries[start : start + size]) for start in range(0, 24, size)]
        assert sum(outcome.written["agent_events"] for outcome in outcomes) == 16
        assert sum(outcome.known for outcome in outcomes) == 8


def test_matched_pairs_are_forgotten_within_bounds() -> None:
    """A server runs for months."""
    recent_matches = RecentMatches()
    for number in range(RecentMatches.PAIRS + 1):
        recent_matches.add(number, -number - 1)
    assert not recent_matches.has_duplicate(-1)
    assert recent_matches.has_duplicate(-2)
    assert recent_matches.find_known({7: 0, 8: 1, 9: 2}, {0: -2}) == [8]
