"""Versions of agents: the one that began last beside the one before it, and what chance may explain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from service.read.versions import AgentVersions, group_versions

OCTOBER = datetime(2026, 10, 1, tzinfo=UTC)


def row(version: str | None, day: int, scores: list[float] | None = None, **fields: Any) -> dict[str, Any]:
    """Build a row of the query, with one session per score."""
    score_rows = scores or []
    return {
        "agent": "cleo", "label": "agent_version", "version": version, "began_at": OCTOBER.replace(day=day), "last_at": OCTOBER.replace(day=day),
        "sessions": len(score_rows), "exchanges": len(score_rows), "judged": len(score_rows), "anomalies": 0, "w": float(len(score_rows)), "t": sum(score_rows),
        "ww": float(len(score_rows)), "wt": sum(score_rows), "tt": sum(one * one for one in score_rows), "runs": 0, "unsafe_runs": 0, **fields,
    }  # fmt: skip


def only(*rows: dict[str, Any]) -> AgentVersions:
    """The versions of the only agent."""
    (versions,) = group_versions(rows, "tier2")
    return versions


GOOD, BAD = [0.9, 0.92, 0.88, 0.91], [0.4, 0.45, 0.5, 0.42]


def test_a_version_that_is_significantly_worse_has_a_sentence_with_the_figures() -> None:
    """The sentence tells the person who released it the size, the certainty and the counts."""
    comparison = only(row("7", 20, BAD), row("6", 1, GOOD))
    assert comparison.verdict == "worse"
    assert comparison.sentence.startswith(
        "Version 7 is worse than 6: Answer quality 0.443, before 0.903 (\u22120.460, 95%: \u2212"
    )
    assert comparison.sentence.endswith("4 scores of 4 sessions, before 4 scores of 4 sessions).")


@pytest.mark.parametrize(
    ("after", "before", "verdict"),
    [
        (GOOD, BAD, "better"),
        ([0.9, 0.7, 0.8, 0.95], [0.85, 0.9, 0.75, 0.8], "no difference"),
        (GOOD, GOOD, "no difference"),
        (BAD[:2], GOOD, "too early"),
        ([], GOOD, "too early"),
    ],
)
def test_only_a_significant_change_is_called_a_difference(after: list[float], before: list[float], verdict: str) -> None:
    """Two sessions are too few to estimate the variance between sessions."""
    assert only(row("7", 20, after), row("6", 1, before)).verdict == verdict


@pytest.mark.parametrize(
    ("scores", "unsafe", "verdict"),
    [(GOOD, (5, 6), "worse"), (BAD, (0, 0), "worse"), (GOOD, (1, 6), "no difference"), ([], (5, 6), "worse")],
)
def test_unsafe_runs_count_like_scores(scores: list[float], unsafe: tuple[int, int], verdict: str) -> None:
    """Unsafe runs matter even if the scores are good."""
    newest = row("7", 20, scores, unsafe_runs=unsafe[0], runs=unsafe[1])
    comparison = only(newest, row("6", 1, GOOD, runs=30))
    assert comparison.verdict == verdict
    assert (f"{unsafe[0]} of {unsafe[1]} runs unsafe, before 0 of 30" in comparison.sentence) is True


def test_better_answers_with_more_unsafe_runs_give_no_verdict() -> None:
    """Which of the two matters more is a person's decision."""
    comparison = only(row("7", 20, GOOD, unsafe_runs=6, runs=6), row("6", 1, BAD, runs=30))
    assert comparison.verdict == "mixed"
    assert comparison.sentence.startswith("Version 7 is better than 6 in one measure and worse in the other: ")


def test_the_only_version_is_not_compared() -> None:
    """A first version is neither better nor worse."""
    assert "Version 6 is the only version" in only(row("6", 1, GOOD)).sentence


def test_the_period_before_the_first_deployment_has_a_name() -> None:
    """Exchanges without a version are assigned to versions by the times of deployments."""
    comparison = only(row("7", 20, BAD), row(None, 1, GOOD))
    assert comparison.sentence.startswith("Version 7 is worse than before the first deployment: ")


def test_the_label_with_the_newest_version_is_compared() -> None:
    """A new prompt of an old version is the latest change, and a label with one value has not changed."""
    versions = [row("7", 20, GOOD), row("6", 1, BAD)]
    prompts = [row(name, day, GOOD, label="prompt_version") for name, day in (("q", 25), ("p", 2))]
    tools = [row("t", 30, GOOD, label="tool_version")]
    comparison = only(*versions, *prompts, *tools)
    assert comparison.newest.label == "prompt_version"
    assert [one.name for one in comparison.versions] == ["q", "p"]
