"""Allow-list of the texts of a case and a run that the judge is shown, section by section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from audit.evaluation.cases.case import Case, Rubric
from audit.evaluation.cases.check_kinds import ArtifactContains, ArtifactPresent
from audit.evaluation.cases.paths import is_recorded_as
from audit.evaluation.run import Artifact, Run, ToolCall, ToolResult
from audit.evaluation.view.budget import Item, Listing, outside_in
from audit.evaluation.view.scrubbing import Scrubber, json_text
from audit.evaluation.view.untrusted_text import Text, quoted
from schemas.records import CheckOutcome

Sections = Mapping[str, Text | Listing]
"""The sections that are cut where room is short, by name."""
_ENDS = 2
"""Steps at the start and at the end that are the last to be left out."""


def case_sections(case: Case) -> Sections:
    """The texts of the case, as its author wrote them."""
    rubric = case.rubric or Rubric()
    messages = [
        Item(f'{{{{"role":"{one.role}","content":{{}}}}}}', (Text(one.content),), {"messages": 1})
        for one in case.input.messages
    ]
    anchors = [
        Item(f'{{{{"score":{one.score:g},"meaning":{{}}}}}}', (Text(one.meaning),), {"scale_anchors": 1})
        for one in rubric.scale_anchors
    ]
    criteria = [
        Item(
            f'{{{{"name":{{}},"dimension":{_word(one.dimension)},"good":{{}},"bad":{{}}}}}}',
            (Text(one.name), Text(one.good), Text(one.bad)),
            {"criteria": 1},
        )
        for one in rubric.criteria
    ]
    instructions = {"scoring_instructions": Text(rubric.scoring_instructions)} if rubric.scoring_instructions else {}
    return {
        "messages": Listing(messages),
        "hard_expectations": _plain([one.text for one in case.expectations.hard_expectations], "expectations"),
        "soft_expectations": _plain([one.text for one in case.expectations.soft_expectations], "expectations"),
        "scale_anchors": Listing(anchors),
        "criteria": Listing(criteria),
        **instructions,
    }


def run_sections(case: Case, run: Run, checks: Sequence[CheckOutcome]) -> Sections:
    """The texts of the run, to be cleaned when they are shown, and the checks that it did not pass."""
    scrubber = Scrubber(run.identifiers | {run.session_id})
    said = [turn.agent_response for turn in run.turns[:-1] if turn.agent_response.strip()]
    final = {"final_output": Text(run.final_response, scrubber.text)} if run.final_response.strip() else {}
    failures = [
        Item('{{"kind":{},"words":{}}}', (Text(one.kind, scrubber.text), Text(one.words, scrubber.text)), {"failures": 1})
        for one in run.failures
    ]
    steps = [_step(step, scrubber) for step in run.steps]
    artifacts = [_artifact(one, scrubber) for one in run.artifacts]
    return {
        **final,
        "assistant_messages": Listing([Item("{}", (Text(text, scrubber.text),), {"messages": 1}) for text in said]),
        "tools": Listing(list(_tools(run, scrubber))),
        "not_passed": Listing([_check(outcome) for outcome in checks if outcome.outcome != "pass"]),
        "steps": Listing(steps, _step_order(run.steps)),
        "artifacts": Listing(artifacts, _artifact_order(case, run.artifacts)),
        "failures": Listing(failures),
    }


def _plain(texts: Sequence[str], unit: str) -> Listing:
    return Listing([Item("{}", (Text(text),), {unit: 1}) for text in texts])


def _word(word: str | None) -> str:
    """A word of ours, or of an identifier's letters, inside a frame."""
    return "null" if word is None else quoted(word).replace("{", "{{").replace("}", "}}")


def _check(outcome: CheckOutcome) -> Item:
    """Its id, kind and dimensions; what it found stays out, for it may quote the run."""
    words = {"check_id": outcome.check_id, "kind": outcome.kind, "outcome": outcome.outcome}
    members = ",".join(f'"{name}":{_word(word)}' for name, word in words.items())
    dimensions = ",".join(map(_word, outcome.dimensions))
    return Item(f'{{{{{members},"dimensions":[{dimensions}]}}}}', (), {"checks": 1})


def _tools(run: Run, scrubber: Scrubber) -> Iterator[Item]:
    """Each tool with its number of calls, in the order of the first."""
    calls = Counter(step.tool for step in run.steps if isinstance(step, ToolCall))
    for tool, count in calls.items():
        name, texts = _named(tool, scrubber)
        yield Item(f'{{{{"tool":{name},"calls":{count}}}}}', texts, {"tools": 1, "calls": count})


def _named(tool: str | None, scrubber: Scrubber) -> tuple[str, tuple[Text, ...]]:
    """The name of a tool in a frame, and the texts that the frame needs for it."""
    return ("null", ()) if tool is None else ("{}", (Text(tool, scrubber.text),))


def _step(step: ToolCall | ToolResult, scrubber: Scrubber) -> Item:
    """A call with its arguments, or a result with its output."""
    name, texts = _named(step.tool, scrubber)
    if isinstance(step, ToolCall):
        arguments, more = _value(step.arguments, scrubber)
        return Item(f'{{{{"call":{{{{"tool":{name},"arguments":{arguments}}}}}}}}}', texts + more, {"calls": 1})
    output, more = _value(step.output, scrubber)
    failed = str(step.failed).lower()
    frame = f'{{{{"result":{{{{"tool":{name},"failed":{failed},"output":{output}}}}}}}}}'
    return Item(frame, texts + more, {"results": 1, "failed_results": int(step.failed)})


def _value(value: Any, scrubber: Scrubber) -> tuple[str, tuple[Text, ...]]:
    """A JSON value of the run in a frame: one text, since its names are the agent's as well."""
    if value is None:
        return "null", ()
    if isinstance(value, str):
        return "{}", (Text(value, scrubber.text),)
    return "{}", (Text(json_text(value), scrubber.text, lambda: scrubber.text(json_text(scrubber.value(value)))),)


def _artifact(artifact: Artifact, scrubber: Scrubber) -> Item:
    path = Text(artifact.path, scrubber.path)
    if not artifact.excerpt:
        return Item('{{"path":{},"excerpt":null}}', (path,), {"artifacts": 1})
    return Item('{{"path":{},"excerpt":{}}}', (path, Text(artifact.excerpt, scrubber.text)), {"artifacts": 1})


def _step_order(steps: Sequence[ToolCall | ToolResult]) -> list[int]:
    """The first and the last, then those that failed with what stands before them, the latest first, then from both ends inwards."""
    ends = [at for at in outside_in(len(steps)) if at < _ENDS or at >= len(steps) - _ENDS]
    failed = [at for at, step in enumerate(steps) if isinstance(step, ToolResult) and step.failed]
    with_calls = [near for at in reversed(failed) for near in (at, at - 1) if near >= 0]
    return list(dict.fromkeys([*ends, *with_calls, *outside_in(len(steps))]))


def _artifact_order(case: Case, artifacts: Sequence[Artifact]) -> list[int]:
    """Those that a check is about, then from both ends inwards."""
    wanted = [check.path for check in case.deterministic_checks if isinstance(check, ArtifactPresent | ArtifactContains)]
    key = [at for at, one in enumerate(artifacts) if any(is_recorded_as(path, one.path) for path in wanted)]
    return list(dict.fromkeys([*key, *outside_in(len(artifacts))]))


def spoken(run: Run, reach: int) -> Iterator[tuple[str, str]]:
    """Every text of the run that the judge may be shown, with its place; of a long one `reach` characters at both ends."""
    places: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("final answer", lambda: iter([run.final_response])),
        ("earlier answer", lambda: (turn.agent_response for turn in run.turns[:-1])),
        ("tool name", lambda: (step.tool or "" for step in run.steps)),
        ("tool arguments", lambda: (json_text(step.arguments) for step in run.steps if isinstance(step, ToolCall))),
        ("tool output", lambda: (json_text(step.output) for step in run.steps if isinstance(step, ToolResult))),
        ("file name", lambda: (artifact.path for artifact in run.artifacts)),
        ("artifact", lambda: (artifact.excerpt for artifact in run.artifacts)),
        ("failure", lambda: (text for one in run.failures for text in (one.kind, one.words))),
    ]
    for place, texts in places:
        for text in texts():
            parts = (text,) if len(text) <= 2 * reach else (text[:reach], text[-reach:])
            yield from ((place, part) for part in parts)
