"""Lines of a Codex rollout as entries.

1. A rollout is a list, not a tree: each entry continues the one before it. Its id is the line's `ordinal`, or its number in versions
   before there was one. `session_meta` names the session, and by `source` or `parent_thread_id` a subagent's.
2. `response_item` lines are what goes to and comes from the model; most `event_msg` lines tell the same again for the screen, and only
   those count that say more: results of commands (before their output), usage, failures, interruptions.
3. A text in the user's role is the user's where its kinds say so (`user.*`), in older versions where it does not begin as context
   of the program does. Other texts open an exchange, tagged `internal`, only when the agent answers them and nothing else.
4. `token_count` lines repeat: one counts when its total differs from that of the one before. Its last usage, with the size of the
   window, is how full the context is. A `token_usage_record` tells the usage of one response, too; each response counts once.
5. A message that says a summary for a compaction (`compaction_output`) is no answer; its usage counts all the same.
6. Lines that were copied from another session (`forks`) give the others their place, and count there.
7. A turn that failed (`task_complete` with an error, `error`) ended in an error, `turn_aborted` in an interruption. What the program
   tries again by itself it does not write down, but for `stream_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from streams.sources.agent_entries import (
    EVENTS,
    INTERNAL,
    SUBAGENT,
    AgentDialect,
    UnknownKinds,
    is_identifier,
    make_entry,
)
from streams.sources.codex.items import CALLS, OUTPUTS, Outcomes, asked_text, call_of, output_of, summary_of
from streams.sources.codex.kinds import IGNORED_ITEMS, IGNORED_LINES, SHOWN
from streams.sources.codex.rollout_lines import in_envelope
from streams.sources.codex.usage import UsageCounter
from streams.sources.lines import Line, Problem, json_type
from streams.sources.openclaw.entry import TURN_END, Entry, blocks_of, mended_body
from streams.sources.openclaw.text import text_of

SOURCE = "codex"

Json = dict[str, Any]

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text"}

_Read = Callable[[Json, Json], list[Entry | Problem] | Problem]


class CodexDialect(AgentDialect):
    """Codex's. `copied` is the number of lines at the beginning that another session had first."""

    source = SOURCE
    id_field = "ordinal"
    ends_turns = True

    def __init__(self, copied: int = 0) -> None:
        self._copied = copied
        self._unknown = UnknownKinds()
        self._outcomes = Outcomes()
        self._usage = UsageCounter()
        self._is_named = False
        self._is_subagent = False
        self._provider: str | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._tools: dict[str, str] = {}
        self._waiting: Entry | None = None
        """A text that no person wrote, which becomes a question when the agent answers it."""
        self._is_asked = True
        """Whether the turn has a question; the lines before any turn are of the one before them."""
        self._is_under_way = False
        self._has_failed = False
        self._stop, self._text = "tool_use", ""
        self._lines: Mapping[str, _Read] = {
            "session_meta": self._header,
            "turn_context": self._settings,
            "compacted": self._compacted,
            "response_item": self._item,
            "event_msg": self._event,
            "token_usage_record": self._record_usage,
        }
        self._told: Mapping[str, Callable[[Json, Json], list[Entry | Problem]]] = {
            **dict.fromkeys(("task_started", "turn_started"), self._begin),
            **dict.fromkeys(("task_complete", "turn_complete"), self._end),
            **dict.fromkeys(("error", "stream_error"), self._fail),
            "token_count": self._count,
            "turn_aborted": self._abort,
        }

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """The entries of one line."""
        entries = self._entries(line, in_envelope(body))
        if isinstance(entries, Problem) or line.number > self._copied:
            return entries
        return [entry if isinstance(entry, Problem) else msgspec.structs.replace(entry, is_copy=True) for entry in entries]

    def _entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        kind, payload = body.get("type"), body.get("payload")
        if not isinstance(kind, str):
            words = "is missing" if kind is None else f"is {json_type(kind)}, not a string"
            return Problem("missing_field" if kind is None else "wrong_type", f"type: {words}")
        read = None if kind in IGNORED_LINES else self._lines.get(kind)
        if read is None:
            return [] if kind in IGNORED_LINES else list(self._unknown.report(f"type {kind}"))
        if not isinstance(payload, dict):
            return Problem("wrong_type", f"payload: is {json_type(payload)}, not an object")
        mended = body if line.is_whole else mended_body(body)
        mended["_id"] = f"ordinal-{body['ordinal']}" if type(body.get("ordinal")) is int else f"line-{line.number}"
        return read(mended, mended["payload"])

    def _header(self, line: Json, payload: Json) -> list[Entry | Problem]:
        if self._is_named or not is_identifier(payload.get("id")):
            return []
        self._is_named = True
        origin = payload.get("source")
        spawned = isinstance(origin, dict) and "subagent" in origin
        self._is_subagent = spawned or isinstance(payload.get("parent_thread_id"), str)
        provider = payload.get("model_provider")
        self._provider = provider if isinstance(provider, str) else None
        return [make_entry("session", payload["id"], line)]

    def _settings(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Changes of the model and of how much it thinks."""
        found: list[Entry | Problem] = []
        model, effort = payload.get("model"), payload.get("effort")
        if isinstance(model, str) and model != self._model:
            self._model = model
            fields = {"modelId": model, "provider": self._provider}
            found.append(make_entry("model_change", line["_id"], line, body=fields))
        if isinstance(effort, str) and effort != self._effort:
            self._effort = effort
            name = f"{line['_id']}/effort"
            found.append(make_entry("thinking_level_change", name, line, body={"thinkingLevel": effort}))
        return found

    def _item(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
        kind = payload.get("type")
        if kind == "message":
            return self._message(line, payload)
        if kind == "reasoning":
            thought = summary_of(payload)
            return self._said(line, [{"type": "thinking", "thinking": thought}], stop="tool_use") if thought else []
        if isinstance(kind, str) and kind in CALLS:
            block = call_of(payload)
            if "id" in block and "name" in block:
                self._tools[block["id"]] = block["name"]
            return self._said(line, [block], stop="tool_use")
        if isinstance(kind, str) and kind in OUTPUTS:
            message, text = output_of(payload, self._tools, self._outcomes)
            return [make_entry("message", line["_id"], line, message=message, blocks=[{"type": "text", "text": text}])]
        if isinstance(kind, str) and kind in IGNORED_ITEMS:
            return []
        return list(self._unknown.report(f"response_item of type {kind}"))

    def _message(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
        role = payload.get("role")
        blocks = blocks_of("payload.content", payload.get("content"))
        if isinstance(blocks, Problem):
            return blocks
        if not isinstance(role, str):
            return Problem("wrong_type", f"payload.role: is {json_type(role)}, not a string")
        if role == "user":
            return self._user(line, payload, blocks)
        if role != "assistant" or _is_summary(line):
            return []
        texts = [{**block, "type": _TEXTS.get(str(block.get("type")), "other")} for block in blocks]
        is_remark = payload.get("phase") == "commentary"
        return self._said(line, [] if is_remark else texts, stop="tool_use" if is_remark else "stop")

    def _user(self, line: Json, payload: Json, blocks: Sequence[Json]) -> list[Entry | Problem]:
        text = asked_text(payload, blocks)
        is_users = text is not None
        if text is None:
            text = text_of([{**block, "type": "text"} for block in blocks])
        origin = (SUBAGENT if self._is_subagent else {}) if is_users else INTERNAL
        shown = [{"type": "text", "text": text}]
        question = make_entry("message", line["_id"], line, message={"role": "user", **origin}, blocks=shown)
        if not is_users:
            self._waiting = None if self._is_under_way else question
            return []
        self._waiting, self._is_asked, self._is_under_way = None, True, True
        return [question]

    def _said(self, line: Json, blocks: Sequence[Json], *, stop: str, **fields: Any) -> list[Entry | Problem]:
        """An assistant message, after the question that waited for it. One that answers nothing that is known stands alone."""
        asked, self._waiting = self._waiting if not self._is_under_way else None, None
        is_alone = not self._is_asked and asked is None
        self._is_asked = self._is_asked or asked is not None
        self._is_under_way = stop in ("tool_use", "error")
        self._has_failed = stop == "error"
        message: Json = {"role": "assistant", "stopReason": stop, **fields, **self._named()}
        self._stop, self._text = ("stop" if stop == "stop" else "tool_use"), text_of(blocks)
        entry = make_entry("message", line["_id"], line, linked=is_alone, message=message, blocks=blocks)
        return [entry] if asked is None else [asked, entry]

    def _event(self, line: Json, payload: Json) -> list[Entry | Problem]:
        kind = str(payload.get("type"))
        read = self._told.get(kind)
        if read is not None:
            return read(line, payload)
        if self._outcomes.note(kind, payload) or kind in SHOWN:
            return []
        return list(self._unknown.report(f"event_msg of type {kind}"))

    def _begin(self, _line: Json, _payload: Json) -> list[Entry | Problem]:
        """A turn begins."""
        self._is_asked = self._is_under_way = False
        return []

    def _end(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """A turn ended, perhaps in an error that was not told before."""
        error, was_told = payload.get("error"), self._has_failed
        found = [] if was_told or not isinstance(error, dict) else self._fail(line, error)
        self._is_under_way = False
        return [*found, _turn_end(line)]

    def _fail(self, line: Json, error: Json) -> list[Entry | Problem]:
        return self._said(line, [], stop="error", errorMessage=_words(error))

    def _abort(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return [*self._said(line, [], stop="aborted", errorMessage=_words(payload)), _turn_end(line)]

    def _count(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """The usage of one response, and how full the context is."""
        usage, context = self._usage.take(payload.get("info"))
        entries = self._add_usage(line, usage)
        if context is not None:
            entries.append(
                self._events(f"{line['_id']}/context", line, {"event": "context_event", "action": "usage", **context})
            )
        return entries

    def _record_usage(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return self._add_usage(line, self._usage.take_record(payload))

    def _add_usage(self, line: Json, usage: Json | None) -> list[Entry | Problem]:
        """A message with the usage of a response. It says the same again, so that nothing else of the answer changes."""
        if usage is None:
            return []
        message: Json = {"role": "assistant", "stopReason": self._stop, "usage": usage, **self._named()}
        return [make_entry("message", line["_id"], line, message=message, blocks=[{"type": "text", "text": self._text}])]

    def _named(self) -> Json:
        named = {"provider": self._provider, "model": self._model}
        return {name: value for name, value in named.items() if value is not None}

    def _compacted(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """The history was replaced by a summary."""
        event: Json = {"event": "context_event", "action": "compaction"}
        if self._usage.context_tokens is not None:
            event["tokens_before"] = self._usage.context_tokens
        if isinstance(payload.get("message"), str):
            event["summary"] = payload["message"]
        return [self._events(line["_id"], line, event)]

    def _events(self, name: str, line: Json, *events: Json) -> Entry:
        return make_entry(EVENTS, name, line, body={"events": list(events)})


def _turn_end(line: Json) -> Entry:
    return make_entry(TURN_END, f"{line['_id']}/end", line)


def _is_summary(line: Json) -> bool:
    metadata = line.get("metadata")
    return isinstance(metadata, dict) and metadata.get("compaction_output") is True


def _words(given: Any) -> str:
    if isinstance(given, dict):
        given = next((given[name] for name in ("message", "reason") if isinstance(given.get(name), str)), None)
    return given if isinstance(given, str) else "the turn failed"
