"""The demo's script: its days, and the texts of its sessions.

Every date is a number of days before the last day. The data is generated for the days of the script and then shifted by whole days, so
every demo has the same texts, faults, quiet days, incidents and costs, the same number of days before its end. Only dates differ.

Texts are in YAML files beside this module and are read on first use.
"""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, time, timedelta
from importlib import resources

import msgspec

SCRIPT_END = date(2026, 11, 1)
"""Last day of the script, a Sunday. Outputs and pictures in the documents are of a demo that ends on it."""


def moved_by(last_day: date) -> timedelta:
    """Return the shift of a script that ends on this day."""
    return last_day - SCRIPT_END


def moment_before(last_day: date, days: int, hour: int = 0, minute: int = 0) -> datetime:
    """Return this time of day, UTC, a number of days before the last day."""
    return datetime.combine(last_day - timedelta(days=days), time(hour, minute), UTC)


def present_of(last_day: date) -> datetime:
    """Return the demo's present: the end of its last day."""
    return moment_before(last_day, -1)


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
    return (resources.files("driftline_trial.demo") / name).read_bytes()
