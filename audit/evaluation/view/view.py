"""The judge's view of a run: one compact JSON document of three parts, made from an allow-list.

`evaluation_target` is what was asked, in the words of the case. `subject_response` is what the agent answered and which tools it
used. `execution_evidence` is what is known of how it went. Texts of the run are cleaned of infrastructure
(`audit.evaluation.view.scrubbing`) and stand under a mark (`audit.evaluation.view.untrusted_text`). Ids, images, paths, models, settings, times and
prices of the run are not among what is shown.

The document has at most as many characters as it is given; what had to be cut is said at the place of the cut, and takes the least
from the final answer and the expectations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.evaluation.cases.case import Case
from audit.evaluation.dimensions import MEANINGS
from audit.evaluation.run import Run, ToolCall, ToolResult
from audit.evaluation.view.budget import LEAST_LIST
from audit.evaluation.view.shown import Sections, case_sections, run_sections, spoken
from audit.evaluation.view.untrusted_text import marked, quoted, size
from audit.injection.run_detection import swaying
from schemas.records import CheckOutcome

SMALLEST_VIEW = 4_000
"""Characters below which a view would hold little but what says that things are left out."""
_GUARANTEED = {
    "final_output": 0.20,
    "hard_expectations": 0.10,
    "not_passed": 0.06,
    "failures": 0.05,
    "soft_expectations": 0.05,
    "messages": 0.12,
    "criteria": 0.05,
    "scale_anchors": 0.04,
    "scoring_instructions": 0.04,
    "tools": 0.05,
    "assistant_messages": 0.06,
    "artifacts": 0.08,
    "steps": 0.10,
}
"""Share of the room that each section has in any case, in the order in which sections take what others do not need."""
_BULK = ("assistant_messages", "artifacts", "steps")
"""These come last, and share evenly what is left."""
_TOLD = {
    "final_output": "final answer",
    "messages": "task",
    "hard_expectations": "hard expectations",
    "steps": "tool calls and results",
    "artifacts": "artifacts",
}
"""Sections whose cut is shown to people."""


@dataclass(frozen=True, slots=True)
class View:
    """The judge's view of a run, and the warnings about it for a person."""

    text: str
    """The user message, byte for byte."""
    warnings: tuple[str, ...]
    anomaly_reasons: tuple[str, ...]
    """Attempts of the run to sway the judge, each beginning with `judge_tamper: `; no word of the run is in them."""


def subject_view(case: Case, run: Run, checks: Sequence[CheckOutcome], max_characters: int) -> View:
    """The view of a run that is held against a case, in at most `max_characters`.

    The same case, run and outcomes give the same text in every process. ValueError for fewer characters than `SMALLEST_VIEW`.
    """
    if max_characters < SMALLEST_VIEW:
        raise ValueError(f"a view has at least {SMALLEST_VIEW} characters, not {max_characters}")
    sections = {**case_sections(case), **run_sections(case, run, checks)}
    frame = size(_document(case, run, checks, dict.fromkeys(sections, "")))
    shown = _divided(sections, max_characters - frame)
    found = swaying(spoken(run, max_characters))
    return View(
        text=marked(_document(case, run, checks, shown)),
        warnings=(*_cut_short(shown, max_characters), *(_warning(place, kinds) for place, kinds in found.items())),
        anomaly_reasons=tuple(f"judge_tamper: the {place} {kind}" for place, kinds in found.items() for kind in kinds),
    )


def _divided(sections: Sections, room: int) -> dict[str, str]:
    """Each section as JSON; together they have at most `room` characters."""
    order = [name for name in _GUARANTEED if name in sections and name not in _BULK]
    order += sorted(_BULK, key=lambda name: (sections[name].wanted, name))
    # What a list says of itself when it is left out must fit, whatever the share comes to.
    own = {name: max(LEAST_LIST, int(_GUARANTEED[name] * (room - LEAST_LIST * len(order)))) for name in order}
    reserved = {name: min(own[name], max(LEAST_LIST, sections[name].wanted)) for name in order}
    shown = {}
    for done, name in enumerate(order):
        others = sum(reserved[later] for later in order[done + 1 :])
        share = max(reserved[name], room // (len(order) - done)) if name in _BULK else room
        shown[name] = sections[name].render(min(share, room - others))
        room -= size(shown[name])
    return shown


def _document(case: Case, run: Run, checks: Sequence[CheckOutcome], shown: Mapping[str, str]) -> str:
    """The document with its sections; one that is missing is null."""
    calls = sum(isinstance(step, ToolCall) for step in run.steps)
    failed = sum(isinstance(step, ToolResult) and step.failed for step in run.steps)
    outcomes = Counter(outcome.outcome for outcome in checks)
    rubric = {name: shown.get(name, "null") for name in ("scale_anchors", "criteria", "scoring_instructions")}
    return _object(
        {
            "evaluation_target": _object(
                {
                    **{name: shown[name] for name in ("messages", "hard_expectations", "soft_expectations")},
                    "dimensions": _object({name: quoted(MEANINGS[name]) for name in case.dimensions}),
                    "rubric": _object(rubric) if case.rubric else "null",
                }
            ),
            "subject_response": _object(
                {
                    "final_output": shown.get("final_output", "null"),
                    "assistant_messages": shown["assistant_messages"],
                    "tool_activity": _object({"calls": f"{calls}", "failed_results": f"{failed}", "tools": shown["tools"]}),
                }
            ),
            "execution_evidence": _object(
                {
                    "run_status": quoted(run.status),
                    "events_recorded": str(run.has_events).lower(),
                    "checks": _object(
                        {
                            **{
                                name: f"{outcomes[outcome]}"
                                for name, outcome in (("passed", "pass"), ("failed", "fail"), ("error", "error"))
                            },
                            "not_passed": shown["not_passed"],
                        }
                    ),
                    **{name: shown[name] for name in ("steps", "artifacts", "failures")},
                }
            ),
        }
    )


def _object(members: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


def _cut_short(shown: Mapping[str, str], most: int) -> Iterator[str]:
    """A warning for each section that a score rests on and that is not shown as a whole."""
    for name, what in _TOLD.items():
        if '{"left_out":' in shown.get(name, ""):
            yield f"The judge saw only part of the {what}: the view holds {most} characters."


def _warning(place: str, kinds: Sequence[str]) -> str:
    *others, last = kinds
    return f"The {place} tries to sway the judge: it {', '.join(others)}{' and ' if others else ''}{last}."
