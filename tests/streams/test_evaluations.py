"""Preparing evaluations: the selected sessions and runs, the open questions, the existing results, and the costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.builders import START, event, exchange
from support.clocks import TickingClock
from support.engines import engine_over
from support.evaluation_builders import answer, answer_json, case, plan
from support.stored_sessions import HAIKU, SONNET, filled, session

from analytics.store.store import Store
from analytics.store.views import add_temporary_views
from audit.cost import Usage
from audit.evaluation.cases import Plan
from audit.evaluation.evaluating import next_attempt
from audit.evaluation.report import Evaluated
from audit.evaluation.run import ToolCall
from audit.exchanges.questions import Question
from audit.policy import Policy
from schemas.errors import InputError
from schemas.records import DeadLetter, EvaluationRequest
from service.read.evaluations import evaluation_page, evaluation_state
from service.text.answers import document
from service.write.evaluating import evaluation_estimate
from streams import finished_sessions as reading
from streams.evaluations import Estimate, Prepared, prepare
from streams.finished_sessions import Limits, SessionSelection, finished_sessions, read_runs
from streams.judges.protocol import CallBudget, Verdict
from streams.judging.judged_stages import EVALUATION
from streams.stage_progress import stage_progress

AT = START + timedelta(days=1)
WARNING = "Judge iteration 2 failed and was excluded."


class CyclingJudge:
    """A judge in this process that cycles through outcomes, one per call."""

    def __init__(self, *outcomes: str, simulated: bool = False) -> None:
        self.outcomes = outcomes or ("answered",)
        self.simulated = simulated
        self.asked: list[Question] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Return the next outcome; every answer gives a score of 7."""
        outcome = self.outcomes[len(self.asked) % len(self.outcomes)]
        self.asked.append(question)
        assert await budget.reserve()
        budget.spend(Usage(1_000, 100), question.model)
        return Verdict(
            outcome=outcome,
            answer=answer_json(answer()) if outcome == "answered" else None,
            attempts=1,
            model=question.model,
            simulated=self.simulated,
        )

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


@pytest.fixture
def store() -> Any:
    """Return a store with three finished sessions of two models, in the order of their ends, and one open session."""
    with Store(None) as opened:
        yield filled(
            opened,
            *session("s1", 1),
            *session("s2", 2, HAIKU),
            *session("s3", 3),
            ("exchanges", exchange("open", 1)),
        )


def selected_ids(store: Store, **selection: Any) -> list[str]:
    """Return the ids of the selected sessions."""
    return [finished.session_id for finished in finished_sessions(store.cursor(), SessionSelection(**selection))]


def prepared(
    store: Store,
    *plans: Plan,
    cases: Sequence[Any] = (),
    retry_failed: bool = False,
    takes_simulated: bool = True,
    **selection: Any,
) -> Prepared:
    """Prepare evaluations, with one case and plan by default."""
    return prepare(
        store,
        Policy(),
        cases or [case()],
        plans or [plan()],
        "Judge it.",
        SessionSelection(**selection),
        AT,
        retry_failed=retry_failed,
        takes_simulated=takes_simulated,
    )


def evaluated(store: Store, requests: Sequence[EvaluationRequest], judge: CyclingJudge) -> None:
    """Judge the requests with the engine."""

    async def run() -> None:
        async with engine_over(store, judge=judge, now=TickingClock(AT)) as engine:
            await engine.publish("evaluation-requests", requests)
            await engine.wait_until_drained()

    asyncio.run(run())


def test_the_session_that_ended_last_comes_first(store: Store) -> None:
    """A limited evaluation takes the newest runs."""
    assert selected_ids(store) == ["s3", "s2", "s1"]
    assert selected_ids(store, limit=2) == ["s3", "s2"]
    assert selected_ids(store, sessions=["s1", "s2"], limit=1) == ["s2", "s1"], "a limit does not apply to named sessions"


def test_a_session_can_be_named_with_its_connection(store: Store) -> None:
    """Two connections may use the same session id, so the connection must be named."""
    filled(store, *session("s1", 4, connection="north", project="shop"))

    with pytest.raises(InputError, match="session 's1' is in several connections") as caught:
        selected_ids(store, sessions=["s2", "s1"])
    assert caught.value.hint == "Name one: north/s1, local/s1."
    (finished,) = finished_sessions(store.cursor(), SessionSelection(sessions=["north/s1"]))
    assert finished.connection == "north"
    assert finished.project == "shop"
    assert finished.ended_at == START + timedelta(hours=1, seconds=4)
    assert selected_ids(store, sessions=["s1"], project="shop") == ["s1"]


def test_an_id_with_a_slash_is_found_as_it_is(store: Store) -> None:
    """Some sources use paths as session ids."""
    filled(store, *session("agent/main", 4))
    assert selected_ids(store, sessions=["agent/main"]) == ["agent/main"]
    assert selected_ids(store, sessions=["local/agent/main"]) == ["agent/main"]


@pytest.mark.parametrize(
    ("selection", "message", "hint"),
    [
        ({"sessions": ["s1", "nobody"]}, "there is no session 'nobody'", "driftline runs"),
        ({"sessions": ["north/s1"]}, "there is no session 'north/s1'", "driftline runs"),
        ({"sessions": ["open"]}, "session 'open' has not ended yet", "driftline finalize"),
        ({"sessions": ["local/open"]}, "session 'local/open' has not ended yet", "driftline finalize"),
        ({"sessions": ["s1"], "project": "shop"}, "session 's1' does not belong to project 'shop'", "It belongs to ops."),
        ({"sessions": ["round"]}, "session 'round' ", "not evaluated"),
        ({"sessions": ["s1"], "tags": ["nightly"]}, "named and also selected", "select them by tag"),
        ({"sessions": ["s1"], "since": START}, "named and also selected", "select them by tag"),
        ({"limit": 10_001}, "more than 10000 sessions", "in parts"),
        ({"sessions": ["x" * 500]}, f"there is no session '{'x' * 100}'", "driftline runs"),
    ],
)
def test_an_invalid_selection_is_refused_with_a_message(store: Store, selection: Any, message: str, hint: str) -> None:
    """Evaluating the wrong sessions would cost money."""
    filled(store, *session("round", 5, connection="anchors", project="anchors.ops"))
    with pytest.raises(InputError) as caught:
        selected_ids(store, **selection)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_a_run_contains_the_stored_data_of_its_session(store: Store) -> None:
    """Turns are ordered by event time, steps by the log; trust and causes come from the diagnosis."""
    filled(
        store,
        ("exchanges", exchange("s1", 9, "And tested.", agent_model=SONNET)),
        ("agent-events", event("s1", 0, event="tool_call", tool="rotate", args={"key": "main"})),
        ("agent-events", event("s1", 1, event="tool_output", tool="rotate", output="done")),
    )
    session_runs = {
        session_run.run.session_id: session_run
        for session_run in read_runs(store.cursor(), finished_sessions(store.cursor(), SessionSelection()), Policy())
    }

    run = session_runs["s1"].run
    assert [turn.agent_response for turn in run.turns] == ["It is done.", "And tested."]
    assert [step.tool for step in run.steps] == ["rotate", "rotate"]
    assert run.model == SONNET
    assert run.status == "answered"
    assert run.project == "ops"
    assert run.trust is None
    assert run.is_whole
    assert [session_run.warnings for session_run in session_runs.values()] == [()] * 3
    assert {session_id: len(session_run.run.steps) for session_id, session_run in session_runs.items()} == {
        "s1": 2,
        "s2": 0,
        "s3": 0,
    }


def test_reading_several_sessions_together_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of sessions read together affects only the speed."""
    sessions = finished_sessions(store.cursor(), SessionSelection())
    read_together = list(read_runs(store.cursor(), sessions, Policy()))
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    read_separately = list(read_runs(store.cursor(), sessions, Policy()))
    monkeypatch.setattr(reading, "BATCH_SESSIONS", 1)

    assert [session_run.run.session_id for session_run in read_together] == ["s3", "s2", "s1"]
    assert read_separately == read_together
    assert list(read_runs(store.cursor(), sessions, Policy())) == read_together


def test_the_middle_of_a_huge_session_is_skipped_with_a_note(store: Store) -> None:
    """A session of half a gigabyte must not end the process, and its run must say that it is incomplete."""
    calls = [
        ("agent-events", event("s1", number, event="tool_call", tool=f"t{number}", args={"x": "y" * 900}))
        for number in range(10)
    ]
    filled(store, *calls)
    limits = Limits(event_bytes=2_500, events=6, exchanges=2, exchange_bytes=10)

    (session_run,) = read_runs(
        store.cursor(), finished_sessions(store.cursor(), SessionSelection(sessions=["s1"])), Policy(), limits
    )
    steps = [(step.tool, bool(step.arguments)) for step in session_run.run.steps if isinstance(step, ToolCall)]

    assert steps == [("t0", True), ("t1", False), ("t2", False), ("t7", False), ("t8", False), ("t9", True)]
    assert not session_run.run.is_whole
    size = sum(len(record.payload) for _, record in calls)
    texts, events, payloads = session_run.warnings
    assert "33 bytes" in texts
    assert "10 events: 4 " in events
    assert f"{size} bytes" in payloads


def test_an_invalid_payload_does_not_lose_the_run(store: Store) -> None:
    """An invalid payload from another producer is read as far as possible."""
    broken = msgspec.structs.replace(event("s1", 0, event="tool_call", tool="rotate"), payload="{]")
    filled(store, ("agent-events", broken))
    (session_run,) = read_runs(store.cursor(), finished_sessions(store.cursor(), SessionSelection(sessions=["s1"])), Policy())
    assert [step.tool for step in session_run.run.steps] == ["rotate"]
    (warning,) = session_run.warnings
    assert warning.startswith("1 of the run's events ")


def test_each_session_is_evaluated_by_each_case_and_plan(store: Store) -> None:
    """Requests are ordered by session end, case and plan; repetitions number the runs of a model."""
    cases, plans = [case(), case(case_id="other")], [plan(), plan(judge_run_id="once", repetitions=1)]
    preparation = prepared(store, *plans, cases=cases)

    order = [
        (request.session_id, request.case_id, request.judge_run_id, request.repetition) for request in preparation.requests
    ]
    expected = [
        (name, case_id, judge_run, repetition)
        for name, repetition in (("s1", 1), ("s2", 1), ("s3", 2))
        for case_id in ("rotate-key", "other")
        for judge_run in ("thrice", "once")
    ]
    assert order == expected
    assert [preparation.order[request.evaluation_id] for request in preparation.requests] == list(range(12))
    assert preparation.sessions == 3
    assert tuple(preparation.taken_up) == ()
    assert tuple(preparation.reused) == ()
    assert preparation == prepared(store, *plans, cases=cases), "the same evidence, the same requests"


def test_plans_with_equal_measurements_are_one_evaluation(store: Store) -> None:
    """A name does not change the score, so it does not cost a second one."""
    preparation = prepared(store, plan(), plan(judge_run_id="again"))
    assert [request.judge_run_id for request in preparation.requests] == ["thrice"] * 3


def test_unread_parts_of_a_run_are_a_warning_of_its_evaluation(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A score must show what it is based on."""
    monkeypatch.setattr(reading.read_runs, "__defaults__", (Limits(exchange_bytes=10),))
    (request,) = prepared(store, sessions=["s1"]).requests
    assert "33 bytes" in request.warnings[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cases": [case(), case(title="Other")]}, "two cases are called 'rotate-key'"),
        ({"plans": [plan(), plan(repetitions=1)]}, "two judge runs are called 'thrice'"),
        (
            {"cases": [case(input={"messages": [{"role": "user", "content": "ä" * 50_000}] * 15})]},
            "exceed the size of a record",
        ),
    ],
)
def test_an_ambiguous_or_oversized_selection_is_refused(store: Store, given: Any, words: str) -> None:
    """Two results with the same name would overwrite each other."""
    with pytest.raises(InputError, match=words):
        prepared(store, *given.get("plans", ()), cases=given.get("cases", ()))


def test_a_completed_evaluation_is_reused_without_a_call(store: Store) -> None:
    """The same inputs give the same evaluation, numbered as in the current selection."""
    first = prepared(store)
    evaluated(store, first.requests, CyclingJudge())

    repeated = prepared(store, sessions=["s3"])
    (reused,) = repeated.reused
    assert isinstance(reused, Evaluated)
    request = first.requests[2]
    assert reused.reused is True
    assert reused.system_prompt == request.system_prompt
    assert reused.user_prompt == request.user_prompt
    assert reused.evaluation.evaluation_id == request.evaluation_id
    assert reused.evaluation.final_score == 7.0
    assert reused.evaluation.repetition == 1
    assert repeated.requests == []
    assert repeated.taken_up == []
    assert repeated.estimate == Estimate(reused=1)
    assert len(prepared(store).reused) == 3
    assert len(prepared(store, plan(HAIKU, judge={"judge_id": "x", "model": SONNET})).requests) == 3, (
        "another judge, another score"
    )


def test_a_failed_evaluation_is_requested_again_and_keeps_its_answers(store: Store) -> None:
    """Only failed questions are paid for again."""
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge("provider_error"))

    (request,) = prepared(store, sessions=["s1"]).requests
    assert request.attempt == 1
    assert len(request.earlier_judgements) == 3
    evaluated(store, [request], CyclingJudge("answered", "provider_error", "answered"))
    partly = prepared(store, sessions=["s1"])
    (reused,) = partly.reused
    assert reused.evaluation.status == "completed"
    assert reused.evaluation.successful_iterations == 2
    assert reused.evaluation.revision == 1
    assert WARNING in reused.evaluation.warnings

    retried = prepared(store, sessions=["s1"], retry_failed=True)
    (third,) = retried.requests
    assert third.attempt == 2
    assert retried.estimate.calls == 1
    assert retried.estimate.answered == 2
    judge = CyclingJudge()
    evaluated(store, [third], judge)
    assert len(judge.asked) == 1
    (reused,) = prepared(store, sessions=["s1"], retry_failed=True).reused
    assert reused.evaluation.successful_iterations == 3
    assert reused.evaluation.revision == 2


def test_answers_of_another_evaluation_of_the_run_are_reused(store: Store) -> None:
    """Another aggregation is another evaluation that reuses the answers; more repetitions ask only the new ones."""
    evaluated(store, [], CyclingJudge())  # exchanges are scored before, so that outcomes are those of the evaluation
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge("answered", "provider_error", "answered"))

    wider = plan(judge_run_id="five", method="mean", repetitions=5, dimension_policies={"task": {"policy": "weighted"}})
    preparation = prepared(store, wider, sessions=["s1"])
    assert preparation.estimate.answered == 2
    assert preparation.estimate.calls == 3
    assert len(preparation.requests[0].earlier_judgements) == 2
    judge = CyclingJudge()
    evaluated(store, preparation.requests, judge)
    assert len(judge.asked) == 3
    (reused,) = prepared(store, wider, sessions=["s1"]).reused
    assert reused.evaluation.successful_iterations == 5
    assert reused.evaluation.cost_usd == pytest.approx(3 * 0.0015)

    recorded = plan(judge={"judge_id": "x", "model": HAIKU, "type": "recorded"}, repetitions=4)
    (request,) = prepared(store, recorded, sessions=["s1"]).requests
    evaluated(store, [request], judge)
    (reused,) = prepared(store, recorded, sessions=["s1"]).reused
    assert len(judge.asked) == 3
    assert reused.evaluation.successful_iterations == 4
    assert reused.evaluation.cost_usd == 0.0
    assert reused.evaluation.evaluated_at == AT


def test_an_answer_is_reused_within_its_session_only(store: Store) -> None:
    """Two sessions with the same texts are separate runs."""
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge())
    assert prepared(store, plan(method="mean"), sessions=["s3"]).estimate.answered == 0


def test_a_real_judge_reuses_nothing_from_a_simulated_one(store: Store) -> None:
    """Scores of a simulated judge must not pass for real ones; real answers may always be reused."""
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge(simulated=True))
    assert prepared(store, sessions=["s1"]).estimate.reused == 1
    for variant in (plan(), plan(method="mean")):
        preparation = prepared(store, variant, sessions=["s1"], takes_simulated=False)
        assert preparation.estimate.reused == 0
        assert preparation.estimate.answered == 0
        assert preparation.estimate.calls == 3

    judge = CyclingJudge()
    evaluated(store, prepared(store, sessions=["s1"], takes_simulated=False).requests, judge)
    assert len(judge.asked) == 3
    for takes_simulated in (True, False):
        (reused,) = prepared(store, sessions=["s1"], takes_simulated=takes_simulated).reused
        assert reused.evaluation.revision == 1
        assert reused.evaluation.simulated is False
        assert len(reused.evaluation.judgement_ids) == 3


def test_a_failed_attempt_hides_no_finished_evaluation(store: Store) -> None:
    """A failed attempt must not hide a paid score; a later successful attempt replaces it."""
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge(simulated=True))
    (request,) = prepared(store, sessions=["s1"], takes_simulated=False).requests
    evaluated(store, [request], CyclingJudge("provider_error"))
    with closing(store.cursor()) as cursor:
        add_temporary_views(cursor)
        query = "SELECT revision, status, final_score FROM evaluations"
        assert cursor.execute(query).fetchall() == [(0, "completed", 7.0)]
        assert cursor.execute(f"{query.split('FROM', maxsplit=1)[0]} FROM log.current_evaluations(NULL)").fetchall() == [
            (0, "completed", 7.0)
        ]
        assert cursor.execute("SELECT score FROM evaluated_runs").fetchall() == [(7.0,)]
        assert [(run.revision, run.final_score) for run in evaluation_page(cursor, None, limit=9)] == [(0, 7.0)]
        state = evaluation_state(cursor, request.evaluation_id)
        assert state is not None
        answer = state.answer
        assert answer.evaluation is not None
        assert answer.pending is False
        assert answer.failed_attempt == 1
        assert answer.evaluation.revision == 0

    (reused,) = prepared(store, sessions=["s1"]).reused
    assert reused.evaluation.revision == 0
    (third,) = prepared(store, sessions=["s1"], takes_simulated=False).requests
    assert third.attempt == 2
    evaluated(store, [third], CyclingJudge())
    (reused,) = prepared(store, sessions=["s1"]).reused
    assert reused.evaluation.revision == 2
    assert reused.evaluation.status == "completed"
    assert reused.evaluation.simulated is False


def test_a_failed_evaluation_of_a_longer_run_hides_no_finished_one(store: Store) -> None:
    """A continued session is evaluated under another id; the old result stays until the new one is finished."""
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge())
    filled(store, *session("s1", 9))
    (longer,) = prepared(store, sessions=["s1"]).requests
    evaluated(store, [longer], CyclingJudge("provider_error"))
    with closing(store.cursor()) as cursor:
        add_temporary_views(cursor)
        statuses = cursor.execute(
            "SELECT status FROM log.current_evaluations(NULL) UNION ALL SELECT status FROM evaluated_runs"
        )
        assert statuses.fetchall() == [("completed",)] * 2


def test_another_model_price_makes_no_new_evaluation(store: Store) -> None:
    """A changed price does not change the run: the result is reused and shown at current prices."""
    filled(store, *session("told", 4, input_tokens=500, output_tokens=100))
    request = prepared(store, sessions=["told"]).requests[0]
    evaluated(store, [request], CyclingJudge())
    rates = {"input": 1_000.0, "output": 1_000.0, "source": "an offer", "read_on": "2026-10-01"}
    dear = Policy.model_validate({"prices": {SONNET: rates}})
    (reused,) = prepare(store, dear, [case()], [plan()], "Judge it.", SessionSelection(sessions=["told"]), AT).reused
    assert request.run_cost_usd is None
    assert reused.evaluation.run_cost_usd == 0.6


def test_an_unanswered_request_is_resumed(store: Store) -> None:
    """A killed process leaves its requests in the log."""
    first = prepared(store)
    filled(store, *(("evaluation-requests", request) for request in first.requests[:2]))

    resumed = prepared(store)
    assert [request.request_id for request in first.requests[:2]] == [request.request_id for request in resumed.taken_up]
    assert resumed.requests == [first.requests[2]]
    assert resumed.estimate.evaluations == 3
    assert resumed.estimate.taken_up == 2
    assert resumed.estimate.calls == 9
    assert resumed.to_evaluate == [*resumed.requests, *resumed.taken_up]
    other = prepared(store, sessions=["s3"]).estimate
    assert (other.evaluations, other.taken_up, other.left_over) == (1, 0, 2), "whoever judges next makes those, too"


def test_a_dead_letter_is_requested_again_if_no_stage_of_this_store_has_passed_it(store: Store) -> None:
    """The position of Kafka workers is unknown here, so a dead letter would otherwise be waited for at every call."""
    first, second = prepared(store, sessions=["s1", "s2"]).requests
    letter = DeadLetter(
        dead_letter_id="d", source="evaluation-requests", position=0, stage="evaluation", reason="bounds", detail="",
        digest="d", size=1, body=b"", rejected_at=AT,
    )  # fmt: skip
    filled(store, ("evaluation-requests", first), ("evaluation-requests", second), ("dead-letters", letter))

    preparation = prepared(store, sessions=["s1", "s2"])
    assert [(request.evaluation_id, request.attempt) for request in preparation.requests] == [(first.evaluation_id, 1)]
    assert preparation.taken_up == [second]
    assert prepared(store, sessions=["s3"]).estimate.left_over == 1


def test_a_resumed_request_uses_only_the_answers_that_it_carries(store: Store) -> None:
    """A continued request is unchanged: answers given elsewhere since then are not reused, and are paid for."""
    mean, last = plan(method="mean"), plan(judge_run_id="four", repetitions=4)
    (before,) = prepared(store, mean, sessions=["s1"]).requests
    evaluated(store, prepared(store, sessions=["s1"]).requests, CyclingJudge())
    filled(store, ("evaluation-requests", before), ("evaluation-requests", *prepared(store, last, sessions=["s1"]).requests))
    preparation = prepared(store, mean, last, sessions=["s1"])
    assert [len(request.earlier_judgements) for request in preparation.taken_up] == [0, 3]
    assert preparation.estimate.answered == 3
    assert preparation.estimate.calls == 4


def test_a_request_that_became_a_dead_letter_is_requested_again(store: Store) -> None:
    """Otherwise a request that became a dead letter would be waited for forever."""
    request = prepared(store, sessions=["s1"]).requests[0]
    filled(store, ("evaluation-requests", request))
    with store.transaction() as transaction:
        transaction.set_watermark(EVALUATION.name, EVALUATION.source, 1)
    assert stage_progress(store, EVALUATION).position == 1

    preparation = prepared(store, sessions=["s1"])
    assert preparation.taken_up == []
    assert [request.attempt for request in preparation.requests] == [1]
    assert next_attempt(request, 1, ()).request_id == preparation.requests[0].request_id


def test_an_estimate_covers_the_questions_to_be_asked(store: Store) -> None:
    """The user must know in advance the expected and maximum cost, and the questions that are not asked."""
    live = prepared(store, sessions=["s1"]).estimate
    assert live.evaluations == 1
    assert live.calls == 3
    assert live.answered == 0
    assert live.not_asked == 0
    assert live.unpriced == 0
    assert 0 < live.expected_usd < live.at_most_usd < 1

    batch = prepared(store, plan(judge={"judge_id": "x", "model": HAIKU, "type": "batch"}), sessions=["s1"]).estimate
    assert live.at_most_usd / 2 == pytest.approx(batch.at_most_usd)
    recorded = prepared(store, plan(judge={"judge_id": "x", "model": HAIKU, "type": "recorded"}), sessions=["s1"]).estimate
    assert Estimate(evaluations=1, not_asked=3) == recorded
    capped = prepared(store, plan(cost_cap_usd=0.03), sessions=["s1"]).estimate
    assert capped.calls == 3
    assert capped.at_most_usd == 0.03
    poor = prepared(store, plan(cost_cap_usd=0.000001), sessions=["s1"]).estimate
    assert Estimate(evaluations=1, not_asked=3) == poor


def test_an_unknown_price_is_reported(store: Store) -> None:
    """Under a cap such a model is not asked; without a cap it is, at an unknown cost, not at zero."""
    capped = prepared(store, plan("house-model"), sessions=["s1"]).estimate
    assert capped.calls == 0
    assert capped.not_asked == 3
    free = prepared(store, plan("house-model", cost_cap_usd=None), sessions=["s1"]).estimate
    assert free.calls == 3
    assert free.unpriced == 3
    expected = {
        "evaluations": 1,
        "reused": 0,
        "takenUp": 0,
        "leftOver": 0,
        "calls": 3,
        "answered": 0,
        "notAsked": 0,
        "unpriced": 3,
        "expectedUsd": None,
        "atMostUsd": None,
    }
    assert document(evaluation_estimate(free)) == expected
