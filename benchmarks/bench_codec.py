"""Decoding event records: one at a time, and in batches with and without proof of their lengths."""

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import avro.io
import avro.schema
import fastavro
import polars as pl

from benchmarks.measure import best_seconds, print_table
from schemas.codec.arrow import SYNC, decode_batch
from schemas.codec.single_object import PREFIX_BYTES, encode
from schemas.records import AgentEvent
from schemas.registry import schema_of

RECORDS = 20_000
BATCHES = (2_000, 20_000)
ROUNDS = 7
SCHEMA = schema_of("AgentEvent")
# Polars stumbles over defaults, and needs neither them nor docs.
BARE_SCHEMA = {
    "type": "record",
    "name": SCHEMA.name,
    "fields": [{"name": field["name"], "type": field["type"]} for field in SCHEMA.fields],
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def events(count: int) -> list[bytes]:
    """Encoded tool calls, tool outputs and token counts of a few sessions, the same ones every time."""
    rng = random.Random(7)
    encoded = []
    for seq in range(count):
        kind = rng.choice(["tool_call", "tool_output", "token_usage"])
        tool = rng.choice(["search", "read_file", "run_tests"])
        payload = {"event": kind, "tool": tool, "args": {"path": f"src/module_{rng.randrange(500)}.py"}}
        record = AgentEvent(
            connection="fleet",
            project="billing",
            session_id=f"session-{seq % 50}",
            event_id=f"event_{seq}",
            seq=seq,
            event=kind,
            occurred_at=START + timedelta(milliseconds=seq),
            ingested_at=START + timedelta(seconds=seq),
            tool=None if kind == "token_usage" else tool,
            call_key=f"{rng.getrandbits(64):016x}" if kind == "tool_call" else None,
            used=True if kind == "tool_output" else None,
            tokens=rng.randrange(5_000) if kind == "token_usage" else None,
            payload=json.dumps(payload),
        )
        encoded.append(encode(record))
    return encoded


def with_avro(messages: Sequence[bytes]) -> None:
    """Decode one at a time with Avro's reference implementation."""
    reader = avro.io.DatumReader(avro.schema.parse(json.dumps(SCHEMA.definition)))
    for message in messages:
        reader.read(avro.io.BinaryDecoder(io.BytesIO(message[PREFIX_BYTES:])))


def with_fastavro(messages: Sequence[bytes]) -> None:
    """Decode one at a time with fastavro."""
    for message in messages:
        fastavro.schemaless_reader(io.BytesIO(message[PREFIX_BYTES:]), SCHEMA.parsed, None)


def without_proof(messages: Sequence[bytes]) -> None:
    """Decode as one object container made around the bodies, believing that each is as long as it should be."""
    container = io.BytesIO()
    fastavro.writer(container, BARE_SCHEMA, [], codec="null", sync_marker=SYNC)
    block = b"".join(message[PREFIX_BYTES:] for message in messages)
    for length in (len(messages), len(block)):
        fastavro.schemaless_writer(container, {"type": "long"}, length)
    container.write(block + SYNC)
    container.seek(0)
    if pl.read_avro(container).height != len(messages):
        raise ValueError("the container was not read to its end")


def proven(messages: Sequence[bytes]) -> None:
    """Decode as the product does: with proof, isolation of bad messages, and bounds."""
    decode_batch(messages)


def batches(messages: Sequence[bytes], size: int, *, damaged: bool) -> Iterator[Sequence[bytes]]:
    """Return the messages in batches; where `damaged`, the middle message of each lost its last byte."""
    for start in range(0, len(messages), size):
        batch = list(messages[start : start + size])
        if damaged:
            batch[size // 2] = batch[size // 2][:-1]
        yield batch


WAYS: dict[str, tuple[Callable[[Sequence[bytes]], None], bool]] = {
    "avro, one at a time": (with_avro, False),
    "fastavro, one at a time": (with_fastavro, False),
    "polars, container without proof": (without_proof, False),
    "decode_batch: proven and bounded": (proven, False),
    "decode_batch, one damaged message a batch": (proven, True),
}


def main() -> None:
    """Print records per second and the ratio to fastavro for each way and batch size."""
    messages = events(RECORDS)
    print(f"{RECORDS} AgentEvent records, {sum(map(len, messages)) // RECORDS} bytes each on average.\n")
    rows = []
    for size in BATCHES:
        runs = {way: run_of(decode, list(batches(messages, size, damaged=damaged))) for way, (decode, damaged) in WAYS.items()}
        seconds = best_seconds(runs, ROUNDS)
        base = seconds["fastavro, one at a time"]
        rows += [[way, f"{size}", f"{RECORDS / taken:,.0f}", f"{base / taken:.2f}"] for way, taken in seconds.items()]
    print_table(["decoder", "batch", "records/s", "times fastavro"], rows)


def run_of(decode: Callable[[Sequence[bytes]], None], parts: Sequence[Sequence[bytes]]) -> Callable[[], None]:
    """Return a run that decodes every batch once."""

    def run() -> None:
        for part in parts:
            decode(part)

    return run


if __name__ == "__main__":
    main()
