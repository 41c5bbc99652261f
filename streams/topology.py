"""The stages as data: name, source topic, step and sinks. Runners interpret this table and decide nothing themselves.

The stage of traces has no step here (`streams.upkeep.assembling`); its state of an incomplete trace is `OpenTrace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from audit.policy import Policy, Traces
from schemas.registry import current_schemas
from streams.judging.judged_stages import EVALUATION, SCORING, JudgedStage, JudgedState, JudgementReader, JudgingStep
from streams.stage_batches import Step
from streams.stage_progress import SOURCES
from streams.steps.diagnosis import DiagnosisState, DiagnosisStep
from streams.steps.intake import IntakeState, IntakeStep

SETTLED, IDLE = "settled", "idle"


class OpenTrace(msgspec.Struct, frozen=True, array_like=True):
    """A trace with spans that were not assembled yet: a summary, without the spans themselves."""

    project: str
    last_at: datetime
    """The time when the last of its spans arrived."""
    has_root: bool
    spans: int
    first_offset: int
    """The lowest offset of a span on any partition: a later span may have a lower offset."""

    def followed_by(self, further: OpenTrace) -> OpenTrace:
        """The trace after further spans. Spans that are added twice change nothing but their number."""
        return OpenTrace(
            self.project,
            max(self.last_at, further.last_at),
            self.has_root or further.has_root,
            self.spans + further.spans,
            min(self.first_offset, further.first_offset),
        )

    def completion(self, rules: Traces) -> tuple[datetime, str]:
        """The time when it is complete if no more spans arrive, and the reason."""
        if self.has_root and rules.settle_seconds <= rules.idle_seconds:
            return self.last_at + timedelta(seconds=rules.settle_seconds), SETTLED
        return self.last_at + timedelta(seconds=rules.idle_seconds), IDLE


@dataclass(frozen=True)
class Stage:
    """A stage. It reads one topic and passes on everything that later stages need, so no result depends on order across topics."""

    name: str
    source: str
    make_step: Callable[[Policy, JudgementReader], Step] | None
    """None for a stage with a timer, which the serving process runs."""
    sinks: tuple[str, ...]
    state_type: type[Any]
    """The type of a session's state in the stage, kept as MessagePack."""
    records_at_once: int
    """The most records in a batch: fewer if each record holds whole texts, which can be a megabyte."""
    judged: JudgedStage[Any] | None = None
    """The judging part of a stage that asks a judge; None for any other stage."""


def _judged(stage: JudgedStage[Any], records_at_once: int) -> Stage:
    return Stage(stage.name, stage.source, partial(JudgingStep, stage), (stage.sink,), JudgedState, records_at_once, stage)


# Judgements are not a sink: they record a judge's answers at the time of asking, and cannot be made again.
TOPOLOGY = (
    Stage("intake", SOURCES["intake"], lambda policy, _: IntakeStep(policy), ("scoring-tasks", "scores"), IntakeState, 2_000),
    _judged(SCORING, 2_000),
    Stage("diagnosis", SOURCES["diagnosis"], lambda policy, _: DiagnosisStep(policy), ("diagnoses",), DiagnosisState, 80_000),
    _judged(EVALUATION, 500),
)
"""The stages whose results can be made again from their source topics."""
ASSEMBLING = Stage(
    "traces",
    SOURCES["traces"],
    None,
    ("deployments", "exchanges", "agent-events", "reviews", "dead-letters", "trace-assemblies"),
    OpenTrace,
    10_000,
)
"""The stage that makes exchanges and events from spans (`streams.upkeep.assembling`). Its decisions are final.

The order of its sinks makes sure that a kill between two of them loses nothing: versions are not looked for in known exchanges, so
deployments come first, and nothing more is made from a trace with a decision, so decisions come last.
"""


def stage_named(name: str) -> Stage:
    """The stage with this name."""
    return next(stage for stage in TOPOLOGY if stage.name == name)


def derived_tables() -> tuple[str, ...]:
    """The tables whose rows all come from stages: they can be dropped and made again."""
    sinks = {topic for stage in TOPOLOGY for topic in stage.sinks}
    return tuple(schema.table for schema in current_schemas().values() if schema.topics and set(schema.topics) <= sinks)
