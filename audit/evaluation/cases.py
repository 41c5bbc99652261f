"""Test cases and evaluation profiles, and the YAML or JSON files they are read from.

A case says what a run was asked to do, what is expected of it, and what rules check without a judge
(`audit.evaluation.checks` decides those). A profile says who judges, how often, and how answers and checks become scores. It may hold
several judge runs; each is evaluated by itself, as a `Plan`, so adding one changes nothing for the others. A file is
refused with the line and the field of every problem.

Cases that are frozen from an incident (`audit.evaluation.freezing`) are in one file, a `FrozenCases`: each case has the recorded answer, and
all of them have the checks and the levels of before the change in common. `driftline gate` compares a new build with those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from audit.evaluation.dimensions import DIMENSIONS, Dimension
from audit.fingerprints import canonical_json
from audit.patterns import MAX_PATTERN_LENGTH, compile_pattern
from audit.settings_files import Document
from schemas.errors import PolicyError

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4_000)]
ArtifactPath = Annotated[str, StringConstraints(min_length=1, max_length=500)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000)]
Method = Literal["median", "mean"]
JudgeType = Literal["live", "batch", "recorded"]
_OTHER_NAMES = {"llm_probe": "live"}
"""The names that profiles of other tools give to our types."""
Weight = Annotated[float, Field(ge=0, le=1_000, strict=False, allow_inf_nan=False)]
Model = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,127}$")]
MAX_ANSWER = 200_000
"""Most characters of an answer or of its thinking."""
MAX_CASES_BYTES = 16 * 1024 * 1024
"""Maximum size of a file with cases."""
MAX_REPETITIONS = 50
WHOLE_SESSION = "whole-session"
"""Id of the case by which sessions without a written case are judged; no written case has it."""
_NAMES = {"type": "string", "enum": [*get_args(JudgeType), *_OTHER_NAMES]}
MAX_SYSTEM_PROMPT_BYTES = 64 * 1024
"""Maximum size of a system prompt, which is sent with every question."""
_HINT = "Correct the lines named above; docs/evaluation-files.md explains every field."
_FROZEN_HINT = "Freeze the cases again: driftline cases from-incident ID --out FILE. docs/how-to/ci.md explains the file."
_NOT_ID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_ID = 64
_SHIPPED_PROMPT = "judge_system_prompt.md"


class FileModel(BaseModel):
    """Read strictly: a field that is not there is an error, and no text becomes a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Problem(NamedTuple):
    """A validation problem of the field at `location`; `value` is the content of the field."""

    location: tuple[str | int, ...]
    reason: str
    value: object


def refuse(model: str, problems: Iterable[Problem]) -> None:
    """Raise ValidationError with all problems, if any; to be called by a validator of the model."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError("unfit", "{reason}", {"reason": problem.reason}),
            loc=problem.location,
            input=problem.value,
        )
        for problem in problems
    ]
    if lines:
        raise ValidationError.from_exception_data(model, lines)


def repetitions(values: Sequence[object], items: str, field: str) -> Iterator[Problem]:
    """Return a problem for each item of the list `items` that repeats the value of a field."""
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value in first:
            reason = f"{items}[{first[value]}] has the same; each needs its own"
            yield Problem((items, index, field), reason, value)
        first.setdefault(value, index)


def _refuse_repetition(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    if len(set(dimensions)) < len(dimensions):
        raise ValueError("names a dimension twice")
    return tuple(dimension for dimension in DIMENSIONS if dimension in dimensions)


Dimensions = Annotated[
    tuple[Dimension, ...], Field(min_length=1, max_length=len(DIMENSIONS)), AfterValidator(_refuse_repetition)
]
"""Some of the six, each once, in their own order."""


class _Check(FileModel):
    check_id: Identifier
    """Name of the check; unique within the case."""
    dimensions: Dimensions = ("task",)
    """Dimensions it counts for."""


class FinalResponsePresent(_Check):
    """The run ends with an answer that is not empty."""

    kind: Literal["final_response_present"]
    """Kind of the check."""


class ToolCalled(_Check):
    """A tool was called at least once."""

    kind: Literal["tool_called"]
    """Kind of the check."""
    tool: ToolName
    """Name of the tool, as it was recorded."""


class ToolCallCount(_Check):
    """So many calls of a tool, or of all tools: `min` to `max`, both included."""

    kind: Literal["tool_call_count"]
    """Kind of the check."""
    tool: ToolName | None = None
    """Name of the tool, as it was recorded; null is all tools together."""
    min: Count | None = None
    """Fewest calls; null is no such bound."""
    max: Count | None = None
    """Most calls; null is no such bound."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min is None and self.max is None:
            refuse("ToolCallCount", [Problem(("min",), "give min, max or both: without them any count passes", self)])
        if self.min is not None and self.max is not None and self.min > self.max:
            refuse("ToolCallCount", [Problem(("min",), f"is above max, {self.max}: no count passes", self.min)])
        return self


class ResponseContains(_Check):
    """The final answer holds a text, upper and lower case alike."""

    kind: Literal["response_contains"]
    """Kind of the check."""
    text: Words
    """The text that the answer must hold."""


def _require_pattern(regex: str) -> str:
    try:
        compile_pattern(regex, where="RE2", ignore_case=False)
    except PolicyError as error:
        raise ValueError(f"{error}. {error.hint}") from None
    return regex


class ResponseMatches(_Check):
    """A pattern (RE2) matches somewhere in the final answer, as it is written; `(?i)` at its start ignores case."""

    kind: Literal["response_matches"]
    """Kind of the check."""
    regex: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH), AfterValidator(_require_pattern)]
    """The pattern."""


class StatusIs(_Check):
    """The run ended this way."""

    kind: Literal["status_is"]
    """Kind of the check."""
    status: Literal["answered", "no_response", "error", "aborted"]
    """The status with which the run must have ended."""


class ArtifactPresent(_Check):
    """An artifact of this path was recorded; one that was recorded with an absolute path matches by its end."""

    kind: Literal["artifact_present"]
    """Kind of the check."""
    path: ArtifactPath
    """Path of the file."""


class ArtifactContains(_Check):
    """The recorded excerpt of an artifact holds a text, as it is written."""

    kind: Literal["artifact_contains"]
    """Kind of the check."""
    path: ArtifactPath
    """Path of the file."""
    text: Words
    """The text that the excerpt must hold."""


class MaxTotalTokens(_Check):
    """The run used no more tokens, read and written together."""

    kind: Literal["max_total_tokens"]
    """Kind of the check."""
    tokens: Count
    """Most tokens."""


class TrustAtLeast(_Check):
    """The trust score of the diagnosis is at least this."""

    kind: Literal["trust_at_least"]
    """Kind of the check."""
    trust: Annotated[int, Field(ge=0, le=100)]
    """Lowest trust score, 0 to 100. No run has less than 73, so up to that the check passes always."""


class NoTier1Flag(_Check):
    """A check of Tier 1 flags no exchange of the run."""

    kind: Literal["no_tier1_flag"]
    """Kind of the check."""
    flag: Identifier
    """Id of the check of Tier 1, structural or of the methodology."""


class NoFailure(_Check):
    """A detector finds no failure of this type in the run."""

    kind: Literal["no_failure"]
    """Kind of the check."""
    failure: Identifier
    """Type of the failure, such as infinite_tool_loop."""


class Message(FileModel):
    """A message of the task, as the agent got it."""

    role: Literal["system", "user", "assistant"]
    """The speaker."""
    content: Text
    """The text of the message."""


class CaseInput(FileModel):
    """The task that the agent was given."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=50)]
    """The task, message by message; the judge is shown these, not what the session says it was asked."""


class Expectation(FileModel):
    """A property of a good run, in words."""

    text: Words
    """A sentence that can be found true or false by looking at the run."""


class Expectations(FileModel):
    """The expectations of a run: hard expectations must hold, soft ones make a run better."""

    hard_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is not met bounds `task` and the final score."""
    soft_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is met makes a run better."""


class ScaleAnchor(FileModel):
    """The meaning of a score."""

    score: Annotated[float, Field(ge=0, le=10, strict=False)]
    """A score from 0 to 10; each has one meaning."""
    meaning: Words
    """A description of the runs that get it."""


class Criterion(FileModel):
    """Something to look at, with what is good and what is bad."""

    name: Line
    """The aspect that it is about."""
    dimension: Dimension | None = None
    """Dimension it belongs to; null is none in particular."""
    good: Words
    """A good result, in words."""
    bad: Words
    """A bad result, in words."""


class Rubric(FileModel):
    """Instructions for scoring this case, beyond those that hold for all cases."""

    scale_anchors: Annotated[tuple[ScaleAnchor, ...], Field(max_length=11)] = ()
    """The meanings of scores here."""
    criteria: Annotated[tuple[Criterion, ...], Field(max_length=30)] = ()
    """The aspects to look at."""
    scoring_instructions: Annotated[str, StringConstraints(strip_whitespace=True, max_length=8_000)] = ""
    """Anything else that the judge should go by."""

    @model_validator(mode="after")
    def _check_meanings(self) -> Self:
        refuse("Rubric", repetitions([anchor.score for anchor in self.scale_anchors], "scale_anchors", "score"))
        return self


Check = Annotated[
    FinalResponsePresent
    | ToolCalled
    | ToolCallCount
    | ResponseContains
    | ResponseMatches
    | StatusIs
    | ArtifactPresent
    | ArtifactContains
    | MaxTotalTokens
    | TrustAtLeast
    | NoTier1Flag
    | NoFailure,
    Field(discriminator="kind"),
]
Checks = Annotated[tuple[Check, ...], Field(max_length=100)]


def _write_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else canonical_json(value)


TextOrJson = Annotated[str | None, BeforeValidator(_write_text), WithJsonSchema({})]
"""A text, or any JSON value, which is kept as text."""


class AnswerCall(FileModel):
    """A tool call of an answer, as in the body of `POST ingest`."""

    name: ToolName
    """Name of the tool."""
    arguments: TextOrJson = None
    """Arguments, as text or as any JSON value."""
    result: TextOrJson = None
    """Result, as text or as any JSON value."""
    outcome: Literal["ok", "error", "unanswered"] | None = None
    """By default ok if there is a result, else unanswered."""


class Answer(FileModel):
    """An agent's answer to the task of a case; the fields are those of an exchange."""

    agent_response: Annotated[str, StringConstraints(max_length=MAX_ANSWER)]
    """The answer; may be empty."""
    agent_thinking: Annotated[str, StringConstraints(max_length=MAX_ANSWER)] | None = None
    """The thinking before it, if any."""
    tool_calls: Annotated[tuple[AnswerCall, ...], Field(max_length=1_000)] = ()
    """Tool calls of the turn, in order."""
    agent_model: Annotated[str, StringConstraints(max_length=200)] | None = None
    """The model that answered."""
    input_tokens: Count | None = None
    """Tokens that the model read; null is not known."""
    output_tokens: Count | None = None
    """Tokens that the model wrote; null is not known."""


class CandidateAnswer(Answer):
    """The answer of a candidate build: one line of its results."""

    case_id: Identifier
    """The case that it answers."""


class RecordedAnswer(Answer):
    """The answer that a case was frozen from, as stored, with its scores."""

    side: Literal["incident", "before"]
    """incident: it moved the incident; before: a healthy one from before the change."""
    moved: float = 0.0
    """Its effect on the incident, in points of the score times its weight."""
    agent: Line | None = None
    """The agent that answered."""
    session_id: Annotated[str, StringConstraints(max_length=1_000)]
    """The session of the exchange."""
    exchange_id: Annotated[str, StringConstraints(max_length=2_400)]
    """The exchange."""
    turn_number: Count = 1
    """Its turn within the session."""
    sampling_reason: Identifier
    """The reason why it was judged, on which depends what the judge is asked."""
    scores: Mapping[str, float] = {}
    """The judge's scores by series, such as tier2 or tier2.scope_compliance."""
    anomalous: bool = False
    """True if it was an anomaly."""


class Case(FileModel):
    """A test case; one YAML file."""

    case_id: Identifier
    """Name of the case in results; unique within one call."""
    title: Line
    """The title, for people."""
    input: CaseInput
    """The task."""
    expectations: Expectations = Expectations()
    """The expectations of a run."""
    dimensions: Dimensions = DIMENSIONS
    """Those that are scored."""
    rubric: Rubric | None = None
    """Instructions for scoring this case, beyond those that hold for all cases."""
    deterministic_checks: Checks = ()
    """Checks that rules decide, without the judge."""
    tags: Annotated[tuple[Identifier, ...], Field(max_length=20)] = ()
    """Go into the results, for looking things up."""
    recorded: RecordedAnswer | None = None
    """The answer that the case was frozen from; `driftline evaluate` leaves it out."""

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        refuse("Case", repetitions([check.check_id for check in self.deterministic_checks], "deterministic_checks", "check_id"))
        return self


class ScoreLevel(FileModel):
    """The level of a score before the change."""

    mean: float
    """The mean, weighted by the sampling; of tokens the geometric mean."""
    scores: Annotated[int, Field(ge=1, le=100_000)]
    """The number of scores behind it."""
    margin: Annotated[float, Field(ge=0)]
    """How far the mean of a build may be below: the judge's own noise. For tokens a share."""
    low: float | None = None
    """A low score: the `low_rank`-th lowest before; of tokens the highest. Null where single answers are not compared."""
    low_rank: Annotated[int, Field(ge=1)] = 1
    """The rank of `low` among the scores before."""

    @model_validator(mode="after")
    def _check_rank(self) -> Self:
        if self.low_rank > self.scores:
            refuse("ScoreLevel", [Problem(("low_rank",), f"is above scores, {self.scores}", self.low_rank)])
        return self


class CheckLevel(FileModel):
    """How often a check failed before the change."""

    failed: Count
    """Exchanges in which it failed."""
    exchanges: Annotated[int, Field(ge=1, le=100_000)]
    """All exchanges."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.failed > self.exchanges:
            refuse("CheckLevel", [Problem(("failed",), f"is above exchanges, {self.exchanges}", self.failed)])
        return self


class Levels(FileModel):
    """The levels before the change, which a build must reach."""

    scores: Mapping[str, ScoreLevel] = {}
    """By series, such as tier2 or tier2.scope_compliance; tokens are those of one exchange."""
    checks: Mapping[str, CheckLevel] = {}
    """By check; `anomalies` counts the anomalies among judged exchanges."""


class Source(FileModel):
    """The incident that cases were frozen from, and the rules behind their scores."""

    incident: Identifier
    """Id of the incident."""
    title: Annotated[str, StringConstraints(max_length=1_000)]
    """Title of the incident."""
    project: Identifier
    """Its project, whose policy and methodology judge the candidates."""
    before: Annotated[str, StringConstraints(max_length=100)]
    """The days of the healthy exchanges."""
    methodology_digest: Identifier
    """Digest of the methodology behind the scores."""
    rule_version: Annotated[str, StringConstraints(max_length=100)]
    """Version of the rules behind the scores."""
    judge_model: Annotated[str, StringConstraints(max_length=200)] | None = None
    """The model that gave the scores."""


class FrozenCases(FileModel):
    """Cases that were frozen from an incident; one YAML file."""

    source: Source
    """The incident."""
    levels: Levels
    """The levels before the change."""
    deterministic_checks: Checks = ()
    """Checks of every case, besides its own."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=1_000)]
    """The cases."""

    @model_validator(mode="after")
    def _check_cases(self) -> Self:
        refuse("FrozenCases", self._find_problems())
        return self

    def _find_problems(self) -> Iterator[Problem]:
        yield from repetitions([case.case_id for case in self.cases], "cases", "case_id")
        shared = [check.check_id for check in self.deterministic_checks]
        yield from repetitions(shared, "deterministic_checks", "check_id")
        for index, case in enumerate(self.cases):
            if case.recorded is None:
                yield Problem(("cases", index, "recorded"), "is required in a file of frozen cases", None)
            for number, check in enumerate(case.deterministic_checks):
                if check.check_id in shared:
                    reason = "deterministic_checks of the file has the same; each needs its own"
                    yield Problem(("cases", index, "deterministic_checks", number, "check_id"), reason, check.check_id)

    @property
    def complete_cases(self) -> list[Case]:
        """The cases, each with the checks of the file and its own."""
        return [
            case.model_copy(update={"deterministic_checks": (*self.deterministic_checks, *case.deterministic_checks)})
            for case in self.cases
        ]


def _translate_name(value: Any) -> Any:
    return _OTHER_NAMES.get(value, value) if isinstance(value, str) else value


class Judge(FileModel):
    """A judge to ask."""

    judge_id: Identifier
    """Name of the judge within the profile."""
    type: Annotated[JudgeType, BeforeValidator(_translate_name), WithJsonSchema(_NAMES)] = "live"
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
    def _check_weights(self) -> Self:
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
    def _check_names(self) -> Self:
        refuse("Profile", self._find_problems())
        return self

    def _find_problems(self) -> Iterator[Problem]:
        judge_ids = [judge.judge_id for judge in self.judges]
        yield from repetitions(judge_ids, "judges", "judge_id")
        yield from repetitions([run.judge_run_id for run in self.judge_runs], "judge_runs", "judge_run_id")
        for index, run in enumerate(self.judge_runs):
            if run.judge_id not in judge_ids:
                near = difflib.get_close_matches(run.judge_id, judge_ids, n=1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(judge_ids)}"
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
    """True if answers of a simulated judge are accepted, which they are not if a real judge is asked."""


def plans(profile: Profile) -> tuple[Plan, ...]:
    """Return a plan for each judge run, in order; raises KeyError for a judge that the profile does not define."""
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


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """An evaluation profile with the text of its system prompt."""

    profile: Profile
    system_prompt: str


def load_case_file(path: Path) -> list[Case]:
    """Load a test case, or frozen cases; raises PolicyError with each problem as `FILE:LINE: field: reason`."""
    document = Document(path, hint=_HINT, max_bytes=MAX_CASES_BYTES)
    if isinstance(document.value, dict) and "cases" in document.value:
        return document.validate(FrozenCases).complete_cases
    return [document.validate(Case)]


def load_frozen_cases(path: Path) -> FrozenCases:
    """Load the cases of an incident; raises as `load_case_file`."""
    return Document(path, hint=_FROZEN_HINT, max_bytes=MAX_CASES_BYTES).validate(FrozenCases)


def load_profile(path: Path) -> LoadedProfile:
    """Load a profile and its system prompt, whose path is relative to the profile's folder; raises as `load_case_file`.

    A profile without a `profile_id` gets the name of its file.
    """
    document = Document(path, hint=_HINT)
    if isinstance(document.value, dict) and (name := _make_identifier(path.stem)):
        document.value.setdefault("profile_id", name)
    profile = document.validate(Profile)
    prompt_path = profile.judge_system_prompt_path
    if prompt_path is None:
        return LoadedProfile(profile, shipped_system_prompt())
    try:
        text = _read_system_prompt(path.parent / prompt_path)
    except ValueError as error:
        location = document.describe_location(("judge_system_prompt_path",))
        raise PolicyError(f"{location}: the file {prompt_path!r} {error}", hint=_HINT) from None
    return LoadedProfile(profile, text)


def _make_identifier(name: str) -> str:
    """Replace characters that an id cannot contain by hyphens; empty if nothing is left."""
    return _NOT_ID_CHARACTERS.sub("-", name).strip("-._")[:_MAX_ID]


def _read_system_prompt(path: Path) -> str:
    """Return the text of the file; raises ValueError with the reason if it cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SYSTEM_PROMPT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_SYSTEM_PROMPT_BYTES:
        raise ValueError(f"is larger than {MAX_SYSTEM_PROMPT_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not text.strip():
        raise ValueError("is empty: without instructions the judge cannot answer")
    return text


@cache
def shipped_system_prompt() -> str:
    """Return the system prompt that is shipped with the package."""
    return resources.files("audit.evaluation").joinpath(_SHIPPED_PROMPT).read_text("utf-8")
