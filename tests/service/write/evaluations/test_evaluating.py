"""Evaluations of the command: new ones, reused ones, and ones continued after a stop or kill, with single calls and batches."""

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
def prepared(database: Path, *plans: Plan, **options: bool) -> Iterator[tuple[Workspace, Prepared]]:
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
                **options,
            ),
        )


def evaluate_sessions(
    database: Path, *plans: Plan, report: Callable[[Progress], None] = lambda _: None, **options: Any
) -> list[Evaluated]:
    """Evaluate the sessions and return the results."""
    with prepared(database, *plans, **options) as (workspace, preparation):
        return evaluate(workspace, workspace.settings, preparation, report)


def judgements(database: Path) -> list[Judgement]:
    """Return the recorded judgements."""
    with Store(database) as store:
        rows = query_records(store.cursor(), "judgements_of", Judgement, {"subjects": subjects(store)})
        return list(rows)


def subjects(store: Store) -> list[dict[str, str]]:
    """Return the connection and id of everything that was judged."""
    rows = store.cursor().execute("SELECT DISTINCT connection, subject_id FROM log.judgements").fetchall()
    return [{"connection": connection, "subject_id": subject} for connection, subject in rows]


def counts(database: Path) -> tuple[int, int]:
    """Return the numbers of requests and evaluations in the log."""
    with Store(database) as store:
        return store.end_of("evaluation-requests"), store.end_of("evaluations")


def by_type(judge_type: str, **fields: Any) -> Plan:
    """Return a plan whose judge has this type."""
    return plan(judge={"judge_id": "x", "model": HAIKU, "type": judge_type}, **fields)


class Once:
    """A progress callback that sends this process a signal once a condition holds."""

    def __init__(self, number: signal.Signals, is_time: Callable[[Progress], bool]) -> None:
        self._number = number
        self._is_time = is_time
        self._sent = False

    def __call__(self, progress: Progress) -> None:
        """Send the signal once the condition holds."""
        if not self._sent and self._is_time(progress):
            self._sent = True
            os.kill(os.getpid(), self._number)


def summarize_results(results: Sequence[Evaluated]) -> list[tuple[str, int, str, bool]]:
    """Return the session, repetition, status and reuse of each result."""
    return [
        (result.evaluation.session_id, result.evaluation.repetition, result.evaluation.status, result.reused)
        for result in results
    ]


def test_every_session_is_judged_as_often_as_requested_and_then_reused(database: Path, simulator: RunningJudge) -> None:
    """Progress has the number done and the cost, and a repeated request calls no judge."""
    progress_reports: list[Progress] = []
    first_results = evaluate_sessions(database, report=progress_reports.append)

    assert summarize_results(first_results) == [(f"s{number}", number, "completed", False) for number in range(1, 5)]
    assert all(result.evaluation.simulated and result.system_prompt.startswith("Judge it.") for result in first_results)
    assert simulator.requests == 3 * SESSIONS
    last = progress_reports[-1]
    assert last.done == 4
    assert last.total == 4
    assert last.answered == 12
    assert last.failed == 0
    assert last.spent_usd == pytest.approx(sum(judgement.cost_usd or 0 for judgement in judgements(database)))
    assert [progress.done for progress in progress_reports] == sorted(progress.done for progress in progress_reports)

    repeated = evaluate_sessions(database, report=progress_reports.append)
    assert summarize_results(repeated) == [(f"s{number}", number, "completed", True) for number in range(1, 5)]
    assert [result.evaluation for result in first_results] == [result.evaluation for result in repeated]
    assert simulator.requests == 12
    assert progress_reports[-1] == last


@pytest.mark.usefixtures("nobody")
def test_without_a_judge_nothing_is_written(database: Path) -> None:
    """Without a judge, a request would become a failed evaluation."""
    with pytest.raises(SettingsError, match="there is no judge") as caught:
        evaluate_sessions(database)
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert counts(database) == (0, 0)


@pytest.mark.usefixtures("nobody")
def test_without_a_judge_earlier_requests_are_left_alone(database: Path) -> None:
    """Requests left by an earlier command must not fail for lack of a judge, so the command refuses to start."""
    with prepared(database) as (workspace, preparation):
        filled(workspace.store, ("evaluation-requests", preparation.requests[0]))
    with prepared(database, by_type("recorded", repetitions=1)) as (workspace, preparation):
        assert preparation.estimate.evaluations == 4
        assert preparation.estimate.calls == 0
        assert preparation.estimate.left_over == 1
        assert "1 more evaluation that an interrupted command" in describe_estimate(preparation, is_capped=True)
        with pytest.raises(SettingsError, match="there is no judge"):
            evaluate(workspace, workspace.settings, preparation, lambda _: None)
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
            evaluate_sessions(database, by_type("batch"))
    assert counts(database) == (0, 0)
    assert len(judgements(database)) == simulator.requests == 12
    monkeypatch.delenv("ANTHROPIC_BASE_URL")

    recorded = evaluate_sessions(database, by_type("recorded"))
    assert [(result.evaluation.status, result.evaluation.successful_iterations, result.reused) for result in recorded] == [
        ("completed", 3, False)
    ] * 4
    assert [result.reused for result in evaluate_sessions(database)] == [True] * 4
    assert simulator.requests == 12


def test_a_failed_call_is_reported_and_repeated_on_request(database: Path, simulator: RunningJudge) -> None:
    """The evaluation uses the received answers; failed calls can be repeated later."""
    simulator.reset(",".join(["answer", "refusal", "answer"] * SESSIONS))
    progress_reports: list[Progress] = []
    first_result = evaluate_sessions(database, report=progress_reports.append)
    failed = sum(result.evaluation.configured_repetitions - result.evaluation.successful_iterations for result in first_result)

    assert failed == progress_reports[-1].failed == 4
    assert sum("failed and was excluded" in words for result in first_result for words in result.evaluation.warnings) == 4
    simulator.reset("answer")
    retried = evaluate_sessions(database, retry_failed=True)
    assert simulator.requests == 4
    assert [result.evaluation.successful_iterations for result in retried] == [3] * 4
    assert {result.reused for result in retried if result.evaluation.revision} == {False}


def test_a_failed_attempt_keeps_the_previous_result_and_says_so(database: Path, simulator: RunningJudge) -> None:
    """The caller gets the earlier result, marked as not being the requested attempt."""
    first = evaluate_sessions(database)
    simulator.reset("refusal")
    failed_attempt = evaluate_sessions(database, takes_simulated=False)
    assert [(*result.evaluation.warnings, LATER_ATTEMPT_FAILED) for result in first] == [
        result.evaluation.warnings for result in failed_attempt
    ]
    assert [result.evaluation.final_score for result in first] == [result.evaluation.final_score for result in failed_attempt]
    assert counts(database) == (2 * SESSIONS, 2 * SESSIONS)
    assert [result.reused for result in evaluate_sessions(database)] == [True] * SESSIONS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_keeps_recorded_answers_and_the_next_call_continues(
    database: Path, simulator: RunningJudge, number: signal.Signals
) -> None:
    """Answers received before Ctrl-C are paid for and must be kept."""
    simulator.reset(",".join(["answer"] * 5 + ["slow:2"] * 7))
    before = signal.getsignal(number)

    with pytest.raises(StoppedError):
        evaluate_sessions(database, report=Once(number, lambda progress: progress.answered >= 5))
    assert signal.getsignal(number) == before
    recorded = judgements(database)
    assert {judgement.outcome for judgement in recorded} == {"answered"}
    assert 5 <= len(recorded) == simulator.requests < 3 * SESSIONS
    simulator.reset("answer")

    with prepared(database) as (workspace, preparation):
        assert preparation.estimate.calls == 3 * SESSIONS - len(recorded)
        assert len(preparation.taken_up) + len(preparation.reused) == SESSIONS
        assert [
            status
            for _, _, status, _ in summarize_results(evaluate(workspace, workspace.settings, preparation, lambda _: None))
        ] == ["completed"] * SESSIONS
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
    repeated = evaluate_sessions(database)
    assert [result.reused for result in repeated] == [True, False, True, True]
    assert [result.evaluation.status for result in repeated] == ["completed"] * 4


def test_a_batch_judge_is_asked_once_at_half_the_price(database: Path, simulator: RunningJudge) -> None:
    """The stage uses the recorded answers of the batch and makes no calls."""
    progress_reports: list[Progress] = []
    result = evaluate_sessions(database, by_type("batch"), report=progress_reports.append)

    recorded = judgements(database)
    assert {(judgement.outcome, judgement.batched) for judgement in recorded} == {("answered", True)}
    assert len(recorded) == 12
    assert simulator.requests == 12
    assert [result.evaluation.status for result in result] == ["completed"] * 4
    assert progress_reports[-1].answered == 12
    assert progress_reports[-1].failed == 0
    batched = sum(judgement.cost_usd or 0 for judgement in recorded)
    with Store(database) as store:
        reserved = store.cursor().execute("SELECT count(*) FROM log.reservations").fetchone()
    assert reserved == (12,)
    assert [result.reused for result in evaluate_sessions(database)] == [True] * 4, "live or in batches: the same evaluation"
    assert batched == pytest.approx(sum(result.evaluation.cost_usd or 0 for result in result))


def test_evaluations_with_equal_questions_in_batches_get_an_answer_each(database: Path, simulator: RunningJudge) -> None:
    """Two ways of putting answers together are two evaluations, and a batch takes a question once."""
    results = evaluate_sessions(
        database, by_type("batch", repetitions=1), by_type("batch", repetitions=1, judge_run_id="mean", method="mean")
    )
    assert len({result.evaluation.evaluation_id for result in results}) == 8
    assert [result.evaluation.status for result in results] == ["completed"] * 8
    assert {judgement.batched for judgement in judgements(database)} == {True}
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
            evaluate_sessions(database, by_type("batch"))
    assert counts(database) == (0, 0)
    assert simulator.requests == 12
    assert journal_of(database).exists()

    result = evaluate_sessions(database, by_type("batch"))
    assert simulator.requests == 12
    assert Counter(judgement.outcome for judgement in judgements(database)) == {"answered": 12}
    assert [result.evaluation.successful_iterations for result in result] == [3] * 4


def test_a_stop_cancels_a_batch(database: Path, simulator: RunningJudge) -> None:
    """Unsent questions of a cancelled batch are not paid for, and the next command asks them."""
    simulator.reset("answer", batch_seconds=60)

    def stop() -> None:
        until(lambda: simulator.batch_calls > 0, "a batch to be made")
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(StoppedError):
        evaluate_sessions(database, by_type("batch"))
    stopping.join()
    assert counts(database) == (0, 0)
    assert not judgements(database)
    simulator.reset("answer")
    assert [result.evaluation.status for result in evaluate_sessions(database, by_type("batch"))] == ["completed"] * 4


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
        command = tuple(str(tmp_path / argument) if argument.endswith(".yaml") else argument for argument in command)

        child = children.start(home, *command)
        until(lambda: judge.requests > 2 or child.ended, "the judge to be asked")
        assert child.kill() == -signal.SIGKILL, child.logged
        before = {judgement.fingerprint for judgement in judgements(database) if judgement.outcome == "answered"}
        code, printed = children.run(home, *command)

    assert code == 0, home.log.read_text()
    recorded = judgements(database)
    answers = [judgement for judgement in recorded if judgement.outcome == "answered"]
    assert len(answers) == len({judgement.fingerprint for judgement in answers}) == 12, "each question is answered once"
    assert before <= {judgement.fingerprint for judgement in answers}
    # A call that was under way when the process was killed is asked again, and charged.
    cut_off = sum(judgement.outcome == "interrupted" for judgement in recorded)
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
