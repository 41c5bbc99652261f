"""The effect of a policy: the trial decides as intake does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders as build
from support.engines import policy_of, runner_over

from analytics.store.store import Store
from audit.exchanges.sampling import SAMPLING_SKIP
from audit.policy import Sampling
from audit.redaction import Redactor
from schemas.records import Exchange
from service.write.policy_file import compare_policies, estimate_effects
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
