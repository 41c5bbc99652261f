"""Which part of the traffic changed, from the log to an incident's evidence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.builders import exchange
from support.watch_histories import END, fallen, history, put

from analytics.store.store import Store
from schemas.records import Label, Score
from streams.watch.evidence import explain_by_slices

SINCE = 5
BEFORE = (END - timedelta(days=20), END - timedelta(days=SINCE))
AFTER = (END - timedelta(days=SINCE), END)
PARAMETERS = {
    "project": "ops", "agent": None, "tier": "tier2", "before_since": BEFORE[0], "before_until": BEFORE[1], "after_since": AFTER[0], "after_until": AFTER[1],
}  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def labelled(store: Store, scores: list[Score], **labels: str) -> None:
    """Store scores with their exchanges, which carry these labels."""
    exchange_labels = tuple(Label(name=name, value=value) for name, value in sorted(labels.items()))
    exchanges = [
        exchange(
            score.session_id,
            1,
            project="ops",
            exchange_id=score.exchange_id,
            occurred_at=score.exchange_at,
            ingested_at=score.exchange_at,
            labels=exchange_labels,
        )
        for score in scores
    ]
    put(store, "exchanges", exchanges)
    put(store, "scores", scores)


def test_the_version_that_fell_is_named_first(store: Store) -> None:
    """The person on call needs to know what to roll back."""
    labelled(store, history(fallen(SINCE), 20, seed=1, name="new"), agent_version="2.0", tenant="acme")
    labelled(store, history(lambda _: 0.85, 20, seed=2, name="old"), agent_version="1.9", tenant="acme")
    slice_evidence = explain_by_slices(store.cursor(), PARAMETERS)
    best = slice_evidence.slices[0]
    assert slice_evidence.state == "found"
    assert best.label == "agent_version"
    assert best.value == "2.0"
    assert best.stands_out is True
    assert best.within.high < 0
    assert 0.9 < best.explained < 1.1
    assert not any(slice_.label == "tenant" for slice_ in slice_evidence.slices)


def test_the_version_to_roll_back_to_is_the_previous_one(store: Store) -> None:
    """A version of weeks ago may have more exchanges, but has been replaced since."""
    versions = {
        "1": (range(10, 21), 10, 0.85), "2": (range(SINCE, 10), 10, 0.85), "2-canary": (range(SINCE, 10), 2, 0.85), "3": (range(SINCE), 10, 0.45),
    }  # fmt: skip
    for seed, (version, (days, a_day, quality)) in enumerate(versions.items()):
        scores = history(lambda _, level=quality: level, 20, seed=seed, name=version, a_day=a_day)
        labelled(store, [score for score in scores if (END - score.exchange_at).days in days], agent_version=version)
    slice_evidence = explain_by_slices(store.cursor(), PARAMETERS)
    assert slice_evidence.slices[0].value == "3"
    assert slice_evidence.usual.value == "2"


def test_without_labels_there_is_nothing_to_compare(store: Store) -> None:
    """With one agent and one model, the explanation says which labels to send."""
    labelled(store, history(fallen(SINCE), 20))
    slice_evidence = explain_by_slices(store.cursor(), PARAMETERS)
    assert slice_evidence.state == "no_labels"
    assert slice_evidence.slices == []


def test_a_project_without_scores_has_too_few_sessions(store: Store) -> None:
    """A side without scores has no mean."""
    slice_evidence = explain_by_slices(store.cursor(), PARAMETERS)
    assert slice_evidence.state == "too_few_sessions"
    assert slice_evidence.sessions == {"before": 0, "after": 0}


def test_values_beyond_the_fiftieth_are_other_values(store: Store) -> None:
    """A label with a different value in every session would fill the incident with names."""
    for index in range(52):
        labelled(store, history(fallen(SINCE), 19, a_day=1, seed=index, name=f"t{index}-"), tenant=f"tenant {index:02}")
    slice_evidence = explain_by_slices(store.cursor(), PARAMETERS)
    assert slice_evidence.tried == 51
    assert slice_evidence.state == "everywhere"
    assert len(slice_evidence.slices) <= 10
