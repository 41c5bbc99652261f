"""Lines of a Codex rollout as entries.

1. A rollout is a list, not a tree: each entry continues the one before it. Its id is the line's `ordinal`, or its number in versions
   before there was one. `session_meta` names the session, and by `source` or `parent_thread_id` a subagent's.
2. `response_item` lines are what goes to and comes from the model; most `event_msg` lines tell the same again for the screen, and only
   those count that say more: results of commands (before their output), usage, failures, interruptions.
3. A text in the user's role is the user's where its kinds say so (`user.*`), in older versions where it does not begin as context
   of the program does. Other texts open an exchange, tagged `internal`, only when the agent answers them and nothing else.
4. `token_count` lines repeat: one counts when its total differs from that of the one before. Its last usage, with the size of the
   window, is how full the context is.
5. A message that says a summary for a compaction (`compaction_output`) is no answer; its usage counts all the same.
6. A turn that failed (`task_complete` with an error, `error`) ended in an error, `turn_aborted` in an interruption. What the program
   tries again by itself it does not write down, but for `stream_error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams.sources.agent_entries import (
    EVENTS,
    INTERNAL,
    SUBAGENT,
    AgentDialect,
    UnknownKinds,
    blocks_of,
    is_identifier,
    make_entry,
    mended_body,
)
from streams.sources.codex_items import CALLS, OUTPUTS, Outcomes, asked_text, call_of, output_of, summary_of
from streams.sources.codex_usage import UsageCounter
from streams.sources.lines import Problem, json_type
from streams.sources.openclaw_entry import Entry
from streams.sources.openclaw_text import text_of

SOURCE = "codex"

Json = dict[str, Any]

_IGNORED = frozenset({"world_state", "token_usage_record", "inter_agent_communication_metadata"})
_IGNORED_ITEMS = frozenset(
    {"compaction", "compaction_trigger", "context_compaction", "configuration_update", "ghost_snapshot", "other", "additional_tools"}
)
_SHOWN = frozenset(
    """agent_message agent_message_content_delta agent_message_delta agent_reasoning agent_reasoning_delta
    agent_reasoning_raw_content agent_reasoning_section_break background_event context_compacted deprecation_notice
    entered_review_mode exec_approval_request exec_command_begin exec_command_output_delta exited_review_mode hook_completed
    hook_started image_generation_begin image_generation_end item_started mcp_startup_complete mcp_startup_update
    mcp_tool_call_begin model_reroute patch_apply_begin patch_apply_updated plan_delta plan_update raw_response_completed
    raw_response_item reasoning_content_delta session_configured shutdown_complete skills_update_available sub_agent_activity
    terminal_interaction thread_goal_updated thread_name_updated thread_rolled_back thread_settings_applied turn_diff
    undo_completed undo_started user_message view_image_tool_call warning web_search_begin web_search_end
    collab_agent_spawn_begin collab_agent_spawn_end collab_agent_interaction_begin collab_agent_interaction_end
    collab_waiting_begin collab_waiting_end collab_close_begin collab_close_end dynamic_tool_call_request
    dynamic_tool_call_response elicitation_request elicitation_abandoned guardian_assessment""".split()
)
"""Kinds of `event_msg` that tell for the screen what other lines say, as of version 0.169.0."""
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text"}


class CodexDialect(AgentDialect):
    """Codex's."""

    source: str | None = SOURCE
    id_field = "ordinal"

    def __init__(self) -> None:
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
        """A text that nobody wrote, which becomes a question when the agent answers it."""
        self._is_asked = True
        """Whether the turn has a question; the lines before any turn are of the one before them."""
        self._is_under_way = False
        self._has_failed = False
        self._stop, self._text = "tool_use", ""

    def entries(self, number: int, body: Json) -> Sequence[Entry | Problem] | Problem:
        """The entries of one line."""
        kind, payload = body.get("type"), body.get("payload")
        if not isinstance(kind, str):
            words = "is missing" if kind is None else f"is {json_type(kind)}, not a string"
            return Problem("missing_field" if kind is None else "wrong_type", f"type: {words}")
        if kind in _IGNORED:
            return []
        if not isinstance(payload, dict):
            return Problem("wrong_type", f"payload: is {json_type(payload)}, not an object")
        line = mended_body(body)
        payload = line["payload"]
        line["_id"] = f"ordinal-{body['ordinal']}" if type(body.get("ordinal")) is int else f"line-{number}"
        if kind == "session_meta":
            return self._header(line, payload)
        if kind == "turn_context":
            return self._settings(line, payload)
        if kind == "compacted":
            return [self._events(line["_id"], line, self._compaction(payload))]
        if kind == "response_item":
            return self._item(line, payload)
        if kind == "event_msg":
            return self._event(line, payload)
        return list(self._unknown.report(f"type {kind}"))

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
        if isinstance(kind, str) and kind in _IGNORED_ITEMS:
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
        kind = payload.get("type")
        if kind in ("task_started", "turn_started"):
            self._is_asked = self._is_under_way = False
            return []
        if kind == "token_count":
            return self._count(line, payload)
        if kind in ("error", "stream_error"):
            return self._said(line, [], stop="error", errorMessage=_words(payload))
        if kind in ("task_complete", "turn_complete"):
            self._is_under_way = False
            error = payload.get("error")
            if not isinstance(error, dict) or self._has_failed:
                return []
            return self._said(line, [], stop="error", errorMessage=_words(error))
        if kind == "turn_aborted":
            found = self._said(line, [], stop="aborted", errorMessage=_words(payload))
            self._is_under_way = False
            return found
        if isinstance(kind, str) and self._outcomes.note(kind, payload):
            return []
        return [] if isinstance(kind, str) and kind in _SHOWN else list(self._unknown.report(f"event_msg of type {kind}"))

    def _count(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """The usage of one response, and how full the context is."""
        usage, context = self._usage.take(payload.get("info"))
        found: list[Entry | Problem] = []
        if usage is not None:
            # It says the same again, so that the usage is part of the answer and nothing else of it changes.
            message: Json = {"role": "assistant", "stopReason": self._stop, "usage": usage, **self._named()}
            blocks = [{"type": "text", "text": self._text}]
            found.append(make_entry("message", line["_id"], line, message=message, blocks=blocks))
        if context is not None:
            found.append(self._events(f"{line['_id']}/context", line, {"event": "context_event", "action": "usage", **context}))
        return found

    def _named(self) -> Json:
        named = {"provider": self._provider, "model": self._model}
        return {name: value for name, value in named.items() if value is not None}

    def _compaction(self, payload: Json) -> Json:
        event: Json = {"event": "context_event", "action": "compaction"}
        if self._usage.context_tokens is not None:
            event["tokens_before"] = self._usage.context_tokens
        if isinstance(payload.get("message"), str):
            event["summary"] = payload["message"]
        return event

    def _events(self, name: str, line: Json, *events: Json) -> Entry:
        return make_entry(EVENTS, name, line, body={"events": list(events)})


def _is_summary(line: Json) -> bool:
    metadata = line.get("metadata")
    return isinstance(metadata, dict) and metadata.get("compaction_output") is True


def _words(given: Any) -> str:
    if isinstance(given, dict):
        given = next((given[name] for name in ("message", "reason") if isinstance(given.get(name), str)), None)
    return given if isinstance(given, str) else "the turn failed"
