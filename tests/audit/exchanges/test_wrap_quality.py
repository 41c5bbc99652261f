"""Wrap quality: each step is recognized by its words, and only at the end of a session."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exchanges.wrap_quality import LAST_EXCHANGES, STEPS, wrap_quality

WORDS = {
    "version_bump": ["Version-bump done", "bumped to v1.2", "updated version.json", "Bumped the version to 2"],
    "changelog": ["CHANGELOG updated"],
    "learnings": ["Learnings:", "what we learned today", "Key takeaway", "a short retrospective"],
    "next_session_prime": ["for the next session", "session prime", "priming notes", "Next steps"],
    "commit": ["git commit -m x", "I committed it", "the commit message"],
}


def test_the_expected_steps_are_these() -> None:
    """The score is a share of the steps, so their number is part of its meaning."""
    assert list(WORDS) == list(STEPS)


@pytest.mark.parametrize(("step", "text"), [(step, text) for step, texts in WORDS.items() for text in texts])
def test_a_step_is_found_by_its_words(step: str, text: str) -> None:
    """One step of five scores a fifth."""
    quality = wrap_quality(["hello", text])
    assert quality.steps_found == (step,)
    assert quality.score == 0.2


@pytest.mark.parametrize(
    "text", ["", "a diversion", "we exchanged logs", "bumped into him", "uncommitted", "what a day\nI learned it"]
)
def test_words_inside_other_words_are_no_step(text: str) -> None:
    """Ordinary chat must not score."""
    assert wrap_quality([text]).steps_found == ()


def test_a_whole_wrap_up_scores_one() -> None:
    """The steps may be spread over the last exchanges."""
    quality = wrap_quality([texts[0] for texts in WORDS.values()])
    assert quality.steps_found == STEPS
    assert quality.steps_missing == ()
    assert quality.score == 1.0


def test_only_the_end_of_a_session_counts() -> None:
    """A changelog at the start is not part of the wrap-up."""
    assert wrap_quality(["changelog"] + ["x"] * LAST_EXCHANGES).steps_found == ()
    assert wrap_quality(["changelog"] + ["x"] * (LAST_EXCHANGES - 1)).steps_found == ("changelog",)


def test_a_session_without_exchanges_shows_no_step() -> None:
    """A session without text has no steps, and no error."""
    assert wrap_quality([]).steps_missing == STEPS
    assert wrap_quality([]).score == 0.0


@settings(deadline=None)
@given(st.lists(st.sampled_from([text for texts in WORDS.values() for text in texts]) | st.text(max_size=20), max_size=8))
def test_found_and_missing_make_up_all_steps(texts: list[str]) -> None:
    """Both lists are shown side by side; the order within the last exchanges does not matter."""
    quality = wrap_quality(texts)
    assert [step for step in STEPS if step in quality.steps_found] == list(quality.steps_found)
    assert set(STEPS) - set(quality.steps_found) == set(quality.steps_missing)
    assert len(quality.steps_found) / len(STEPS) == quality.score
    assert quality == wrap_quality(texts[-LAST_EXCHANGES:][::-1])
