"""Lines of a Claude Code transcript as entries.

1. The lines of the conversation have a `uuid` and name their parent by `parentUuid`. Their kinds are `user`, `assistant`, `system`,
   `attachment` and `progress`. All other known kinds are bookkeeping and skipped. An unknown kind is reported once per file.
2. A message of the model is written as several lines with one `message.id`: a line per block, each with the usage. They are one message: the
   texts are joined, and the usage counts once. Tool results and the next message follow the last line of the message, whichever line they
   name as their parent, so that an answer is one chain.
3. Attachments, notices and texts of the program (`isMeta`, compaction summaries, output of local commands) are not questions of the user.
   While the agent is answering, they take the position of their parent. After the answer they open a new exchange tagged `internal`, and so
   does a prompt of the program (a notification of a finished task). A slash command opens an exchange of the user. All these exchanges exist
   only if the agent answers. Input that was queued while the agent worked is an attachment, too: a prompt is the user's and joins the current
   question; anything else is the program's.
4. A failed request is an assistant message that ended in an error: a `system` line of subtype `api_error`, or the message shown when the
   program gives up. The next message is a retry. An interruption is an aborted message.
5. A history that was rewritten with other uuids counts once. A message is recognized by its id, request id and blocks, a result by its call. A
   question with the text of an earlier one is deferred until it is answered: it is a repetition if a repeated message answers it. A line that
   repeats a message takes the position of that message, and so do the lines after it.
6. The log of a run ends with its `result` (`claude_code_files`), which has the answer and the token count of the run. A `system` line of
   subtype `turn_duration` ends a turn, too: older versions write no stop reason.
7. A sidechain line is beside the conversation. If the whole file is a sidechain, it is a subagent's session with the id
   `<session id>.agent-<agent id>`. A line that is also in the subagent's own file counts there.

The kinds of lines and blocks are those of version 2.1.330.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from schemas.bounds import MAX_ID
from streams.sources.agent_transcripts import (
    EVENTS,
    INTERNAL,
    SUBAGENT,
    AgentDialect,
    EntryPosition,
    UnknownKinds,
    build_agent_entry,
    build_call_block,
    find_id_problem,
    is_identifier,
    read_number,
)
from streams.sources.lines import Line, Problem, json_type
from streams.sources.media import placeholders_in
from streams.sources.openclaw.entry import TURN_END, Entry, read_blocks, repair_body
from streams.sources.openclaw.text import text_of

SOURCE = "claude-code"
Json = dict[str, Any]
_CONVERSATION = frozenset({"user", "assistant", "system", "attachment", "progress", "result"})
_COMPACTIONS = {"compact_boundary": "compaction", "microcompact_boundary": "microcompaction"}
_COMPACTION_FIELDS = (("preTokens", "tokens_before"), ("postTokens", "tokens_after"), ("durationMs", "duration_ms"))
_PROGRAM_FLAGS = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "turnCompanion")
_COMMAND_OUTPUTS = (
    "<local-command-stdout>",
    "<local-command-stderr>",
    "<local-command-caveat>",
    "<bash-stdout>",
    "<bash-stderr>",
)
_COMMANDS = ("<command-name>", "<command-message>", "<bash-input>")
_INTERRUPTION = "[Request interrupted by user"
_RUN_FIELDS = ("subtype", "is_error", "num_turns", "duration_ms", "duration_api_ms", "total_cost_usd")
_NOTIFICATION = "<task-notification>"
MAX_REPEATED_CHARACTERS = 256 * 1024
"""Maximum length of the text that each line of a message repeats from earlier lines. An exchange keeps less."""
_USAGE = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_REMINDER_START = "<system-reminder>"
_REMINDER_END = "</system-reminder>"
_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,9})(?:\n|\Z)")
Content = TypeVar("Content")
BOOKKEEPING_KINDS = frozenset(
    {
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "api-request",
        "api-request-blob",
        "api-request-resumed",
        "api-request-shape",
        "artifact-autoreact-ledger",
        "artifact-comment-monitor",
        "atis-latch",
        "attribution-snapshot",
        "bridge-session",
        "content-replacement",
        "continued-in",
        "cost-state",
        "custom-title",
        "data-flow-incomplete",
        "data-flow-records",
        "derived-from",
        "dev-mods",
        "ended-by-model",
        "file-history-delta",
        "file-history-snapshot",
        "fork-context-ref",
        "frame-link",
        "history-suppression",
        "host-row",
        "hybrid-organization",
        "isolation-latch",
        "last-prompt",
        "memory-mode",
        "mode",
        "observer-ref",
        "permission-mode",
        "pr-link",
        "queue-operation",
        "relocated",
        "repl-mode",
        "resume-head-vouch",
        "session-owner",
        "summary",
        "tag",
        "tools-used",
        "worktree-state",
    }
)
"""Kinds of lines outside the conversation."""
NOTICE_SUBTYPES = frozenset(
    {
        "agents_killed",
        "away_summary",
        "background_tasks_changed",
        "bridge_status",
        "elicitation_complete",
        "file_snapshot",
        "files_persisted",
        "hook_progress",
        "hook_response",
        "hook_started",
        "informational",
        "init",
        "local_command",
        "local_command_output",
        "memory_saved",
        "model_consent_fallback",
        "model_fallback",
        "permission_retry",
        "post_turn_summary",
        "read_divider",
        "scheduled_task_fire",
        "session_state_changed",
        "status",
        "stop_hook_summary",
        "task_notification",
        "task_progress",
        "task_started",
        "task_updated",
        "thinking",
        "thinking_tokens",
    }
)
"""Subtypes of `system` lines that record nothing about the agent's work."""
USER_BLOCKS = frozenset(
    {
        "text",
        "image",
        "document",
        "tool_result",
        "tool_reference",
        "search_result",
    }
)
"""Types of blocks in a message to the model."""
ASSISTANT_BLOCKS = frozenset(
    {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "server_tool_use",
        "mcp_tool_use",
        "mcp_tool_result",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "container_upload",
        "fallback",
        "image",
        "document",
    }
)
"""Types of blocks in a message of the model."""


class CopiedIds(NamedTuple):
    """The ids of what a transcript copied from others.

    `uuids`, `messages` and `questions` (digests) come from earlier transcripts. `by_subagents` (uuids and message ids) come from the
    transcripts of its subagents.
    """

    uuids: frozenset[str]
    messages: frozenset[str]
    questions: frozenset[bytes]
    by_subagents: frozenset[str] = frozenset()


NOTHING_COPIED = CopiedIds(frozenset(), frozenset(), frozenset())


class ClaudeCodeDialect(AgentDialect):
    """Claude Code's dialect. `copied` are the ids of what the transcript copied from others."""

    source = SOURCE
    id_field = "uuid"

    def __init__(self, copied: CopiedIds = NOTHING_COPIED) -> None:
        self._copied = copied
        self._copied_calls: set[str] = set()
        self._questions = set(copied.questions)
        self._results: dict[bytes, str] = {}
        self._repeated: set[str] = set()
        self._positions = Positions()
        self._unknown = UnknownKinds()
        self._last: Message[_PartialMessage] | None = None
        self._has_failed = False
        self._counted_usage: dict[str, int | float] = {}
        """Tokens counted by the messages of a run so far."""
        self._total_usage: dict[str, int | float] = {}
        """Tokens counted by the results of a run so far."""
        self._session_id: str | None = None
        self._is_subagent = False
        self._models: dict[bool, str] = {}
        self._tools: dict[str, str] = {}

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entries of one line."""
        kind = body.get("type")
        if not isinstance(kind, str):
            return _find_type_problem("type", kind)
        session_entries = self._read_session(body)
        if kind in BOOKKEEPING_KINDS:
            return session_entries
        if kind not in _CONVERSATION:
            if isinstance(body.get("uuid"), str):
                self._positions.inherit(body["uuid"], self._positions.at(body.get("parentUuid")))
            return [*session_entries, *self._unknown.report(f"type {kind}")]
        problem = find_id_problem("uuid", body.get("uuid")) or _find_parent_problem(body)
        if problem is not None:
            return problem
        entries = self._read_conversation(kind, body if line.is_whole else repair_body(body))
        return entries if isinstance(entries, Problem) else [*session_entries, *entries]

    def _read_session(self, body: Json) -> list[Entry | Problem]:
        """Return the session entry of the first line that names a session; nothing for any other line."""
        session_id = session_of(body) if self._session_id is None else None
        if session_id is None:
            return []
        self._session_id = session_id
        self._is_subagent = session_id != body["sessionId"]
        return [build_agent_entry("session", session_id, body)]

    def _read_conversation(self, kind: str, body: Json) -> list[Entry | Problem] | Problem:
        """Return the entries of a line of the conversation."""
        parent = body.get("parentUuid")
        if parent is None and isinstance(body.get("logicalParentUuid"), str):
            parent = body["logicalParentUuid"] if body["logicalParentUuid"] in self._positions else None
        position = self._positions.at(parent)
        queued = _read_queued_message(body) if kind == "attachment" else None
        if kind == "user" or queued is not None:
            return self._read_user(queued or body, position)
        if kind == "assistant":
            return self._read_assistant(body, position)
        if kind == "system":
            return self._read_system(body, position)
        if kind == "result":
            return self._read_result_line(body, position)
        self._positions.inherit(body["uuid"], position)
        return []

    def _read_system(self, body: Json, position: Position) -> list[Entry | Problem]:
        subtype = body.get("subtype")
        if subtype == "api_error":
            return self._add_failure(body, position, "error", _read_error_text(body.get("error")))
        self._positions.inherit(body["uuid"], position)
        if subtype == "turn_duration":
            return [self._build_entry(TURN_END, body, position, suffix="end")]
        if isinstance(subtype, str) and subtype in _COMPACTIONS:
            return [self._build_entry(EVENTS, body, position, body_fields={"events": [_build_compaction(subtype, body)]})]
        if not isinstance(subtype, str) or subtype in NOTICE_SUBTYPES:
            return []
        return list(self._unknown.report(f"system line of subtype {subtype}"))

    def _read_user(self, body: Json, position: Position) -> list[Entry | Problem] | Problem:
        blocks = _read_message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        results = _read_results(blocks, body, self._tools)
        text = extract_text(blocks)
        is_copy = bool(results) and all(message.get("toolCallId") in self._copied_calls for message, _ in results)
        if text.startswith(_INTERRUPTION):
            entries = self._add_failure(body, position, "aborted", text)
        elif results:
            self._positions.inherit(body["uuid"], position)
            entries = []
        else:
            entries = self._read_question(body, position, text)
        result_entries: list[Entry | Problem] = []
        for index, (message, output) in enumerate(results):
            if self._is_new_result(body["uuid"], message, output):
                suffix = str(index) if index or entries else ""
                result_entries.append(self._build_text_entry(body, position, message, output, suffix=suffix, is_copy=is_copy))
        return [*result_entries, *entries, *self._report_unknown_blocks(blocks, USER_BLOCKS)]

    def _read_question(self, body: Json, position: Position, text: str) -> list[Entry | Problem]:
        """Return the entries of a text in the user's role. A text of the program is deferred until the agent answers it."""
        uuid = body["uuid"]
        is_meta = any(body.get(name) is True for name in _PROGRAM_FLAGS)
        is_program_prompt = _is_from_program(body, text)
        deferred = position.question
        is_part_of_answer = position.is_under_way and (is_meta or (is_program_prompt and deferred is None))
        if text.startswith(_COMMAND_OUTPUTS) or is_part_of_answer:
            self._positions.inherit(uuid, position)
            return []
        unanswered: list[Entry] = []
        if deferred is not None and deferred.id in self._repeated:
            # A further question shows that the deferred one was no repetition.
            unanswered = self._positions.take_question(position)
        message: Json = {"role": "user"}
        if position.is_under_way and body["type"] == "attachment":
            message["joins"] = True
        if is_meta or is_program_prompt:
            message |= INTERNAL
        elif body.get("isSidechain") is True:
            message |= SUBAGENT
        question = self._build_text_entry(body, position, message, text)
        digest = question_digest(text)
        is_repeated = digest in self._questions
        if is_repeated:
            self._repeated.add(uuid)
        if is_meta or is_program_prompt or is_repeated or text.startswith(_COMMANDS):
            self._positions.defer_question(uuid, position, question)
            return [*unanswered]
        self._questions.add(digest)
        self._positions.add_question(uuid)
        return [*unanswered, question]

    def _is_new_result(self, uuid: str, message: Json, text: str) -> bool:
        """Return whether no other line had this result of this call."""
        call_id = message.get("toolCallId")
        if call_id is None:
            return True
        digest = blake2b(f"{call_id}\0{text}".encode("utf-8", "replace"), digest_size=16).digest()
        return self._results.setdefault(digest, uuid) == uuid

    def _read_assistant(self, body: Json, position: Position) -> list[Entry | Problem] | Problem:
        blocks = _read_message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        if body.get("isApiErrorMessage") is True:
            return self._add_failure(body, position, "error", extract_text(blocks))
        if body["message"].get("model") == "<synthetic>":
            self._positions.inherit(body["uuid"], position)
            return []
        is_copy = self._is_copied_message(body)
        tools = _collect_called_tools(blocks)
        self._tools |= tools
        if is_copy:
            self._copied_calls.update(tools)
        entries = self._read_message_line(body, blocks, position, is_copy=is_copy)
        return [*entries, *self._report_unknown_blocks(blocks, ASSISTANT_BLOCKS)] if entries else []

    def _is_copied_message(self, body: Json) -> bool:
        message_id = body["message"].get("id")
        is_of_subagent = self._is_side(body) and message_id in self._copied.by_subagents
        return is_of_subagent or message_id in self._copied.messages

    def _read_message_line(
        self, body: Json, blocks: Sequence[Json], position: Position, *, is_copy: bool
    ) -> list[Entry | Problem]:
        """Return the entries of a line of the model's message; none if the line repeats earlier lines of the message."""
        line_message: Json = body["message"]
        message = self._positions.message(
            body["uuid"], line_message.get("id"), body.get("requestId"), side=self._is_side(body), begin=_PartialMessage
        )
        new_blocks = message.content.add_blocks(blocks)
        if message.has_begun and not new_blocks:
            adds_usage = self._last is message and message.content.adds_usage(line_message.get("usage"))
            if not adds_usage:
                self._positions.replay(body["uuid"], position, message)
                return []
        self._last = message
        self._has_failed = False
        position = message.follows(position)
        entries: list[Entry | Problem] = [
            msgspec.structs.replace(question, is_copy=is_copy or question.is_copy)
            for question in self._positions.take_question(position)
        ]
        entries += self._find_model_change(body, position, is_copy=is_copy)
        added = _add_message_line(message.content, line_message, new_blocks)
        self._count_usage(added.fields.get("usage", {}))
        entries.append(
            self._build_entry(
                "message", body, position, message=added.fields, blocks=added.blocks, own_blocks=blocks, is_copy=is_copy
            )
        )
        for index, (result, output) in enumerate(_read_results(added.results, body, self._tools), 1):
            entries.append(self._build_text_entry(body, position, result, output, suffix=str(index), is_copy=is_copy))
        self._positions.add_answer_line(body["uuid"], message, added.fields.get("stopReason"))
        return entries

    def _add_failure(self, body: Json, position: Position, stop: str, error: str) -> list[Entry | Problem]:
        """Return the entries of a message that failed or was aborted."""
        question = self._positions.take_question(position)
        message = {"role": "assistant", "stopReason": stop, "errorMessage": error}
        entry = self._build_entry("message", body, position, message=message)
        self._has_failed = True
        self._positions.add_answer_line(body["uuid"], self._build_message(body), None if stop == "error" else stop)
        return [*question, entry]

    def _read_result_line(self, body: Json, position: Position) -> list[Entry | Problem]:
        """Return the entries of the end of a run in a log: its last answer or error, uncounted tokens, and facts about the run."""
        for name, count in read_usage(body.get("usage")).items():
            self._total_usage[name] = self._total_usage.get(name, 0) + count
        entries: list[Entry | Problem] = []
        new_message = self._build_message(body)
        if body.get("is_error") is True and self._has_failed:
            # An earlier message reported the error.
            self._positions.inherit(body["uuid"], position)
        else:
            message = _build_last_message(body)
            uncounted = self._take_uncounted_usage()
            if uncounted:
                message["usage"] = uncounted
            entries += self._positions.take_question(position)
            entries.append(self._build_entry("message", body, position, message=message, blocks=self._find_last_answer(body)))
            self._positions.add_answer_line(body["uuid"], new_message, message["stopReason"])
            position = new_message.position
        facts = {name: body[name] for name in _RUN_FIELDS if isinstance(body.get(name), str | int | float)}
        event: Json = {"event": "state_transition", "action": "run_result", **facts}
        run = self._build_entry(EVENTS, body, position, suffix="run", body_fields={"events": [event]})
        return [*entries, run, self._build_entry(TURN_END, body, position, suffix="end")]

    def _take_uncounted_usage(self) -> dict[str, int | float]:
        """Return the tokens of a run's results that no message counted, and count them; empty if there are none."""
        usage = {name: max(count - self._counted_usage.get(name, 0), 0) for name, count in self._total_usage.items()}
        if not any(usage.values()):
            return {}
        self._count_usage(usage)
        return usage

    def _find_last_answer(self, body: Json) -> list[Json]:
        """Return the block with the answer of a run, from its result or its last message; none after an error."""
        if body.get("is_error") is True:
            return []
        answer = body.get("result")
        if not answer and self._last is not None:
            answer = self._last.content.text
        return [{"type": "text", "text": answer}] if isinstance(answer, str) else []

    def _count_usage(self, usage: Json) -> None:
        for name, count in usage.items():
            self._counted_usage[name] = self._counted_usage.get(name, 0) + count

    def _build_message(self, body: Json) -> Message[_PartialMessage]:
        """Return a new message that has one line and no id."""
        return self._positions.message(body["uuid"], None, None, side=self._is_side(body), begin=_PartialMessage)

    def _find_model_change(self, body: Json, position: Position, *, is_copy: bool) -> list[Entry]:
        """Return the entry of a change of the model; none if the model is the same as before."""
        model = body["message"].get("model")
        side = self._is_side(body)
        if not isinstance(model, str) or self._models.get(side) == model:
            return []
        self._models[side] = model
        return [
            self._build_entry("model_change", body, position, suffix="model", body_fields={"modelId": model}, is_copy=is_copy)
        ]

    def _build_text_entry(
        self, body: Json, position: Position, message: Json, text: str, *, suffix: str = "", is_copy: bool = False
    ) -> Entry:
        blocks = [{"type": "text", "text": text}]
        return self._build_entry("message", body, position, suffix=suffix, message=message, blocks=blocks, is_copy=is_copy)

    def _build_entry(
        self,
        kind: str,
        body: Json,
        position: Position,
        *,
        suffix: str = "",
        body_fields: Json | None = None,
        message: Json | None = None,
        blocks: Sequence[Json] = (),
        own_blocks: Sequence[Json] | None = None,
        is_copy: bool = False,
    ) -> Entry:
        return build_agent_entry(
            kind,
            f"{body['uuid']}/{suffix}" if suffix else body["uuid"],
            body,
            position=EntryPosition(position.leaf, linked=True, side=self._is_side(body)),
            is_copy=is_copy or self._is_copied(body),
            body=body_fields,
            message=message,
            blocks=blocks,
            own_blocks=own_blocks,
        )

    def _is_copied(self, body: Json) -> bool:
        uuid = body["uuid"]
        is_of_subagent = self._is_side(body) and uuid in self._copied.by_subagents
        return is_of_subagent or uuid in self._copied.uuids or _is_forked(body)

    def _is_side(self, body: Json) -> bool:
        return body.get("isSidechain") is True and not self._is_subagent

    def _report_unknown_blocks(self, blocks: Sequence[Json], known_kinds: frozenset[str]) -> list[Problem]:
        problems: list[Problem] = []
        for block in blocks:
            kind = str(block.get("type"))
            if kind not in known_kinds:
                problems += self._unknown.report(f"block of type {kind}")
        return problems


@dataclass(slots=True)
class _PartialMessage:
    """A message up to the current line: its text, the largest count of each kind of token, digests of its blocks, and its stop reason."""

    text: str | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    blocks: set[bytes] = field(default_factory=set)
    stop: str | None = None

    def add_blocks(self, blocks: Sequence[Json]) -> list[Json]:
        """Return the blocks that no earlier line of the message has, and remember them."""
        added = []
        for block in blocks:
            digest = blake2b(msgspec.json.encode(block, order="deterministic"), digest_size=16).digest()
            if digest not in self.blocks:
                self.blocks.add(digest)
                added.append(block)
        return added

    def adds_usage(self, usage: Any) -> bool:
        """Return whether a line counts more tokens than the lines before it."""
        counts = usage if isinstance(usage, dict) else {}
        return any((read_number(counts.get(name)) or 0) > self.usage.get(name, 0) for name in _USAGE)


def _find_type_problem(name: str, value: Any) -> Problem:
    if value is None:
        return Problem("missing_field", f"{name}: is missing")
    return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")


def _find_parent_problem(body: Json) -> Problem | None:
    parent = body.get("parentUuid")
    return None if parent is None else find_id_problem("parentUuid", parent)


def _read_queued_message(body: Json) -> Json | None:
    """Return input that was queued while the agent worked as a user line; None for any other attachment."""
    attachment = body.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
        return None
    line = {**body, "message": {"role": "user", "content": attachment.get("prompt")}}
    is_prompt = attachment.get("commandMode", "prompt") == "prompt"
    return line if is_prompt else {**line, "isMeta": True}


def _read_error_text(error: Any) -> str:
    """Return the message of an error: a text, a list of texts, or an object with a message."""
    message = error
    if isinstance(error, list):
        message = "; ".join(text for text in error if isinstance(text, str) and text) or None
    elif isinstance(error, dict):
        message = next((error[name] for name in ("message", "formatted") if isinstance(error.get(name), str)), None)
    return message if isinstance(message, str) else "the request failed"


def _build_compaction(subtype: str, body: Json) -> Json:
    metadata = body.get("compactMetadata")
    details = metadata if isinstance(metadata, dict) else {}
    event: Json = {"event": "context_event", "action": _COMPACTIONS[subtype]}
    if isinstance(details.get("trigger"), str):
        event["trigger"] = details["trigger"]
    for source_name, event_name in _COMPACTION_FIELDS:
        if type(details.get(source_name)) in (int, float):
            event[event_name] = details[source_name]
    return event


def _read_message_blocks(body: Json) -> list[Json] | Problem:
    message = body.get("message")
    if not isinstance(message, dict):
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    return read_blocks("message.content", message.get("content"))


def _read_results(blocks: Sequence[Json], body: Json, tools: Mapping[str, str]) -> list[tuple[Json, str]]:
    """Return the tool results in a message, each as a message in OpenClaw's form and its text.

    `body` is the line, which has details of a result if there is only one. `tools` are the names of the called tools, by call id.
    """
    results = [block for block in blocks if _read_block_type(block).endswith("tool_result")]
    return [_build_result(block, body if len(results) == 1 else {}, tools) for block in results]


def _read_block_type(block: Json) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _build_result(block: Json, body: Json, tools: Mapping[str, str]) -> tuple[Json, str]:
    content = block.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else content
    text = text_of(parts)
    is_error_content = isinstance(content, dict) and str(content.get("type")).endswith("_error")
    is_error = block.get("is_error") is True or is_error_content
    message: Json = {"role": "toolResult", "isError": is_error}
    call_id = block.get("tool_use_id")
    if isinstance(call_id, str):
        message["toolCallId"] = call_id
        if call_id in tools:
            message["toolName"] = tools[call_id]
    details = _read_result_details(body.get("toolUseResult"))
    exit_code = _EXIT_CODE.match(text) if is_error else None
    if exit_code is not None:
        details["exitCode"] = int(exit_code.group(1))
    if details:
        message["details"] = details
    return message, text


def _read_result_details(result: Any) -> Json:
    """Return the duration and the status of a result, if the line has them."""
    details: Json = {}
    if not isinstance(result, dict):
        return details
    for name in ("totalDurationMs", "durationMs"):
        duration = read_number(result.get(name))
        if duration is not None:
            details["durationMs"] = duration
    if isinstance(result.get("status"), str):
        details["status"] = result["status"]
    return details


def _is_from_program(body: Json, text: str) -> bool:
    """Return whether a prompt comes from the program, such as a notification, a schedule or another agent."""
    origin = body.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    has_program_origin = isinstance(kind, str) and kind not in ("human", "user")
    return has_program_origin or body.get("promptSource") == "system" or text.startswith(_NOTIFICATION)


def _collect_called_tools(blocks: Sequence[Json]) -> dict[str, str]:
    """Return the names of the tools that a line calls, by call id."""
    return {
        block["id"]: block["name"]
        for block in blocks
        if _read_block_type(block) in _CALLS and isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    }


class _AddedLine(NamedTuple):
    """What a line adds to a message: fields and blocks in OpenClaw's form, and results of the provider's own tools."""

    fields: Json
    blocks: list[Json]
    results: list[Json]


def _add_message_line(partial: _PartialMessage, message: Json, blocks: Sequence[Json]) -> _AddedLine:
    """Add a line with these new blocks to a message, and return what it adds.

    The text block has the text of all lines so far, because that is the answer. A message that calls a tool has no text block.
    """
    calls = [
        build_call_block(block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if _read_block_type(block) in _CALLS
    ]
    thoughts = [block for block in blocks if _read_block_type(block) == "thinking"]
    results = [block for block in blocks if _read_block_type(block).endswith("_tool_result")]
    text = text_of(blocks)
    if text and (partial.text is None or len(partial.text) < MAX_REPEATED_CHARACTERS):
        partial.text = text if partial.text is None else f"{partial.text}\n{text}"
    partial.stop = _read_stop_reason(partial, message, has_calls=bool(calls), has_blocks=bool(blocks))
    fields: Json = {"role": "assistant", "stopReason": partial.stop}
    if isinstance(message.get("model"), str):
        fields["model"] = message["model"]
    usage = _added_usage(partial, message.get("usage"))
    if usage is not None:
        fields["usage"] = usage
    shown_blocks = thoughts + calls
    if partial.stop != "tool_use":
        shown_blocks.append({"type": "text", "text": partial.text or ""})
    return _AddedLine(fields, shown_blocks, results)


def _read_stop_reason(partial: _PartialMessage, message: Json, *, has_calls: bool, has_blocks: bool) -> str | None:
    stop = message.get("stop_reason")
    if isinstance(stop, str):
        return stop
    if has_calls:
        return "tool_use"
    return None if has_blocks else partial.stop


def _added_usage(partial: _PartialMessage, usage: Any) -> Json | None:
    """Return the usage that a line adds to earlier lines of its message; None if it repeats theirs."""
    if not isinstance(usage, dict) or read_number(usage.get("input_tokens")) is None:
        return None
    added: Json = {}
    for source_name, name in _USAGE.items():
        count = read_number(usage.get(source_name)) or 0
        earlier_count = partial.usage.get(source_name, 0)
        added[name] = max(count - earlier_count, 0)
        partial.usage[source_name] = max(count, earlier_count)
    return added if any(added.values()) else None


def _build_last_message(body: Json) -> Json:
    """Return the last message of a run, with the reason why the run stopped, from its result line."""
    if body.get("is_error") is True:
        return {
            "role": "assistant",
            "stopReason": "error",
            "errorMessage": body.get("result") or _read_error_text(body.get("errors")),
        }
    stop = body.get("stop_reason")
    return {"role": "assistant", "stopReason": stop if isinstance(stop, str) and stop != "tool_use" else "end_turn"}


def _is_forked(body: Json) -> bool:
    """Return whether the line is marked as copied from another session."""
    origin = body.get("forkedFrom")
    return isinstance(origin, dict) and origin.get("sessionId") not in (None, body.get("sessionId"))


def session_of(line: dict[str, Any]) -> str | None:
    """Return the session of a line, which may be that of a subagent; None if the line names no session."""
    session_id = line.get("sessionId")
    if not is_identifier(session_id):
        return None
    agent_id = line.get("agentId")
    if line.get("isSidechain") is True and is_identifier(agent_id):
        subagent_session_id = f"{session_id}.agent-{agent_id}"
        if len(subagent_session_id) <= MAX_ID:
            return subagent_session_id
    return str(session_id)


def question_digest(text: str) -> bytes:
    """Return the digest of a question's text, by which repetitions are recognized."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def read_usage(usage: Any) -> dict[str, int | float]:
    """Return the token counts of a usage under OpenClaw's names."""
    counts = usage if isinstance(usage, dict) else {}
    tokens: dict[str, int | float] = {}
    for source_name, name in _USAGE.items():
        count = read_number(counts.get(source_name))
        if count is not None:
            tokens[name] = count
    return tokens


def extract_text(blocks: Sequence[Json]) -> str:
    """Return the text of a message without the program's reminders, or media placeholders if it has no text."""
    own_blocks = [block for block in blocks if not _is_reminder(block)]
    return text_of(own_blocks) or placeholders_in(own_blocks)


def _is_reminder(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text.startswith(_REMINDER_START) and text.rstrip().endswith(_REMINDER_END)


@dataclass(eq=False, slots=True)
class Position:
    """A position in the conversation.

    `leaf` is the entry that the next one follows. `is_under_way` is True while the agent answers. `question` is deferred until the agent
    answers it.
    """

    leaf: str | None
    is_under_way: bool = False
    question: Entry | None = None


@dataclass(eq=False, slots=True)
class Message(Generic[Content]):
    """A message of the model. The leaf of its position is its latest line. `content` is its content so far."""

    position: Position
    content: Content

    @property
    def has_begun(self) -> bool:
        """True if a line of it was read."""
        return self.position.leaf is not None

    def follows(self, parent: Position) -> Position:
        """Return the position that its next line follows: its own, or that of the parent for the first line."""
        return parent if self.position.leaf is None else self.position


@dataclass(slots=True)
class Positions:
    """The positions of the lines so far, by uuid, and the messages so far, by id."""

    _by_uuid: dict[str, Position] = field(default_factory=dict)
    _messages: dict[tuple[bool, str, str | None], Message[Any]] = field(default_factory=dict)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._by_uuid

    def at(self, parent: Any) -> Position:
        """Return the position of a parent. An unknown parent gets a new position. A null parent is the start of the conversation."""
        if not isinstance(parent, str):
            return Position(None)
        return self._by_uuid.get(parent) or Position(parent)

    def inherit(self, uuid: str, position: Position) -> None:
        """Give a line the position of its parent."""
        self._by_uuid.setdefault(uuid, position)

    def add_question(self, uuid: str) -> None:
        """Record a question."""
        self._by_uuid.setdefault(uuid, Position(uuid, is_under_way=True))

    def defer_question(self, uuid: str, position: Position, question: Entry) -> None:
        """Record a text that only becomes a question when the agent answers it."""
        self._by_uuid.setdefault(uuid, Position(position.leaf, is_under_way=True, question=question))

    def take_question(self, position: Position) -> list[Entry]:
        """Remove and return the question that was deferred at a position, if any."""
        question = position.question
        if question is None:
            return []
        position.question = None
        position.leaf = question.id
        return [question]

    def replay(self, uuid: str, position: Position, message: Message[Any]) -> None:
        """Give a line that repeats a message the position of that message."""
        position.question = None
        position.leaf = message.position.leaf
        position.is_under_way = message.position.is_under_way
        self._by_uuid.setdefault(uuid, message.position)

    def message(
        self, uuid: str, message_id: Any, request_id: Any, *, side: bool, begin: Callable[[], Content]
    ) -> Message[Content]:
        """Return the message with these ids, a new one if there is none yet. A line without a message id is a message of its own."""
        message_key = message_id if isinstance(message_id, str) else f"/{uuid}"
        key = side, message_key, request_id if isinstance(request_id, str) else None
        return self._messages.setdefault(key, Message(Position(None), begin()))

    def add_answer_line(self, uuid: str, message: Message[Any], stop: Any) -> None:
        """Record the latest line of a message and its stop reason."""
        message.position.leaf = uuid
        message.position.is_under_way = stop is None or stop == "tool_use"
        self._by_uuid.setdefault(uuid, message.position)
