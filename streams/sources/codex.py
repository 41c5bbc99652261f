"""Codex rollouts: `<root>/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, old ones compressed, archived ones elsewhere.

The first versions wrote `<root>/sessions/rollout-<date>-<id>.json`, one JSON object, whole each time.

A fork or a subagent may begin with the history of another session:

1. `session_meta` names the session that a rollout comes from: `forked_from_id`, or the parent of a subagent. Some versions then write that
   session's lines again, with new times and ordinals; others only refer to them, and a subagent may begin at once with its own task.
2. So the lines themselves decide: leading lines that also occur in the other rollout, in the same order, are copies and count there.
   Messages are compared by role and text, calls and outputs by call id, token counts by the session's total. Other lines count with the
   lines around them.
3. If the other rollout is missing, an older fork of the same session is used instead. If there is none, the copy counts.

Lines become entries:

1. A rollout is a list, not a tree: each entry continues the one before it. Its id is the line's `ordinal`, or its number in versions
   before there was one. `session_meta` names the session, and by `source` or `parent_thread_id` a subagent's.
2. `response_item` lines are what is sent to and returned by the model. Most `event_msg` lines repeat them for display; only those count
   that add something: results of commands (before their output), usage, failures, interruptions.
3. A text in the user's role is the user's if its kinds say so (`user.*`), or, in older versions, if it does not start like a text of the
   program. Other texts open an exchange, tagged `internal`, only if the agent answers them and nothing else.
4. `token_count` lines have the usage of the session and of the last response. Some are repeated: a line counts if its total differs from
   the previous one. The last usage and the window size give the fill of the context. Newer versions also write `token_usage_record`, the
   usage of one response by its id, before or after the `token_count`. Only this line reports requests that compact the history. Each
   response counts once.
5. A message with the summary of a compaction (`compaction_output`) is not an answer, but its usage counts.
6. Lines copied from another session give the other lines their position, and count in that session.
7. A turn that failed (`task_complete` with an error, `error`) ends in an error, `turn_aborted` in an interruption. Codex does not record its
   own retries, except as `stream_error`.
8. Until the middle of 2025 lines had no envelope of a type and a payload. The first line was the bare header, `{"id", "timestamp",
   "instructions", "git"}`; the others were bare items of the conversation, without times, and `{"record_type": "state"}` between them.
   Still older rollouts were one JSON object, of a session and its items.

The kinds that are skipped are those of version 0.169.0.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from audit.surrogates import mended
from streams.sources.agent_transcripts import (
    EVENTS,
    INTERNAL,
    SUBAGENT,
    AgentDialect,
    EntryPosition,
    UnknownKinds,
    build_agent_entry,
    build_call_block,
    find_transcripts,
    is_identifier,
    parse_object,
    read_agent_file,
    read_number,
)
from streams.sources.lines import (
    COMPRESSED,
    Line,
    Problem,
    decode_json,
    decode_line,
    json_type,
    may_be_copy,
    open_lines,
    visible_files,
)
from streams.sources.media import placeholders_in
from streams.sources.openclaw.entry import TURN_END, Entry, read_blocks, repair_body
from streams.sources.openclaw.text import text_of
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

DOCUMENT = ".json"
"""Suffix of a rollout that is a single JSON object."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Bytes of the largest single-object rollout that is read."""
_NAME_PATTERNS = ("rollout-*.jsonl*", f"rollout-*{DOCUMENT}")
_ID_PATTERN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FOLDERS = ("sessions", "archived_sessions")
"""Folders in which Codex keeps rollouts."""
Json = dict[str, Any]
_TOKEN_FIELDS = ("input_tokens", "output_tokens", "total_tokens")


def find_codex(path: Path) -> list[Path]:
    """Return the rollouts at a path, sorted: the file itself, or every `rollout-*.jsonl` below a folder, compressed ones included.

    Hidden files, symbolic links, and compressed rollouts whose plain file exists are left out. Raises InputError if the path does not exist.
    """
    if path.is_file():
        return [path]
    files = [
        file
        for file in find_transcripts(path, *_NAME_PATTERNS)
        if file.suffix in (COMPRESSED, DOCUMENT) or may_be_copy(file.name)
    ]
    plain = set(files)
    return [file for file in files if file.suffix != COMPRESSED or file.with_suffix("") not in plain]


def read_codex(path: Path, context: ReadingContext) -> Reading:
    """Read one rollout. Raises InputError if the file cannot be opened."""
    stem = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl").removesuffix(DOCUMENT)
    named = _ID_PATTERN.search(stem)
    session_id = named.group() if named else stem
    if path.suffix == DOCUMENT:
        return read_agent_file(path, context, CodexDialect(), session_id=session_id, agent=SOURCE, split_lines=_document_lines)
    try:
        copied = _count_copied(path)
    except (OSError, zstd.ZstdError):
        copied = 0  # the reading itself says what is wrong
    return read_agent_file(path, context, CodexDialect(copied), session_id=session_id, agent=SOURCE)


def _document_lines(stream: BinaryIO) -> list[Line]:
    document = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"has more than {MAX_DOCUMENT_BYTES} bytes")
    return document_lines(document)


def _count_copied(path: Path) -> int:
    """Return the number of lines at the beginning of a rollout that were copied from another session.

    If every line so far was copied, later lines may be as well, so the number is sys.maxsize. Raises OSError or ZstdError if the rollout
    cannot be read.
    """
    header = read_header(path)
    if header is None or not header.parents:
        return 0
    return max((_count_matching_lines(path, other) for other in _find_originals(path, header)), default=0)


def _count_matching_lines(path: Path, original: Path) -> int:
    try:
        stat = original.stat()
        positions = _read_positions(original, stat.st_size, stat.st_mtime_ns)
    except (OSError, zstd.ZstdError):
        return 0
    copied, reached = 0, 0
    for number, content in _read_contents(path):
        later = positions.get(content, ())
        index = bisect_left(later, reached)
        if index == len(later):
            return copied
        copied, reached = number, later[index] + 1
    return sys.maxsize


@lru_cache(maxsize=64)
def _read_positions(path: Path, _size: int, _modified_ns: int) -> Mapping[bytes, list[int]]:
    """Return the positions of each content in a rollout. Cached because many forks may have the same parent."""
    positions: dict[bytes, list[int]] = {}
    for position, (_, content) in enumerate(_read_contents(path)):
        positions.setdefault(content, []).append(position)
    return positions


def _read_contents(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the line number and a digest of the content of each line that identifies a conversation."""
    with open_lines(path) as lines:
        for line in lines:
            body = decode_line(line)
            parts = _identify_line(wrap_in_envelope(body)) if isinstance(body, dict) else None
            if parts is not None:
                yield line.number, _digest_parts(parts)


def _identify_line(line: Json) -> tuple[Any, ...] | None:
    kind, payload = line.get("type"), line.get("payload")
    if not isinstance(payload, dict):
        return None
    item = payload.get("type")
    if kind == "event_msg" and item == "token_count":
        info = payload.get("info")
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        return ("tokens", *(read_number(total.get(name)) for name in _TOKEN_FIELDS)) if isinstance(total, dict) else None
    if kind != "response_item":
        return None
    if item == "message":
        return _message(payload)
    if item in CALLS or item in OUTPUTS:
        call = payload.get("call_id", payload.get("id"))
        return None if call is None else ("output" if item in OUTPUTS else "call", call)
    return None


def _message(payload: Json) -> tuple[Any, ...] | None:
    """Return role and text of a message by the user or the model; None for texts of the program, which differ in every rollout."""
    role, blocks = payload.get("role"), read_blocks("content", payload.get("content"))
    if role not in ("user", "assistant") or not isinstance(blocks, list):
        return None
    if role == "user":
        text = find_user_text(payload, blocks)
        return None if text is None else (role, text)
    return role, text_of([{**block, "type": "text"} for block in blocks])


def _digest_parts(parts: Iterable[Any]) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=16).digest()


def _find_originals(path: Path, header: Header) -> list[Path]:
    """Return the rollouts that lines may have been copied from: the parents, else older forks of the same session."""
    others = [(file, other) for file in _list_rollouts(path) if (other := _try_read_header(file)) is not None]
    parents = [file for file, other in others if other.session in header.parents]
    return parents or [
        file
        for file, other in others
        if other.parents & header.parents and (other.started_at, other.session) < (header.started_at, header.session)
    ]


def _list_rollouts(path: Path) -> list[Path]:
    """Return the rollouts in the same Codex home; outside a home, those below the same root folder."""
    parents = path.resolve().parents
    home = next((folder.parent for folder in parents if folder.name in FOLDERS), None)
    folders = (
        [next(folder for folder in parents if not folder.name.isdigit())] if home is None else [home / name for name in FOLDERS]
    )
    return [
        file
        for folder in folders
        if folder.is_dir()
        for file in visible_files(folder, ("rollout-*.jsonl", f"rollout-*{COMPRESSED}"))
    ]


def _try_read_header(path: Path) -> Header | None:
    try:
        return read_header(path)
    except (OSError, zstd.ZstdError):
        return None


class Header(NamedTuple):
    """The first line of a rollout: its session, its start time, and the sessions it may have copied from."""

    session: str
    started_at: str
    parents: frozenset[str]


def read_header(path: Path) -> Header | None:
    """Return the header in the first line of a rollout; None if the line names no session."""
    try:
        return _read_header(path)
    except LookupError:
        return None


@lru_cache(maxsize=65_536)
def _read_header(path: Path) -> Header:
    """Return the header. Raises LookupError if there is none yet. Cached because a header never changes."""
    with open_lines(path) as lines:
        for line in lines:
            body = decode_line(line)
            meta = wrap_in_envelope(body) if isinstance(body, dict) else {}
            payload = meta.get("payload")
            if meta.get("type") != "session_meta" or not isinstance(payload, dict) or not is_identifier(payload.get("id")):
                break
            parents = frozenset(filter(is_identifier, _parent_ids(payload))) - {payload["id"]}
            return Header(payload["id"], str(payload.get("timestamp") or ""), parents)
    raise LookupError(path)


def _parent_ids(meta: Json) -> Iterator[Any]:
    yield meta.get("forked_from_id")
    yield meta.get("parent_thread_id")
    source: Any = meta.get("source")
    for name in ("subagent", "thread_spawn", "parent_thread_id"):
        source = source.get(name) if isinstance(source, dict) else None
    yield source


SOURCE = "codex"
_TEXT_TYPES = {"input_text": "text", "output_text": "text", "text": "text"}
_LineReader = Callable[[Json, Json], list[Entry | Problem] | Problem]
CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "tool_search_call", "web_search_call", "image_generation_call"}
)
"""Kinds of items that call a tool."""
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output", "mcp_tool_call_output"})
"""Kinds of items that hold the output of a tool."""
_ARGUMENTS = ("arguments", "input", "action", "query")
_PASSTHROUGH = "internal_chat_message_metadata_passthrough"
_CONTEXT_PREFIXES = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<collaboration_mode>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<skill>",
    "<codex_internal_context",
    "# AGENTS.md instructions",
)
"""Prefixes of texts that Codex wrote in the user's role, in versions that do not name the author."""
_OUTPUT_HEADER_CHARACTERS = 1024
_EXIT_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,9})$", re.MULTILINE)
_WALL_TIME = re.compile(r"^Wall time: (\d{1,9}(?:\.\d{1,9})?) seconds$", re.MULTILINE)
_REJECTIONS = ("unsupported call: ", "unsupported custom tool call: ", "failed to parse function arguments: ")
_OUTPUT = "\nOutput:\n"
_FAILED_STATUSES = frozenset({"failed", "declined", "errored"})
_MAX_OUTCOMES = 100_000
_UsageLine = Literal["token_count", "token_usage_record"]
_MAX_UNMATCHED = 16
"""Usages kept until the line of the other kind arrives: several requests may run at once."""
IGNORED_ITEMS = frozenset(
    {
        "compaction",
        "compaction_trigger",
        "context_compaction",
        "configuration_update",
        "ghost_snapshot",
        "other",
        "additional_tools",
    }
)
"""Kinds of `response_item` without readable content."""
_ITEMS = CALLS | OUTPUTS | IGNORED_ITEMS | {"message", "reasoning"}
STATE = "state"
"""Envelope type of lines that only mark the program's state."""
IGNORED_LINES = frozenset(
    {
        "world_state",
        "inter_agent_communication_metadata",
        "state",
    }
)
"""Kinds of lines that do not record what the agent did."""
DISPLAY_EVENTS = frozenset(
    {
        "agent_message",
        "agent_message_content_delta",
        "agent_message_delta",
        "agent_reasoning",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_section_break",
        "background_event",
        "context_compacted",
        "deprecation_notice",
        "entered_review_mode",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_output_delta",
        "exited_review_mode",
        "hook_completed",
        "hook_started",
        "image_generation_begin",
        "image_generation_end",
        "item_started",
        "mcp_startup_complete",
        "mcp_startup_update",
        "mcp_tool_call_begin",
        "model_reroute",
        "patch_apply_begin",
        "patch_apply_updated",
        "plan_delta",
        "plan_update",
        "raw_response_completed",
        "raw_response_item",
        "reasoning_content_delta",
        "session_configured",
        "shutdown_complete",
        "skills_update_available",
        "sub_agent_activity",
        "terminal_interaction",
        "thread_goal_updated",
        "thread_name_updated",
        "thread_rolled_back",
        "thread_settings_applied",
        "turn_diff",
        "undo_completed",
        "undo_started",
        "user_message",
        "view_image_tool_call",
        "warning",
        "web_search_begin",
        "web_search_end",
        "collab_agent_spawn_begin",
        "collab_agent_spawn_end",
        "collab_agent_interaction_begin",
        "collab_agent_interaction_end",
        "collab_waiting_begin",
        "collab_waiting_end",
        "collab_close_begin",
        "collab_close_end",
        "dynamic_tool_call_request",
        "dynamic_tool_call_response",
        "elicitation_request",
        "elicitation_abandoned",
        "guardian_assessment",
    }
)
"""Kinds of `event_msg` that repeat other lines for display."""


class CodexDialect(AgentDialect):
    """Codex's dialect. `copied` is the number of lines at the start that were copied from another session."""

    source = SOURCE
    id_field = "ordinal"
    ends_turns = True

    def __init__(self, copied: int = 0) -> None:
        self._copied = copied
        self._unknown = UnknownKinds()
        self._outcomes = Outcomes()
        self._usage = _UsageCounter()
        self._is_named = False
        self._is_subagent = False
        self._provider: str | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._tools: dict[str, str] = {}
        self._deferred: Entry | None = None
        """A text that the program wrote, which becomes a question when the agent answers it."""
        self._has_question = True
        """Whether the turn has a question. Lines before the first turn belong to the turn before them."""
        self._is_under_way = False
        self._has_failed = False
        self._stop, self._text = "tool_use", ""
        self._line_readers: Mapping[str, _LineReader] = {
            "session_meta": self._read_session_meta,
            "turn_context": self._read_settings,
            "compacted": self._read_compaction,
            "response_item": self._read_item,
            "event_msg": self._read_event,
            "token_usage_record": self._read_usage_record,
        }
        self._event_readers: Mapping[str, Callable[[Json, Json], list[Entry | Problem]]] = {
            **dict.fromkeys(("task_started", "turn_started"), self._start_turn),
            **dict.fromkeys(("task_complete", "turn_complete"), self._end_turn),
            **dict.fromkeys(("error", "stream_error"), self._read_failure),
            "token_count": self._read_token_count,
            "turn_aborted": self._read_abort,
        }

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entries of one line."""
        entries = self._read_line(line, wrap_in_envelope(body))
        if isinstance(entries, Problem) or line.number > self._copied:
            return entries
        return [entry if isinstance(entry, Problem) else msgspec.structs.replace(entry, is_copy=True) for entry in entries]

    def _read_line(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        kind, payload = body.get("type"), body.get("payload")
        if not isinstance(kind, str):
            fault = "is missing" if kind is None else f"is {json_type(kind)}, not a string"
            return Problem("missing_field" if kind is None else "wrong_type", f"type: {fault}")
        read = None if kind in IGNORED_LINES else self._line_readers.get(kind)
        if read is None:
            return [] if kind in IGNORED_LINES else list(self._unknown.report(f"type {kind}"))
        if not isinstance(payload, dict):
            return Problem("wrong_type", f"payload: is {json_type(payload)}, not an object")
        mended = body if line.is_whole else repair_body(body)
        mended["_id"] = f"ordinal-{body['ordinal']}" if type(body.get("ordinal")) is int else f"line-{line.number}"
        return read(mended, mended["payload"])

    def _read_session_meta(self, line: Json, payload: Json) -> list[Entry | Problem]:
        if self._is_named or not is_identifier(payload.get("id")):
            return []
        self._is_named = True
        origin = payload.get("source")
        spawned = isinstance(origin, dict) and "subagent" in origin
        self._is_subagent = spawned or isinstance(payload.get("parent_thread_id"), str)
        provider = payload.get("model_provider")
        self._provider = provider if isinstance(provider, str) else None
        return [build_agent_entry("session", payload["id"], line)]

    def _read_settings(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Report changes of the model and of its reasoning effort."""
        entries: list[Entry | Problem] = []
        model, effort = payload.get("model"), payload.get("effort")
        if isinstance(model, str) and model != self._model:
            self._model = model
            fields = {"modelId": model, "provider": self._provider}
            entries.append(build_agent_entry("model_change", line["_id"], line, body=fields))
        if isinstance(effort, str) and effort != self._effort:
            self._effort = effort
            name = f"{line['_id']}/effort"
            entries.append(build_agent_entry("thinking_level_change", name, line, body={"thinkingLevel": effort}))
        return entries

    def _read_item(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
        kind = payload.get("type")
        if kind == "message":
            return self._message(line, payload)
        if kind == "reasoning":
            thought = _read_summary(payload)
            return self._add_answer(line, [{"type": "thinking", "thinking": thought}], stop="tool_use") if thought else []
        if isinstance(kind, str) and kind in CALLS:
            block = build_call(payload)
            if "id" in block and "name" in block:
                self._tools[block["id"]] = block["name"]
            return self._add_answer(line, [block], stop="tool_use")
        if isinstance(kind, str) and kind in OUTPUTS:
            message, text = build_output(payload, self._tools, self._outcomes)
            return [build_agent_entry("message", line["_id"], line, message=message, blocks=[{"type": "text", "text": text}])]
        if isinstance(kind, str) and kind in IGNORED_ITEMS:
            return []
        return list(self._unknown.report(f"response_item of type {kind}"))

    def _message(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
        role = payload.get("role")
        blocks = read_blocks("payload.content", payload.get("content"))
        if isinstance(blocks, Problem):
            return blocks
        if not isinstance(role, str):
            return Problem("wrong_type", f"payload.role: is {json_type(role)}, not a string")
        if role == "user":
            return self._read_user(line, payload, blocks)
        if role != "assistant" or _is_summary(line):
            return []
        texts = [{**block, "type": _TEXT_TYPES.get(str(block.get("type")), "other")} for block in blocks]
        is_remark = payload.get("phase") == "commentary"
        return self._add_answer(line, [] if is_remark else texts, stop="tool_use" if is_remark else "stop")

    def _read_user(self, line: Json, payload: Json, blocks: Sequence[Json]) -> list[Entry | Problem]:
        text = find_user_text(payload, blocks)
        is_users = text is not None
        if text is None:
            text = text_of([{**block, "type": "text"} for block in blocks])
        origin = (SUBAGENT if self._is_subagent else {}) if is_users else INTERNAL
        shown = [{"type": "text", "text": text}]
        question = build_agent_entry("message", line["_id"], line, message={"role": "user", **origin}, blocks=shown)
        if not is_users:
            self._deferred = None if self._is_under_way else question
            return []
        self._deferred = None
        self._has_question = self._is_under_way = True
        return [question]

    def _add_answer(self, line: Json, blocks: Sequence[Json], *, stop: str, **fields: Any) -> list[Entry | Problem]:
        """Return an assistant message, preceded by the question that was deferred until its answer, if any."""
        question = None if self._is_under_way else self._deferred
        self._deferred = None
        is_alone = not self._has_question and question is None
        self._has_question = self._has_question or question is not None
        self._is_under_way = stop in ("tool_use", "error")
        self._has_failed = stop == "error"
        message: Json = {"role": "assistant", "stopReason": stop, **fields, **self._model_fields()}
        self._stop = "stop" if stop == "stop" else "tool_use"
        self._text = text_of(blocks)
        entry = build_agent_entry(
            "message", line["_id"], line, position=EntryPosition(linked=is_alone), message=message, blocks=blocks
        )
        return [entry] if question is None else [question, entry]

    def _read_event(self, line: Json, payload: Json) -> list[Entry | Problem]:
        kind = str(payload.get("type"))
        read = self._event_readers.get(kind)
        if read is not None:
            return read(line, payload)
        if self._outcomes.note(kind, payload) or kind in DISPLAY_EVENTS:
            return []
        return list(self._unknown.report(f"event_msg of type {kind}"))

    def _start_turn(self, _line: Json, _payload: Json) -> list[Entry | Problem]:
        """Begin a turn."""
        self._has_question = self._is_under_way = False
        return []

    def _end_turn(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """End a turn, perhaps with an error that no earlier line reported."""
        error = payload.get("error")
        entries: list[Entry | Problem] = []
        if isinstance(error, dict) and not self._has_failed:
            entries = self._read_failure(line, error)
        self._is_under_way = False
        return [*entries, _build_turn_end(line)]

    def _read_failure(self, line: Json, error: Json) -> list[Entry | Problem]:
        return self._add_answer(line, [], stop="error", errorMessage=_failure_text(error))

    def _read_abort(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return [*self._add_answer(line, [], stop="aborted", errorMessage=_failure_text(payload)), _build_turn_end(line)]

    def _read_token_count(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Report the usage of one response, and how full the context is."""
        usage, context = self._usage.take(payload.get("info"))
        entries = self._build_usage(line, usage)
        if context is not None:
            entries.append(
                self._build_events(f"{line['_id']}/context", line, {"event": "context_event", "action": "usage", **context})
            )
        return entries

    def _read_usage_record(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return self._build_usage(line, self._usage.take_record(payload))

    def _build_usage(self, line: Json, usage: Json | None) -> list[Entry | Problem]:
        """Return a message with the usage of a response. It repeats the last text, so that the answer stays the same."""
        if usage is None:
            return []
        message: Json = {"role": "assistant", "stopReason": self._stop, "usage": usage, **self._model_fields()}
        return [build_agent_entry("message", line["_id"], line, message=message, blocks=[{"type": "text", "text": self._text}])]

    def _model_fields(self) -> Json:
        fields = {"provider": self._provider, "model": self._model}
        return {name: value for name, value in fields.items() if value is not None}

    def _read_compaction(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Report that a summary replaced the history."""
        event: Json = {"event": "context_event", "action": "compaction"}
        if self._usage.context_tokens is not None:
            event["tokens_before"] = self._usage.context_tokens
        if isinstance(payload.get("message"), str):
            event["summary"] = payload["message"]
        return [self._build_events(line["_id"], line, event)]

    def _build_events(self, name: str, line: Json, *events: Json) -> Entry:
        return build_agent_entry(EVENTS, name, line, body={"events": list(events)})


class _UsageCounter:
    """Counts each response once. `context_tokens` is the size of the context at the last one."""

    def __init__(self) -> None:
        self.context_tokens: int | float | None = None
        self._total: Any = None
        self._context: Any = None
        self._responses: set[str] = set()
        self._unmatched: deque[tuple[_UsageLine, Json]] = deque(maxlen=_MAX_UNMATCHED)

    def take_record(self, record: Json) -> Json | None:
        """Return the usage of the response in a `token_usage_record`; None if it is missing or not new."""
        response = record.get("response_id")
        usage = record.get("usage")
        if not isinstance(usage, dict) or response in self._responses:
            return None
        if isinstance(response, str):
            self._responses.add(response)
        return self._count_once("token_usage_record", _convert_usage(usage))

    def take(self, info: Any) -> tuple[Json | None, Json | None]:
        """Return the usage in a `token_count`, and how full the context is; None for each that is missing or not new."""
        if not isinstance(info, dict):
            return None, None
        total, last = info.get("total_token_usage"), info.get("last_token_usage")
        last = last if isinstance(last, dict) else {}
        is_new = isinstance(total, dict) and total != self._total
        if is_new:
            self._total = total
        usage = self._count_once("token_count", _convert_usage(last)) if is_new else None
        return usage, self._measure_context(last, info.get("model_context_window"))

    def _count_once(self, line: _UsageLine, usage: Json | None) -> Json | None:
        """Return a usage unless a line of the other kind already reported it."""
        if usage is None:
            return None
        for index, (other, counted) in enumerate(self._unmatched):
            if other != line and counted == usage:
                del self._unmatched[index]
                return None
        self._unmatched.append((line, usage))
        return usage

    def _measure_context(self, last: Json, window: Any) -> Json | None:
        tokens, size = read_number(last.get("total_tokens")), read_number(window)
        if tokens is None or tokens < 0:
            return None
        self.context_tokens = tokens
        if size is None or size <= 0 or (tokens, size) == self._context:
            return None
        self._context = tokens, size
        return {"saturation": round(100 * tokens / size, 2), "tokens": tokens, "context_window": size}


def _convert_usage(last: Json) -> Json | None:
    read, written = read_number(last.get("input_tokens")), read_number(last.get("output_tokens"))
    if read is None or written is None or read < 0 or written < 0:
        return None
    cached = min(max(read_number(last.get("cached_input_tokens")) or 0, 0), read)
    # Codex counts what the cache gave and took among the input; OpenClaw's form has each apart.
    stored = min(max(read_number(last.get("cache_write_input_tokens")) or 0, 0), read - cached)
    return {"input": read - cached - stored, "cacheRead": cached, "cacheWrite": stored, "output": written}


def _read_summary(payload: Json) -> str:
    """Return the readable part of a reasoning item: its text, else its summary."""
    for name in ("content", "summary"):
        parts = payload.get(name)
        texts = (
            [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            if isinstance(parts, list)
            else []
        )
        if any(texts):
            return "\n\n".join(texts)
    return ""


def _is_summary(line: Json) -> bool:
    metadata = line.get("metadata")
    return isinstance(metadata, dict) and metadata.get("compaction_output") is True


def _build_turn_end(line: Json) -> Entry:
    return build_agent_entry(TURN_END, f"{line['_id']}/end", line)


def _failure_text(failure: Any) -> str:
    if isinstance(failure, dict):
        failure = next((failure[name] for name in ("message", "reason") if isinstance(failure.get(name), str)), None)
    return failure if isinstance(failure, str) else "the turn failed"


class Outcomes:
    """Outcomes of commands and calls, by call id. Codex reports them for display before the output goes to the model."""

    def __init__(self) -> None:
        self._by_call: dict[str, Json] = {}

    def note(self, kind: str, payload: Json) -> bool:
        """Note an `event_msg` that reports the end of a call. Return whether its kind is one that does."""
        if kind == "item_completed":
            item = payload.get("item")
            if isinstance(item, dict):
                self._add_outcome(item.get("id"), item)
            return True
        if kind in ("exec_command_end", "mcp_tool_call_end", "patch_apply_end"):
            self._add_outcome(payload.get("call_id"), payload)
            return True
        return False

    def of(self, call_id: Any) -> Json:
        """Return what was reported about the end of a call."""
        return self._by_call.get(call_id, {}) if isinstance(call_id, str) else {}

    def _add_outcome(self, call_id: Any, ending: Json) -> None:
        if not isinstance(call_id, str) or len(self._by_call) >= _MAX_OUTCOMES:
            return
        facts: Json = {}
        if (code := read_number(ending.get("exit_code"))) is not None:
            facts["exitCode"] = code
        if (duration := _milliseconds(ending.get("duration"))) is not None:
            facts["durationMs"] = duration
        if isinstance(ending.get("status"), str):
            facts["status"] = ending["status"]
        result = ending.get("result")
        failed = ending.get("success") is False or (isinstance(result, dict) and "Err" in result)
        if failed or facts.get("status") in _FAILED_STATUSES:
            facts["failed"] = True
        if facts:
            self._by_call[call_id] = facts


def _milliseconds(duration: Any) -> float | None:
    if not isinstance(duration, dict):
        return None
    seconds, nanos = read_number(duration.get("secs")), read_number(duration.get("nanos"))
    if seconds is None or nanos is None:
        return None
    return round(seconds * 1000 + nanos / 1_000_000, 3)


def find_user_text(payload: Json, blocks: Sequence[Json]) -> str | None:
    """Return the user's own text in a message of the user's role; None if nothing of it is the user's."""
    passed = payload.get(_PASSTHROUGH)
    kinds = passed.get("content_item_kinds") if isinstance(passed, dict) else None
    if isinstance(kinds, list) and len(kinds) == len(blocks) and kinds:
        own = [block for block, kind in zip(blocks, kinds, strict=True) if isinstance(kind, str) and kind.startswith("user.")]
        return _user_text(own) if own else None
    own = [block for block in blocks if not _is_context(block)]
    return _user_text(own) if own or not blocks else None


def _user_text(blocks: Sequence[Json]) -> str:
    """Return the text of a user's blocks without the tags that Codex puts around an image; media placeholders if there is no text."""
    shown = placeholders_in(blocks)
    texts = [block for block in blocks if not (shown and _is_image_tag(block))]
    return text_of([{**block, "type": "text"} for block in texts]) or shown


def _is_image_tag(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and (
        text in ("<image>", "</image>") or (text.startswith("<image name=") and text.endswith(">"))
    )


def _is_context(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text.lstrip().startswith(_CONTEXT_PREFIXES)


def build_call(payload: Json) -> Json:
    """Return the block of a call. The tool's name includes its namespace."""
    name: Any = payload.get("name")
    if not isinstance(name, str):
        name = str(payload["type"]).removesuffix("_call")
    elif isinstance(payload.get("namespace"), str) and payload["namespace"]:
        name = f"{payload['namespace']}.{name}"
    arguments = next((payload[field] for field in _ARGUMENTS if payload.get(field) is not None), None)
    parsed = parse_object(arguments)
    call_id = payload.get("call_id", payload.get("id"))
    return build_call_block(call_id, name, arguments if parsed is None else parsed)


def build_output(payload: Json, tools: Mapping[str, str], outcomes: Outcomes) -> tuple[Json, str]:
    """Return the output of a tool: fields in OpenClaw's form, and the text."""
    text, details = _read_output(payload.get("output", payload.get("tools")))
    call_id = payload.get("call_id")
    facts = dict(outcomes.of(call_id))
    failed = facts.pop("failed", False) or details.pop("failed", False) or text.startswith(_REJECTIONS)
    details |= facts
    code = details.get("exitCode")
    message: Json = {"role": "toolResult", "isError": bool(failed or (code is not None and code != 0))}
    if isinstance(call_id, str):
        message["toolCallId"] = call_id
        if call_id in tools:
            message["toolName"] = tools[call_id]
    if details:
        message["details"] = details
    return message, text


def _read_output(output: Any) -> tuple[str, Json]:
    """Return the text of an output, and the details that its form or its first lines give about the call."""
    details: Json = {}
    if isinstance(output, dict):
        details["failed"] = output.get("success") is False
        output = output.get("content")
    if isinstance(output, list):
        parts = [part for part in output if isinstance(part, dict)]
        return text_of([{**part, "type": "text"} for part in parts]), details
    if not isinstance(output, str):
        return "", details
    wrapped = parse_object(output)
    metadata = None if wrapped is None else wrapped.get("metadata")
    if wrapped is not None and isinstance(metadata, dict) and isinstance(wrapped.get("output"), str):
        if (code := read_number(metadata.get("exit_code"))) is not None:
            details["exitCode"] = code
        if (seconds := read_number(metadata.get("duration_seconds"))) is not None:
            details["durationMs"] = round(seconds * 1000, 3)
        return wrapped["output"], details
    head, separator, rest = output[:_OUTPUT_HEADER_CHARACTERS].partition(_OUTPUT)
    if separator:
        if (exited := _EXIT_CODE.search(head)) is not None:
            details["exitCode"] = int(exited.group(1))
        if (took := _WALL_TIME.search(head)) is not None:
            details["durationMs"] = round(float(took.group(1)) * 1000, 3)
        if details:
            return rest + output[_OUTPUT_HEADER_CHARACTERS:], details
    return output, details


def wrap_in_envelope(line: Json) -> Json:
    """Return a line in the current form; a line in an unknown form is returned unchanged."""
    if "payload" in line:
        return line
    kind = line.get("type")
    if kind is None and line.get("record_type") == STATE:
        return {"type": STATE, "payload": {}}
    if kind is None and "id" in line and "timestamp" in line:
        return {"type": "session_meta", "timestamp": line["timestamp"], "payload": line}
    if isinstance(kind, str) and kind in _ITEMS:
        return {"type": "response_item", "timestamp": line.get("timestamp"), "payload": line}
    return line


def document_lines(document: bytes) -> list[Line]:
    """Return the lines of a single-object rollout: its session, then its items. Raises ValueError if it is not one."""
    try:
        rollout = msgspec.convert(decode_json(document), _Document)
    except msgspec.ValidationError as error:
        raise ValueError("has no session with its items") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    parts = (msgspec.json.encode(mended(part)) for part in (rollout.session, *rollout.items))
    return [Line(number, part, len(part), ended=True) for number, part in enumerate(parts, 1)]


class _Document(msgspec.Struct):
    session: Json
    items: list[Any]
