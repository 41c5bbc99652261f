"""Codex rollouts: `<root>/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`. Old ones are compressed, archived ones are elsewhere.

The first versions wrote `<root>/sessions/rollout-<date>-<id>.json`, a single JSON object that was rewritten each time.

A fork or a subagent may start with the history of another session:

1. `session_meta` names the session that a rollout comes from: `forked_from_id`, or the parent of a subagent. Some versions then write the lines
   of that session again, with new times and ordinals. Others only refer to them, and a subagent may start directly with its own task.
2. So the lines themselves decide: leading lines that also occur in the other rollout, in the same order, are copies and count there. Messages
   are compared by role and text, calls and outputs by call id, token counts by the total of the session. Other lines count with their
   neighbours.
3. If the other rollout is missing, an older fork of the same session takes its place. If there is none either, the copy counts.

Lines become entries:

1. A rollout is a list, not a tree: each entry follows the previous one. The id of an entry is the line's `ordinal` or, in versions without
   ordinals, the line's number. `session_meta` names the session. Its `source` or `parent_thread_id` identifies a subagent's session.
2. `response_item` lines are what is sent to the model and returned by it. Most `event_msg` lines repeat them for display. The others are read:
   results of commands (which precede their output), usage, failures, interruptions.
3. A text in the user's role is the user's if its kinds say so (`user.*`) or, in older versions, if it does not start like a text of the
   program. Other texts open an exchange tagged `internal`, but only if the agent answers them and no user text precedes the answer.
4. `token_count` lines have the usage of the session and of the last response. Some are repeated: a line counts if its total differs from the
   previous one. The last usage and the window size give the fill level of the context. Newer versions also write `token_usage_record`, the usage
   of one response by its id, before or after the `token_count`. It is the only line about requests that compact the history. Each response
   counts once.
5. A message with the summary of a compaction (`compaction_output`) is not an answer, but its usage counts.
6. Lines copied from another session give other lines their position, and count in that session.
7. A failed turn (`task_complete` with an error, `error`) ends in an error, and `turn_aborted` ends in an interruption. Codex does not record its
   own retries, except as `stream_error`.
8. Until the middle of 2025, lines had no envelope with a type and a payload. The first line was the bare header, `{"id", "timestamp",
   "instructions", "git"}`. The other lines were bare items of the conversation without times, and `{"record_type": "state"}` between them. Even
   older rollouts were one JSON object with a session and its items.

The skipped kinds are those of version 0.169.0.
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

from audit.surrogates import repair_value
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
"""Maximum size of a single-object rollout that is read."""
_NAME_PATTERNS = ("rollout-*.jsonl*", f"rollout-*{DOCUMENT}")
_ID_PATTERN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FOLDERS = ("sessions", "archived_sessions")
"""Folders in which Codex keeps rollouts."""
Json = dict[str, Any]
_TOKEN_FIELDS = ("input_tokens", "output_tokens", "total_tokens")
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
"""Prefixes of texts that Codex writes in the user's role, for versions that do not name the author."""
_OUTPUT_HEADER_CHARACTERS = 1024
_EXIT_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,9})$", re.MULTILINE)
_WALL_TIME = re.compile(r"^Wall time: (\d{1,9}(?:\.\d{1,9})?) seconds$", re.MULTILINE)
_REJECTIONS = ("unsupported call: ", "unsupported custom tool call: ", "failed to parse function arguments: ")
_OUTPUT = "\nOutput:\n"
_FAILED_STATUSES = frozenset({"failed", "declined", "errored"})
_MAX_OUTCOMES = 100_000
_UsageLine = Literal["token_count", "token_usage_record"]
_MAX_UNMATCHED = 16
"""Maximum number of usages kept until the line of the other kind arrives. Several requests may run at once."""
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
"""Kinds of lines that record nothing about the agent's work."""
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
"""Kinds of `event_msg` that only repeat other lines for display."""
END_EVENTS = frozenset({"item_completed", "exec_command_end", "mcp_tool_call_end", "patch_apply_end"})
"""Kinds of `event_msg` that report the end of a call."""


def find_codex(path: Path) -> list[Path]:
    """Return the rollouts at a path, sorted: the file itself, or every `rollout-*.jsonl` below a folder, including compressed ones.

    Hidden files, symbolic links, and compressed rollouts whose plain file exists are left out. Raises InputError if the path does not exist.
    """
    if path.is_file():
        return [path]
    candidates = find_transcripts(path, *_NAME_PATTERNS)
    files = [file for file in candidates if file.suffix in (COMPRESSED, DOCUMENT) or may_be_copy(file.name)]
    plain_files = set(files)
    return [file for file in files if file.suffix != COMPRESSED or file.with_suffix("") not in plain_files]


def read_codex(path: Path, context: ReadingContext) -> Reading:
    """Read one rollout. Raises InputError if the file cannot be opened."""
    stem = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl").removesuffix(DOCUMENT)
    id_in_name = _ID_PATTERN.search(stem)
    session_id = id_in_name.group() if id_in_name else stem
    if path.suffix == DOCUMENT:
        return read_agent_file(
            path, context, CodexDialect(), session_id=session_id, agent=SOURCE, split_lines=_read_document_lines
        )
    try:
        copied = _count_copied(path)
    except (OSError, zstd.ZstdError):
        copied = 0  # the reading below reports the error
    return read_agent_file(path, context, CodexDialect(copied), session_id=session_id, agent=SOURCE)


def _read_document_lines(stream: BinaryIO) -> list[Line]:
    document = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"has more than {MAX_DOCUMENT_BYTES} bytes")
    return document_lines(document)


def _count_copied(path: Path) -> int:
    """Return the number of leading lines of a rollout that were copied from another session.

    If all lines were copied so far, later ones may be copies too, so the number is sys.maxsize. Raises OSError or ZstdError if the rollout
    cannot be read.
    """
    header = read_header(path)
    if header is None or not header.parents:
        return 0
    return max((_count_matching_lines(path, other) for other in _find_originals(path, header)), default=0)


def _count_matching_lines(path: Path, original: Path) -> int:
    """Return the number of leading lines of a rollout that also occur in another one, in the same order; sys.maxsize if all do."""
    try:
        stat = original.stat()
        positions_by_content = _read_positions(original, stat.st_size, stat.st_mtime_ns)
    except (OSError, zstd.ZstdError):
        return 0
    last_match = 0
    next_position = 0
    for line_number, content in _read_contents(path):
        positions = positions_by_content.get(content, ())
        index = bisect_left(positions, next_position)
        if index == len(positions):
            return last_match
        last_match = line_number
        next_position = positions[index] + 1
    return sys.maxsize


@lru_cache(maxsize=64)
def _read_positions(path: Path, _size: int, _modified_ns: int) -> Mapping[bytes, list[int]]:
    """Return the positions of each content in a rollout, in order. Cached because many forks may have the same parent."""
    positions: dict[bytes, list[int]] = {}
    for position, (_, content) in enumerate(_read_contents(path)):
        positions.setdefault(content, []).append(position)
    return positions


def _read_contents(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the line number and a digest of the content of each line that identifies a conversation."""
    with open_lines(path) as lines:
        for line in lines:
            body = decode_line(line)
            identity = _identify_line(wrap_in_envelope(body)) if isinstance(body, dict) else None
            if identity is not None:
                yield line.number, _digest_parts(identity)


def _identify_line(line: Json) -> tuple[Any, ...] | None:
    """Return what identifies the content of a line across rollouts; None if nothing does."""
    payload = line.get("payload")
    if not isinstance(payload, dict):
        return None
    item_kind = payload.get("type")
    if line.get("type") == "event_msg" and item_kind == "token_count":
        return _identify_token_count(payload)
    if line.get("type") != "response_item":
        return None
    if item_kind == "message":
        return _identify_message(payload)
    if item_kind in CALLS or item_kind in OUTPUTS:
        call_id = payload.get("call_id", payload.get("id"))
        return None if call_id is None else ("output" if item_kind in OUTPUTS else "call", call_id)
    return None


def _identify_token_count(payload: Json) -> tuple[Any, ...] | None:
    info = payload.get("info")
    total = info.get("total_token_usage") if isinstance(info, dict) else None
    if not isinstance(total, dict):
        return None
    return "tokens", *(read_number(total.get(name)) for name in _TOKEN_FIELDS)


def _identify_message(payload: Json) -> tuple[Any, ...] | None:
    """Return role and text of a message by the user or the model; None for texts of the program, which differ in every rollout."""
    role = payload.get("role")
    blocks = read_blocks("content", payload.get("content"))
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
    parents: list[Path] = []
    older_forks: list[Path] = []
    for file in _list_rollouts(path):
        other = _try_read_header(file)
        if other is None:
            continue
        is_older = (other.started_at, other.session) < (header.started_at, header.session)
        if other.session in header.parents:
            parents.append(file)
        elif is_older and other.parents & header.parents:
            older_forks.append(file)
    return parents or older_forks


def _list_rollouts(path: Path) -> list[Path]:
    """Return the rollouts in the Codex home of a rollout; outside a home, those below the folder above the folders of dates."""
    parents = path.resolve().parents
    home = next((folder.parent for folder in parents if folder.name in FOLDERS), None)
    if home is None:
        folders = [next(folder for folder in parents if not folder.name.isdigit())]
    else:
        folders = [home / name for name in FOLDERS if (home / name).is_dir()]
    rollouts: list[Path] = []
    for folder in folders:
        rollouts += visible_files(folder, ("rollout-*.jsonl", f"rollout-*{COMPRESSED}"))
    return rollouts


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
            parents = frozenset(filter(is_identifier, _list_parent_ids(payload))) - {payload["id"]}
            return Header(payload["id"], str(payload.get("timestamp") or ""), parents)
    raise LookupError(path)


def _list_parent_ids(meta: Json) -> Iterator[Any]:
    yield meta.get("forked_from_id")
    yield meta.get("parent_thread_id")
    source: Any = meta.get("source")
    for name in ("subagent", "thread_spawn", "parent_thread_id"):
        source = source.get(name) if isinstance(source, dict) else None
    yield source


class CodexDialect(AgentDialect):
    """Codex's dialect. `copied` is the number of leading lines that were copied from another session."""

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
        """A text of the program, which becomes a question when the agent answers it."""
        self._has_question = True
        """Whether the current turn has a question. Lines before the first turn continue an earlier one."""
        self._is_under_way = False
        self._has_failed = False
        self._stop = "tool_use"
        self._text = ""
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
        kind = body.get("type")
        payload = body.get("payload")
        if kind is None:
            return Problem("missing_field", "type: is missing")
        if not isinstance(kind, str):
            return Problem("wrong_type", f"type: is {json_type(kind)}, not a string")
        if kind in IGNORED_LINES:
            return []
        read = self._line_readers.get(kind)
        if read is None:
            return list(self._unknown.report(f"type {kind}"))
        if not isinstance(payload, dict):
            return Problem("wrong_type", f"payload: is {json_type(payload)}, not an object")
        repaired = body if line.is_whole else repair_body(body)
        has_ordinal = type(body.get("ordinal")) is int
        repaired["_id"] = f"ordinal-{body['ordinal']}" if has_ordinal else f"line-{line.number}"
        return read(repaired, repaired["payload"])

    def _read_session_meta(self, line: Json, payload: Json) -> list[Entry | Problem]:
        if self._is_named or not is_identifier(payload.get("id")):
            return []
        self._is_named = True
        source = payload.get("source")
        is_spawned = isinstance(source, dict) and "subagent" in source
        self._is_subagent = is_spawned or isinstance(payload.get("parent_thread_id"), str)
        provider = payload.get("model_provider")
        self._provider = provider if isinstance(provider, str) else None
        return [build_agent_entry("session", payload["id"], line)]

    def _read_settings(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Return entries for changes of the model and of its reasoning effort."""
        entries: list[Entry | Problem] = []
        model = payload.get("model")
        if isinstance(model, str) and model != self._model:
            self._model = model
            fields = {"modelId": model, "provider": self._provider}
            entries.append(build_agent_entry("model_change", line["_id"], line, body=fields))
        effort = payload.get("effort")
        if isinstance(effort, str) and effort != self._effort:
            self._effort = effort
            entry_id = f"{line['_id']}/effort"
            entries.append(build_agent_entry("thinking_level_change", entry_id, line, body={"thinkingLevel": effort}))
        return entries

    def _read_item(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
        kind = payload.get("type")
        if kind == "message":
            return self._read_message(line, payload)
        if kind == "reasoning":
            thought = _read_thought(payload)
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

    def _read_message(self, line: Json, payload: Json) -> list[Entry | Problem] | Problem:
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
        if payload.get("phase") == "commentary":
            return self._add_answer(line, [], stop="tool_use")
        texts = [{**block, "type": _TEXT_TYPES.get(str(block.get("type")), "other")} for block in blocks]
        return self._add_answer(line, texts, stop="stop")

    def _read_user(self, line: Json, payload: Json, blocks: Sequence[Json]) -> list[Entry | Problem]:
        """Return a user message as a question. A text of the program is deferred instead."""
        user_text = find_user_text(payload, blocks)
        if user_text is None:
            program_text = text_of([{**block, "type": "text"} for block in blocks])
            question = self._build_question(line, program_text, INTERNAL)
            self._deferred = None if self._is_under_way else question
            return []
        self._deferred = None
        self._has_question = True
        self._is_under_way = True
        return [self._build_question(line, user_text, SUBAGENT if self._is_subagent else {})]

    def _build_question(self, line: Json, text: str, origin: Json) -> Entry:
        blocks = [{"type": "text", "text": text}]
        return build_agent_entry("message", line["_id"], line, message={"role": "user", **origin}, blocks=blocks)

    def _add_answer(self, line: Json, blocks: Sequence[Json], *, stop: str, **fields: Any) -> list[Entry | Problem]:
        """Return an assistant message, preceded by the question that was deferred until its answer, if there is one."""
        question = None if self._is_under_way else self._deferred
        self._deferred = None
        self._has_question = self._has_question or question is not None
        self._is_under_way = stop in ("tool_use", "error")
        self._has_failed = stop == "error"
        message: Json = {"role": "assistant", "stopReason": stop, **fields, **self._build_model_fields()}
        self._stop = "stop" if stop == "stop" else "tool_use"
        self._text = text_of(blocks)
        # A message without a question answers nothing, so it starts a new tree.
        position = EntryPosition(linked=not self._has_question)
        entry = build_agent_entry("message", line["_id"], line, position=position, message=message, blocks=blocks)
        return [entry] if question is None else [question, entry]

    def _read_event(self, line: Json, payload: Json) -> list[Entry | Problem]:
        kind = str(payload.get("type"))
        read = self._event_readers.get(kind)
        if read is not None:
            return read(line, payload)
        if kind in END_EVENTS:
            self._outcomes.add(kind, payload)
            return []
        return [] if kind in DISPLAY_EVENTS else list(self._unknown.report(f"event_msg of type {kind}"))

    def _start_turn(self, _line: Json, _payload: Json) -> list[Entry | Problem]:
        self._has_question = False
        self._is_under_way = False
        return []

    def _end_turn(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Return the end of a turn, preceded by an error that no earlier line reported."""
        error = payload.get("error")
        entries: list[Entry | Problem] = []
        if isinstance(error, dict) and not self._has_failed:
            entries = self._read_failure(line, error)
        self._is_under_way = False
        return [*entries, _build_turn_end(line)]

    def _read_failure(self, line: Json, error: Json) -> list[Entry | Problem]:
        return self._add_answer(line, [], stop="error", errorMessage=_describe_failure(error))

    def _read_abort(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return [*self._add_answer(line, [], stop="aborted", errorMessage=_describe_failure(payload)), _build_turn_end(line)]

    def _read_token_count(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Return the usage of one response, and the fill level of the context."""
        usage, context = self._usage.take_token_count(payload.get("info"))
        entries = self._build_usage(line, usage)
        if context is not None:
            entries.append(
                self._build_events(f"{line['_id']}/context", line, {"event": "context_event", "action": "usage", **context})
            )
        return entries

    def _read_usage_record(self, line: Json, payload: Json) -> list[Entry | Problem]:
        return self._build_usage(line, self._usage.take_record(payload))

    def _build_usage(self, line: Json, usage: Json | None) -> list[Entry | Problem]:
        """Return a message with the usage of a response. It repeats the last text, so that the answer does not change."""
        if usage is None:
            return []
        message: Json = {"role": "assistant", "stopReason": self._stop, "usage": usage, **self._build_model_fields()}
        return [build_agent_entry("message", line["_id"], line, message=message, blocks=[{"type": "text", "text": self._text}])]

    def _build_model_fields(self) -> Json:
        fields = {"provider": self._provider, "model": self._model}
        return {name: value for name, value in fields.items() if value is not None}

    def _read_compaction(self, line: Json, payload: Json) -> list[Entry | Problem]:
        """Return the event of a compaction: a summary replaced the history."""
        event: Json = {"event": "context_event", "action": "compaction"}
        if self._usage.context_tokens is not None:
            event["tokens_before"] = self._usage.context_tokens
        if isinstance(payload.get("message"), str):
            event["summary"] = payload["message"]
        return [self._build_events(line["_id"], line, event)]

    def _build_events(self, name: str, line: Json, *events: Json) -> Entry:
        return build_agent_entry(EVENTS, name, line, body={"events": list(events)})


class _UsageCounter:
    """Counts the usage of each response once. `context_tokens` is the size of the context at the last response."""

    def __init__(self) -> None:
        self.context_tokens: int | float | None = None
        self._total: Any = None
        self._context: Any = None
        self._response_ids: set[str] = set()
        self._unmatched: deque[tuple[_UsageLine, Json]] = deque(maxlen=_MAX_UNMATCHED)

    def take_record(self, record: Json) -> Json | None:
        """Return the usage of the response in a `token_usage_record`; None if it is missing or was counted before."""
        response_id = record.get("response_id")
        usage = record.get("usage")
        if not isinstance(usage, dict) or response_id in self._response_ids:
            return None
        if isinstance(response_id, str):
            self._response_ids.add(response_id)
        return self._count_once("token_usage_record", _convert_usage(usage))

    def take_token_count(self, info: Any) -> tuple[Json | None, Json | None]:
        """Return the usage in a `token_count`, and the fill level of the context; None for each that is missing or was counted before."""
        if not isinstance(info, dict):
            return None, None
        last_usage = info.get("last_token_usage")
        if not isinstance(last_usage, dict):
            last_usage = {}
        total = info.get("total_token_usage")
        usage = None
        if isinstance(total, dict) and total != self._total:
            self._total = total
            usage = self._count_once("token_count", _convert_usage(last_usage))
        return usage, self._measure_context(last_usage, info.get("model_context_window"))

    def _count_once(self, line_kind: _UsageLine, usage: Json | None) -> Json | None:
        """Return a usage, unless a line of the other kind already reported it."""
        if usage is None:
            return None
        for index, (other_kind, other_usage) in enumerate(self._unmatched):
            if other_kind != line_kind and other_usage == usage:
                del self._unmatched[index]
                return None
        self._unmatched.append((line_kind, usage))
        return usage

    def _measure_context(self, usage: Json, window: Any) -> Json | None:
        """Return the fill level of the context; None if it is unknown or has not changed."""
        tokens = read_number(usage.get("total_tokens"))
        if tokens is None or tokens < 0:
            return None
        self.context_tokens = tokens
        window_size = read_number(window)
        if window_size is None or window_size <= 0 or (tokens, window_size) == self._context:
            return None
        self._context = tokens, window_size
        return {"saturation": round(100 * tokens / window_size, 2), "tokens": tokens, "context_window": window_size}


def _convert_usage(usage: Json) -> Json | None:
    """Return a usage in OpenClaw's form; None if it has no valid counts."""
    input_tokens = read_number(usage.get("input_tokens"))
    output_tokens = read_number(usage.get("output_tokens"))
    if input_tokens is None or output_tokens is None or input_tokens < 0 or output_tokens < 0:
        return None
    # Codex includes cache reads and writes in the input; in OpenClaw's form they are separate.
    cache_read = min(max(read_number(usage.get("cached_input_tokens")) or 0, 0), input_tokens)
    cache_write = min(max(read_number(usage.get("cache_write_input_tokens")) or 0, 0), input_tokens - cache_read)
    plain = input_tokens - cache_read - cache_write
    return {"input": plain, "cacheRead": cache_read, "cacheWrite": cache_write, "output": output_tokens}


def _read_thought(payload: Json) -> str:
    """Return the readable part of a reasoning item: its text, else its summary."""
    for name in ("content", "summary"):
        parts = payload.get(name)
        if not isinstance(parts, list):
            continue
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if any(texts):
            return "\n\n".join(texts)
    return ""


def _is_summary(line: Json) -> bool:
    """Return whether a message is the summary of a compaction."""
    metadata = line.get("metadata")
    return isinstance(metadata, dict) and metadata.get("compaction_output") is True


def _build_turn_end(line: Json) -> Entry:
    return build_agent_entry(TURN_END, f"{line['_id']}/end", line)


def _describe_failure(failure: Any) -> str:
    if isinstance(failure, dict):
        failure = next((failure[name] for name in ("message", "reason") if isinstance(failure.get(name), str)), None)
    return failure if isinstance(failure, str) else "the turn failed"


class Outcomes:
    """The outcomes of commands and calls, by call id. Codex reports them for display before the output is sent to the model."""

    def __init__(self) -> None:
        self._by_call: dict[str, Json] = {}

    def add(self, kind: str, payload: Json) -> None:
        """Add the outcome in an `event_msg` of one of the END_EVENTS."""
        if kind != "item_completed":
            self._add_outcome(payload.get("call_id"), payload)
        elif isinstance(payload.get("item"), dict):
            self._add_outcome(payload["item"].get("id"), payload["item"])

    def find(self, call_id: Any) -> Json:
        """Return the details reported at the end of a call; empty if there are none."""
        return self._by_call.get(call_id, {}) if isinstance(call_id, str) else {}

    def _add_outcome(self, call_id: Any, outcome: Json) -> None:
        if not isinstance(call_id, str) or len(self._by_call) >= _MAX_OUTCOMES:
            return
        details: Json = {}
        exit_code = read_number(outcome.get("exit_code"))
        if exit_code is not None:
            details["exitCode"] = exit_code
        duration = _to_milliseconds(outcome.get("duration"))
        if duration is not None:
            details["durationMs"] = duration
        if isinstance(outcome.get("status"), str):
            details["status"] = outcome["status"]
        result = outcome.get("result")
        has_error = isinstance(result, dict) and "Err" in result
        if has_error or outcome.get("success") is False or details.get("status") in _FAILED_STATUSES:
            details["failed"] = True
        if details:
            self._by_call[call_id] = details


def _to_milliseconds(duration: Any) -> float | None:
    if not isinstance(duration, dict):
        return None
    seconds = read_number(duration.get("secs"))
    nanoseconds = read_number(duration.get("nanos"))
    if seconds is None or nanoseconds is None:
        return None
    return round(seconds * 1000 + nanoseconds / 1_000_000, 3)


def find_user_text(payload: Json, blocks: Sequence[Json]) -> str | None:
    """Return the user's own text in a message of the user's role; None if all of it is the program's."""
    metadata = payload.get(_PASSTHROUGH)
    kinds = metadata.get("content_item_kinds") if isinstance(metadata, dict) else None
    if isinstance(kinds, list) and len(kinds) == len(blocks) and kinds:
        pairs = zip(blocks, kinds, strict=True)
        user_blocks = [block for block, kind in pairs if isinstance(kind, str) and kind.startswith("user.")]
        return _join_user_text(user_blocks) if user_blocks else None
    user_blocks = [block for block in blocks if not _is_context(block)]
    return _join_user_text(user_blocks) if user_blocks or not blocks else None


def _join_user_text(blocks: Sequence[Json]) -> str:
    """Return the text of a user's blocks without Codex's tags around images, or media placeholders if there is no text."""
    placeholders = placeholders_in(blocks)
    texts = [block for block in blocks if not (placeholders and _is_image_tag(block))]
    return text_of([{**block, "type": "text"} for block in texts]) or placeholders


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
    """Return the output of a tool as a message in OpenClaw's form, and its text."""
    text, details = _read_output(payload.get("output", payload.get("tools")))
    call_id = payload.get("call_id")
    outcome = outcomes.find(call_id)
    has_failed = bool(details.get("failed") or outcome.get("failed"))
    details = {name: value for name, value in {**details, **outcome}.items() if name != "failed"}
    is_error = has_failed or text.startswith(_REJECTIONS) or bool(details.get("exitCode"))
    message: Json = {"role": "toolResult", "isError": is_error}
    if isinstance(call_id, str):
        message["toolCallId"] = call_id
        if call_id in tools:
            message["toolName"] = tools[call_id]
    if details:
        message["details"] = details
    return message, text


def _read_output(output: Any) -> tuple[str, Json]:
    """Return the text of an output, and the details of the call that its form or its first lines give."""
    details: Json = {}
    content = output
    if isinstance(output, dict):
        details["failed"] = output.get("success") is False
        content = output.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        return text_of([{**part, "type": "text"} for part in parts]), details
    if not isinstance(content, str):
        return "", details
    wrapped = _unwrap_output(content) or _split_output(content)
    if wrapped is None:
        return content, details
    return wrapped[0], {**details, **wrapped[1]}


def _unwrap_output(text: str) -> tuple[str, Json] | None:
    """Return the text and the details in an output that is a JSON object with metadata; None for any other output."""
    wrapper = parse_object(text)
    metadata = None if wrapper is None else wrapper.get("metadata")
    if wrapper is None or not isinstance(metadata, dict) or not isinstance(wrapper.get("output"), str):
        return None
    details: Json = {}
    exit_code = read_number(metadata.get("exit_code"))
    if exit_code is not None:
        details["exitCode"] = exit_code
    seconds = read_number(metadata.get("duration_seconds"))
    if seconds is not None:
        details["durationMs"] = round(seconds * 1000, 3)
    return wrapper["output"], details


def _split_output(text: str) -> tuple[str, Json] | None:
    """Return the text and the details in an output that starts with a header of text lines; None for any other output."""
    header, separator, start = text[:_OUTPUT_HEADER_CHARACTERS].partition(_OUTPUT)
    if not separator:
        return None
    details: Json = {}
    exit_code = _EXIT_CODE.search(header)
    if exit_code is not None:
        details["exitCode"] = int(exit_code.group(1))
    wall_time = _WALL_TIME.search(header)
    if wall_time is not None:
        details["durationMs"] = round(float(wall_time.group(1)) * 1000, 3)
    return (start + text[_OUTPUT_HEADER_CHARACTERS:], details) if details else None


def wrap_in_envelope(line: Json) -> Json:
    """Return a line in the current form. A line in an unknown form is returned unchanged."""
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
    """Return the lines of a single-object rollout: its session, then its items. Raises ValueError if it is not such a rollout."""
    try:
        rollout = msgspec.convert(decode_json(document), _Document)
    except msgspec.ValidationError as error:
        raise ValueError("has no session with its items") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    parts = (msgspec.json.encode(repair_value(part)) for part in (rollout.session, *rollout.items))
    return [Line(number, part, len(part), ended=True) for number, part in enumerate(parts, 1)]


class _Document(msgspec.Struct):
    session: Json
    items: list[Any]
