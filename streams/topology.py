"""The stages as data: name, source topic, step and sinks. Runners interpret this; they do not decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from audit.policy.policy import Policy
from schemas.registry import current_schemas
from streams.judging.judged_stages import EVALUATION, SCORING, JudgedStage, JudgedState, JudgingStep, Recorded
from streams.stage_batches import Step
from streams.stage_progress import SOURCES
from streams.steps.diagnosis import DiagnosisState, DiagnosisStep
from streams.steps.intake import IntakeState, IntakeStep
from streams.steps.open_traces import OpenTrace


@dataclass(frozen=True)
class Stage:
    """One stage: it reads one topic and carries what later stages need, so no result depends on order across topics."""

    name: str
    source: str
    make_step: Callable[[Policy, Recorded], Step] | None
    """None for a stage that waits for the clock: the serving process runs it."""
    sinks: tuple[str, ...]
    state_type: type[Any]
    """The type of a session's state in the stage, kept as MessagePack."""
    records_at_once: int
    """The number of records that a batch may have: fewer if each holds whole texts, up to a megabyte of them."""
    judged: JudgedStage[Any] | None = None
    """The description of a stage that asks a judge; None for any other."""


def _judged(stage: JudgedStage[Any], records_at_once: int) -> Stage:
    return Stage(stage.name, stage.source, partial(JudgingStep, stage), (stage.sink,), JudgedState, records_at_once, stage)


# Judgements are no sink: they are what a judge said, recorded by whoever asked it, and cannot be made again.
TOPOLOGY = (
    Stage("intake", SOURCES["intake"], lambda policy, _: IntakeStep(policy), ("scoring-tasks", "scores"), IntakeState, 2_000),
    _judged(SCORING, 2_000),
    Stage("diagnosis", SOURCES["diagnosis"], lambda policy, _: DiagnosisStep(policy), ("diagnoses",), DiagnosisState, 80_000),
    _judged(EVALUATION, 500),
)
"""The stages whose results can be made again from what they read."""
ASSEMBLING = Stage(
    "traces",
    SOURCES["traces"],
    None,
    ("deployments", "exchanges", "agent-events", "reviews", "dead-letters", "trace-assemblies"),
    OpenTrace,
    10_000,
)
"""The stage that makes spans into exchanges and events (`streams.upkeep.assembling`). What it decided stays as it is.

Its sinks stand in the order in which a kill between two of them loses nothing: whoever knows an exchange looks for no new version in
it, and nothing more is made of what was decided on.
"""


def stage_named(name: str) -> Stage:
    """The stage of that name."""
    return next(stage for stage in TOPOLOGY if stage.name == name)


def derived_tables() -> tuple[str, ...]:
    """The tables whose every row a stage made from other topics: they can be dropped and made again."""
    sinks = {topic for stage in TOPOLOGY for topic in stage.sinks}
    return tuple(schema.table for schema in current_schemas().values() if schema.topics and set(schema.topics) <= sinks)
