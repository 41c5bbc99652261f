"""Slices: the parts sum to the change, order does not matter, and the slice that moved is listed first."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.slices import NOT_GIVEN, VALUE, Explanation, Key, explain
from benchmarks.drift.moments import Scored, moments_of

NAMES = ("version", "tenant")
SCORED = st.builds(
    Scored,
    session=st.sampled_from([f"s{number}" for number in range(8)]),
    labels=st.dictionaries(st.sampled_from(NAMES), st.sampled_from("abc")),
    score=st.floats(0, 1),
    weight=st.floats(1, 20),
)
SIDE = st.lists(SCORED, min_size=3, max_size=40)


def explain_labels(before: list[Scored], after: list[Scored], names: tuple[str, ...] = NAMES) -> Explanation | None:
    """Return the explanation of the change between two lists of exchanges."""
    slices_before, total_before = moments_of(before, names)
    slices_after, total_after = moments_of(after, names)
    return explain(slices_before, slices_after, (total_before, total_after))


def simulate_versions(seed: int, sessions: int, fall: dict[str, float], shares: dict[str, float]) -> list[Scored]:
    """Return sessions of three exchanges with one version each; `fall` is subtracted from the scores of a version."""
    draw = random.Random(seed)
    exchanges = []
    for number in range(sessions):
        (version,) = draw.choices(list(shares), list(shares.values()))
        labels = {"version": version, "tenant": draw.choice("xyz")}
        mean = draw.gauss(0.8, 0.05) - fall.get(version, 0.0)
        exchanges += [Scored(f"{seed}/{number}", labels, draw.gauss(mean, 0.05)) for _ in range(3)]
    return exchanges


@given(SIDE, SIDE)
def test_parts_sum_to_the_change(before: list[Scored], after: list[Scored]) -> None:
    """Mix and within of all slices of a label sum to the whole change, so nothing is missing or counted twice."""
    explanation = explain_labels(before, after)
    if explanation is None:
        return
    for label in {piece.key.label for piece in explanation.slices}:
        parts = [piece.mix.amount + piece.within.amount for piece in explanation.slices if piece.key.label == label]
        assert math.fsum(parts) == pytest.approx(explanation.change.amount, abs=1e-9)


@given(SIDE, SIDE, st.randoms(use_true_random=False))
def test_the_order_of_exchanges_changes_nothing(before: list[Scored], after: list[Scored], draw: random.Random) -> None:
    """A database returns rows in any order."""
    expected = explain_labels(before, after)
    draw.shuffle(before)
    draw.shuffle(after)
    assert explain_labels(before, after) == expected


@given(SIDE, SIDE)
def test_intervals_contain_their_estimate(before: list[Scored], after: list[Scored]) -> None:
    """Every interval contains its own estimate and is never NaN."""
    explanation = explain_labels(before, after)
    if explanation is None:
        return
    for piece in explanation.slices:
        for part in (piece.mix, piece.within):
            assert part.low <= part.amount <= part.high


def test_a_slice_that_fell_is_named_by_its_own_change() -> None:
    """The simplest case: one version got worse, and its share stayed the same."""
    shares = {"1": 0.7, "2": 0.3}
    explanation = explain_labels(simulate_versions(1, 300, {}, shares), simulate_versions(2, 300, {"2": 0.2}, shares))
    assert explanation is not None
    best = explanation.slices[0]
    assert best.key == Key("version", VALUE, "2")
    assert best.stands_out is True
    assert best.within.high < 0
    assert abs(best.mix.amount) < 0.01
    assert best.explained == pytest.approx(1, abs=0.2)


def test_a_slice_that_grew_is_named_by_the_mix() -> None:
    """No version got worse, but more exchanges are of the one that was always bad."""
    low = {"2": 0.3}
    explanation = explain_labels(
        simulate_versions(1, 300, low, {"1": 0.9, "2": 0.1}), simulate_versions(2, 300, low, {"1": 0.5, "2": 0.5})
    )
    assert explanation is not None
    best = explanation.slices[0]
    assert best.key == Key("version", VALUE, "2")
    assert best.stands_out is True
    assert best.mix.high < 0
    assert abs(best.within.amount) < abs(best.mix.amount) / 4


def test_the_version_that_took_over_is_named() -> None:
    """A release replaces all of the traffic: the new version explains the fall."""
    explanation = explain_labels(simulate_versions(1, 200, {}, {"1": 1.0}), simulate_versions(2, 200, {"2": 0.2}, {"2": 1.0}))
    assert explanation is not None
    best = explanation.slices[0]
    assert best.key == Key("version", VALUE, "2")
    assert best.mean_before is None
    assert best.stands_out is True
    assert best.explained == pytest.approx(1, abs=0.05)


def test_a_uniform_change_names_no_slice() -> None:
    """If all slices moved equally, naming one would send people to the wrong place."""
    shares = {"1": 0.5, "2": 0.5}
    explanation = explain_labels(simulate_versions(1, 300, {}, shares), simulate_versions(2, 300, {"1": 0.2, "2": 0.2}, shares))
    assert explanation is not None
    assert not any(piece.stands_out for piece in explanation.slices)
    assert explanation.unexplained == explanation.change.amount


def same_tenant(scored: Scored) -> Scored:
    """Return the exchange with its version as its tenant."""
    return scored._replace(labels={**scored.labels, "tenant": scored.labels["version"]})


def test_labels_with_equal_partitions_name_each_other() -> None:
    """If two labels changed together, no data can tell which of them was the cause."""
    before = [same_tenant(scored) for scored in simulate_versions(1, 100, {}, {"1": 0.5, "2": 0.5})]
    after = [same_tenant(scored) for scored in simulate_versions(2, 100, {"2": 0.3}, {"1": 0.5, "2": 0.5})]
    explanation = explain_labels(before, after)

    assert explanation is not None
    tenant_slice, version_slice = explanation.slices[:2]
    assert Key("tenant", VALUE, "2") == tenant_slice.key
    assert Key("version", VALUE, "2") == version_slice.key
    assert (version_slice.key,) == tenant_slice.same_as
    assert (tenant_slice.key,) == version_slice.same_as
    assert explanation.tried == 2


def test_exchanges_without_a_label_are_a_slice() -> None:
    """Unlabelled exchanges may be the ones that changed."""

    def unlabelled(side: list[Scored]) -> list[Scored]:
        return [exchange._replace(labels={}) if exchange.labels["version"] == "2" else exchange for exchange in side]

    shares = {"1": 0.6, "2": 0.4}
    explanation = explain_labels(
        unlabelled(simulate_versions(1, 200, {}, shares)),
        unlabelled(simulate_versions(2, 200, {"2": 0.2}, shares)),
        ("version",),
    )
    assert explanation is not None
    assert Key("version", NOT_GIVEN, "") == explanation.slices[0].key


def test_with_too_few_sessions_no_slice_is_named() -> None:
    """With two sessions, the variance cannot be measured."""
    assert explain_labels([Scored("a", {}, 0.5)] * 9, [Scored(str(number), {}, 0.1) for number in range(9)]) is None


MEANS = {"strong": 0.9, "weak": 0.7}


def simulate_agents(
    seed: int, sessions: int, shares: dict[str, float], means: dict[str, float], build: str = "1"
) -> list[Scored]:
    """Return sessions of one score by agents with these shares and means."""
    draw = random.Random(seed)
    agents = draw.choices(list(shares), list(shares.values()), k=sessions)
    return [
        Scored(
            f"{seed}/{number}", {"agent": agent, "tenant": draw.choice("xyz"), "build": build}, draw.gauss(means[agent], 0.1)
        )
        for number, agent in enumerate(agents)
    ]


def mix_of(before: list[Scored], after: list[Scored]) -> tuple[str, bool] | None:
    """Return the label whose shares explain a change, and whether all its slices moved against the change; None without one."""
    explanation = explain_labels(before, after, ("agent", "tenant", "build"))
    if explanation is None or explanation.mix is None:
        return None
    return explanation.mix.label, explanation.mix.all_better


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_mix_is_not_attributed_to_an_agent(seed: int) -> None:
    """More traffic for the weaker agent lowers the mean, and no agent has to be repaired for it."""
    before = simulate_agents(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)

    assert mix_of(before, simulate_agents(seed + 100, 100, {"strong": 0.3, "weak": 0.7}, MEANS)) == ("agent", False)


@pytest.mark.parametrize("seed", range(8))
def test_a_mean_can_fall_although_every_agent_improved(seed: int) -> None:
    """Simpson's paradox: a reader of the mean alone would roll back an improvement."""
    before = simulate_agents(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    improved = {agent: mean + 0.05 for agent, mean in MEANS.items()}

    assert mix_of(before, simulate_agents(seed + 100, 150, {"strong": 0.3, "weak": 0.7}, improved)) == ("agent", True)


@pytest.mark.parametrize("seed", range(8))
def test_a_new_agent_is_part_of_the_mix(seed: int) -> None:
    """It has its own level from its first day, and the other agents did not change."""
    before = simulate_agents(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    mix = mix_of(before, simulate_agents(seed + 100, 100, {"strong": 0.4, "weak": 0.1, "new": 0.5}, {**MEANS, "new": 0.65}))

    assert mix is not None
    assert mix[0] == "agent"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("arrivals", "label"),
    [(("later", "live"), "arrival"), (("live", "later"), None)],
    ids=["history ends", "records come late"],
)
def test_a_gap_at_the_end_of_imported_history_is_no_fall(seed: int, arrivals: tuple[str, str], label: str | None) -> None:
    """Two sources meet there. The opposite order stays a fall: records may be late for the same reason that lowered the scores."""
    before, after = (
        [exchange._replace(labels={**exchange.labels, "arrival": arrival}) for exchange in scored]
        for arrival, scored in zip(
            arrivals,
            (
                simulate_agents(seed, 1400, {"strong": 1.0}, MEANS),
                simulate_agents(seed + 100, 100, {"strong": 1.0}, {"strong": 0.7}),
            ),
            strict=True,
        )
    )
    explanation = explain_labels(before, after, ("agent", "tenant", "arrival"))

    assert explanation is not None
    assert (explanation.mix and explanation.mix.label) == label


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fallen", [("strong",), ("weak", "strong")])
def test_an_agent_that_falls_is_no_change_of_the_mix(seed: int, fallen: tuple[str, ...]) -> None:
    """Its share did not change."""
    before = simulate_agents(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    worse = {agent: mean - 0.15 * (agent in fallen) for agent, mean in MEANS.items()}

    assert mix_of(before, simulate_agents(seed + 100, 100, {"strong": 0.8, "weak": 0.2}, worse)) is None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rollout", [0.5, 1.0])
def test_a_worse_build_is_no_change_of_the_mix_under_any_label(seed: int, rollout: float) -> None:
    """A new value of a label may be the same agent in a new state."""
    before = simulate_agents(seed, 1400, {"strong": 1.0}, MEANS)
    after = simulate_agents(seed + 100, int(100 * rollout), {"strong": 1.0}, {"strong": 0.7}, build="2")
    after += simulate_agents(seed + 200, 100 - int(100 * rollout), {"strong": 1.0}, MEANS)

    assert mix_of(before, after) is None
