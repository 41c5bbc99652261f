"""Tuning: a proposal flags hardly any run of the history, and exactly as many as it states."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audit.detectors.thresholds import DEFAULTS, SEVERER, Thresholds
from audit.detectors.tuning import MEASURES, MIN_RUNS, Tuned, proposed_policy, tune
from audit.diagnosis.evidence import ExchangeSums, SessionEvidence
from audit.policy import Policy


def runs_of(tokens: list[int]) -> list[tuple[int, SessionEvidence]]:
    """Return runs of a transcript whose most expensive exchanges took this many tokens."""
    return [
        (number, SessionEvidence(source="openclaw", new_tokens=ExchangeSums(max_count=max_tokens)))
        for number, max_tokens in enumerate(tokens, start=1)
    ]


def tuned(tokens: list[int], share: float = 0.01) -> dict[str, Tuned]:
    """Return the tuning of such runs by threshold."""
    rows = tune(runs_of(tokens), DEFAULTS["transcripts"], share=share, max_runs=3)
    return {row.threshold: row for row in rows}


def test_every_threshold_is_measured() -> None:
    """A threshold without a measure could not be tuned."""
    assert set(Thresholds.model_fields) == set(MEASURES) | {"polling_tools", "near_duplicate_similarity"}


def test_an_agent_with_long_exchanges_gets_a_higher_limit() -> None:
    """The default is for agents in general, but this one reads long files all day."""
    row = tuned([80_000] * 99 + [400_000])["exchange_tokens"]
    assert row.flagged == 100
    assert row.proposed == 81_000
    assert row.proposed_flagged == 1
    assert row.runs == (100, 99, 98)
    assert row.median == 80_000
    assert row.p95 == 80_000
    assert row.p99 == 80_000
    assert row.most == 400_000


def test_a_quiet_history_does_not_lower_a_limit() -> None:
    """A limit at the last value would flag the first run that does a little more."""
    assert tuned([100] * 200)["exchange_tokens"].proposed == 50_000


def test_few_runs_propose_nothing() -> None:
    """Of twenty runs, one in a hundred cannot be distinguished from none."""
    row = tuned([90_000] * (MIN_RUNS - 1))["exchange_tokens"]
    assert row.flagged == MIN_RUNS - 1
    assert row.proposed == 50_000
    assert row.is_changed is False


def test_a_threshold_that_is_off_stays_off() -> None:
    """A proposal must not enable a threshold that a person switched off."""
    row = tuned([10] * 60)["session_tokens"]
    assert row.value is None
    assert row.proposed is None
    assert row.flagged == 0
    assert row.proposed_flagged == 0


@given(st.lists(st.integers(0, 2_000_000), min_size=MIN_RUNS, max_size=120), st.sampled_from([0, 0.01, 0.1, 0.5]))
def test_a_proposal_keeps_its_promise(tokens: list[int], share: float) -> None:
    """At most the requested number of runs is listed, and severer limits are not below the others."""
    rows = tuned(tokens, share)
    assert all(row.proposed_flagged <= share * len(tokens) for row in rows.values() if row.value is not None)
    for lower, upper in SEVERER.items():
        least, most = rows[lower].proposed, rows[upper].proposed
        assert least is None or most is None or least <= most


def test_what_is_proposed_is_a_policy_that_loads() -> None:
    """The output is printed to be copied, so the policy must know all its names."""
    changes = proposed_policy(list(tuned([80_000] * 100).values()), "transcripts", "scout")
    policy = Policy.model_validate({"projects": {"ops": changes}})
    profile = policy.for_project("ops").settings.detectors.profile("transcripts", "scout")
    assert profile.changes == {"exchangeTokens": 81_000}
    assert proposed_policy(list(tuned([10] * 100).values()), "transcripts", "scout") == {}
