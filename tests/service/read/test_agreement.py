"""The next label, and the agreement of judges: from anchors and from replays, over time, and what to do without any."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from support.builders import judgement, score
from support.clocks import NOW
from support.watch_histories import put

from analytics.store.store import Store
from audit.anchors import anchor_project
from schemas.records import Judgement, Review, Score
from service.read.agreement import Agreement, VerdictEstimate, label_gains, project_agreement
from service.read.people import next_to_review
from streams.replay.plan import folder_of

JUDGED = {"disposition": "scored", "tier2_state": "scored", "tier3_state": "scored", "tier2_score": 0.9, "tier3_score": 4.5}
HAIKU, OTHER = "claude-haiku-4-5", "openai/gpt-5.4-mini"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a database in a file, because replays lie beside it."""
    with Store(tmp_path / "driftline.duckdb") as opened:
        yield opened


def measure(store: Store) -> Agreement:
    """Measure the agreement over all time."""
    return project_agreement(store.cursor(), "ops", database=store.path)


def human_score(session: str, value: int) -> Review:
    """Return a person's score of the first exchange of a session."""
    return Review(
        review_id=f"r {session}", project="ops", kind="human_score", subject_id=f"score {session}:1", reviewer="ann", score=value,
        occurred_at=NOW, ingested_at=NOW,
    )  # fmt: skip


def scores_of(name: str, count: int, **fields: object) -> list[Score]:
    """Return judged exchanges, each in a session of its own."""
    times = [NOW - timedelta(minutes=7 * number + 1) for number in range(count)]
    return [score(f"{name}{number}", 1, exchange_at=at, **(JUDGED | fields)) for number, at in enumerate(times)]


def test_the_next_label_is_where_exchanges_stand_for_many(store: Store) -> None:
    """Ten sampled exchanges stand for a hundred, thirty others for themselves; labels of the latter say little about the mean."""
    sampled = {"sampling_probability": 0.1, "sampling_reason": "routine_sample"}
    put(store, "scores", [*scores_of("few", 10, **sampled), *scores_of("all", 30)])
    put(store, "reviews", [human_score(f"all{number}", 4) for number in range(5)])
    item = next_to_review(store.cursor(), "ops", "ann", order="interval")
    assert item is not None
    assert item.pick == "interval"
    assert item.session_id.startswith("few")
    assert item.gain is not None
    assert (item.gain.is_sampled, item.gain.labels) == (True, 0)
    assert item.gain.share == pytest.approx(100 / 130)
    hidden = next_to_review(store.cursor(), "ops", "ann", order="interval", blind=True)
    assert hidden is not None
    assert (hidden.session_id, hidden.gain, hidden.stratum) == (item.session_id, None, None)


def test_the_order_of_the_interval_reaches_every_judged_exchange_once(store: Store) -> None:
    """When a stratum is exhausted, the next one follows; exchanges without a Tier 3 score say nothing about the mean."""
    odd = {"anomaly": True, "tier3_score": 1.5}
    put(store, "scores", [*scores_of("a", 4, **odd), *scores_of("b", 5), score("unjudged", 1)])
    picked: list[str] = []
    while item := next_to_review(store.cursor(), "ops", "ann", picked, order="interval"):
        picked.append(item.score_id)
    assert sorted(picked) == sorted(one.score_id for one in (*scores_of("a", 4), *scores_of("b", 5)))


def test_an_exchange_that_somebody_scored_comes_last(store: Store) -> None:
    """A second label of the same exchange narrows the interval of the mean hardly at all."""
    put(store, "scores", scores_of("a", 6))
    put(store, "reviews", [human_score(f"a{number}", 4) for number in range(5)])
    item = next_to_review(store.cursor(), "ops", "bob", order="interval")
    assert item is not None
    assert item.session_id == "a5"


def test_the_gains_say_how_much_a_label_narrows_the_interval(store: Store) -> None:
    """With equal labels in one stratum, the width falls with the root of their number."""
    put(store, "scores", scores_of("a", 60))
    put(store, "reviews", [human_score(f"a{number}", 3 + number % 2) for number in range(40)])
    (gain,) = label_gains(store.cursor(), "ops")
    assert (gain.stratum, gain.labels) == ("routine", 40)
    assert gain.narrowing == pytest.approx(1 - (40 / 41) ** 0.5)


def anchor_scores(rounds: int, judge: str, first_day: int, kindness: float = 0.0) -> list[Score]:
    """Return the verdicts of rounds on twenty anchors, one round a day."""
    return [
        score(
            f"round {first_day + day}", anchor, score_id=f"anchor {anchor}@{first_day + day}", exchange_id=f"anchor {anchor}@{first_day + day}",
            connection="anchors", project=anchor_project("ops"), exchange_at=NOW + timedelta(days=first_day + day), judge_model=judge,
            **(JUDGED | {"tier3_score": 1 + anchor % 4 + kindness}),
        )
        for day in range(rounds)
        for anchor in range(20)
    ]  # fmt: skip


def of_tier3(estimates: list[VerdictEstimate]) -> list[VerdictEstimate]:
    """Return those of Tier 3."""
    return [estimate for estimate in estimates if estimate.tier == "tier3"]


def test_anchors_show_a_judge_against_itself_and_against_the_next_one(store: Store) -> None:
    """The second judge is half a point kinder; each of them repeats itself."""
    put(store, "scores", [*anchor_scores(4, HAIKU, 0), *anchor_scores(3, OTHER, 40, kindness=0.5)])
    answer = measure(store)
    (between,) = of_tier3(answer.judges)
    assert (between.first, between.second, between.source) == (HAIKU, OTHER, "anchors")
    assert (between.labels, between.exchanges) == (60, 20)
    assert between.bias == pytest.approx(0.5)
    assert {estimate.first: (estimate.labels, estimate.kappa) for estimate in of_tier3(answer.itself)} == {
        HAIKU: (60, 1),
        OTHER: (40, 1),
    }
    assert len({estimate.month for estimate in answer.itself_by_month}) == 2


def test_verdicts_of_different_methodologies_are_not_compared(store: Store) -> None:
    """They answer different questions, so a difference says nothing about the judges."""
    changed = [msgspec.structs.replace(verdict, methodology_digest="1" * 16) for verdict in anchor_scores(1, HAIKU, 3)]
    put(store, "scores", [*anchor_scores(1, HAIKU, 0), *changed])
    assert measure(store).itself == []


def replayed(store: Store, scores: list[Score], judgements: list[Judgement]) -> None:
    """Write a replay beside the database."""
    assert store.path is not None
    folder_of(store.path).mkdir(exist_ok=True)
    with Store(folder_of(store.path) / "second.duckdb") as other:
        put(other, "scores", scores)
        put(other, "judgements", judgements)


def with_answers(name: str, model: str, shift: float, prefix: str) -> tuple[list[Score], list[Judgement]]:
    """Return forty scores with the judgements of Tier 3 on which they rest."""
    scores, answers = [], []
    for number in range(40):
        at = NOW - timedelta(minutes=7 * number + 1)
        answer_id = f"{prefix} {number}"
        values = {"tier3_score": 1 + number % 4 + shift, "judgement_ids": (answer_id,), "judge_model": model, "scored_at": NOW}
        scores.append(score(f"{name}{number}", 1, exchange_at=at, **(JUDGED | values)))
        answers.append(judgement(f"{name}{number}", 1, "tier3", judgement_id=answer_id, requested_model=model, judged_at=at))
    return scores, answers


def test_a_replay_by_another_judge_is_a_second_opinion(store: Store) -> None:
    """Its scores stay in its own file, and the ones that count do not change."""
    scores, answers = with_answers("a", HAIKU, 0.0, "live")
    put(store, "scores", scores)
    put(store, "judgements", answers)
    replayed(store, *with_answers("a", OTHER, 0.5, "second"))
    answer = measure(store)
    (between,) = answer.judges
    assert (between.tier, between.first, between.second, between.source) == ("tier3", HAIKU, OTHER, "second")
    assert (between.labels, between.sessions) == (40, 40)
    assert between.bias == pytest.approx(0.5)
    assert answer.itself == []


def test_a_replay_of_recorded_answers_is_no_second_opinion(store: Store) -> None:
    """The same answer twice agrees perfectly and says nothing about the judge."""
    scores, answers = with_answers("a", HAIKU, 0.0, "live")
    put(store, "scores", scores)
    put(store, "judgements", answers)
    replayed(store, scores, [])
    answer = measure(store)
    assert (answer.judges, answer.itself) == ([], [])
    assert "driftline replay --project ops" in answer.second_opinion


def test_an_unreadable_replay_is_named(store: Store) -> None:
    """Silence would look as if no second opinion had been asked for."""
    assert store.path is not None
    folder_of(store.path).mkdir()
    (folder_of(store.path) / "broken.duckdb").write_text("not a database")
    assert [problem.partition(":")[0] for problem in measure(store).unreadable_replays] == ["broken"]


def test_agreement_with_people_is_shown_by_month(store: Store) -> None:
    """A judge that was right in spring may be wrong in autumn."""
    at = [NOW - timedelta(days=n) for n in range(80)]
    scores = [score(f"a{n}", 1, exchange_at=at[n], **(JUDGED | {"tier3_score": 1.0 + n % 4})) for n in range(80)]
    put(store, "scores", scores)
    put(store, "reviews", [human_score(f"a{n}", 1 + n % 4) for n in range(80)])
    months = measure(store).months
    assert [month.month for month in months] == sorted({f"{time:%Y-%m}" for time in at})
    assert sum(month.labels for month in months) == 80
    assert {month.kappa for month in months if month.state == "enough"} == {1.0}
