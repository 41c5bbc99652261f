"""A producer that needs nothing of Driftline but a schema file: puts exchanges from JSON lines on the topic `exchanges`.

    pip install fastavro kafka-python
    python produce.py driftline.Exchange.avsc exchanges.jsonl --bootstrap 127.0.0.1:9092 --connection checkout --project shop

Each line has `id`, `session`, `at` (RFC 3339), `asked` and `answered`. Running it twice changes nothing: an exchange is known by its id.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form
from kafka import KafkaProducer


class Encoder:
    """Writes values as Avro's single-object encoding says: C3 01, the schema's fingerprint, the body."""

    def __init__(self, avsc: Path) -> None:
        self._schema = fastavro.parse_schema(json.loads(avsc.read_text("utf-8")))
        # fastavro prints the fingerprint in the order of the wire: the lowest byte first.
        self.prefix = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO"))

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """The value of a record; fields that are left out get their defaults."""
        buffer = io.BytesIO()
        buffer.write(self.prefix)
        fastavro.schemaless_writer(buffer, self._schema, dict(fields))
        return buffer.getvalue()


def exchange_of(line: Mapping[str, str], connection: str, project: str) -> dict[str, Any]:
    """The fields of an Exchange. Secrets must be gone from the texts before they come here: nobody redacts what is on a topic."""
    asked, answered = line["asked"], line["answered"]
    content = json.dumps([line["at"], asked, answered], ensure_ascii=False)
    return {
        "exchange_id": line["id"],
        "connection": connection,
        "project": project,
        "session_id": line["session"],
        "occurred_at": datetime.fromisoformat(line["at"]).astimezone(UTC),
        "ingested_at": datetime.now(UTC),
        "user_message": asked,
        "agent_response": answered,
        "content_digest": hashlib.sha256(content.encode("utf-8")).hexdigest()[:16],
    }


def main() -> None:
    """Produce every line, and wait until the brokers have all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("avsc", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="exchanges")
    parser.add_argument("--connection", required=True)
    parser.add_argument("--project", required=True)
    given = parser.parse_args()
    encoder = Encoder(given.avsc)
    # The default partitioner is Kafka's own (murmur2), as it must be.
    producer = KafkaProducer(bootstrap_servers=given.bootstrap, acks="all", enable_idempotence=True)
    began, futures = time.monotonic(), []
    with given.lines.open(encoding="utf-8") as lines:
        for line in lines:
            fields = exchange_of(json.loads(line), given.connection, given.project)
            key = f"{fields['connection']}/{fields['session_id']}".encode()
            futures.append(producer.send(given.topic, key=key, value=encoder.encode(fields)))
    for future in futures:
        future.get(timeout=60)
    producer.close()
    print(f"{len(futures)} exchanges in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
