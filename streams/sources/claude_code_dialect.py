"""Lines of a Claude Code transcript as entries.

1. Lines of the conversation have a `uuid` and name their parent by `parentUuid`: `user`, `assistant`, `system`, `attachment` and
   `progress`. Everything else is bookkeeping, which is skipped. An unknown kind is reported once per file.
2. One message of the model is written as several lines with one `message.id`, a line per block, each with the usage. They are one message:
   the texts are joined, the usage counts once. Tool results and the next message follow the last line of the message, whichever line they
   name as their parent, so that an answer is one chain.
3. Attachments, notices and texts of the program (`isMeta`, compaction summaries, output of local commands) are not user questions. While
   an answer is under way they belong to it, at the position of their parent. After it they open a new exchange, tagged `internal`, and so
   does a prompt of the program (a notification of a finished task). A slash command opens an exchange of the user. These exchanges exist
   only if the agent answers. Input queued while the agent worked is an attachment, too: a prompt is the user's and joins the question
   under way, anything else is the program's.
4. A failed request (`system` lines of subtype `api_error`, and the message shown when the program gives up) is an assistant message that
   ended in an error. The next message is a retry. An interruption is an aborted message.
5. A history that is rewritten with other uuids counts once: a message by its id, request id and blocks, a result by its call. A question
   whose text was asked before is deferred until it is answered: it is a repetition if a repeated message answers it. A line that repeats
   a message takes the message's position, and so do the lines after it.
6. The log of a run ends with its `result` (`claude_code_files`), which has the answer and the token count of the run.
7. A sidechain line is beside the conversation, unless the whole file is a sidechain: then it is a subagent's session, with the id
   `<session id>.agent-<agent id>`. A line that is also in the subagent's own file counts there.

The kinds of lines and blocks are those of version 2.1.330.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    call_block,
    id_problem,
    is_identifier,
    make_entry,
    number_of,
)
from streams.sources.lines import Line, Problem, json_type
from streams.sources.media import placeholders_in
from streams.sources.openclaw.entry import TURN_END, Entry, read_blocks, repair_body
from streams.sources.openclaw.text import text_of

SOURCE = "claude-code"
Json = dict[str, Any]
_CONVERSATION = frozenset({"user", "assistant", "system", "attachment", "progress", "result"})
_COMPACTIONS = {"compact_boundary": "compaction", "microcompact_boundary": "microcompaction"}
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
_RUN_FACTS = ("subtype", "is_error", "num_turns", "duration_ms", "duration_api_ms", "total_cost_usd")
_NOTIFICATION = "<task-notification>"
MAX_REPEATED_TEXT = 256 * 1024
"""Characters of a message's earlier text that each of its lines repeats; more than an exchange keeps."""
_USAGE = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_REMINDER = ("<system-reminder>", "</system-reminder>")
_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,9})(?:\n|\Z)")
Content = TypeVar("Content")
BOOKKEEPING = frozenset(
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
NOTICES = frozenset(
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
        "turn_duration",
    }
)
"""Subtypes of `system` lines that do not record what the agent did."""
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


class Copied(NamedTuple):
    """Ids of what a transcript copied from other transcripts.

    `uuids`, `messages` and `questions` (digests) come from earlier transcripts, `by_subagents` (uuids and message ids) from the transcripts
    of its subagents.
    """

    uuids: frozenset[str]
    messages: frozenset[str]
    questions: frozenset[bytes]
    by_subagents: frozenset[str] = frozenset()


NOTHING_COPIED = Copied(frozenset(), frozenset(), frozenset())


class ClaudeCodeDialect(AgentDialect):
    """Claude Code's dialect. `copied` is what another session of the folder had first."""

    source = SOURCE
    id_field = "uuid"

    def __init__(self, copied: Copied = NOTHING_COPIED) -> None:
        self._copied = copied
        self._copied_calls: set[str] = set()
        self._questions = set(copied.questions)
        self._results: dict[bytes, str] = {}
        self._repeated: set[str] = set()
        self._positions = Positions()
        self._unknown = UnknownKinds()
        self._last: Message[_MessageSoFar] | None = None
        self._has_failed = False
        self._counted_usage: dict[str, int | float] = {}
        """Tokens that the messages of a run counted so far; `_total_usage` are those of its results."""
        self._total_usage: dict[str, int | float] = {}
        self._session_id: str | None = None
        self._is_subagent = False
        self._models: dict[bool, str] = {}
        self._tools: dict[str, str] = {}

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entries of one line."""
        kind = body.get("type")
        if not isinstance(kind, str):
            return _field_problem("type", kind)
        header = self._header(body)
        if kind in BOOKKEEPING:
            return header
        if kind not in _CONVERSATION:
            if isinstance(body.get("uuid"), str):
                self._positions.stand_in(body["uuid"], self._positions.at(body.get("parentUuid")))
            return [*header, *self._unknown.report(f"type {kind}")]
        problem = id_problem("uuid", body.get("uuid")) or _parent_problem(body)
        if problem is not None:
            return problem
        entries = self._read(kind, body if line.is_whole else repair_body(body))
        return entries if isinstance(entries, Problem) else [*header, *entries]

    def _header(self, body: Json) -> list[Entry | Problem]:
        """Return the entry with the session, for the first line that names it."""
        name = None if self._session_id is not None else session_of(body)
        if name is None:
            return []
        self._is_subagent = name != body["sessionId"]
        self._session_id = name
        return [make_entry("session", name, body)]

    def _read(self, kind: str, body: Json) -> list[Entry | Problem] | Problem:
        """Return the entries of a line of the conversation."""
        parent = body.get("parentUuid")
        if parent is None and isinstance(body.get("logicalParentUuid"), str):
            parent = body["logicalParentUuid"] if body["logicalParentUuid"] in self._positions else None
        position = self._positions.at(parent)
        queued = _queued_message(body) if kind == "attachment" else None
        if kind == "user" or queued is not None:
            return self._user(queued or body, position)
        if kind == "assistant":
            return self._assistant(body, position)
        if kind == "system":
            return self._system(body, position)
        if kind == "result":
            return self._end(body, position)
        self._positions.stand_in(body["uuid"], position)
        return []

    def _system(self, body: Json, position: Position) -> list[Entry | Problem]:
        subtype = body.get("subtype")
        if subtype == "api_error":
            return self._failure(body, position, "error", _error_text(body.get("error")))
        self._positions.stand_in(body["uuid"], position)
        if isinstance(subtype, str) and subtype in _COMPACTIONS:
            return [self._entry(EVENTS, body, position, body_fields={"events": [_compaction(subtype, body)]})]
        if not isinstance(subtype, str) or subtype in NOTICES:
            return []
        return list(self._unknown.report(f"system line of subtype {subtype}"))

    def _user(self, body: Json, position: Position) -> list[Entry | Problem] | Problem:
        blocks = _message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        results = _read_results(blocks, body, self._tools)
        text = texts_of(blocks)
        is_copy = bool(results) and all(message.get("toolCallId") in self._copied_calls for message, _ in results)
        if text.startswith(_INTERRUPTION):
            entries = self._failure(body, position, "aborted", text)
        elif results:
            self._positions.stand_in(body["uuid"], position)
            entries = []
        else:
            entries = self._ask(body, position, text)
        answered = (
            self._entry(
                "message",
                body,
                position,
                suffix=str(index) if index or entries else "",
                message=message,
                blocks=[{"type": "text", "text": said}],
                is_copy=is_copy,
            )
            for index, (message, said) in enumerate(results)
            if self._is_new_result(body["uuid"], message, said)
        )
        return [*answered, *entries, *self._unknown_blocks(blocks, USER_BLOCKS)]

    def _ask(self, body: Json, position: Position, text: str) -> list[Entry | Problem]:
        """Return the entries of a text in the user's role. A text of the program is deferred until the agent answers it."""
        uuid = body["uuid"]
        is_meta = any(body.get(name) is True for name in _PROGRAM_FLAGS)
        is_prompt = _is_from_program(body, text)
        waiting = position.question
        if text.startswith(_COMMAND_OUTPUTS) or (position.is_under_way and (is_meta or (is_prompt and waiting is None))):
            self._positions.stand_in(uuid, position)
            return []
        # A question that may repeat another waits for its answer; a further one shows that it was asked all the same.
        unanswered = self._positions.take_question(position) if waiting is not None and waiting.id in self._repeated else []
        origin = INTERNAL if is_meta or is_prompt else SUBAGENT if body.get("isSidechain") is True else {}
        joins = {"joins": True} if position.is_under_way and body["type"] == "attachment" else {}
        question = self._entry(
            "message", body, position, message={"role": "user", **joins, **origin}, blocks=[{"type": "text", "text": text}]
        )
        digest = question_digest(text)
        if is_meta or is_prompt or text.startswith(_COMMANDS) or digest in self._questions:
            if digest in self._questions:
                self._repeated.add(uuid)
            self._positions.ask_later(uuid, position, question)
            return [*unanswered]
        self._questions.add(digest)
        self._positions.ask(uuid)
        return [*unanswered, question]

    def _is_new_result(self, uuid: str, message: Json, text: str) -> bool:
        """Return whether this result of this call has not been read before."""
        call_id = message.get("toolCallId")
        if call_id is None:
            return True
        digest = blake2b(f"{call_id}\0{text}".encode("utf-8", "replace"), digest_size=16).digest()
        return self._results.setdefault(digest, uuid) == uuid

    def _assistant(self, body: Json, position: Position) -> list[Entry | Problem] | Problem:
        blocks = _message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        message: Json = body["message"]
        if body.get("isApiErrorMessage") is True:
            return self._failure(body, position, "error", texts_of(blocks))
        if message.get("model") == "<synthetic>":
            self._positions.stand_in(body["uuid"], position)
            return []
        tools = _called_tools(blocks)
        self._tools |= tools
        side = self._is_side(body)
        is_copy = message.get("id") in self._copied.messages or (side and message.get("id") in self._copied.by_subagents)
        if is_copy:
            self._copied_calls.update(tools)
        spoken_message = self._positions.message(
            body["uuid"], message.get("id"), body.get("requestId"), side=side, begin=_MessageSoFar
        )
        added = spoken_message.content.add_blocks(blocks)
        if (
            spoken_message.has_begun
            and not added
            and (self._last is not spoken_message or not spoken_message.content.adds_usage(message.get("usage")))
        ):
            self._positions.replay(body["uuid"], position, spoken_message)
            return []
        self._last = spoken_message
        position = spoken_message.follows(position)
        questions = [
            msgspec.structs.replace(question, is_copy=is_copy or question.is_copy)
            for question in self._positions.take_question(position)
        ]
        entries: list[Entry | Problem] = [*questions, *self._model_change(body, position, is_copy=is_copy)]
        fields, shown_blocks, results = _read_message_line(spoken_message.content, message, added)
        self._has_failed = False
        self._count_usage(fields.get("usage", {}))
        entries.append(
            self._entry("message", body, position, message=fields, blocks=shown_blocks, own_blocks=blocks, is_copy=is_copy)
        )
        for index, (result, text) in enumerate(_read_results(results, body, self._tools), 1):
            shown = [{"type": "text", "text": text}]
            entries.append(
                self._entry("message", body, position, suffix=str(index), message=result, blocks=shown, is_copy=is_copy)
            )
        self._positions.say(body["uuid"], spoken_message, fields.get("stopReason"))
        return entries + list(self._unknown_blocks(blocks, ASSISTANT_BLOCKS))

    def _failure(self, body: Json, position: Position, stop: str, message_text: str) -> list[Entry | Problem]:
        """Return an assistant message that failed or was aborted."""
        question = self._positions.take_question(position)
        message = {"role": "assistant", "stopReason": stop, "errorMessage": message_text}
        entry = self._entry("message", body, position, message=message)
        self._has_failed = True
        self._positions.say(body["uuid"], self._new_message(body), None if stop == "error" else stop)
        return [*question, entry]

    def _end(self, body: Json, position: Position) -> list[Entry | Problem]:
        """Return the entries for the end of a run in a log: its last answer or error, uncounted tokens, and facts about the run."""
        for ours, count in usage_of(body.get("usage")).items():
            self._total_usage[ours] = self._total_usage.get(ours, 0) + count
        usage = {ours: max(count - self._counted_usage.get(ours, 0), 0) for ours, count in self._total_usage.items()}
        answer, is_error = body.get("result"), body.get("is_error") is True
        entries: list[Entry | Problem] = []
        new_message = self._new_message(body)
        if not is_error or not self._has_failed:  # else a message said so already
            message = _last_message(body)
            if any(usage.values()):
                message["usage"] = usage
                self._count_usage(usage)
            if not answer and self._last is not None:
                answer = self._last.content.text
            blocks = [{"type": "text", "text": answer}] if isinstance(answer, str) and not is_error else []
            entries = [
                *self._positions.take_question(position),
                self._entry("message", body, position, message=message, blocks=blocks),
            ]
            self._positions.say(body["uuid"], new_message, message["stopReason"])
            position = new_message.position
        else:
            self._positions.stand_in(body["uuid"], position)
        facts = {name: body[name] for name in _RUN_FACTS if isinstance(body.get(name), str | int | float)}
        event: Json = {"event": "state_transition", "action": "run_result", **facts}
        run = self._entry(EVENTS, body, position, suffix="run", body_fields={"events": [event]})
        return [*entries, run, self._entry(TURN_END, body, position, suffix="end")]

    def _count_usage(self, usage: Json) -> None:
        for name, count in usage.items():
            self._counted_usage[name] = self._counted_usage.get(name, 0) + count

    def _new_message(self, body: Json) -> Message[_MessageSoFar]:
        """Begin a message that has one line and no id."""
        return self._positions.message(body["uuid"], None, None, side=self._is_side(body), begin=_MessageSoFar)

    def _model_change(self, body: Json, position: Position, *, is_copy: bool) -> list[Entry | Problem]:
        model, side = body["message"].get("model"), self._is_side(body)
        if not isinstance(model, str) or self._models.get(side) == model:
            return []
        self._models[side] = model
        return [self._entry("model_change", body, position, suffix="model", body_fields={"modelId": model}, is_copy=is_copy)]

    def _entry(
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
        return make_entry(
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
        is_subagents = self._is_side(body) and uuid in self._copied.by_subagents
        return is_subagents or uuid in self._copied.uuids or _is_forked(body)

    def _is_side(self, body: Json) -> bool:
        return body.get("isSidechain") is True and not self._is_subagent

    def _unknown_blocks(self, blocks: Sequence[Json], known_kinds: frozenset[str]) -> list[Problem]:
        problems: list[Problem] = []
        for block in blocks:
            kind = str(block.get("type"))
            if kind not in known_kinds:
                problems += self._unknown.report(f"block of type {kind}")
        return problems


@dataclass(slots=True)
class _MessageSoFar:
    """One message up to the current line: its text, the largest count of each kind of token, its blocks and stop reason."""

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
        return any((number_of(counts.get(name)) or 0) > self.usage.get(name, 0) for name in _USAGE)


def _field_problem(name: str, value: Any) -> Problem:
    if value is None:
        return Problem("missing_field", f"{name}: is missing")
    return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")


def _parent_problem(body: Json) -> Problem | None:
    parent = body.get("parentUuid")
    return None if parent is None else id_problem("parentUuid", parent)


def _queued_message(body: Json) -> Json | None:
    """Return the user line of a prompt that was queued while the agent worked; None for other attachments."""
    attachment = body.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
        return None
    line = {**body, "message": {"role": "user", "content": attachment.get("prompt")}}
    return line if attachment.get("commandMode", "prompt") == "prompt" else {**line, "isMeta": True}


def _error_text(error: Any) -> str:
    if isinstance(error, list):
        error = "; ".join(filter(None, (text for text in error if isinstance(text, str)))) or None
    if isinstance(error, dict):
        error = next((error[name] for name in ("message", "formatted") if isinstance(error.get(name), str)), None)
    return error if isinstance(error, str) else "the request failed"


def _compaction(subtype: str, body: Json) -> Json:
    metadata = body.get("compactMetadata")
    details = metadata if isinstance(metadata, dict) else {}
    event: Json = {"event": "context_event", "action": _COMPACTIONS[subtype]}
    if isinstance(details.get("trigger"), str):
        event["trigger"] = details["trigger"]
    for theirs, ours in (("preTokens", "tokens_before"), ("postTokens", "tokens_after"), ("durationMs", "duration_ms")):
        if type(details.get(theirs)) in (int, float):
            event[ours] = details[theirs]
    return event


def _message_blocks(body: Json) -> list[Json] | Problem:
    message = body.get("message")
    if not isinstance(message, dict):
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    return read_blocks("message.content", message.get("content"))


def _read_results(blocks: Sequence[Json], body: Json, tools: Mapping[str, str]) -> list[tuple[Json, str]]:
    """Return the tool results in a message: fields in OpenClaw's form, and the text.

    `body` is the line, which has details of a result if there is only one. `tools` are the names of the called tools by call id.
    """
    results = [block for block in blocks if _block_type(block).endswith("tool_result")]
    return [_build_result(block, body if len(results) == 1 else {}, tools) for block in results]


def _block_type(block: Json) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _build_result(block: Json, body: Json, tools: Mapping[str, str]) -> tuple[Json, str]:
    content = block.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else content
    text = text_of(parts)
    call = block.get("tool_use_id")
    failed = isinstance(content, dict) and str(content.get("type")).endswith("_error")
    message: Json = {"role": "toolResult", "isError": block.get("is_error") is True or failed}
    if isinstance(call, str):
        message["toolCallId"] = call
        if call in tools:
            message["toolName"] = tools[call]
    details = dict(_result_details(body.get("toolUseResult")))
    code = _EXIT_CODE.match(text) if message["isError"] else None
    if code is not None:
        details["exitCode"] = int(code.group(1))
    if details:
        message["details"] = details
    return message, text


def _result_details(result: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(result, dict):
        return
    for name in ("durationMs", "totalDurationMs"):
        if (duration := number_of(result.get(name))) is not None:
            yield "durationMs", duration
            break
    if isinstance(result.get("status"), str):
        yield "status", result["status"]


def _is_from_program(body: Json, text: str) -> bool:
    """Return whether a prompt comes from the program: a notification, a schedule, another agent."""
    origin = body.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    is_program = isinstance(kind, str) and kind not in ("human", "user")
    return body.get("promptSource") == "system" or is_program or text.startswith(_NOTIFICATION)


def _called_tools(blocks: Sequence[Json]) -> dict[str, str]:
    """Return the names of the tools that a line calls, by call id."""
    return {
        block["id"]: block["name"]
        for block in blocks
        if _block_type(block) in _CALLS and isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    }


def _read_message_line(so_far: _MessageSoFar, message: Json, blocks: Sequence[Json]) -> tuple[Json, list[Json], list[Json]]:
    """Return what a line adds to a message: fields and blocks in OpenClaw's form, and results of the provider's own tools.

    The text is that of the whole message so far, because that is the answer. A message that calls a tool has none.
    """
    calls = [
        call_block(block.get("id"), block.get("name"), block.get("input")) for block in blocks if _block_type(block) in _CALLS
    ]
    thoughts = [block for block in blocks if _block_type(block) == "thinking"]
    results = [block for block in blocks if _block_type(block).endswith("_tool_result")]
    text = text_of(blocks)
    if text and (so_far.text is None or len(so_far.text) < MAX_REPEATED_TEXT):
        so_far.text = text if so_far.text is None else f"{so_far.text}\n{text}"
    so_far.stop = stop = _stop_reason(so_far, message, has_calls=bool(calls), has_blocks=bool(blocks))
    fields: Json = {"role": "assistant", "stopReason": stop}
    if isinstance(message.get("model"), str):
        fields["model"] = message["model"]
    usage = _added_usage(so_far, message.get("usage"))
    if usage is not None:
        fields["usage"] = usage
    if stop != "tool_use":
        calls.append({"type": "text", "text": so_far.text or ""})
    return fields, thoughts + calls, results


def _stop_reason(so_far: _MessageSoFar, message: Json, *, has_calls: bool, has_blocks: bool) -> str | None:
    stop = message.get("stop_reason")
    if isinstance(stop, str):
        return stop
    if has_calls:
        return "tool_use"
    return None if has_blocks else so_far.stop


def _added_usage(so_far: _MessageSoFar, usage: Any) -> Json | None:
    """Return the usage that a line adds to the message's earlier lines; None if it repeats them."""
    if not isinstance(usage, dict) or number_of(usage.get("input_tokens")) is None:
        return None
    added: Json = {}
    for theirs, ours in _USAGE.items():
        count = number_of(usage.get(theirs)) or 0
        counted = so_far.usage.get(theirs, 0)
        added[ours] = max(count - counted, 0)
        so_far.usage[theirs] = max(count, counted)
    return added if any(added.values()) else None


def _last_message(body: Json) -> Json:
    """Return the message for a run's result: why the run stopped."""
    if body.get("is_error") is True:
        return {
            "role": "assistant",
            "stopReason": "error",
            "errorMessage": body.get("result") or _error_text(body.get("errors")),
        }
    stop = body.get("stop_reason")
    return {"role": "assistant", "stopReason": stop if isinstance(stop, str) and stop != "tool_use" else "end_turn"}


def _is_forked(body: Json) -> bool:
    """Return whether the line is marked as copied from another session."""
    origin = body.get("forkedFrom")
    return isinstance(origin, dict) and origin.get("sessionId") not in (None, body.get("sessionId"))


def session_of(line: dict[str, Any]) -> str | None:
    """Return the session of a line, or of the subagent that wrote it; None if it names none."""
    session, agent = line.get("sessionId"), line.get("agentId")
    if not is_identifier(session):
        return None
    subagent_session = f"{session}.agent-{agent}"
    if line.get("isSidechain") is True and is_identifier(agent) and len(subagent_session) <= MAX_ID:
        return subagent_session
    return str(session)


def question_digest(text: str) -> bytes:
    """Return the digest that identifies a repeated question."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def usage_of(usage: Any) -> dict[str, int | float]:
    """Return the token counts of a usage under OpenClaw's names."""
    counts = usage if isinstance(usage, dict) else {}
    tokens: dict[str, int | float] = {}
    for theirs, ours in _USAGE.items():
        count = number_of(counts.get(theirs))
        if count is not None:
            tokens[ours] = count
    return tokens


def texts_of(blocks: Sequence[Json]) -> str:
    """Return the text of a message without the program's reminders; media placeholders if there is no text."""
    own = [block for block in blocks if not _is_reminder(block)]
    return text_of(own) or placeholders_in(own)


def _is_reminder(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text.startswith(_REMINDER[0]) and text.rstrip().endswith(_REMINDER[1])


@dataclass(eq=False, slots=True)
class Position:
    """A position in the conversation. `leaf` is the entry that the next one follows; `is_under_way`: an answer is expected or continues.

    `question` is deferred until the agent answers it.
    """

    leaf: str | None
    is_under_way: bool = False
    question: Entry | None = None


@dataclass(eq=False, slots=True)
class Message(Generic[Content]):
    """One message of the model: its position, whose leaf is its latest line, and its content so far."""

    position: Position
    content: Content

    @property
    def has_begun(self) -> bool:
        """True if one of its lines was read."""
        return self.position.leaf is not None

    def follows(self, parent: Position) -> Position:
        """Return the position that the next line follows: the message's, or the parent's for its first line."""
        return parent if self.position.leaf is None else self.position


@dataclass(slots=True)
class Positions:
    """Positions of the lines so far, by uuid, and messages by id."""

    _by_uuid: dict[str, Position] = field(default_factory=dict)
    _messages: dict[tuple[bool, str, str | None], Message[Any]] = field(default_factory=dict)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._by_uuid

    def at(self, parent: Any) -> Position:
        """Return the position of a parent. An unknown parent gets a new position; null is the start."""
        if not isinstance(parent, str):
            return Position(None)
        return self._by_uuid.get(parent) or Position(parent)

    def stand_in(self, uuid: str, position: Position) -> None:
        """Give a line the position of its parent."""
        self._by_uuid.setdefault(uuid, position)

    def ask(self, uuid: str) -> None:
        """Record a question."""
        self._by_uuid.setdefault(uuid, Position(uuid, is_under_way=True))

    def ask_later(self, uuid: str, position: Position, question: Entry) -> None:
        """Record a text that becomes a question only when the agent answers it."""
        self._by_uuid.setdefault(uuid, Position(position.leaf, is_under_way=True, question=question))

    def take_question(self, position: Position) -> list[Entry]:
        """Remove and return the question deferred at a position, because the agent answers it now."""
        question, position.question = position.question, None
        if question is None:
            return []
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
        """Return the message with these ids, new if there is none yet. A line without a message id is a separate message."""
        message_key = message_id if isinstance(message_id, str) else f"/{uuid}"
        key = side, message_key, request_id if isinstance(request_id, str) else None
        return self._messages.setdefault(key, Message(Position(None), begin()))

    def say(self, uuid: str, message: Message[Any], stop: Any) -> None:
        """Record that this line is the latest of its message, and its stop reason."""
        message.position.leaf = uuid
        message.position.is_under_way = stop is None or stop == "tool_use"
        self._by_uuid.setdefault(uuid, message.position)
