"""The judge's view of a run: one compact JSON document of three parts, made from an allow-list.

`evaluation_target` is what was asked, in the words of the case. `subject_response` is what the agent answered and which tools it
used. `execution_evidence` is what is known of how it went. Ids, images, paths, models, settings, times and prices of the run are
never shown; its texts are scrubbed (`audit.evaluation.scrubbing`).

1. The document has at most `max_characters`. Its size is divided between the sections, the items of a list and the texts of an
   item; a section that needs less than its share leaves the rest to the others. The final answer and the expectations are cut last.
2. A text of the run is `{"untrusted-<16 hex>": "text"}`, a text of the case a plain string. A text that is too long keeps its head
   and tail around a member of ours, which no text can imitate: `[head, {"left_out": {"characters": 1234}}, tail]`. A list says
   in the same way how many items of which kind are missing.
3. The mark is a digest of the whole document, so no author of a text can have known it. It is filled in last: until then a control
   character holds its place, which cannot occur in JSON text.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit.evaluation.cases import ArtifactContains, ArtifactPresent, Case, Rubric
from audit.evaluation.dimensions import MEANINGS
from audit.evaluation.run import Artifact, Run, ToolCall, ToolResult, is_recorded_as
from audit.evaluation.scrubbing import Scrubber, json_text
from audit.fingerprints import digest
from audit.injection import swaying
from audit.prompt_quoting import visible
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
_SECTION_TITLES = {
    "final_output": "final answer",
    "messages": "task",
    "hard_expectations": "hard expectations",
    "steps": "tool calls and results",
    "artifacts": "artifacts",
}
"""Sections whose cut is shown to people."""
_ENDS = 2
"""Steps at the start and at the end that are the last to be left out."""
_ENOUGH = 360
"""Characters of its texts that an item is to have before another one is taken in."""
_GAP_MARK = 110
"""Most that saying what is left out of a list takes."""
LEAST_LIST = _GAP_MARK + 2
"""Room in which a list can at least say that it is left out."""
UNMARKED = "\x00"
MARK_LENGTH = 16
LEAST = 64
"""Room in which every text can at least be said to be left out."""
_MARK_GROWTH = MARK_LENGTH - len(UNMARKED)
_MARGIN = 1_024
"""Characters in which a cut looks for a place between words, so that it does not leave half an id."""
_HEAD_SHARE = 2 / 3
_LEAST_CUT = 40
"""Characters below which head and tail say nothing."""
_BETWEEN = " \t\r\n,;\"'()<>{}"
_quote = json.JSONEncoder(ensure_ascii=False).encode


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
    shown = _divide_room(sections, max_characters - frame)
    attempts = swaying(spoken(run, max_characters))
    return View(
        text=marked(_document(case, run, checks, shown)),
        warnings=(*_cut_warnings(shown, max_characters), *(_warning(place, kinds) for place, kinds in attempts.items())),
        anomaly_reasons=tuple(f"judge_tamper: the {place} {kind}" for place, kinds in attempts.items() for kind in kinds),
    )


def case_sections(case: Case) -> Sections:
    """The texts of the case, as its author wrote them."""
    rubric = case.rubric or Rubric()
    messages = [
        Item(f'{{{{"role":"{item.role}","content":{{}}}}}}', (Text(item.content),), {"messages": 1})
        for item in case.input.messages
    ]
    anchors = [
        Item(f'{{{{"score":{item.score:g},"meaning":{{}}}}}}', (Text(item.meaning),), {"scale_anchors": 1})
        for item in rubric.scale_anchors
    ]
    criteria = [
        Item(
            f'{{{{"name":{{}},"dimension":{_word(item.dimension)},"good":{{}},"bad":{{}}}}}}',
            (Text(item.name), Text(item.good), Text(item.bad)),
            {"criteria": 1},
        )
        for item in rubric.criteria
    ]
    instructions = {"scoring_instructions": Text(rubric.scoring_instructions)} if rubric.scoring_instructions else {}
    return {
        "messages": Listing(messages),
        "hard_expectations": _plain([item.text for item in case.expectations.hard_expectations], "expectations"),
        "soft_expectations": _plain([item.text for item in case.expectations.soft_expectations], "expectations"),
        "scale_anchors": Listing(anchors),
        "criteria": Listing(criteria),
        **instructions,
    }


def _word(word: str | None) -> str:
    """A word of ours, or of an identifier's letters, inside a frame."""
    return "null" if word is None else quoted(word).replace("{", "{{").replace("}", "}}")


def quoted(text: str) -> str:
    """The text as a JSON string without marks of markup and without anything invisible."""
    return visible(_quote(text))


def _plain(texts: Sequence[str], unit: str) -> Listing:
    return Listing([Item("{}", (Text(text),), {unit: 1}) for text in texts])


def run_sections(case: Case, run: Run, checks: Sequence[CheckOutcome]) -> Sections:
    """The texts of the run, to be cleaned when they are shown, and the checks that it did not pass."""
    scrubber = Scrubber(run.identifiers | {run.session_id})
    earlier_answers = [turn.agent_response for turn in run.turns[:-1] if turn.agent_response.strip()]
    final = {"final_output": Text(run.final_response, scrubber.text)} if run.final_response.strip() else {}
    failures = [
        Item('{{"kind":{},"words":{}}}', (Text(item.kind, scrubber.text), Text(item.words, scrubber.text)), {"failures": 1})
        for item in run.failures
    ]
    steps = [_step(step, scrubber) for step in run.steps]
    artifacts = [_artifact(item, scrubber) for item in run.artifacts]
    return {
        **final,
        "assistant_messages": Listing([Item("{}", (Text(text, scrubber.text),), {"messages": 1}) for text in earlier_answers]),
        "tools": Listing(list(_tools(run, scrubber))),
        "not_passed": Listing([_check(outcome) for outcome in checks if outcome.outcome != "pass"]),
        "steps": Listing(steps, _step_order(run.steps)),
        "artifacts": Listing(artifacts, _artifact_order(case, run.artifacts)),
        "failures": Listing(failures),
    }


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


def _named(tool: str | None, scrubber: Scrubber) -> tuple[str, tuple[Text, ...]]:
    """The name of a tool in a frame, and the texts that the frame needs for it."""
    return ("null", ()) if tool is None else ("{}", (Text(tool, scrubber.text),))


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


def _tools(run: Run, scrubber: Scrubber) -> Iterator[Item]:
    """Each tool with its number of calls, in the order of the first."""
    calls = Counter(step.tool for step in run.steps if isinstance(step, ToolCall))
    for tool, count in calls.items():
        name, texts = _named(tool, scrubber)
        yield Item(f'{{{{"tool":{name},"calls":{count}}}}}', texts, {"tools": 1, "calls": count})


def _check(outcome: CheckOutcome) -> Item:
    """Its id, kind and dimensions; what it found stays out, for it may quote the run."""
    values = {"check_id": outcome.check_id, "kind": outcome.kind, "outcome": outcome.outcome}
    members = ",".join(f'"{name}":{_word(word)}' for name, word in values.items())
    dimensions = ",".join(map(_word, outcome.dimensions))
    return Item(f'{{{{{members},"dimensions":[{dimensions}]}}}}', (), {"checks": 1})


def _step_order(steps: Sequence[ToolCall | ToolResult]) -> list[int]:
    """The first and the last, then those that failed with what stands before them, the latest first, then from both ends inwards."""
    ends = [at for at in outside_in(len(steps)) if at < _ENDS or at >= len(steps) - _ENDS]
    failed = [at for at, step in enumerate(steps) if isinstance(step, ToolResult) and step.failed]
    with_calls = [near for at in reversed(failed) for near in (at, at - 1) if near >= 0]
    return list(dict.fromkeys([*ends, *with_calls, *outside_in(len(steps))]))


def outside_in(count: int) -> Iterator[int]:
    """Positions from both ends in turn: 0, the last, 1, the last but one, and so on."""
    for near in range((count + 1) // 2):
        yield near
        if near != count - 1 - near:
            yield count - 1 - near


def _artifact_order(case: Case, artifacts: Sequence[Artifact]) -> list[int]:
    """Those that a check is about, then from both ends inwards."""
    wanted = [check.path for check in case.deterministic_checks if isinstance(check, ArtifactPresent | ArtifactContains)]
    key = [at for at, artifact in enumerate(artifacts) if any(is_recorded_as(path, artifact.path) for path in wanted)]
    return list(dict.fromkeys([*key, *outside_in(len(artifacts))]))


def size(fragment: str) -> int:
    """Characters the fragment has once its marks are written."""
    return len(fragment) + _MARK_GROWTH * fragment.count(UNMARKED)


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


def _divide_room(sections: Sections, room: int) -> dict[str, str]:
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


def spoken(run: Run, reach: int) -> Iterator[tuple[str, str]]:
    """Every text of the run that the judge may be shown, with its place; of a long one `reach` characters at both ends."""
    sources: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("final answer", lambda: iter([run.final_response])),
        ("earlier answer", lambda: (turn.agent_response for turn in run.turns[:-1])),
        ("tool name", lambda: (step.tool or "" for step in run.steps)),
        ("tool arguments", lambda: (json_text(step.arguments) for step in run.steps if isinstance(step, ToolCall))),
        ("tool output", lambda: (json_text(step.output) for step in run.steps if isinstance(step, ToolResult))),
        ("file name", lambda: (artifact.path for artifact in run.artifacts)),
        ("artifact", lambda: (artifact.excerpt for artifact in run.artifacts)),
        ("failure", lambda: (text for failure in run.failures for text in (failure.kind, failure.words))),
    ]
    for source, texts in sources:
        for text in texts():
            parts = (text,) if len(text) <= 2 * reach else (text[:reach], text[-reach:])
            yield from ((source, part) for part in parts)


def marked(document: str) -> str:
    """The document with its mark in every place that is kept for it."""
    return document.replace(UNMARKED, digest(document))


def _cut_warnings(shown: Mapping[str, str], most: int) -> Iterator[str]:
    """A warning for each section that a score rests on and that is not shown as a whole."""
    for name, what in _SECTION_TITLES.items():
        if '{"left_out":' in shown.get(name, ""):
            yield f"The judge saw only part of the {what}: the view holds {most} characters."


def _warning(section: str, kinds: Sequence[str]) -> str:
    *others, last = kinds
    return f"The {section} tries to sway the judge: it {', '.join(others)}{' and ' if others else ''}{last}."


@dataclass(frozen=True)
class Text:
    """A text to be shown, as far as there is room for it."""

    raw: str
    clean: Callable[[str], str] | None = None
    """Makes a text of the run fit to be shown; None for texts of the case, which are shown as they are."""
    cleaned: Callable[[], str] | None = None
    """The whole text cleaned, where that takes more than its characters."""

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return len(self.raw) + len(self._shown(""))

    def render(self, room: int) -> str:
        """The text as JSON of at most `room` characters, of which there are at least `LEAST`."""
        head, tail = _windows(self.raw, room)
        if tail:
            return self._cut(self._clean(head), self._clean(tail), len(self.raw) - len(head) - len(tail), room)
        whole = self.cleaned() if self.cleaned else self._clean(head)
        shown = self._shown(whole) if len(whole) <= room else ""
        return shown if shown and size(shown) <= room else self._cut(whole, whole, -len(whole), room)

    def _cut(self, head: str, tail: str, skipped: int, room: int) -> str:
        """Head and tail; `skipped` characters between these two are left out in any case."""
        most = skipped + len(head) + len(tail)
        free = room - size(f"[{self._shown('')},{left_out(characters=most)},{self._shown('')}]")
        if free < _LEAST_CUT:
            return left_out(characters=most)
        first = _fitting(head, int(free * _HEAD_SHARE))
        last = _fitting(tail[::-1], free - _length(head[:first]))
        gap = left_out(characters=most - first - last)
        return f"[{self._shown(head[:first])},{gap},{self._shown(tail[len(tail) - last :])}]"

    def _clean(self, text: str) -> str:
        return self.clean(text) if self.clean else text

    def _shown(self, text: str) -> str:
        return f'{{"untrusted-{UNMARKED}":{quoted(text)}}}' if self.clean else quoted(text)


def _windows(text: str, room: int) -> tuple[str, str]:
    """Head and tail of a text that are large enough for any cut; the whole and nothing where these would meet."""
    reach = room + _MARGIN
    if len(text) <= 2 * reach:
        return text, ""
    return text[: _gap_before(text, reach)], text[_gap_after(text, len(text) - reach) :]


def _gap_before(text: str, end: int) -> int:
    """The last place between words within the margin before `end`; `end` where there is none."""
    return next((at for at in range(end, end - _MARGIN, -1) if text[at - 1] in _BETWEEN), end)


def _gap_after(text: str, start: int) -> int:
    """The first place between words within the margin after `start`; `start` where there is none."""
    return next((at for at in range(start, start + _MARGIN) if text[at] in _BETWEEN), start)


def left_out(**counts: int) -> str:
    """Return the mark that something is left out, with the number of each kind; kinds with none are not named."""
    return json.dumps({"left_out": {name: count for name, count in counts.items() if count}}, separators=(",", ":"))


def _fitting(text: str, room: int) -> int:
    """Return how many characters of the text, from the first, fit into the room once they are written as JSON."""
    most = min(len(text), room)
    return (
        most if _length(text[:most]) <= room else max(0, bisect_right(range(most), room, key=lambda n: _length(text[:n])) - 1)
    )


def _length(text: str) -> int:
    return len(quoted(text)) - 2


@dataclass(frozen=True)
class Item:
    """Something in a list: a frame with texts in it."""

    frame: str
    """The JSON around the texts, with `{}` where one goes; braces of its own are doubled."""
    texts: tuple[Text, ...]
    counts: Mapping[str, int]
    """The numbers of things that are missing when it is left out: `{"calls": 1}`."""

    @cached_property
    def _bare(self) -> int:
        return len(self.frame.format(*("" for _ in self.texts)))

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return self._bare + sum(text.wanted for text in self.texts)

    @cached_property
    def least(self) -> int:
        """Room it needs to be worth showing; with it, every text is shown or said to be left out."""
        return self._bare + sum(max(LEAST, min(text.wanted, _ENOUGH // len(self.texts))) for text in self.texts)

    def render(self, room: int) -> str:
        """The item in at most `room` characters, of which there are at least `least`."""
        return self.frame.format(
            *shared([text.render for text in self.texts], [t.wanted for t in self.texts], room - self._bare)
        )


def shared(
    renders: Sequence[Callable[[int], str]], wanted: Sequence[int], room: int, least: Sequence[int] | None = None
) -> list[str]:
    """Render each in an equal share of the room; room that one does not take goes to those that want more.

    Each gets at least its `least` (or `LEAST`), of which the sum must not be more than the room.
    """
    floors = least if least is not None else [LEAST] * len(renders)
    shown = [""] * len(renders)
    reserved = sum(floors)
    order = sorted(range(len(renders)), key=lambda at: (wanted[at], at))
    for done, at in enumerate(order):
        reserved -= floors[at]
        share = max(floors[at], min(room - reserved, room // (len(order) - done)))
        shown[at] = renders[at](share)
        room -= size(shown[at])
    return shown


@dataclass(frozen=True)
class Listing:
    """A list of items; those that come first in `order` are the last to be left out."""

    items: Sequence[Item]
    order: Sequence[int] | None = None
    """None: first and last in turn."""

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return 2 + sum(item.wanted + 1 for item in self.items)

    def render(self, room: int) -> str:
        """The list in at most `room` characters, of which there are at least `LEAST_LIST`."""
        chosen = sorted(self._chosen(room))
        gaps = self._gaps(chosen)
        free = room - 2 - sum(len(gap) + 1 for gap in gaps.values()) - len(chosen)
        items = [self.items[at] for at in chosen]
        shown = shared([item.render for item in items], [item.wanted for item in items], free, [item.least for item in items])
        pieces: list[str] = []
        for at, piece in zip(chosen, shown, strict=True):
            pieces += [gaps[at], piece] if at in gaps else [piece]
        return f"[{','.join([*pieces, *([gaps[len(self.items)]] if len(self.items) in gaps else [])])}]"

    def _chosen(self, room: int) -> set[int]:
        """Positions of the items that there is room for."""
        count = len(self.items)
        chosen: set[int] = set()
        used, gaps = 2, 1
        for at in self.order if self.order is not None else outside_in(count):
            beside = [near for near in (at - 1, at + 1) if 0 <= near < count and near not in chosen]
            used += self.items[at].least + 1
            gaps += len(beside) - 1
            if used + gaps * _GAP_MARK > room:
                break
            chosen.add(at)
        return chosen

    def _gaps(self, chosen: Sequence[int]) -> dict[int, str]:
        """Return, for each of the chosen positions and for the end, the mark of what is left out before it."""
        gaps = {}
        start = 0
        for at in (*chosen, len(self.items)):
            if start < at:
                gaps[at] = left_out(**sum((Counter(item.counts) for item in self.items[start:at]), Counter[str]()))
            start = at + 1
        return gaps


Sections = Mapping[str, Text | Listing]
"""The sections that are cut where room is short, by name."""
