"""Slices: the parts add up to the change, no order matters, and the slice that moved comes first."""

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


def explained(before: list[Scored], after: list[Scored], names: tuple[str, ...] = NAMES) -> Explanation | None:
    """The change between exchanges, taken apart."""
    (one, whole), (other, rest) = moments_of(before, names), moments_of(after, names)
    return explain(one, other, (whole, rest))


def drawn(seed: int, sessions: int, fall: dict[str, float], shares: dict[str, float]) -> list[Scored]:
    """Sessions of three exchanges with one version each; a version's scores lie so much lower."""
    draw = random.Random(seed)
    made = []
    for number in range(sessions):
        (version,) = draw.choices(list(shares), list(shares.values()))
        labels = {"version": version, "tenant": draw.choice("xyz")}
        mean = draw.gauss(0.8, 0.05) - fall.get(version, 0.0)
        made += [Scored(f"{seed}/{number}", labels, draw.gauss(mean, 0.05)) for _ in range(3)]
    return made


@given(SIDE, SIDE)
def test_parts_add_up_to_the_change(before: list[Scored], after: list[Scored]) -> None:
    """What mix and within of all slices of a label come to is the whole change, and nothing is told twice."""
    found = explained(before, after)
    for name in NAMES if found else ():
        parts = [one for one in found.slices if one.key.label == name] if found else []
        total = math.fsum(one.mix.amount + one.within.amount for one in parts)
        assert not parts or found is None or math.isclose(found.change.amount, total, abs_tol=1e-9)


@given(SIDE, SIDE, st.randoms(use_true_random=False))
def test_the_order_of_exchanges_changes_nothing(before: list[Scored], after: list[Scored], draw: random.Random) -> None:
    """A database returns rows in any order."""
    expected = explained(before, after)
    draw.shuffle(before)
    draw.shuffle(after)
    assert explained(before, after) == expected


@given(SIDE, SIDE)
def test_intervals_hold_what_they_are_of(before: list[Scored], after: list[Scored]) -> None:
    """An interval that leaves out its own estimate, or is no number, is none."""
    found = explained(before, after)
    for one in found.slices if found else ():
        for part in (one.mix, one.within):
            assert part.low <= part.amount <= part.high


def test_the_slice_that_fell_stands_out_from_inside() -> None:
    """The plainest case: one version got worse, and its share stayed."""
    shares = {"1": 0.7, "2": 0.3}
    found = explained(drawn(1, 300, {}, shares), drawn(2, 300, {"2": 0.2}, shares))
    assert found is not None
    best = found.slices[0]
    assert (best.key, best.stands_out) == (Key("version", VALUE, "2"), True)
    assert best.within.high < 0
    assert abs(best.mix.amount) < 0.01
    assert best.explained == pytest.approx(1, abs=0.2)


def test_a_slice_that_grew_stands_out_by_the_mix() -> None:
    """No version got worse: more exchanges are of the one that was bad before."""
    low = {"2": 0.3}
    found = explained(drawn(1, 300, low, {"1": 0.9, "2": 0.1}), drawn(2, 300, low, {"1": 0.5, "2": 0.5}))
    assert found is not None
    best = found.slices[0]
    assert (best.key, best.stands_out) == (Key("version", VALUE, "2"), True)
    assert best.mix.high < 0
    assert abs(best.within.amount) < abs(best.mix.amount) / 4


def test_a_version_that_took_over_is_named_and_not_the_one_that_went() -> None:
    """A release replaces all of the traffic: the new version explains the fall."""
    found = explained(drawn(1, 200, {}, {"1": 1.0}), drawn(2, 200, {"2": 0.2}, {"2": 1.0}))
    assert found is not None
    best = found.slices[0]
    assert (best.key, best.mean_before, best.stands_out) == (Key("version", VALUE, "2"), None, True)
    assert best.explained == pytest.approx(1, abs=0.05)


def test_a_change_everywhere_stands_out_nowhere() -> None:
    """Naming a slice where all moved alike would send people to the wrong place."""
    shares = {"1": 0.5, "2": 0.5}
    found = explained(drawn(1, 300, {}, shares), drawn(2, 300, {"1": 0.2, "2": 0.2}, shares))
    assert found is not None
    assert not any(one.stands_out for one in found.slices)
    assert found.unexplained == found.change.amount


def test_labels_that_cut_alike_name_each_other() -> None:
    """Version and model changed together: no figures can tell which of them it was."""
    twins = [[one._replace(labels={**one.labels, "tenant": one.labels["version"]}) for one in side] for side in (
        drawn(1, 100, {}, {"1": 0.5, "2": 0.5}), drawn(2, 100, {"2": 0.3}, {"1": 0.5, "2": 0.5}),
    )]  # fmt: skip
    found = explained(*twins)
    assert found is not None
    first, second = found.slices[:2]
    assert (Key("tenant", VALUE, "2"), Key("version", VALUE, "2")) == (first.key, second.key)
    assert ((second.key,), (first.key,)) == (first.same_as, second.same_as)
    assert found.tried == 2


def test_exchanges_without_a_label_are_a_slice() -> None:
    """A part that nobody labelled can be the part that changed."""

    def bare(side: list[Scored]) -> list[Scored]:
        return [one._replace(labels={}) if one.labels["version"] == "2" else one for one in side]

    shares = {"1": 0.6, "2": 0.4}
    found = explained(bare(drawn(1, 200, {}, shares)), bare(drawn(2, 200, {"2": 0.2}, shares)), ("version",))
    assert found is not None
    assert Key("version", NOT_GIVEN, "") == found.slices[0].key


def test_with_too_few_sessions_nothing_is_said() -> None:
    """Two sessions have no spread that could be measured."""
    assert explained([Scored("a", {}, 0.5)] * 9, [Scored(str(place), {}, 0.1) for place in range(9)]) is None


MEANS = {"strong": 0.9, "weak": 0.7}


def served(seed: int, sessions: int, shares: dict[str, float], means: dict[str, float], build: str = "1") -> list[Scored]:
    """Sessions of one score by agents with these shares and means."""
    draw = random.Random(seed)
    agents = draw.choices(list(shares), list(shares.values()), k=sessions)
    return [
        Scored(
            f"{seed}/{number}", {"agent": agent, "tenant": draw.choice("xyz"), "build": build}, draw.gauss(means[agent], 0.1)
        )
        for number, agent in enumerate(agents)
    ]


def mix_of(before: list[Scored], after: list[Scored]) -> tuple[str, bool] | None:
    """The label whose shares explain a change, and whether every part of it moved against the change; None without one."""
    found = explained(before, after, ("agent", "tenant", "build"))
    return None if found is None or found.mix is None else (found.mix.label, found.mix.all_better)


@pytest.mark.parametrize("seed", range(8))
def test_a_mix_that_changes_is_not_the_agents(seed: int) -> None:
    """More traffic for the weaker agent lowers the mean, and no agent has to be repaired for it."""
    before = served(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)

    assert mix_of(before, served(seed + 100, 100, {"strong": 0.3, "weak": 0.7}, MEANS)) == ("agent", False)


@pytest.mark.parametrize("seed", range(8))
def test_a_mean_falls_although_every_agent_improved(seed: int) -> None:
    """Simpson's paradox: a reader of the mean alone would roll back an improvement."""
    before = served(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    better = {agent: mean + 0.05 for agent, mean in MEANS.items()}

    assert mix_of(before, served(seed + 100, 150, {"strong": 0.3, "weak": 0.7}, better)) == ("agent", True)


@pytest.mark.parametrize("seed", range(8))
def test_a_new_agent_is_part_of_the_mix(seed: int) -> None:
    """It is at its own level from its first day: the others are as they were."""
    before = served(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    found = mix_of(before, served(seed + 100, 100, {"strong": 0.4, "weak": 0.1, "new": 0.5}, {**MEANS, "new": 0.65}))

    assert found is not None
    assert found[0] == "agent"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("arrivals", "label"),
    [(("later", "live"), "arrival"), (("live", "later"), None)],
    ids=["history ends", "records come late"],
)
def test_a_gap_where_imported_history_ends_is_no_fall(seed: int, arrivals: tuple[str, str], label: str | None) -> None:
    """Two sources meet there. Records that come late after a fall may be late for the same reason: that stays a fall."""
    before, after = (
        [one._replace(labels={**one.labels, "arrival": arrival}) for one in scored]
        for arrival, scored in zip(
            arrivals,
            (served(seed, 1400, {"strong": 1.0}, MEANS), served(seed + 100, 100, {"strong": 1.0}, {"strong": 0.7})),
            strict=True,
        )
    )
    found = explained(before, after, ("agent", "tenant", "arrival"))

    assert found is not None
    assert (found.mix and found.mix.label) == label


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fallen", [("strong",), ("weak", "strong")])
def test_an_agent_that_falls_is_no_mix(seed: int, fallen: tuple[str, ...]) -> None:
    """Its share is what it was."""
    before = served(seed, 1400, {"strong": 0.8, "weak": 0.2}, MEANS)
    worse = {agent: mean - 0.15 * (agent in fallen) for agent, mean in MEANS.items()}

    assert mix_of(before, served(seed + 100, 100, {"strong": 0.8, "weak": 0.2}, worse)) is None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rollout", [0.5, 1.0])
def test_a_worse_build_is_no_mix_whatever_its_label_is_called(seed: int, rollout: float) -> None:
    """Another value that replaces one may be the same agent in a new state."""
    before = served(seed, 1400, {"strong": 1.0}, MEANS)
    after = served(seed + 100, int(100 * rollout), {"strong": 1.0}, {"strong": 0.7}, build="2")
    after += served(seed + 200, 100 - int(100 * rollout), {"strong": 1.0}, MEANS)

    assert mix_of(before, after) is None
