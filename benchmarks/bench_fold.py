"""Folding events into evidence: from Arrow batches, and over records of fastavro and of avro.

Each way decodes the same messages and folds them with the same rules; only the decoder and the shape of the rows differ. Every way
runs in a process of its own, so that its peak memory is its own.
"""

import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import fastavro

from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns
from benchmarks.bench_codec import events
from benchmarks.measure import print_table, process_cost
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import PREFIX_BYTES
from schemas.registry import schema_of

EVENTS = 400_000
"""Events folded by the fast way; the slow ones get a tenth, and their rate is compared."""
DISTINCT = 20_000
BATCH = 20_000
SCHEMA = schema_of("AgentEvent")
COLUMNS = ("session_id", *FOLD_COLUMNS[1:])


def messages_in(path: Path, count: int) -> Iterator[list[bytes]]:
    """Return the file's messages in batches, over and over until `count` are out."""
    distinct = [bytes.fromhex(line) for line in path.read_text().splitlines()]
    for _ in range(count // BATCH):
        yield distinct[:BATCH]


def fold_arrow(path: Path, count: int) -> None:
    """Decode batches to columns and fold the columns."""
    evidence: dict[str, SessionEvidence] = {}
    for batch in messages_in(path, count):
        frame = decode_batch(batch).frames["AgentEvent"]
        fold_columns(evidence, zip(*(frame[name].to_list() for name in COLUMNS), strict=True), reference_limit=100)


def fold_fastavro(path: Path, count: int) -> None:
    """Decode records one at a time with fastavro and fold their rows."""
    fold_records(path, count, lambda body: fastavro.schemaless_reader(io.BytesIO(body), SCHEMA.parsed, None))


def fold_avro(path: Path, count: int) -> None:
    """Decode records one at a time with Avro's reference implementation and fold their rows."""
    reader = avro.io.DatumReader(avro.schema.parse(json.dumps(SCHEMA.definition)))
    fold_records(path, count, lambda body: reader.read(avro.io.BinaryDecoder(io.BytesIO(body))))


def fold_records(path: Path, count: int, decode: Callable[[bytes], Any]) -> None:
    """Fold what a decoder makes of each message."""
    evidence: dict[str, SessionEvidence] = {}
    for batch in messages_in(path, count):
        records = (decode(message[PREFIX_BYTES:]) for message in batch)
        fold_columns(evidence, (tuple(record[name] for name in COLUMNS) for record in records), reference_limit=100)


def fold_nothing(path: Path, count: int) -> None:
    """Only what every way does besides: start Python, import, read the messages."""
    for _ in messages_in(path, count):
        pass


WAYS: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "avro records": (fold_avro, EVENTS // 10),
    "fastavro records": (fold_fastavro, EVENTS // 4),
    "Arrow batches": (fold_arrow, EVENTS),
}


def main() -> None:
    """Print events per second, the ratio to fastavro, and peak memory of each way."""
    if len(sys.argv) > 2 and sys.argv[1] == "--child":
        CHILDREN[sys.argv[2]](Path(sys.argv[3]), int(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "messages"
        path.write_text("\n".join(message.hex() for message in events(DISTINCT)))
        rates = {}
        for name, (fold, count) in WAYS.items():
            idle = min(child(fold_nothing, path, count)[0] for _ in range(3))
            costs = [child(fold, path, count) for _ in range(3)]
            rates[name] = count / (min(seconds for seconds, _ in costs) - idle), max(memory for _, memory in costs)
    base = rates["fastavro records"][0]
    print(f"{EVENTS:,} events of {SCHEMA.name} in batches of {BATCH:,}; start-up taken off.\n")
    rows = [[name, f"{rate:,.0f}", f"{rate / base:.2f}", f"{memory:.0f}"] for name, (rate, memory) in rates.items()]
    print_table(["fold over", "events/s", "times fastavro", "peak MB"], rows)


def child(fold: Callable[[Path, int], None], path: Path, count: int) -> tuple[float, float]:
    """Seconds and peak memory of one way in a process of its own."""
    return process_cost([sys.executable, "-m", "benchmarks.bench_fold", "--child", fold.__name__, str(path), str(count)])


CHILDREN = {function.__name__: function for function in (fold_arrow, fold_fastavro, fold_avro, fold_nothing)}

if __name__ == "__main__":
    main()
