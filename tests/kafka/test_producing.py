"""What the page for producers says is so: the example on a real broker, and the constants."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from schemas.codec import decode
from schemas.limits import MAX_ADMITTED_BYTES
from schemas.records import Exchange
from schemas.registry import schemas_by_prefix
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import decode_values
from streams.kafka.keys import key_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "producing.md").read_text("utf-8")


def test_the_constants_on_the_page_are_those_of_published_schemas() -> None:
    """Somebody copies them into a program in another language, and every value would be a dead letter."""
    named = dict(re.findall(r"^\| `(\w+)` \| `([0-9a-f]{20})` \|$", PAGE, re.MULTILINE))
    assert {"Exchange", "AgentEvent", "SessionClosed"} == named.keys()
    for name, prefix in named.items():
        assert name == schemas_by_prefix()[bytes.fromhex(prefix)].name
    assert f"Buffer.from('{named['Exchange']}', 'hex')" in PAGE
    assert f"{MAX_ADMITTED_BYTES:,}".replace(",", " ") in PAGE


@pytest.mark.any_broker
def test_the_example_producer_makes_exchanges_that_are_taken(kafka: KafkaConnection, make_topics: Any, tmp_path: Path) -> None:
    """An example that does not work is worse than none. It runs as its reader runs it, without our packages."""
    make_topics("exchanges", partitions=3)
    lines = [
        {
            "id": f"e-{number}",
            "session": f"s-{number % 5}",
            "at": "2026-11-20T10:00:00Z",
            "asked": "Is it ☃?",
            "answered": "No.",
        }
        for number in range(40)
    ]
    (tmp_path / "exchanges.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    avsc = ROOT / "schemas" / "avsc" / "driftline.Exchange.avsc"
    where = ["--bootstrap", kafka.bootstrap, "--topic", kafka.topic("exchanges"), "--connection", "north", "--project", "ops"]
    command = [
        sys.executable,
        "-P",
        str(ROOT / "examples" / "produce.py"),
        str(avsc),
        str(tmp_path / "exchanges.jsonl"),
        *where,
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("40 exchanges in ")

    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, consumer_timeout_ms=20_000)
    partitions = [TopicPartition(kafka.topic("exchanges"), number) for number in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found = [message for message, _ in zip(consumer, range(40), strict=False)]
    consumer.close()
    assert [] == decode_values("exchanges", [message.value for message in found]).rejected
    records = [decode(message.value) for message in found]
    assert {f"e-{number}" for number in range(40)} == {record.exchange_id for record in records if isinstance(record, Exchange)}
    assert [key_of(record) for record in records] == [message.key for message in found]
