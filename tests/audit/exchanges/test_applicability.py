"""Applicability: each filter selects the exchanges it names."""

from __future__ import annotations

import pytest
from support import builders as build

from audit.exchanges.cascade import applies
from audit.policy import When
from schemas.records import Exchange


def circumstances(
    user: str = "hello", response: str = "hi", *, flagged: bool = False, multi_user: bool = False
) -> tuple[Exchange, bool]:
    """Return an exchange and whether it was flagged; by default only the filter `always` applies."""
    return build.exchange("s", 1, response, user_message=user, multi_user=multi_user), flagged


def selected(flagged_exchange: tuple[Exchange, bool]) -> set[str]:
    """Return the filters that apply."""
    subject, flagged = flagged_exchange
    return {str(when) for when in When if applies(when, subject, flagged=flagged)}


def test_the_filter_always_matches_without_conditions() -> None:
    """A dimension that does not apply is neither judged nor paid for."""
    assert selected(circumstances()) == {"always"}


@pytest.mark.parametrize(
    "verb", ["Please", "can you", "Could  you", "do", "make", "write", "FIX", "add", "create", "update", "implement"]
)
def test_a_task_is_recognized_by_its_first_words(verb: str) -> None:
    """Scope is only judged if there is a task."""
    assert selected(circumstances(f" \n{verb} it")) == {"always", "execution_task", "implementation_task"}


@pytest.mark.parametrize("verb", ["build", "Refactor"])
def test_building_is_implementation_only(verb: str) -> None:
    """The two filters differ in these verbs."""
    assert selected(circumstances(f"{verb} it")) == {"always", "implementation_task"}


@pytest.mark.parametrize(
    "user", ["does it work", "additional", "what do you do?", "makeup tips", "I said please", "candy", "buildings"]
)
def test_a_task_word_elsewhere_is_no_task(user: str) -> None:
    """The rule is about the beginning of a message."""
    assert selected(circumstances(user)) == {"always"}


@pytest.mark.parametrize(
    "response",
    [
        "Sure:\n```python\nx = 1\n```",
        "  ~~~\nx\n~~~",
        "diff --git a/x b/x",
        "@@ -1,2 +1,3 @@",
        "def f(x):",
        "class A:",
        "export async function go() {",
        "from a.b import c",
        "import java.util.List;",
        "const x = 1",
        "#include <stdio.h>",
        "func main() {",
    ],
)
def test_code_in_the_response_is_recognized(response: str) -> None:
    """Dimensions about code changes need code."""
    assert selected(circumstances(response=response)) == {"always", "code_change"}


@pytest.mark.parametrize(
    "response", ["I imported it from A", "class is over", "let it be = fine", "the function f", "a `word` in code"]
)
def test_prose_about_code_is_no_code(response: str) -> None:
    """Prose uses the same words without being code."""
    assert selected(circumstances(response=response)) == {"always"}


def test_the_other_filters_follow_their_facts() -> None:
    """Flags, disagreement and several users come from other fields."""
    assert selected(circumstances(flagged=True)) == {"always", "high_stakes"}
    assert selected(circumstances(multi_user=True)) == {"always", "multi_user"}
    assert selected(circumstances(response="I disagree.")) == {"always", "disagreement"}
