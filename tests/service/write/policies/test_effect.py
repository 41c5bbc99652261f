"""The effect of a policy: the trial decides as intake does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders as build
from support.engines import policy_of, runner_over
from support.watch_histories import put

from analytics.store.store import Store
from audit.detectors.thresholds import Detectors, Thresholds
from audit.exchanges.sampling import SAMPLING_SKIP
from audit.policy import Policy, ProjectSettings, Sampling
from audit.redaction import Redactor
from schemas.records import Exchange
from service.write.policy_file import compare_policies, compare_policy_diagnoses, estimate_effects, find_lost_incidents
from streams.log.admission import Admission, EncodedRecords

SAMPLINGS = st.builds(
    Sampling,
    enabled=st.sampled_from([True, True, True, False]),
    routine_interval=st.integers(1, 5),
    always_score_first=st.integers(0, 3),
    always_score_last=st.integers(0, 3),
    always_score_disagreement=st.booleans(),
    always_score_long_responses=st.booleans(),
    long_response_threshold=st.sampled_from([0, 100, 500]),
)
TURNS = st.fixed_dictionaries(
    {
        "response": st.sampled_from(["It is done.", "However, I think that is wrong.", ""]),
        "output_tokens": st.sampled_from([None, 50, 600]),
        "turn_number": st.sampled_from([None, None, 2, 9]),
    }
)
SESSIONS = st.lists(st.lists(TURNS, min_size=1, max_size=8), min_size=1, max_size=4)


def exchanges_of(sessions: list[list[dict[str, Any]]]) -> list[Exchange]:
    """The exchanges of sessions, session by session."""
    return [
        build.exchange(f"s{number}", turn, **fields)
        for number, turns in enumerate(sessions)
        for turn, fields in enumerate(turns)
    ]


@given(SESSIONS, SAMPLINGS, SAMPLINGS)
@settings(max_examples=15, deadline=None)
def test_a_dry_run_samples_like_intake(sessions: list[list[dict[str, Any]]], sampling: Sampling, other: Sampling) -> None:
    """A trial with its own sampling rules would give wrong estimates without any test failing."""
    policy, exchanges = policy_of(sampling=sampling), exchanges_of(sessions)
    closings = [build.closing(f"s{number}", 0) for number in range(len(sessions))]
    with Store(None) as store:
        runner, accepted = runner_over(store, policy), EncodedRecords()
        Admission(Redactor(policy.redaction), build.START).admit(accepted, "exchanges", [*exchanges, *closings], source="test")
        runner.publish(accepted)
        runner.run()
        with store.cursor() as cursor:
            [(judged,)] = cursor.execute(
                "SELECT count(*) FROM scores WHERE sampling_reason <> $skipped", {"skipped": SAMPLING_SKIP}
            ).fetchall()
            for before, after in ((policy, policy_of(sampling=other)), (policy_of(sampling=other), policy)):
                differences = compare_policies(before, after)
                now = build.START + timedelta(days=1)
                for effect in estimate_effects(cursor, before, after, changes=differences, projects=["ops"], now=now):
                    share = effect.judged_before if before is policy else effect.judged_after
                    assert effect.exchanges == len(exchanges)
                    assert round(share * len(exchanges)) == judged


def test_changed_detectors_and_rules_show_the_diagnoses_and_incidents_that_would_differ() -> None:
    """Who saves a threshold must see which runs it concerns, by diagnosing them again as a stage does."""
    before = Policy()
    after = Policy(
        defaults=ProjectSettings(detectors=Detectors(events=Thresholds(session_tokens=20_000)), incident_rules=("runs",))
    )
    changes = compare_policies(before, after)
    projects = {"changes": changes, "projects": ["ops"]}
    with Store(None) as store:
        runner, accepted = runner_over(store, before), EncodedRecords()
        events = [
            build.event(session, 0, event="token_usage", usage={"total": tokens})
            for session, tokens in (("cheap", 100), ("dear", 15_000), ("dearest", 90_000))
        ]
        closings = [build.closing(event.session_id, 1) for event in events]
        admission = Admission(Redactor(before.redaction), build.START)
        admission.admit(accepted, "agent-events", [*events, *closings], source="test")
        runner.publish(accepted)
        runner.run()
        put(store, "incidents", [build.incident(rule="sequential"), build.incident(incident_id="i2", rule="runs")])
        with store.cursor() as cursor:
            [effect] = compare_policy_diagnoses(cursor, before, after, now=build.START + timedelta(days=1), **projects)
            incidents = find_lost_incidents(cursor, before, after, **projects)
    assert (effect.runs, effect.changed) == (3, 1)
    [run] = effect.examples
    assert run.lost_failures == ["cost_explosion"]
    assert run.new_failures == []
    assert run.readiness_after != run.readiness_before
    assert [incident.incident_id for incident in incidents] == ["i1"]
