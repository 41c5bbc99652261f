"""The judge's view of a run: a compact JSON document of three parts, built from an allow-list.

`evaluation_target` is the task as the case states it. `subject_response` is the agent's answer and the tools it used.
`execution_evidence` has the recorded steps, artifacts and failures of the run. Ids, images, paths, models, settings, times and prices of the run are never shown, and
its texts are scrubbed (`audit.evaluation.scrubbing`). What the user wrote is shown only if no case was written, as `user_messages` of the
response: it then says what was asked.

1. The document has at most `max_characters`. The size is divided between sections, the items of a list and the texts of an item; room that
   one of them does not need goes to the others. The final answer and the expectations are cut last.
2. A text of the run is `{"untrusted-<16 hex>": "text"}`, a text of the case is a plain string. A text that is too long keeps its head and
   tail around an object, which no text can imitate: `[head, {"left_out": {"characters": 1234}}, tail]`. A list states the number of
   missing items of each kind in the same way.
3. The 16 hex digits are a digest of the whole document, so no author of a text can have known them. They are filled in last; until then
   a control character, which cannot occur in JSON text, stands in for them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit.evaluation.cases import WHOLE_SESSION, ArtifactContains, ArtifactPresent, Case, Rubric
from audit.evaluation.dimensions import MEANINGS
from audit.evaluation.run import Artifact, Run, ToolCall, ToolResult, is_recorded_as
from audit.evaluation.scrubbing import Scrubber, json_text
from audit.fingerprints import digest
from audit.injection import find_injected_kinds, find_sway_attempts
from audit.prompt_quoting import visible
from schemas.records import CheckOutcome

MIN_VIEW_SIZE = 4_000
"""Minimum size of a view in characters; a smaller one would contain little but omissions."""
_GUARANTEED_SHARES = {
    "final_output": 0.20,
    "user_messages": 0.15,
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
"""Share of the size that is guaranteed to each section, in the order in which sections take what others do not need.

With `user_messages` they exceed 1, but then the sections of a written case are empty.
"""
_BULK_SECTIONS = ("assistant_messages", "artifacts", "steps")
"""Sections that come last and share the remaining size evenly."""
_SECTION_TITLES = {
    "final_output": "final answer",
    "messages": "task",
    "user_messages": "user's messages",
    "hard_expectations": "hard expectations",
    "steps": "tool calls and results",
    "artifacts": "artifacts",
}
"""Sections that a person is warned about if they are cut."""
_END_STEPS = 2
"""Number of steps at each end of a run that are the last to be left out."""
_RESERVED_TEXT = 360
"""Characters for the texts of an item that are reserved before another item is added."""
_MAX_OMISSION_SIZE = 110
"""Maximum size of an omission in a list."""
MIN_LIST_SIZE = _MAX_OMISSION_SIZE + 2
"""Minimum size of a list: its omission."""
MARK_PLACEHOLDER = "\x00"
MARK_LENGTH = 16
MIN_TEXT_SIZE = 64
"""Minimum size of a text: its omission."""
_MARK_GROWTH = MARK_LENGTH - len(MARK_PLACEHOLDER)
_MARGIN = 1_024
"""Distance in characters within which a cut is moved to a separator, so that it does not split an id."""
_HEAD_SHARE = 2 / 3
_MIN_CUT_LENGTH = 40
"""Minimum number of characters of head and tail together; with less room, the entire text is left out."""
_SEPARATORS = " \t\r\n,;\"'()<>{}"
_quote = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class View:
    """The judge's view of a run, with warnings for a person."""

    text: str
    """The user message of the judge's prompt, exactly as it is sent."""
    warnings: tuple[str, ...]
    anomaly_reasons: tuple[str, ...]
    """Attempts of the run to sway the judge, each beginning with `judge_tampering: `, and instructions to the agent, each beginning
    with `prompt_injection: `; they contain no text of the run."""


def subject_view(case: Case, run: Run, checks: Sequence[CheckOutcome], max_characters: int) -> View:
    """Return the view of a run that is evaluated by a case, in at most `max_characters`.

    The same case, run and outcomes give the same text in every process. Raises ValueError for fewer characters than `MIN_VIEW_SIZE`.
    """
    if max_characters < MIN_VIEW_SIZE:
        raise ValueError(f"max_characters must be at least {MIN_VIEW_SIZE}: {max_characters}")
    sections = {**case_sections(case), **run_sections(case, run, checks)}
    frame = size(_build_document(case, run, checks, dict.fromkeys(sections, "")))
    rendered = _render_sections(sections, max_characters - frame)
    texts = list(shown_texts(case, run, max_characters))
    attempts, injections = find_sway_attempts(texts), find_injected_kinds(texts)
    return View(
        text=fill_in_mark(_build_document(case, run, checks, rendered)),
        warnings=(
            *_warn_of_cuts(rendered, max_characters),
            *(_warn_of_attempt(source, "tries to sway the judge", kinds) for source, kinds in attempts.items()),
            *(_warn_of_attempt(source, "gives the agent instructions", kinds) for source, kinds in injections.items()),
        ),
        anomaly_reasons=(
            *(f"judge_tampering: the {source} {kind}" for source, kinds in attempts.items() for kind in kinds),
            *(f"prompt_injection: the {source} {kind}" for source, kinds in injections.items() for kind in kinds),
        ),
    )


def case_sections(case: Case) -> Sections:
    """Return the sections with the texts of the case, as its author wrote them."""
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
            f'{{{{"name":{{}},"dimension":{_quote_for_frame(item.dimension)},"good":{{}},"bad":{{}}}}}}',
            (Text(item.name), Text(item.good), Text(item.bad)),
            {"criteria": 1},
        )
        for item in rubric.criteria
    ]
    instructions = {"scoring_instructions": Text(rubric.scoring_instructions)} if rubric.scoring_instructions else {}
    return {
        "messages": Listing(messages),
        "hard_expectations": _build_listing([item.text for item in case.expectations.hard_expectations], "expectations"),
        "soft_expectations": _build_listing([item.text for item in case.expectations.soft_expectations], "expectations"),
        "scale_anchors": Listing(anchors),
        "criteria": Listing(criteria),
        **instructions,
    }


def _quote_for_frame(word: str | None) -> str:
    """Quote a trusted word for a frame, in which braces are doubled."""
    if word is None:
        return "null"
    return quoted(word).replace("{", "{{").replace("}", "}}")


def quoted(text: str) -> str:
    """Return the text as a JSON string, with markup and invisible characters escaped."""
    return visible(_quote(text))


def _build_listing(texts: Sequence[str], unit: str) -> Listing:
    return Listing([Item("{}", (Text(text),), {unit: 1}) for text in texts])


def run_sections(case: Case, run: Run, checks: Sequence[CheckOutcome]) -> Sections:
    """Return the sections with the texts of the run, which are scrubbed when rendered, and the checks that it did not pass."""
    scrubber = Scrubber(run.identifiers | {run.session_id})
    earlier_answers = [turn.agent_response for turn in run.turns[:-1] if turn.agent_response.strip()]
    final = {"final_output": Text(run.final_response, scrubber.text)} if run.final_response.strip() else {}
    user_messages = {}
    if case.case_id == WHOLE_SESSION:
        messages = [turn.user_message for turn in run.turns if turn.user_message.strip()]
        user_messages = {"user_messages": _build_messages(messages, scrubber)}
    failures = [
        Item('{{"kind":{},"words":{}}}', (Text(item.kind, scrubber.text), Text(item.words, scrubber.text)), {"failures": 1})
        for item in run.failures
    ]
    steps = [_build_step(step, scrubber) for step in run.steps]
    artifacts = [_build_artifact(item, scrubber) for item in run.artifacts]
    return {
        **final,
        **user_messages,
        "assistant_messages": _build_messages(earlier_answers, scrubber),
        "tools": Listing(list(_build_tools(run, scrubber))),
        "not_passed": Listing([_build_check(outcome) for outcome in checks if outcome.outcome != "pass"]),
        "steps": Listing(steps, _rank_steps(run.steps)),
        "artifacts": Listing(artifacts, _rank_artifacts(case, run.artifacts)),
        "failures": Listing(failures),
    }


def _build_messages(texts: Sequence[str], scrubber: Scrubber) -> Listing:
    return Listing([Item("{}", (Text(text, scrubber.text),), {"messages": 1}) for text in texts])


def _build_step(step: ToolCall | ToolResult, scrubber: Scrubber) -> Item:
    """Return the item of a call with its arguments, or of a result with its output."""
    name, texts = _frame_tool(step.tool, scrubber)
    if isinstance(step, ToolCall):
        arguments, argument_texts = _frame_value(step.arguments, scrubber)
        return Item(f'{{{{"call":{{{{"tool":{name},"arguments":{arguments}}}}}}}}}', texts + argument_texts, {"calls": 1})
    output, output_texts = _frame_value(step.output, scrubber)
    failed = str(step.failed).lower()
    frame = f'{{{{"result":{{{{"tool":{name},"failed":{failed},"output":{output}}}}}}}}}'
    return Item(frame, texts + output_texts, {"results": 1, "failed_results": int(step.failed)})


def _frame_tool(tool: str | None, scrubber: Scrubber) -> tuple[str, tuple[Text, ...]]:
    """Return the placeholder of a tool's name in a frame, and the texts that replace it."""
    if tool is None:
        return "null", ()
    return "{}", (Text(tool, scrubber.text),)


def _frame_value(value: Any, scrubber: Scrubber) -> tuple[str, tuple[Text, ...]]:
    """Return the placeholder of a JSON value in a frame, and its text: member names are also untrusted, so the value is one text."""
    if value is None:
        return "null", ()
    if isinstance(value, str):
        return "{}", (Text(value, scrubber.text),)
    return "{}", (Text(json_text(value), scrubber.text, lambda: scrubber.text(json_text(scrubber.value(value)))),)


def _build_artifact(artifact: Artifact, scrubber: Scrubber) -> Item:
    path = Text(artifact.path, scrubber.path)
    if not artifact.excerpt:
        return Item('{{"path":{},"excerpt":null}}', (path,), {"artifacts": 1})
    return Item('{{"path":{},"excerpt":{}}}', (path, Text(artifact.excerpt, scrubber.text)), {"artifacts": 1})


def _build_tools(run: Run, scrubber: Scrubber) -> Iterator[Item]:
    """Yield each tool with its number of calls, in order of the first call."""
    calls = Counter(step.tool for step in run.steps if isinstance(step, ToolCall))
    for tool, count in calls.items():
        name, texts = _frame_tool(tool, scrubber)
        yield Item(f'{{{{"tool":{name},"calls":{count}}}}}', texts, {"tools": 1, "calls": count})


def _build_check(outcome: CheckOutcome) -> Item:
    """Return the item of a check: its id, kind and dimensions, without its finding, which may quote the run."""
    values = {"check_id": outcome.check_id, "kind": outcome.kind, "outcome": outcome.outcome}
    members = ",".join(f'"{name}":{_quote_for_frame(word)}' for name, word in values.items())
    dimensions = ",".join(map(_quote_for_frame, outcome.dimensions))
    return Item(f'{{{{{members},"dimensions":[{dimensions}]}}}}', (), {"checks": 1})


def _rank_steps(steps: Sequence[ToolCall | ToolResult]) -> list[int]:
    """Return indexes by importance: both ends, then failed results with the step before them, latest first, then from both ends inwards."""
    inwards = list(outside_in(len(steps)))
    ends = [index for index in inwards if index < _END_STEPS or index >= len(steps) - _END_STEPS]
    failures = []
    for index, step in reversed(list(enumerate(steps))):
        if isinstance(step, ToolResult) and step.failed:
            failures += [index, index - 1] if index > 0 else [index]
    return list(dict.fromkeys([*ends, *failures, *inwards]))


def outside_in(count: int) -> Iterator[int]:
    """Yield indexes from both ends in turn: 0, the last, 1, the last but one, and so on."""
    for index in range((count + 1) // 2):
        yield index
        if index != count - 1 - index:
            yield count - 1 - index


def _rank_artifacts(case: Case, artifacts: Sequence[Artifact]) -> list[int]:
    """Return indexes by importance: artifacts that a check names, then from both ends inwards."""
    checked_paths = [check.path for check in case.deterministic_checks if isinstance(check, ArtifactPresent | ArtifactContains)]
    checked = [
        index for index, artifact in enumerate(artifacts) if any(is_recorded_as(path, artifact.path) for path in checked_paths)
    ]
    return list(dict.fromkeys([*checked, *outside_in(len(artifacts))]))


def size(fragment: str) -> int:
    """Return the number of characters of the fragment once its marks are filled in."""
    return len(fragment) + _MARK_GROWTH * fragment.count(MARK_PLACEHOLDER)


def _build_document(case: Case, run: Run, checks: Sequence[CheckOutcome], rendered: Mapping[str, str]) -> str:
    """Return the document with its sections; a missing one is null."""
    calls = sum(isinstance(step, ToolCall) for step in run.steps)
    failed = sum(isinstance(step, ToolResult) and step.failed for step in run.steps)
    outcomes = Counter(outcome.outcome for outcome in checks)
    rubric = {name: rendered.get(name, "null") for name in ("scale_anchors", "criteria", "scoring_instructions")}
    return _join_members(
        {
            "evaluation_target": _join_members(
                {
                    **{name: rendered[name] for name in ("messages", "hard_expectations", "soft_expectations")},
                    "dimensions": _join_members({name: quoted(MEANINGS[name]) for name in case.dimensions}),
                    "rubric": _join_members(rubric) if case.rubric else "null",
                }
            ),
            "subject_response": _join_members(
                {
                    **({"user_messages": rendered["user_messages"]} if "user_messages" in rendered else {}),
                    "final_output": rendered.get("final_output", "null"),
                    "assistant_messages": rendered["assistant_messages"],
                    "tool_activity": _join_members(
                        {"calls": f"{calls}", "failed_results": f"{failed}", "tools": rendered["tools"]}
                    ),
                }
            ),
            "execution_evidence": _join_members(
                {
                    "run_status": quoted(run.status),
                    "events_recorded": str(run.has_events).lower(),
                    "checks": _join_members(
                        {
                            **{
                                name: f"{outcomes[outcome]}"
                                for name, outcome in (("passed", "pass"), ("failed", "fail"), ("error", "error"))
                            },
                            "not_passed": rendered["not_passed"],
                        }
                    ),
                    **{name: rendered[name] for name in ("steps", "artifacts", "failures")},
                }
            ),
        }
    )


def _join_members(members: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


def _render_sections(sections: Sections, room: int) -> dict[str, str]:
    """Render each section as JSON, in at most `room` characters together."""
    order = [name for name in _GUARANTEED_SHARES if name in sections and name not in _BULK_SECTIONS]
    order += sorted(_BULK_SECTIONS, key=lambda name: (sections[name].estimated_size, name))
    # The omission of a list must fit, however small its share is.
    guaranteed = {
        name: max(MIN_LIST_SIZE, int(_GUARANTEED_SHARES[name] * (room - MIN_LIST_SIZE * len(order)))) for name in order
    }
    reserved = {name: min(guaranteed[name], max(MIN_LIST_SIZE, sections[name].estimated_size)) for name in order}
    rendered = {}
    for position, name in enumerate(order):
        reserved_later = sum(reserved[later_name] for later_name in order[position + 1 :])
        share = max(reserved[name], room // (len(order) - position)) if name in _BULK_SECTIONS else room
        rendered[name] = sections[name].render(min(share, room - reserved_later))
        room -= size(rendered[name])
    return rendered


def shown_texts(case: Case, run: Run, end_length: int) -> Iterator[tuple[str, str]]:
    """Yield every text of the run that the judge may see, with its source; of a long text only `end_length` characters at both ends."""
    sources: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("user message", lambda: (turn.user_message for turn in run.turns if case.case_id == WHOLE_SESSION)),
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
            parts = (text,) if len(text) <= 2 * end_length else (text[:end_length], text[-end_length:])
            yield from ((source, part) for part in parts)


def fill_in_mark(document: str) -> str:
    """Return the document with its digest in place of every placeholder."""
    return document.replace(MARK_PLACEHOLDER, digest(document))


def _warn_of_cuts(rendered: Mapping[str, str], max_characters: int) -> Iterator[str]:
    """Yield a warning for each section that a score depends on and that is not shown in full."""
    for name, title in _SECTION_TITLES.items():
        if '{"left_out":' in rendered.get(name, ""):
            yield f"The judge saw only part of the {title}: the view is limited to {max_characters} characters."


def _warn_of_attempt(section: str, deed: str, kinds: Sequence[str]) -> str:
    *first_kinds, last_kind = kinds
    return f"The {section} {deed}: it {', '.join(first_kinds)}{' and ' if first_kinds else ''}{last_kind}."


@dataclass(frozen=True)
class Text:
    """A text that is cut if it does not fit."""

    raw: str
    clean: Callable[[str], str] | None = None
    """Scrubs a text of the run; None for texts of the case, which are shown unchanged."""
    cleaned: Callable[[], str] | None = None
    """Returns the entire scrubbed text, if `clean(raw)` is not enough."""

    @cached_property
    def estimated_size(self) -> int:
        """The approximate size when nothing is cut."""
        return len(self.raw) + len(self._quote_text(""))

    def render(self, room: int) -> str:
        """Render the text as JSON in at most `room` characters; `room` is at least `MIN_TEXT_SIZE`."""
        head, tail = _split_ends(self.raw, room)
        if tail:
            return self._render_cut(self._clean_text(head), self._clean_text(tail), len(self.raw) - len(head) - len(tail), room)
        cleaned_text = self.cleaned() if self.cleaned else self._clean_text(head)
        if len(cleaned_text) <= room:
            quoted_text = self._quote_text(cleaned_text)
            if size(quoted_text) <= room:
                return quoted_text
        return self._render_cut(cleaned_text, cleaned_text, -len(cleaned_text), room)

    def _render_cut(self, head: str, tail: str, skipped: int, room: int) -> str:
        """Render head and tail with an omission between them, which includes `skipped` characters in any case."""
        omitted = skipped + len(head) + len(tail)
        available = room - size(f"[{self._quote_text('')},{omission(characters=omitted)},{self._quote_text('')}]")
        if available < _MIN_CUT_LENGTH:
            return omission(characters=omitted)
        head_length = _max_prefix_length(head, int(available * _HEAD_SHARE))
        tail_length = _max_prefix_length(tail[::-1], available - _json_length(head[:head_length]))
        omitted_mark = omission(characters=omitted - head_length - tail_length)
        return f"[{self._quote_text(head[:head_length])},{omitted_mark},{self._quote_text(tail[len(tail) - tail_length :])}]"

    def _clean_text(self, text: str) -> str:
        return self.clean(text) if self.clean else text

    def _quote_text(self, text: str) -> str:
        return f'{{"untrusted-{MARK_PLACEHOLDER}":{quoted(text)}}}' if self.clean else quoted(text)


def _split_ends(text: str, room: int) -> tuple[str, str]:
    """Return a head and a tail that are large enough for any cut; the entire text and "" if they would overlap."""
    reach = room + _MARGIN
    if len(text) <= 2 * reach:
        return text, ""
    return text[: _separator_before(text, reach)], text[_separator_after(text, len(text) - reach) :]


def _separator_before(text: str, end: int) -> int:
    """Return the end of the last separator within the margin before `end`; without one, `end`."""
    return next((index for index in range(end, end - _MARGIN, -1) if text[index - 1] in _SEPARATORS), end)


def _separator_after(text: str, start: int) -> int:
    """Return the first separator within the margin after `start`; without one, `start`."""
    return next((index for index in range(start, start + _MARGIN) if text[index] in _SEPARATORS), start)


def omission(**counts: int) -> str:
    """Return the object that replaces omitted content, with the number of each omitted kind above 0."""
    return json.dumps({"left_out": {name: count for name, count in counts.items() if count}}, separators=(",", ":"))


def _max_prefix_length(text: str, room: int) -> int:
    """Return the length of the longest beginning of the text that fits into `room` as JSON."""
    longest = min(len(text), room)
    if _json_length(text[:longest]) <= room:
        return longest
    return max(0, bisect_right(range(longest), room, key=lambda n: _json_length(text[:n])) - 1)


def _json_length(text: str) -> int:
    return len(quoted(text)) - 2


@dataclass(frozen=True)
class Item:
    """An item of a list: a frame with texts in it."""

    frame: str
    """The JSON around the texts as a format string, with `{}` for each text."""
    texts: tuple[Text, ...]
    counts: Mapping[str, int]
    """The number of each kind that is missing if the item is left out, such as `{"calls": 1}`."""

    @cached_property
    def _frame_size(self) -> int:
        return len(self.frame.format(*("" for _ in self.texts)))

    @cached_property
    def estimated_size(self) -> int:
        """The approximate size when nothing is cut."""
        return self._frame_size + sum(text.estimated_size for text in self.texts)

    @cached_property
    def min_size(self) -> int:
        """The size that is reserved for the item; enough for every text or its omission."""
        return self._frame_size + sum(
            max(MIN_TEXT_SIZE, min(text.estimated_size, _RESERVED_TEXT // len(self.texts))) for text in self.texts
        )

    def render(self, room: int) -> str:
        """Render the item in at most `room` characters; `room` is at least `min_size`."""
        texts = render_shared(
            [text.render for text in self.texts], [text.estimated_size for text in self.texts], room - self._frame_size
        )
        return self.frame.format(*texts)


def render_shared(
    renders: Sequence[Callable[[int], str]],
    estimated_sizes: Sequence[int],
    room: int,
    min_sizes: Sequence[int] | None = None,
) -> list[str]:
    """Render each part in an equal share of the room; room that a part does not use goes to larger ones.

    Each part gets at least its smallest size (by default `MIN_TEXT_SIZE`); the sum of these must fit into the room.
    """
    floors = min_sizes if min_sizes is not None else [MIN_TEXT_SIZE] * len(renders)
    rendered = [""] * len(renders)
    reserved = sum(floors)
    order = sorted(range(len(renders)), key=lambda index: (estimated_sizes[index], index))
    for position, index in enumerate(order):
        reserved -= floors[index]
        share = max(floors[index], min(room - reserved, room // (len(order) - position)))
        rendered[index] = renders[index](share)
        room -= size(rendered[index])
    return rendered


@dataclass(frozen=True)
class Listing:
    """A list of items; the first ones in `order` are the last to be left out."""

    items: Sequence[Item]
    order: Sequence[int] | None = None
    """Indexes by importance; None takes them from both ends in turn."""

    @cached_property
    def estimated_size(self) -> int:
        """The approximate size when nothing is cut."""
        return 2 + sum(item.estimated_size + 1 for item in self.items)

    def render(self, room: int) -> str:
        """Render the list in at most `room` characters; `room` is at least `MIN_LIST_SIZE`."""
        indexes = sorted(self._choose_items(room))
        omissions = self._build_omissions(indexes)
        available = room - 2 - sum(len(text) + 1 for text in omissions.values()) - len(indexes)
        items = [self.items[index] for index in indexes]
        rendered = render_shared(
            [item.render for item in items],
            [item.estimated_size for item in items],
            available,
            [item.min_size for item in items],
        )
        members: list[str] = []
        for index, member in zip(indexes, rendered, strict=True):
            if index in omissions:
                members.append(omissions[index])
            members.append(member)
        if len(self.items) in omissions:
            members.append(omissions[len(self.items)])
        return f"[{','.join(members)}]"

    def _choose_items(self, room: int) -> set[int]:
        """Return the indexes of the items that fit."""
        count = len(self.items)
        indexes: set[int] = set()
        used = 2
        gaps = 1
        order = outside_in(count) if self.order is None else self.order
        for index in order:
            # A new item splits the gap around it, and closes it on a side where its neighbour is shown.
            hidden_neighbours = sum(0 <= near < count and near not in indexes for near in (index - 1, index + 1))
            used += self.items[index].min_size + 1
            gaps += hidden_neighbours - 1
            if used + gaps * _MAX_OMISSION_SIZE > room:
                break
            indexes.add(index)
        return indexes

    def _build_omissions(self, indexes: Sequence[int]) -> dict[int, str]:
        """Return the omission before each of the chosen indexes and before the end, if anything is left out there."""
        gaps = {}
        start = 0
        for index in (*indexes, len(self.items)):
            if start < index:
                gaps[index] = omission(**sum((Counter(item.counts) for item in self.items[start:index]), Counter[str]()))
            start = index + 1
        return gaps


Sections = Mapping[str, Text | Listing]
"""The sections of the view by name; they are cut to fit."""
