"""Texts of the synthetic sessions, read from the YAML files beside this module on first use."""

from __future__ import annotations

import functools
from importlib import resources

import msgspec

Slots = dict[str, list[str]]
"""What each `{slot}` of a text may be filled with."""


class Topic(msgspec.Struct, frozen=True):
    """One kind of request, with several ways to put it and to answer it."""

    questions: list[str]
    thinking: str
    answers: list[str]


class Dispute(msgspec.Struct, frozen=True):
    """A user who is wrong about something: an honest agent's answer, and that of one that wants to please."""

    claim: str
    thinking: str
    honest: str
    pleasing: str


class ConversationTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts that conversations are made of; the file says what each list is for."""

    slots: Slots
    topics: dict[str, list[Topic]]
    disputes: dict[str, list[Dispute]]
    openings: list[str]
    closings: list[str]
    mild: list[str]
    details: list[str]
    wrap_request: str
    wrap_steps: list[str]
    tamper: str
    leak: str
    off_topic: list[str]
    rude: list[str]
    refused: list[str]
    overdone: list[str]


class Task(msgspec.Struct, frozen=True):
    """One kind of request to an agent of the fleet, with its thinking, call, result and answer."""

    question: str
    thinking: str
    tool: str
    argument: str
    result: str
    answer: str


class FleetTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts that transcripts are made of."""

    slots: Slots
    domains: dict[str, list[Task]]
    worse: list[str]


@functools.cache
def conversation_texts() -> ConversationTexts:
    """Return the texts of the conversations."""
    return msgspec.yaml.decode(_file("conversations.yaml"), type=ConversationTexts)


@functools.cache
def fleet_texts() -> FleetTexts:
    """Return the texts of the fleet."""
    return msgspec.yaml.decode(_file("fleet.yaml"), type=FleetTexts)


def policy_file() -> bytes:
    """Return the policy of the demo, as its file holds it."""
    return _file("policy.yaml")


def _file(name: str) -> bytes:
    return (resources.files("service.demo") / name).read_bytes()
