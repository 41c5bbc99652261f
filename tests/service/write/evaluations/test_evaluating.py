"""Evaluating in this process: judged, reused, stopped, killed, and taken up again; one by one and in batches."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.evaluation_builders import case, plan
from support.servers import Home, Nursery, nursery, until
from support.stored_sessions import HAIKU, filled, session

from analytics.queries import query_records
from analytics.store.store import Store
from audit.evaluation.cases import Plan
from audit.evaluation.report import LATER_ATTEMPT_FAILED, Evaluated
from driftline_trial.simulator import RunningJudge, running
from schemas.errors import InputError, SettingsError
from schemas.records import Judgement
from service.cli.commands.evaluating import describe_estimate
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from service.write.evaluating import JudgeUnresponsiveError, Progress, catch_up, evaluate, journal_of
from streams.engine.engine import Engine
from streams.evaluations import Prepared, prepare
from streams.finished_sessions import SessionSelection
from streams.judges.batch_judge import BatchLimits
from streams.judging.call_budget import DurableBudget, StoppedError
from streams.judging.judged_stages import EVALUATION

QUICK = BatchLimits(first_poll=0.02, max_poll=0.05)
SESSIONS = 4


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file with four finished sessions."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        for number in range(1, SESSIONS + 1):
            filled(store, *session(f"s{number}", number))
    return path


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No judge in the environment."""
    for name in os.environ:
        if name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def simulator(nobody: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningJudge]:  # noqa: ARG001 - it comes first
    """A simulated judge, named in the environment; batches are looked at often."""
    monkeypatch.setattr("streams.judges.batch_judge.BatchLimits", lambda: QUICK)
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        yield judge


@contextmanager
def prepared(database: Path, *plans: Plan, **how: bool) -> Iterator[tuple[Workspace, Prepared]]:
    """Prepare evaluations over an open file."""
    with open_workspace(Settings(database=database), writes=True) as workspace:
        catch_up(workspace)
        yield (
            workspace,
            prepare(
                workspace.store,
                workspace.policy,
                [case()],
                plans or [plan()],
                "Judge it.",
                SessionSelection(),
                workspace.now(),
                **how,
            ),
        )


def made(database: Path, *plans: Plan, report: Callable[[Progress], None] = lambda _: None, **how: Any) -> list[Evaluated]:
    """Evaluate the sessions and return the results."""
    with prepared(database, *plans, **how) as (workspace, found):
        return evaluate(workspace, workspace.settings, found, report)


def judgements(database: Path) -> list[Judgement]:
    """Return the recorded judgements."""
    with Store(database) as store:
        rows = query_records(store.cursor(), "judgements_of", Judgement, {"subjects": subjects(store)})
        return list(rows)


def subjects(store: Store) -> list[dict[str, str]]:
    """Everything that was ever judged."""
    rows = store.cursor().execute("SELECT DISTINCT connection, subject_id FROM log.judgements").fetchall()
    return [{"connection": connection, "subject_id": subject} for connection, subject in rows]


def counts(database: Path) -> tuple[int, int]:
    """Return the numbers of requests and evaluations in the log."""
    with Store(database) as store:
        return store.end_of("evaluation-requests"), store.end_of("evaluations")


def by_type(kind: str, **said: Any) -> Plan:
    """A plan whose judge is asked in this way."""
    return plan(judge={"judge_id": "x", "model": HAIKU, "type": kind}, **said)


class Once:
    """A progress callback that sends this process a signal once a condition holds."""

    def __init__(self, number: signal.Signals, is_time: Callable[[Progress], bool]) -> None:
        self._number = number
        self._is_time = is_time
        self._sent = False

    def __call__(self, progress: Progress) -> None:
        """Hear of progress."""
        if not self._sent and self._is_time(progress):
            self._sent = True
            os.kill(os.getpid(), self._number)


def told(found: Sequence[Evaluated]) -> list[tuple[str, int, str, bool]]:
    """Session, repetition, status and whether it was reused."""
    return [(one.evaluation.session_id, one.evaluation.repetition, one.evaluation.status, one.reused) for one in found]


def test_every_session_is_judged_as_often_as_requested_and_then_reused(database: Path, simulator: RunningJudge) -> None:
    """Progress has the number done and the cost, and a repeated request calls no judge."""
    heard: list[Progress] = []
    made_first = made(database, report=heard.append)

    assert told(made_first) == [(f"s{number}", number, "completed", False) for number in range(1, 5)]
    assert all(one.evaluation.simulated and one.system_prompt.startswith("Judge it.") for one in made_first)
    assert simulator.requests == 3 * SESSIONS
    last = heard[-1]
    assert last.done == 4
    assert last.total == 4
    assert last.answered == 12
    assert last.failed == 0
    assert last.spent_usd == pytest.approx(sum(one.cost_usd or 0 for one in judgements(database)))
    assert [one.done for one in heard] == sorted(one.done for one in heard)

    repeated = made(database, report=heard.append)
    assert told(repeated) == [(f"s{number}", number, "completed", True) for number in range(1, 5)]
    assert [one.evaluation for one in made_first] == [one.evaluation for one in repeated]
    assert simulator.requests == 12
    assert heard[-1] == last


@pytest.mark.usefixtures("nobody")
def test_without_a_judge_nothing_is_written(database: Path) -> None:
    """Without a judge, a request would become a failed evaluation."""
    with pytest.raises(SettingsError, match="there is no judge") as caught:
        made(database)
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert counts(database) == (0, 0)


@pytest.mark.usefixtures("nobody")
def test_without_a_judge_earlier_requests_are_left_alone(database: Path) -> None:
    """Requests left by an earlier command must not fail for lack of a judge, so the command refuses to start."""
    with prepared(database) as (workspace, found):
        filled(workspace.store, ("evaluation-requests", found.requests[0]))
    with prepared(database, by_type("recorded", repetitions=1)) as (workspace, found):
        assert found.estimate.evaluations == 4
        assert found.estimate.calls == 0
        assert found.estimate.left_over == 1
        assert "1 more evaluation that an interrupted command" in describe_estimate(found, is_capped=True)
        with pytest.raises(SettingsError, match="there is no judge"):
            evaluate(workspace, workspace.settings, found, lambda _: None)
    assert counts(database) == (1, 0)


def test_without_open_questions_no_judge_is_needed(
    database: Path, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded and reused evaluations need no judge."""

    async def killed(_: Engine) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            made(database, by_type("batch"))
    assert counts(database) == (0, 0)
    assert len(judgements(database)) == simulator.requests == 12
    monkeypatch.delenv("ANTHROPIC_BASE_URL")

    recorded = made(database, by_type("recorded"))
    assert [(one.evaluation.status, one.evaluation.successful_iterations, one.reused) for one in recorded] == [
        ("completed", 3, False)
    ] * 4
    assert [one.reused for one in made(database)] == [True] * 4
    assert simulator.requests == 12


def test_a_failed_call_is_reported_and_repeated_on_request(database: Path, simulator: RunningJudge) -> None:
    """The evaluation uses the received answers; failed calls can be repeated later."""
    simulator.reset(",".join(["answer", "refusal", "answer"] * SESSIONS))
    heard: list[Progress] = []
    first_result = made(database, report=heard.append)
    failed = sum(one.evaluation.configured_repetitions - one.evaluation.successful_iterations for one in first_result)

    assert failed == heard[-1].failed == 4
    assert sum("failed and was excluded" in words for one in first_result for words in one.evaluation.warnings) == 4
    simulator.reset("answer")
    retried = made(database, retry_failed=True)
    assert simulator.requests == 4
    assert [one.evaluation.successful_iterations for one in retried] == [3] * 4
    assert {one.reused for one in retried if one.evaluation.revision} == {False}


def test_a_failed_attempt_keeps_the_previous_result_and_says_so(database: Path, simulator: RunningJudge) -> None:
    """The caller gets the earlier result, marked as not being the requested attempt."""
    first = made(database)
    simulator.reset("refusal")
    failed_attempt = made(database, takes_simulated=False)
    assert [(*one.evaluation.warnings, LATER_ATTEMPT_FAILED) for one in first] == [
        one.evaluation.warnings for one in failed_attempt
    ]
    assert [one.evaluation.final_score for one in first] == [one.evaluation.final_score for one in failed_attempt]
    assert counts(database) == (2 * SESSIONS, 2 * SESSIONS)
    assert [one.reused for one in made(database)] == [True] * SESSIONS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_keeps_recorded_answers_and_the_next_call_continues(
    database: Path, simulator: RunningJudge, number: signal.Signals
) -> None:
    """Answers received before Ctrl-C are paid for and must be kept."""
    simulator.reset(",".join(["answer"] * 5 + ["slow:2"] * 7))
    before = signal.getsignal(number)

    with pytest.raises(StoppedError):
        made(database, report=Once(number, lambda progress: progress.answered >= 5))
    assert signal.getsignal(number) == before
    recorded = judgements(database)
    assert {one.outcome for one in recorded} == {"answered"}
    assert 5 <= len(recorded) == simulator.requests < 3 * SESSIONS
    simulator.reset("answer")

    with prepared(database) as (workspace, preparation):
        assert preparation.estimate.calls == 3 * SESSIONS - len(recorded)
        assert len(preparation.taken_up) + len(preparation.reused) == SESSIONS
        assert [status for _, _, status, _ in told(evaluate(workspace, workspace.settings, preparation, lambda _: None))] == [
            "completed"
        ] * SESSIONS
    assert simulator.requests == 3 * SESSIONS - len(recorded)
    assert counts(database) == (SESSIONS, SESSIONS)


def test_a_request_that_became_a_dead_letter_is_named(
    database: Path, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing evaluation must be reported, or it would look as if it had not been requested."""
    opened = type(EVALUATION).open

    def broken(self: Any, task: Any, *arguments: Any, **options: Any) -> Any:
        if task.session_id == "s2":
            raise ValueError("a fault of Driftline")
        return opened(self, task, *arguments, **options)

    with prepared(database) as (workspace, preparation):
        monkeypatch.setattr(type(EVALUATION), "open", broken)
        with pytest.raises(InputError, match=r"1 of 4 .* rotate-key on s2") as caught:
            evaluate(workspace, workspace.settings, preparation, lambda _: None)
        assert "dead-letters list --stage evaluation" in caught.value.hint
    monkeypatch.undo()
    monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.base_url)
    repeated = made(database)
    assert [one.reused for one in repeated] == [True, False, True, True]
    assert [one.evaluation.status for one in repeated] == ["completed"] * 4


def test_a_batch_judge_is_asked_once_at_half_the_price(database: Path, simulator: RunningJudge) -> None:
    """The stage uses the recorded answers of the batch and makes no calls."""
    heard: list[Progress] = []
    result = made(database, by_type("batch"), report=heard.append)

    recorded = judgements(database)
    assert {(one.outcome, one.batched) for one in recorded} == {("answered", True)}
    assert len(recorded) == 12
    assert simulator.requests == 12
    assert [one.evaluation.status for one in result] == ["completed"] * 4
    assert heard[-1].answered == 12
    assert heard[-1].failed == 0
    batched = sum(one.cost_usd or 0 for one in recorded)
    with Store(database) as store:
        reserved = store.cursor().execute("SELECT count(*) FROM log.reservations").fetchone()
    assert reserved == (12,)
    assert [one.reused for one in made(database)] == [True] * 4, "live or in batches: the same evaluation"
    assert batched == pytest.approx(sum(one.evaluation.cost_usd or 0 for one in result))


def test_evaluations_with_equal_questions_in_batches_get_an_answer_each(database: Path, simulator: RunningJudge) -> None:
    """Two ways of putting answers together are two evaluations, and a batch takes a question once."""
    results = made(
        database, by_type("batch", repetitions=1), by_type("batch", repetitions=1, judge_run_id="mean", method="mean")
    )
    assert len({one.evaluation.evaluation_id for one in results}) == 8
    assert [one.evaluation.status for one in results] == ["completed"] * 8
    assert {one.batched for one in judgements(database)} == {True}
    assert simulator.requests == 8


def test_an_interrupted_batch_is_resumed_and_paid_once(
    database: Path, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may take a day. Requests are published after its answers, so that they are not judged call by call."""
    judgement, recorded = DurableBudget.record_judgement, []

    async def cut_short(self: DurableBudget, verdict: Any) -> Judgement:
        recorded.append(verdict)
        if len(recorded) == 5:
            raise KeyboardInterrupt
        return await judgement(self, verdict)

    with monkeypatch.context() as patched:
        patched.setattr(DurableBudget, "record_judgement", cut_short)
        with pytest.raises(KeyboardInterrupt):
            made(database, by_type("batch"))
    assert counts(database) == (0, 0)
    assert simulator.requests == 12
    assert journal_of(database).exists()

    result = made(database, by_type("batch"))
    assert simulator.requests == 12
    assert Counter(one.outcome for one in judgements(database)) == {"answered": 12}
    assert [one.evaluation.successful_iterations for one in result] == [3] * 4


def test_a_stop_cancels_a_batch(database: Path, simulator: RunningJudge) -> None:
    """Unsent questions of a cancelled batch are not paid for, and the next command asks them."""
    simulator.reset("answer", batch_seconds=60)

    def stop() -> None:
        until(lambda: simulator.batch_calls > 0, "a batch to be made")
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(StoppedError):
        made(database, by_type("batch"))
    stopping.join()
    assert counts(database) == (0, 0)
    assert not judgements(database)
    simulator.reset("answer")
    assert [one.evaluation.status for one in made(database, by_type("batch"))] == ["completed"] * 4


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Starts commands as processes of their own."""
    with nursery() as opened:
        yield opened


@pytest.mark.parametrize("kind", ["live", "batch"])
def test_a_kill_loses_no_recorded_answer(children: Nursery, database: Path, tmp_path: Path, kind: str) -> None:
    """After a crash, the same command pays only for missing answers."""
    script = "slow:0.3" if kind == "live" else "answer"
    with running(script, batch_seconds=1.5) as judge:
        home = Home(tmp_path, ANTHROPIC_BASE_URL=judge.base_url)
        command = ("evaluate", "--case", "case.yaml", "--profile", "profile.yaml", "--yes", "--output", "json")
        write_files(tmp_path, kind)
        command = tuple(str(tmp_path / one) if one.endswith(".yaml") else one for one in command)

        child = children.start(home, *command)
        until(lambda: judge.requests > 2 or child.ended, "the judge to be asked")
        assert child.kill() == -signal.SIGKILL, child.logged
        before = {one.fingerprint for one in judgements(database) if one.outcome == "answered"}
        code, printed = children.run(home, *command)

    assert code == 0, home.log.read_text()
    recorded = judgements(database)
    answers = [one for one in recorded if one.outcome == "answered"]
    assert len(answers) == len({one.fingerprint for one in answers}) == 12, "each question is answered once"
    assert before <= {one.fingerprint for one in answers}
    # A call that was under way when the process was killed is asked again, and charged.
    cut_off = sum(one.outcome == "interrupted" for one in recorded)
    assert judge.requests <= 12 + cut_off
    assert cut_off <= SESSIONS, "sessions are judged side by side, each one's iterations one after the other"
    assert counts(database) == (4, 4)
    assert len(yaml.safe_load(printed)["evaluations"]) == 4


def write_files(folder: Path, kind: str) -> None:
    """A case and a profile whose judge is asked in this way."""
    message = {"role": "user", "content": "Rotate it."}
    (folder / "case.yaml").write_text(yaml.safe_dump({"case_id": "c", "title": "Rotate", "input": {"messages": [message]}}))
    judge = {"judge_id": "x", "type": kind, "model": HAIKU}
    run = {"judge_run_id": "r", "judge_id": "x", "repetitions": 3}
    profile = {"profile_id": "p", "judges": [judge], "judge_runs": [run]}
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))


def test_a_judge_that_is_down_is_not_asked_every_question(
    database: Path, nobody: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are kept, so the same command continues once the judge is back."""
    del nobody
    with running() as judge:
        address = judge.base_url
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "simulated")
    long_plan = plan(judge={"judge_id": "x", "model": HAIKU}, repetitions=50)
    with prepared(database, long_plan) as (workspace, preparation):
        settings = msgspec.structs.replace(workspace.settings, judge_concurrency=2, judge_deadline=0.2)
        with pytest.raises(JudgeUnresponsiveError, match="none of its last"):
            evaluate(workspace, settings, preparation, lambda _: None)
    assert len(judgements(database)) < 50
    with prepared(database, long_plan) as (_, preparation):
        assert preparation.estimate.evaluations == 4
        assert preparation.estimate.taken_up == 4
