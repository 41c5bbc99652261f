"""The gateway's wrapping is removed from a user's text, and nothing else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.sources.openclaw.text import answer_tags, cut, cut_bytes, question_tags, text_of, unwrap

INFO = 'Conversation info (untrusted metadata):\n```json\n{"message_id": "9"}\n```\n\n'
SENDER = 'Sender (untrusted metadata):\n```json\n{"name": "Elad"}\n```\n\n'
MARKED = 'Reply target: ⟦openclaw:ctx⟧\n```json\n{"id": 1}\n```\n'
STAMP = "[Sat 2026-04-18 22:09 GMT-3] "


@settings(deadline=None)
@given(blocks=st.lists(st.sampled_from([INFO, SENDER, MARKED])), stamp=st.sampled_from(["", STAMP]), text=st.text(max_size=80))
def test_leading_blocks_are_removed_in_any_number_and_order(blocks: list[str], stamp: str, text: str) -> None:
    """Gateways send one block, both, or newer ones; the judge must always see the user's text."""
    expected_text = text.lstrip() or "words"
    expected = unwrap(expected_text).text if not stamp else expected_text
    assert unwrap("".join(blocks) + stamp + expected_text).text == expected


@settings(deadline=None)
@given(text=st.text())
def test_text_without_wrapping_is_unchanged(text: str) -> None:
    """A user's text must reach the judge unchanged."""
    assert unwrap("q" + text).text == "q" + text


@pytest.mark.parametrize(
    "text",
    [
        "Sender (untrusted metadata):\n```json\n{",
        "Sender (untrusted metadata): hello",
        "Sender (untrusted metadata):\nno fence",
        "[Sat] hello",
        "[TODO 2026-04-18 22:09] hello",
        "Hello\n" + INFO,
        "",
    ],
)
def test_text_that_only_resembles_wrapping_is_kept(text: str) -> None:
    """Removing an unclosed fence, a header without one, or a bracket would lose text."""
    assert unwrap(text).text == text


def test_a_marked_header_before_prose_loses_only_its_line() -> None:
    """Without a fence, only the header line is certain to be wrapping."""
    assert unwrap("Recent chat history: ⟦openclaw:ctx⟧\nAnna: hi").text == "Anna: hi"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [('{"is_group_chat": true}', True), ('{"is_group_chat": "true"}', False), ("{is_group_chat", False)],
)
def test_metadata_marks_a_group_chat(metadata: str, expected: bool) -> None:
    """Several users take part only if the gateway says so."""
    wrapped = unwrap(f"Conversation info (untrusted metadata):\n```json\n{metadata}\n```\nHi")
    assert wrapped == ("Hi", expected)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("[OpenClaw heartbeat poll]", {"heartbeat"}),
        ("Read HEARTBEAT.md if it exists.", {"heartbeat"}),
        ("System: done\n\nRead HEARTBEAT.md if it exists.", {"heartbeat"}),
        ("If nothing needs attention, reply HEARTBEAT_OK.", {"heartbeat"}),
        ("Why does it reply HEARTBEAT_OK all the time?", set()),
        ("[Inter-session message] sourceSession=x", {"inter_session"}),
        ("[cron:1 report] go", {"cron"}),
        ("see [cron:1]", set()),
    ],
)
def test_noise_is_recognised_in_questions(text: str, tags: set[str]) -> None:
    """Machine traffic must not count as conversation, nor conversation as machine traffic."""
    assert question_tags(text) == tags


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("HEARTBEAT_OK", {"heartbeat"}),
        ("**HEARTBEAT_OK**\n", {"heartbeat"}),
        ("NO_REPLY", {"no_reply"}),
        ("NO_REPLY\nActually I deleted the table.", set()),
        ("HEARTBEAT_OK but the disk is full", set()),
        ("", set()),
    ],
)
def test_an_answer_is_noise_only_if_it_says_nothing_else(text: str, tags: set[str]) -> None:
    """Otherwise an agent could hide an answer behind a token."""
    assert answer_tags(text) == tags


def test_a_truncation_shows_how_much_is_missing() -> None:
    """Readers must see that text is missing, and how much."""
    assert cut("abcde", 5) == "abcde"
    assert cut("abcdef", 4) == "abcd[cut: 2 more characters]"


def test_a_text_is_truncated_between_characters() -> None:
    """Messages are limited in bytes, and half a character is not valid text."""
    assert cut_bytes("añb", 4) == "añb"
    assert cut_bytes("añbc", 4) == "añb[cut: 1 more characters]"
    assert cut_bytes("añb", 2) == "a[cut: 2 more characters]"


def test_text_blocks_are_joined_and_others_left_out() -> None:
    """Images and broken blocks have no text."""
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "x"},
        {"type": "text", "text": 5},
        {"type": "text", "text": "b"},
    ]
    assert text_of(blocks) == "a\nb"


@pytest.mark.parametrize(
    "text",
    [
        "x ⟦openclaw:ctx⟧\n" * 60_000,
        INFO * 20_000,
        "Sender (untrusted metadata):\n```json\n" * 40_000,
        " " * 1_000_000,
        "[Sat 2026-04-18 22:09 " * 50_000,
    ],
)
def test_hostile_wrapping_takes_linear_time(text: str) -> None:
    """The text is untrusted: no shape may take more than linear time."""
    began = time.process_time()
    unwrap(text)
    assert time.process_time() - began < 2.0
