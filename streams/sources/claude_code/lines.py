"""Lines of a Claude Code transcript as entries.

1. What stands in the conversation has a `uuid` and names its parent by `parentUuid`: `user`, `assistant`, `system`, `attachment` and
   `progress`. Everything else is bookkeeping, which is skipped. An unknown kind is reported once per file.
2. One message of the model is written as several lines with one `message.id`, a line per block, its usage repeated on each. They are
   one message: its texts are joined, its usage counts once. The results of its calls hang below whichever line called, and so would
   the model's next message: all of them follow the last line of the message instead.
3. Attachments, notices and texts that the program wrote (`isMeta`, summaries of a compaction, output of local commands) are no
   questions of a user. While an answer is under way they belong to it. After it they open an exchange of their own, tagged
   `internal`, and so does a prompt of the program (a notification of a finished task); a slash command opens one that is the
   user's. These exchanges exist only when the agent answers. What was queued while the agent worked is an attachment, too: a prompt
   in it is the user's and joins the question under way, anything else is the program's.
4. A request that failed (`system` lines of subtype `api_error`, and the message that the program shows when it gives up) is an
   assistant message that ended in an error; what follows it is a retry. An interruption is one that was aborted.
5. A history that is written again, with other uuids, counts once: a message by its id and that of its request, its blocks, and a result
   by its call. A question whose text was asked before waits until it is answered: by a repeated message it is a repetition, else it is
   asked again. What repeats a message stands where the message does, and so does what follows it.
6. A log of a run ends with its `result` (`stream_logs`): it says the answer and how many tokens the run used.
7. A line of a sidechain stands beside the conversation, unless the whole file is one: then it is a subagent's session, whose id is
   `<session id>.agent-<agent id>`. One that the subagent's own file has as well counts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from streams.sources.agent_entries import (
    EVENTS,
    INTERNAL,
    SUBAGENT,
    AgentDialect,
    UnknownKinds,
    id_problem,
    make_entry,
)
from streams.sources.claude_code.forks import NOTHING_COPIED, Copied, question_digest, session_of
from streams.sources.claude_code.kinds import ASSISTANT_BLOCKS, BOOKKEEPING, NOTICES, USER_BLOCKS
from streams.sources.claude_code.messages import Spoken, called_tools, results_of, spoken, texts_of, usage_of
from streams.sources.claude_code.places import Message, Place, Places
from streams.sources.lines import Line, Problem, json_type
from streams.sources.openclaw.entry import TURN_END, Entry, blocks_of, mended_body

SOURCE = "claude-code"

Json = dict[str, Any]

_CONVERSATION = frozenset({"user", "assistant", "system", "attachment", "progress", "result"})
_COMPACTIONS = {"compact_boundary": "compaction", "microcompact_boundary": "microcompaction"}
_META = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "turnCompanion")
_OUTPUTS = ("<local-command-stdout>", "<local-command-stderr>", "<local-command-caveat>", "<bash-stdout>", "<bash-stderr>")
_COMMANDS = ("<command-name>", "<command-message>", "<bash-input>")
_INTERRUPTION = "[Request interrupted by user"
_RUN_FACTS = ("subtype", "is_error", "num_turns", "duration_ms", "duration_api_ms", "total_cost_usd")
_NOTIFICATION = "<task-notification>"


class ClaudeCodeDialect(AgentDialect):
    """Claude Code's. `copied` is what another session of the folder had first."""

    source = SOURCE
    id_field = "uuid"

    def __init__(self, copied: Copied = NOTHING_COPIED) -> None:
        self._copied = copied
        self._copied_calls: set[str] = set()
        self._questions = set(copied.questions)
        self._results: dict[bytes, str] = {}
        self._repeated: set[str] = set()
        self._places = Places()
        self._unknown = UnknownKinds()
        self._last: Message[Spoken] | None = None
        self._has_failed = False
        self._spent: dict[str, int | float] = {}
        """The tokens that the messages of a run counted so far; `_whole` has those that its results count."""
        self._whole: dict[str, int | float] = {}
        self._session_id: str | None = None
        self._is_subagent = False
        self._models: dict[bool, str] = {}
        self._tools: dict[str, str] = {}

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """The entries of one line."""
        kind = body.get("type")
        if not isinstance(kind, str):
            return _missing("type", kind)
        header = self._header(body)
        if kind in BOOKKEEPING:
            return header
        if kind not in _CONVERSATION:
            if isinstance(body.get("uuid"), str):
                self._places.stand_in(body["uuid"], self._places.at(body.get("parentUuid")))
            return [*header, *self._unknown.report(f"type {kind}")]
        problem = id_problem("uuid", body.get("uuid")) or _parent_problem(body)
        if problem is not None:
            return problem
        found = self._read(kind, body if line.is_whole else mended_body(body))
        return found if isinstance(found, Problem) else [*header, *found]

    def _header(self, body: Json) -> list[Entry | Problem]:
        """The entry that names the session, at the first line that does."""
        name = None if self._session_id is not None else session_of(body)
        if name is None:
            return []
        self._is_subagent = name != body["sessionId"]
        self._session_id = name
        return [make_entry("session", name, body)]

    def _read(self, kind: str, body: Json) -> list[Entry | Problem] | Problem:
        """The entries of a line of the conversation."""
        parent = body.get("parentUuid")
        if parent is None and isinstance(body.get("logicalParentUuid"), str):
            parent = body["logicalParentUuid"] if body["logicalParentUuid"] in self._places else None
        place = self._places.at(parent)
        queued = _queued_message(body) if kind == "attachment" else None
        if kind == "user" or queued is not None:
            return self._user(queued or body, place)
        if kind == "assistant":
            return self._assistant(body, place)
        if kind == "system":
            return self._system(body, place)
        if kind == "result":
            return self._end(body, place)
        self._places.stand_in(body["uuid"], place)
        return []

    def _system(self, body: Json, place: Place) -> list[Entry | Problem]:
        subtype = body.get("subtype")
        if subtype == "api_error":
            return self._failure(body, place, "error", _error_text(body.get("error")))
        self._places.stand_in(body["uuid"], place)
        if isinstance(subtype, str) and subtype in _COMPACTIONS:
            return [self._entry(EVENTS, body, place, body_fields={"events": [_compaction(subtype, body)]})]
        if not isinstance(subtype, str) or subtype in NOTICES:
            return []
        return list(self._unknown.report(f"system line of subtype {subtype}"))

    def _user(self, body: Json, place: Place) -> list[Entry | Problem] | Problem:
        blocks = _message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        results = results_of(blocks, body, self._tools)
        text = texts_of(blocks)
        is_copy = bool(results) and all(message.get("toolCallId") in self._copied_calls for message, _ in results)
        if text.startswith(_INTERRUPTION):
            found = self._failure(body, place, "aborted", text)
        elif results:
            self._places.stand_in(body["uuid"], place)
            found = []
        else:
            found = self._ask(body, place, text)
        answered = (
            self._entry(
                "message",
                body,
                place,
                suffix=str(index) if index or found else "",
                message=message,
                blocks=[{"type": "text", "text": said}],
                is_copy=is_copy,
            )
            for index, (message, said) in enumerate(results)
            if self._is_new_result(body["uuid"], message, said)
        )
        return [*answered, *found, *self._unknown_blocks(blocks, USER_BLOCKS)]

    def _ask(self, body: Json, place: Place, text: str) -> list[Entry | Problem]:
        """The entries of a text in the user's name: none where it is not the user's, until the agent answers it."""
        uuid = body["uuid"]
        is_meta = any(body.get(name) is True for name in _META)
        is_prompt = _is_from_program(body, text)
        waiting = place.question
        if text.startswith(_OUTPUTS) or (place.is_under_way and (is_meta or (is_prompt and waiting is None))):
            self._places.stand_in(uuid, place)
            return []
        # A question that may repeat another waits for its answer; a further one shows that it was asked all the same.
        unanswered = self._places.asked(place) if waiting is not None and waiting.id in self._repeated else []
        origin = INTERNAL if is_meta or is_prompt else SUBAGENT if body.get("isSidechain") is True else {}
        joins = {"joins": True} if place.is_under_way and body["type"] == "attachment" else {}
        question = self._entry(
            "message", body, place, message={"role": "user", **joins, **origin}, blocks=[{"type": "text", "text": text}]
        )
        digest = question_digest(text)
        if is_meta or is_prompt or text.startswith(_COMMANDS) or digest in self._questions:
            if digest in self._questions:
                self._repeated.add(uuid)
            self._places.ask_later(uuid, place, question)
            return [*unanswered]
        self._questions.add(digest)
        self._places.ask(uuid)
        return [*unanswered, question]

    def _is_new_result(self, uuid: str, message: Json, text: str) -> bool:
        """Tell whether no other line gave this result of this call."""
        call_id = message.get("toolCallId")
        if call_id is None:
            return True
        digest = blake2b(f"{call_id}\0{text}".encode("utf-8", "replace"), digest_size=16).digest()
        return self._results.setdefault(digest, uuid) == uuid

    def _assistant(self, body: Json, place: Place) -> list[Entry | Problem] | Problem:
        blocks = _message_blocks(body)
        if isinstance(blocks, Problem):
            return blocks
        message: Json = body["message"]
        if body.get("isApiErrorMessage") is True:
            return self._failure(body, place, "error", texts_of(blocks))
        if message.get("model") == "<synthetic>":
            self._places.stand_in(body["uuid"], place)
            return []
        tools = called_tools(blocks)
        self._tools |= tools
        side = self._is_side(body)
        is_copy = message.get("id") in self._copied.messages or (side and message.get("id") in self._copied.by_subagents)
        if is_copy:
            self._copied_calls.update(tools)
        told = self._places.message(body["uuid"], message.get("id"), body.get("requestId"), side=side, begin=Spoken)
        added = told.said.add_blocks(blocks)
        if told.has_begun and not added and (self._last is not told or not told.said.adds_usage(message.get("usage"))):
            self._places.replay(body["uuid"], place, told)
            return []
        self._last = told
        place = told.follows(place)
        questions = [
            msgspec.structs.replace(question, is_copy=is_copy or question.is_copy) for question in self._places.asked(place)
        ]
        found: list[Entry | Problem] = [*questions, *self._model_change(body, place, is_copy=is_copy)]
        fields, said, results = spoken(told.said, message, added)
        self._has_failed = False
        self._spend(fields.get("usage", {}))
        found.append(self._entry("message", body, place, message=fields, blocks=said, own=blocks, is_copy=is_copy))
        for index, (result, text) in enumerate(results_of(results, body, self._tools), 1):
            shown = [{"type": "text", "text": text}]
            found.append(self._entry("message", body, place, suffix=str(index), message=result, blocks=shown, is_copy=is_copy))
        self._places.say(body["uuid"], told, fields.get("stopReason"))
        return found + list(self._unknown_blocks(blocks, ASSISTANT_BLOCKS))

    def _failure(self, body: Json, place: Place, stop: str, words: str) -> list[Entry | Problem]:
        """An assistant message that ended in this way."""
        asked = self._places.asked(place)
        message = {"role": "assistant", "stopReason": stop, "errorMessage": words}
        entry = self._entry("message", body, place, message=message)
        self._has_failed = True
        self._places.say(body["uuid"], self._new_message(body), None if stop == "error" else stop)
        return [*asked, entry]

    def _end(self, body: Json, place: Place) -> list[Entry | Problem]:
        """The end of a run, in a log: its last answer or its error, the tokens that no message counted, and facts of the run."""
        for ours, count in usage_of(body.get("usage")).items():
            self._whole[ours] = self._whole.get(ours, 0) + count
        usage = {ours: max(count - self._spent.get(ours, 0), 0) for ours, count in self._whole.items()}
        said, is_error = body.get("result"), body.get("is_error") is True
        found: list[Entry | Problem] = []
        told = self._new_message(body)
        if not is_error or not self._has_failed:  # else a message said so already
            message = _last_message(body)
            if any(usage.values()):
                message["usage"] = usage
                self._spend(usage)
            if not said and self._last is not None:
                said = self._last.said.text
            blocks = [{"type": "text", "text": said}] if isinstance(said, str) and not is_error else []
            found = [*self._places.asked(place), self._entry("message", body, place, message=message, blocks=blocks)]
            self._places.say(body["uuid"], told, message["stopReason"])
            place = told.place
        else:
            self._places.stand_in(body["uuid"], place)
        facts = {name: body[name] for name in _RUN_FACTS if isinstance(body.get(name), str | int | float)}
        event: Json = {"event": "state_transition", "action": "run_result", **facts}
        run = self._entry(EVENTS, body, place, suffix="run", body_fields={"events": [event]})
        return [*found, run, self._entry(TURN_END, body, place, suffix="end")]

    def _spend(self, usage: Json) -> None:
        for name, count in usage.items():
            self._spent[name] = self._spent.get(name, 0) + count

    def _new_message(self, body: Json) -> Message[Spoken]:
        """A message of one line, without an id."""
        return self._places.message(body["uuid"], None, None, side=self._is_side(body), begin=Spoken)

    def _model_change(self, body: Json, place: Place, *, is_copy: bool) -> list[Entry | Problem]:
        model, side = body["message"].get("model"), self._is_side(body)
        if not isinstance(model, str) or self._models.get(side) == model:
            return []
        self._models[side] = model
        return [self._entry("model_change", body, place, suffix="model", body_fields={"modelId": model}, is_copy=is_copy)]

    def _entry(
        self,
        kind: str,
        body: Json,
        place: Place,
        *,
        suffix: str = "",
        body_fields: Json | None = None,
        message: Json | None = None,
        blocks: Sequence[Json] = (),
        own: Sequence[Json] | None = None,
        is_copy: bool = False,
    ) -> Entry:
        return make_entry(
            kind,
            f"{body['uuid']}/{suffix}" if suffix else body["uuid"],
            body,
            parent=place.leaf,
            linked=True,
            side=self._is_side(body),
            is_copy=is_copy or self._is_copied(body),
            body=body_fields,
            message=message,
            blocks=blocks,
            own=own,
        )

    def _is_copied(self, body: Json) -> bool:
        uuid = body["uuid"]
        is_subagents = self._is_side(body) and uuid in self._copied.by_subagents
        return is_subagents or uuid in self._copied.uuids or _is_forked(body)

    def _is_side(self, body: Json) -> bool:
        return body.get("isSidechain") is True and not self._is_subagent

    def _unknown_blocks(self, blocks: Sequence[Json], known: frozenset[str]) -> list[Problem]:
        kinds = (kind for block in blocks if (kind := str(block.get("type"))) not in known)
        return [problem for kind in kinds for problem in self._unknown.report(f"block of type {kind}")]


def _missing(name: str, value: Any) -> Problem:
    if value is None:
        return Problem("missing_field", f"{name}: is missing")
    return Problem("wrong_type", f"{name}: is {json_type(value)}, not a string")


def _parent_problem(body: Json) -> Problem | None:
    parent = body.get("parentUuid")
    return None if parent is None else id_problem("parentUuid", parent)


def _message_blocks(body: Json) -> list[Json] | Problem:
    message = body.get("message")
    if not isinstance(message, dict):
        return Problem("wrong_type", f"message: is {json_type(message)}, not an object")
    return blocks_of("message.content", message.get("content"))


def _queued_message(body: Json) -> Json | None:
    """Return the line of a user that an attachment stands for, which was written while the agent worked; None for other attachments."""
    attachment = body.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
        return None
    line = {**body, "message": {"role": "user", "content": attachment.get("prompt")}}
    return line if attachment.get("commandMode", "prompt") == "prompt" else {**line, "isMeta": True}


def _is_from_program(body: Json, text: str) -> bool:
    """Tell whether the program asks, not a person: a notification, a schedule, another agent."""
    origin = body.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    is_program = isinstance(kind, str) and kind not in ("human", "user")
    return body.get("promptSource") == "system" or is_program or text.startswith(_NOTIFICATION)


def _is_forked(body: Json) -> bool:
    """Tell whether the line itself says that it was copied from another session."""
    origin = body.get("forkedFrom")
    return isinstance(origin, dict) and origin.get("sessionId") not in (None, body.get("sessionId"))


def _last_message(body: Json) -> Json:
    """The message that a result stands for: why the run stopped."""
    if body.get("is_error") is True:
        return {
            "role": "assistant",
            "stopReason": "error",
            "errorMessage": body.get("result") or _error_text(body.get("errors")),
        }
    stop = body.get("stop_reason")
    return {"role": "assistant", "stopReason": stop if isinstance(stop, str) and stop != "tool_use" else "end_turn"}


def _error_text(error: Any) -> str:
    if isinstance(error, list):
        error = "; ".join(filter(None, (text for text in error if isinstance(text, str)))) or None
    if isinstance(error, dict):
        error = next((error[name] for name in ("message", "formatted") if isinstance(error.get(name), str)), None)
    return error if isinstance(error, str) else "the request failed"


def _compaction(subtype: str, body: Json) -> Json:
    metadata = body.get("compactMetadata")
    given = metadata if isinstance(metadata, dict) else {}
    event: Json = {"event": "context_event", "action": _COMPACTIONS[subtype]}
    if isinstance(given.get("trigger"), str):
        event["trigger"] = given["trigger"]
    for theirs, ours in (("preTokens", "tokens_before"), ("postTokens", "tokens_after"), ("durationMs", "duration_ms")):
        if type(given.get(theirs)) in (int, float):
            event[ours] = given[theirs]
    return event
