"""Evaluation profiles: who judges, how often, how the answers become one score, and how checks and judge go together.

A profile holds several judge runs. Each is evaluated by itself, as a `Plan`: adding one changes nothing of the others.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from audit.evaluation.cases.fields import FileModel, Identifier, Problem, refuse, repetitions
from audit.evaluation.dimensions import Dimension

Method = Literal["median", "mean"]
JudgeType = Literal["live", "batch", "recorded"]
_OTHER_NAMES = {"llm_probe": "live"}
"""The names that profiles of other tools give to our types."""
Weight = Annotated[float, Field(ge=0, le=1_000, strict=False, allow_inf_nan=False)]
Model = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,127}$")]
MAX_REPETITIONS = 50


def _own_name(value: Any) -> Any:
    return _OTHER_NAMES.get(value, value) if isinstance(value, str) else value


_NAMES = {"type": "string", "enum": [*get_args(JudgeType), *_OTHER_NAMES]}


class Judge(FileModel):
    """A judge to ask."""

    judge_id: Identifier
    """Name of the judge within the profile."""
    type: Annotated[JudgeType, BeforeValidator(_own_name), WithJsonSchema(_NAMES)] = "live"
    """live, or llm_probe: the Messages API; batch: its batches, at half the price; recorded: no judge, only recorded answers count."""
    model: Model
    """Model that is asked."""
    max_tokens: Annotated[int, Field(ge=256, le=32_000)] = 3_000
    """Most tokens of one answer."""


class Aggregation(FileModel):
    """The method that combines the iterations that succeeded into one score."""

    method: Method = "median"
    """Of the scores of each dimension, and of those of the whole."""


class JudgeRun(FileModel):
    """One judge, asked so many times."""

    judge_run_id: Identifier
    """Name of the judge run in results and folders."""
    judge_id: Identifier
    """Judge of this profile that is asked."""
    repetitions: Annotated[int, Field(ge=1, le=MAX_REPETITIONS)] = 1
    """The number of times that it is asked about each run."""
    aggregation: Aggregation | None = None
    """None: that of the profile."""


class DimensionPolicy(FileModel):
    """The source of a dimension's score. The weights count for `weighted` only; they are normalised."""

    policy: Literal["judge_only", "deterministic_only", "weighted"] = "judge_only"
    """judge_only: the judge's score; deterministic_only: that of the checks; weighted: both."""
    judge_weight: Weight = 1.0
    """Weight of the judge's score."""
    deterministic_weight: Weight = 1.0
    """Weight of the score of the checks."""

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.policy == "weighted" and self.judge_weight + self.deterministic_weight <= 0:
            refuse("DimensionPolicy", [Problem(("judge_weight",), "both weights are 0: one of them must count", self)])
        return self


class Profile(FileModel):
    """An evaluation profile; one YAML file."""

    profile_id: Identifier = "profile"
    """Name of the profile; a file that gives none is called by its own name."""
    judge_system_prompt_path: Annotated[str, StringConstraints(min_length=1, max_length=1_000)] | None = None
    """A Markdown file in place of the shipped system prompt; from the folder of the profile."""
    judges: Annotated[tuple[Judge, ...], Field(min_length=1, max_length=20)]
    """Whom to ask."""
    judge_runs: Annotated[tuple[JudgeRun, ...], Field(min_length=1, max_length=20)]
    """The judges to ask, and how often; each judge run is evaluated by itself."""
    aggregation: Aggregation = Aggregation()
    """The method that combines answers into one score, where a judge run says nothing else."""
    dimension_policies: Mapping[Dimension, DimensionPolicy] = {}
    """By dimension; judge_only where there is none."""
    max_view_characters: Annotated[int, Field(ge=4_000, le=400_000)] = 60_000
    """Characters of the subject view; what goes beyond is cut, and the view says so."""
    cost_cap_usd: Annotated[float, Field(gt=0, le=1_000, strict=False)] | None = 1.0
    """Most that the calls for one evaluation may cost; null is no cap."""

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        refuse("Profile", self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        known = [judge.judge_id for judge in self.judges]
        yield from repetitions(known, "judges", "judge_id")
        yield from repetitions([run.judge_run_id for run in self.judge_runs], "judge_runs", "judge_run_id")
        for index, run in enumerate(self.judge_runs):
            if run.judge_id not in known:
                near = difflib.get_close_matches(run.judge_id, known, n=1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                yield Problem(("judge_runs", index, "judge_id"), f"there is no such judge; {advice}", run.judge_id)


class Plan(FileModel):
    """One judge run of a profile, complete: what an evaluation request carries."""

    profile_id: Identifier
    judge_run_id: Identifier
    judge: Judge
    repetitions: int
    method: Method
    dimension_policies: Mapping[Dimension, DimensionPolicy]
    max_view_characters: int
    cost_cap_usd: float | None
    takes_simulated: bool = True
    """True if the answers of a simulated judge count: they do not where a real one is asked."""


def plans(profile: Profile) -> tuple[Plan, ...]:
    """A plan for each judge run, in the order of the profile. KeyError for a judge that the profile does not define."""
    judges = {judge.judge_id: judge for judge in profile.judges}
    return tuple(
        Plan(
            profile_id=profile.profile_id,
            judge_run_id=run.judge_run_id,
            judge=judges[run.judge_id],
            repetitions=run.repetitions,
            method=(run.aggregation or profile.aggregation).method,
            dimension_policies=profile.dimension_policies,
            max_view_characters=profile.max_view_characters,
            cost_cap_usd=profile.cost_cap_usd,
        )
        for run in profile.judge_runs
    )
