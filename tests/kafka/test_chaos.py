"""A few rounds of `make chaos`: a whole installation on Kafka with failures at random points. `make soak` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.run import run
from support.effort import times
from support.kafka_brokers import Found
from support.processes import skip_or_fail

pytestmark = pytest.mark.slow
ROUNDS = times(2, soak=40)


def test_nothing_is_lost_or_duplicated_despite_random_failures(any_broker: Found, tmp_path: Path) -> None:
    """Kills, outages and restarts may coincide in ways that tests of single faults miss."""
    if any_broker.kind != "java":
        skip_or_fail("a broker to be killed is started with Java and Maven: install them")
    outcome = run(tmp_path, ROUNDS, seed=11)
    assert sum(count for fault, count in outcome.happened.items() if "by itself" not in fault) == ROUNDS
    assert outcome.happened["kill -9 of a worker"] > 0
    assert outcome.counted["records that came again"] > 0
    assert outcome.counted["poison records"] > ROUNDS
