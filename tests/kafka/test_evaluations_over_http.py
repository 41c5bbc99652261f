"""Evaluations by a server on Kafka: it publishes the requests, workers judge, and the client reads the results."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.clients import bearer, exchange_body
from support.kafka_judging import PARTITIONS, topics_of
from support.sample_evaluations import PROFILE, REFUND
from support.servers import PATIENCE, Home, nursery, until

from audit.evaluation.cases import Case, LoadedProfile, Profile, plans, shipped_system_prompt
from driftline_trial.simulator import running
from schemas.registry import topics
from service.cli.evaluation_client import EvaluationClient, EvaluationTerms
from service.write.evaluating import Progress
from streams.finished_sessions import SessionSelection
from streams.judging.judged_stages import EVALUATION
from streams.kafka.connection import KafkaConnection

UNSUPERVISED = "import os; os.dup2(os.pipe()[0], 0)"
"""Run before a worker: it ends with its supervisor, whose pipe is its input, and has none here."""


def terms() -> EvaluationTerms:
    """Return the body for one case, one judge run and one session."""
    profile = Profile.model_validate_json(json.dumps(PROFILE))
    case = Case.model_validate_json(json.dumps(REFUND))
    loaded = LoadedProfile(profile, shipped_system_prompt())
    return EvaluationTerms([case], loaded, plans(profile), SessionSelection(sessions=["north/s1"]), retry_failed=False)


@pytest.mark.slow
def test_a_server_on_kafka_returns_the_evaluations_of_its_workers(
    kafka: KafkaConnection, make_topics: Any, tmp_path: Path
) -> None:
    """A session that just ended is evaluated at once, a repetition is reused, and the judge is called three times in total."""
    configs = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "16777216"}
    make_topics(*{*topics(), *topics_of(EVALUATION)}, partitions=PARTITIONS, configs=configs)
    progress_reports: list[Progress] = []
    with running("answer") as judge, nursery() as children:
        home = Home(tmp_path, ANTHROPIC_BASE_URL=judge.base_url, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
        operator, connection = home.operator(), home.connection("north")
        work = ("worker", "--stages", "evaluation", "--child", "--kafka", kafka.bootstrap)
        worker = children.start(home, *work, before=UNSUPERVISED)
        server = children.serve(home, "--kafka", kafka.bootstrap)
        url = server.serving()
        until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == httpx2.codes.OK, "the server to take records")
        response = httpx2.post(
            f"{url}/api/audit/ingest", headers=bearer(connection), json=exchange_body("s1", 1, "It is."), timeout=60
        )
        ended = httpx2.post(f"{url}/api/audit/sessions/s1/finalize", headers=bearer(connection), json={}, timeout=60)
        assert response.status_code == 201
        assert ended.status_code == 200

        def while_it_works(seconds: float) -> None:
            assert not worker.ended, worker.logged[-4000:]
            time.sleep(min(seconds, 0.1))

        with closing(EvaluationClient(url, operator, sleep=while_it_works, idle_seconds=PATIENCE)) as client:
            estimate = client.estimate(terms())
            (evaluation,) = client.evaluate(terms(), progress_reports.append)
            (repeated,) = client.evaluate(terms(), progress_reports.append)
        for process in (worker, server):
            process.send(signal.SIGTERM)
            assert process.wait() == 0, process.logged[-4000:]

    assert estimate.sessions == 1
    assert estimate.estimate.calls == 3
    assert evaluation.evaluation.status == "completed"
    assert evaluation.evaluation.successful_iterations == 3
    assert evaluation.reused is False
    assert repeated.reused is True
    assert repeated.evaluation == evaluation.evaluation
    assert judge.requests == 3
    assert [(report.done, report.total, report.answered) for report in progress_reports] == [(1, 1, 3)]
    assert evaluation.user_prompt.startswith('{"evaluation_target":')
