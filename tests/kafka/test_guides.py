"""The commands of the Kafka guides, on a real broker: a one-machine installation, a custom producer, a restore."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest
from support.servers import ROOT, until
from support.typed_guides import Shell, blocks_in, files_in, shell

from streams.kafka.connection import KafkaConnection

DOCS = ROOT / "docs"


def questioned(here: Shell, operator: str) -> list[dict[str, object]]:
    """Return the server's stored scores; none while it is not ready."""
    headers = {"Authorization": f"Bearer {operator}"}
    answer = httpx2.get(f"{here.url}/api/audit/shop/scores", headers=headers, timeout=60)
    return list(answer.json()["scores"]) if answer.is_success else []


def landed_again(printed: str) -> str:
    """Return the final output of a rebuild, without log lines."""
    (said,) = (line for line in printed.splitlines() if line.startswith("landed again: "))
    return said


@pytest.mark.slow
def test_an_installation_of_one_machine_is_set_up_fed_and_restored_as_the_guides_say(
    kafka: KafkaConnection, tmp_path: Path
) -> None:
    """The guide covers topics, worker, server, an example producer, a rebuild from the topics, and the topics of a cluster."""
    _, alone, checked, _ = blocks_in(DOCS / "deploying.md")  # the last one encrypts: tests/kafka/test_encryption.py
    (produced,) = blocks_in(DOCS / "producing.md")
    for name, content in files_in((DOCS / "producing.md").read_text("utf-8")).items():
        (tmp_path / name).write_text(content, "utf-8")
    broker = {"127.0.0.1:9092": kafka.bootstrap}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    with shell(tmp_path, DRIFTLINE_KAFKA_PREFIX=kafka.prefix) as here:
        here.run(alone, broker)
        operator = here.run("driftline operators add me").split()[0]
        here.run(
            produced, broker | {"python ": f"{sys.executable} ", "--project": f"--topic {kafka.topic('exchanges')} --project"}
        )
        until(lambda: bool(questioned(here, operator)), "the exchange to be scored and landed")
        before = questioned(here, operator)
        here.stop()
        here.run("rm driftline.duckdb\ndriftline serve")
        until(lambda: bool(questioned(here, operator)), "the tables to be there")
        after = questioned(here, operator)
        here.stop()
        assert "driftline rebuild --kafka ADDRESS" in (DOCS / "how-to" / "back-up.md").read_text("utf-8")
        landed = landed_again(here.run(f"driftline rebuild --kafka {kafka.bootstrap}"))
        assert "`driftline rebuild`" in (DOCS / "deploying.md").read_text("utf-8")
        assert landed == landed_again(here.run("rm driftline.duckdb\ndriftline rebuild"))
        here.run(f"export DRIFTLINE_KAFKA_PREFIX={kafka.prefix}more-")
        here.run(checked, {"--partitions 24": "--partitions 2"})

    assert [one["exchangeId"] for one in after] == ["s-1:1"]
    assert after == before
