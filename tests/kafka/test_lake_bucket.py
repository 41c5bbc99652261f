"""A lake in an object store: an S3 API on loopback, with several sinks and an erasure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest
from deltalake import DeltaTable, WriterProperties
from support.builders import event, exchange
from support.clocks import NOW
from support.erased_sessions import MARKER
from support.kafka_sinks import MakeTopics, produce, producing
from support.lakes import completed, digest, fill_lake, put, rows, sinking
from support.processes import free_port, tied, untie
from support.servers import until

from analytics.lake import Lake
from audit.policy import Policy
from schemas.errors import LakeError
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.lake.maintenance import LakeMaintenance
from streams.upkeep.deletion import erasure

BUCKET = "fleet"
ACCESS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of an empty folder in a bucket, with access to it in the environment."""
    port = free_port()
    # A process of its own: the sinks would wait for the interpreter's lock, and the server for theirs.
    server = tied([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], subprocess.DEVNULL)
    try:
        for name, value in (ACCESS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
            monkeypatch.setenv(name, value)
        until(lambda: listens(port), "the object store")
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/lake"
    finally:
        untie(server)
        server.kill()
        server.wait()


def listens(port: int) -> bool:
    """Tell whether a port of this machine accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def objects() -> dict[str, bytes]:
    """Return every object of the bucket."""
    client = boto3.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def test_a_bucket_takes_several_sinks(bucket: str, kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Two processes must not overwrite each other's commits: the store lets only one create the next version."""
    make_topics(*topics(), partitions=2)

    async def run() -> None:
        async with producing(kafka) as producer, sinking(bucket, kafka) as first, sinking(bucket, kafka) as second:
            number = 0
            async with asyncio.timeout(240):
                while not (first.committed and second.committed):
                    await produce(producer, "agent-events", [event(f"s{number}", 1)])
                    number += 1
                    await asyncio.sleep(0.05)
            await completed(bucket, kafka, first, second)
        await fill_lake(f"{bucket}-alone", kafka)

    asyncio.run(run())
    assert digest(bucket) == digest(f"{bucket}-alone")


def test_a_commit_does_not_replace_another(bucket: str) -> None:
    """Without a conditional put the second writer of a version would win, and the rows of the first be lost."""
    put(bucket, [("agent-events", event("s", 1))])
    stale = Lake(bucket)
    assert stale.position("AgentEvent", ("agent-events", 0)) == 1
    put(bucket, [("agent-events", event("s", 2))])
    late = rows(bucket, "AgentEvent")
    with pytest.raises(LakeError):
        stale.commit("AgentEvent", late, {("agent-events", 0): 2})
    assert rows(bucket, "AgentEvent")["seq"].to_list() == [1, 2]
    assert DeltaTable(f"{bucket}/agent_events").version() == 2


def test_no_object_has_the_text_of_an_erased_session(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that were replaced must be gone, as files are."""
    properties = WriterProperties(compression="UNCOMPRESSED")
    monkeypatch.setattr("analytics.lake.writer_properties", lambda: properties)
    monkeypatch.setattr("streams.lake.maintenance.writer_properties", lambda: properties)
    put(bucket, [("exchanges", exchange("erased", 1, MARKER)), ("exchanges", exchange("kept", 1, "A kept answer."))])
    assert [key for key, content in objects().items() if MARKER.encode() in content]
    put(bucket, [("erasures", erasure("local", "erased", "root", None, NOW))])
    LakeMaintenance(bucket, Policy(), lambda: NOW).erase()
    assert not [key for key, content in objects().items() if MARKER.encode() in content]
    assert [key for key, content in objects().items() if b"A kept answer." in content]
