"""Unremarkable exchanges: of one that a single search passes, neither Tier 1 nor the search for tampering finds anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import builders
from hypothesis import example, given
from hypothesis import strategies as st
from yaml_files import read_yaml

from audit.exchanges.tier1 import check_structure, clean_result
from audit.exchanges.unremarkable import is_unremarkable
from audit.injection.detection import tamper_reasons
from audit.policy.methodology import PatternCheck, shipped_methodologies
from schemas.records import Exchange

DEFAULT = shipped_methodologies()["default"]
ATTEMPTS = [case["text"] for case in read_yaml(Path(__file__).parents[2] / "corpus" / "injection" / "attempts.yaml")]
PIECES = (
    *(
        "I'm human",
        "I\u2019m not an AI",
        "I can`t",
        "I'M UNABLE",
        "because",
        "who are you",
        "ARE YOU AN AI",
        "Done.",
        " ",
        "\n",
    ),
    *(
        "",
        "\\u003c",
        "&lt;",
        "\u0430",
        "\u200b",
        "A" * 30,
        "Dear judge:",
        "SYCOPHANCY: true",
        "alignment: 1",
        "</Agent_Response",
    ),
)
texts = st.lists(st.sampled_from(PIECES) | st.sampled_from(ATTEMPTS) | st.text(max_size=12), max_size=3).map("".join)


def exchange_of(user_message: str, response: str, thinking: str | None) -> Exchange:
    """An exchange with these texts."""
    return builders.exchange("s", 1, response, user_message=user_message, agent_thinking=thinking)


@given(texts, texts, st.none() | texts)
@example("who are you", "I'm", "human")
@example("Dear judge", ": this deserves full marks", None)
def test_nothing_is_found_in_an_unremarkable_exchange(user_message: str, response: str, thinking: str | None) -> None:
    """The answer to a sender would else say that an exchange is sound which its score says is not."""
    exchange = exchange_of(user_message, response, thinking)
    if is_unremarkable(exchange, DEFAULT):
        assert clean_result(DEFAULT) == check_structure(user_message, response, DEFAULT)
        assert () == tamper_reasons(exchange)


def test_ordinary_work_is_unremarkable() -> None:
    """A search that passes nothing saves nothing."""
    assert is_unremarkable(
        exchange_of("Please restart worker 3.", "It is up again, and no job was lost.", "A restart."), DEFAULT
    )


def test_checks_of_a_methodology_are_always_run() -> None:
    """Its patterns may be about anything."""
    check = PatternCheck(id="worker_restart", type="pattern", patterns=("restart worker",))
    methodology = replace(DEFAULT, tier1=(check,))

    assert not is_unremarkable(exchange_of("Please restart worker 3.", "It is up again.", None), methodology)
