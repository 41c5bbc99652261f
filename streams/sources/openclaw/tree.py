"""The tree of a transcript's entries, and the answer that each entry belongs to.

1. An entry is a child of its parent, wherever it is in the file. Without a parentId it continues the current leaf. Only earlier entries can
   be parents, so there are no cycles, and earlier results do not change as the file grows.
2. Each entry becomes the leaf, unless its appendMode is `side`. A leaf entry moves the leaf to its target. Entries that name the leaf entry
   as their parent become children of the target.
3. A user message opens an answer. The assistant messages below it, up to the next user message, belong to that answer. If they branch, or
   continue after the answer was over, each further branch is a separate answer. A message sent while the agent worked (`joins`) is added to
   the current question, because the agent answers both at once.
4. An answer is over when a user message follows, or when nothing follows for longer than the session gap. It is then sealed: nothing is added
   to it. An answer that ended by itself is final earlier, and later messages revise its exchange.
5. An answer is abandoned if its last message is not on the path from the active leaf to the root.
6. An unknown parent may be a damaged line. Its children then take the position of that line. If no line was damaged, they start a new tree.

The state of an answer is built message by message:

7. The response is the text of the last message that calls no tool. Thinking consists of all thinking blocks in order. Usage is a sum. Model
   and stop reason are those of the last message.
8. If a message has content and zero usage, its usage is missing; the message was not free.
9. A mirror of a message delivered to a channel repeats an answer. It is the response only if there is no other.
10. An answer without text is `error` or `aborted` if its last message says so, else `no_response`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from streams.sources.lines import Problem
from streams.sources.openclaw.entry import MAX_TOKENS, TURN_END, Entry
from streams.sources.openclaw.text import MIRROR_MODEL

MAX_SHARED_CHARACTERS = 16 * 1024 * 1024
"""Maximum number of characters that further answers of a session may share with first answers, in total."""
MAX_JOINED_CHARACTERS = 64 * 1024
"""Length of a question, in characters, from which later messages are no longer added to it."""
_ORIGINS = {"inter_session": "inter_session", "internal_system": "internal", "subagent_task": "subagent"}
"""Tags of exchanges whose question was not written by a user, by the kind of its provenance."""
_ROOT = -1
_NO_ANSWER = -1
Chain = tuple[Any, str]
"""A linked list of texts: the list before the last text (None if empty), and the last text."""
_FAILURES = {"error": "error", "aborted": "aborted"}
_REASON_BY_STOP = {
    "toolUse": "a tool was called, and the agent has not answered since",
    "tool_use": "a tool was called, and the agent has not answered since",
    "error": "a request failed and may be retried",
    "aborted": "it was interrupted and may continue",
}
_FINAL_STOPS = frozenset({"stop", "length", "end_turn", "max_tokens", "stop_sequence", "refusal"})


class Placement(msgspec.Struct, frozen=True):
    """The result of placing an entry: its answer if it has one, whether it retries a failed request, and a problem."""

    answer: Answer | None
    is_retry: bool
    problem: Problem | None


class Tree:
    """The tree of entries, built entry by entry in linear time and without recursion.

    Entries are numbered from 0. `_parents`, `_answer_indices` and `_states` hold the parent, answer and state of the entry with that number.
    """

    def __init__(self, gap: timedelta, *, ends_turns: bool = False) -> None:
        self._ends_turns = ends_turns
        self.answers: list[Answer] = []
        self._newly_sealed: list[Answer] = []
        self._gap = gap
        self._parents: list[int] = []
        self._answer_indices: list[int] = []
        self._states: list[AnswerState] = []
        self._damaged_indices: set[int] = set()
        self._index: dict[str, int] = {}
        self._leaf = _ROOT
        self._damaged: int | None = None
        self._open_answers: list[Answer] = []
        self._turns = 0
        self._failed_turns: set[int] = set()
        self._shared_characters = 0
        self._last_at: datetime | None = None

    def add(self, entry: Entry, at: datetime) -> Placement:
        """Place an entry with a new id; `at` is its time."""
        if self._last_at is not None and at - self._last_at > self._gap:
            self._seal_open_answers()
        self._last_at = at
        parent, problem = self._find_parent(entry)
        if entry.kind == "leaf":
            return Placement(None, is_retry=False, problem=self._move_leaf(entry, parent) or problem)
        if entry.role == "assistant" or entry.role == "user":  # noqa: PLR1714 - a set of two costs more
            answer_index, state, message_problem = self._place_message(entry, parent, at)
            problem = problem or message_problem
        else:
            answer_index, state = self._answer_at(parent)
        index = self._append(parent, answer_index, state)
        self._index[entry.id] = index
        if not entry.side:
            self._leaf = index
        if answer_index == _NO_ANSWER:
            return _UNPLACED if problem is None else Placement(None, is_retry=False, problem=problem)
        answer = self.answers[answer_index]
        if entry.kind == TURN_END:
            answer.is_turn_over = True
        else:
            answer.last_at = at
        return Placement(answer, self._is_retry(entry, answer), problem)

    def _answer_at(self, index: int) -> tuple[int, AnswerState]:
        """Return the index of the answer that an entry belongs to, and its state up to the entry."""
        if index == _ROOT:
            return _NO_ANSWER, _EMPTY_STATE
        return self._answer_indices[index], self._states[index]

    def _append(self, parent: int, answer_index: int, state: AnswerState) -> int:
        """Append an entry and return its index."""
        self._parents.append(parent)
        self._answer_indices.append(answer_index)
        self._states.append(state)
        return len(self._parents) - 1

    def add_damaged(self, entry_id: object = None) -> None:
        """Record a line that could not be read. It is the parent of its children, or of an entry that names an unknown parent."""
        answer_index, state = self._answer_at(self._leaf)
        index = self._append(self._leaf, answer_index, state)
        if isinstance(entry_id, str):
            self._index.setdefault(entry_id, index)
        else:
            self._damaged = index
        self._damaged_indices.add(index)

    def abandoned_keys(self) -> set[str]:
        """Return the keys of the answers whose last message is not on the active path."""
        active_answers: set[int] = set()
        index = self._leaf
        while index != _ROOT:
            answer_index = self._answer_indices[index]
            if answer_index != _NO_ANSWER and self._states[index].length == self.answers[answer_index].state.length:
                active_answers.add(answer_index)
            index = self._parents[index]
        return {answer.key for index, answer in enumerate(self.answers) if index not in active_answers}

    def is_final(self, answer: Answer) -> bool:
        """Return whether an answer is final before it is over."""
        return answer.is_final(ends_turns=self._ends_turns)

    def is_idle(self, now: datetime) -> bool:
        """Return whether the last entry is older than the session gap."""
        return self._last_at is not None and now - self._last_at > self._gap

    def _is_retry(self, entry: Entry, answer: Answer) -> bool:
        """Return whether the previous message under the same user message, on any branch, ended in an error."""
        if entry.role != "assistant" or entry.is_mirror:
            return False
        turn = answer.question.turn
        is_retry = turn in self._failed_turns
        if entry.stop == "error":
            self._failed_turns.add(turn)
        else:
            self._failed_turns.discard(turn)
        return is_retry

    def _find_parent(self, entry: Entry) -> tuple[int, Problem | None]:
        """Return the index of an entry's parent, and a problem if the parent is unknown."""
        if entry.parent is None:
            return (_ROOT if entry.linked else self._leaf), None
        parent = self._index.get(entry.parent)
        if parent is not None:
            return parent, None
        problem = Problem("unknown_parent", f"parentId: no entry before this one has the id {entry.parent[:64]!r}")
        if self._damaged is None:
            return _ROOT, problem
        damaged = self._damaged
        self._damaged = None
        self._index[entry.parent] = damaged
        return damaged, problem

    def _move_leaf(self, entry: Entry, parent: int) -> Problem | None:
        """Move the leaf to the target of a leaf entry; to the root if it has none."""
        target = entry.body.get("targetId")
        if target is None:
            index = _ROOT
        elif isinstance(target, str) and target in self._index:
            index = self._index[target]
        else:
            self._index[entry.id] = parent
            return Problem("unknown_target", f"targetId: no entry before this one has the id {str(target)[:64]!r}")
        self._index[entry.id] = index
        self._leaf = index
        return None

    def _place_message(self, entry: Entry, parent: int, at: datetime) -> tuple[int, AnswerState, Problem | None]:
        """Return the index of the answer that a message belongs to, its state including the message, and a problem."""
        answer_index, previous_state = self._answer_at(parent)
        if entry.role == "user":
            if entry.message.get("joins") is True and self._join_question(entry, answer_index, previous_state):
                return answer_index, previous_state, None
            return self._add_question(entry, answer_index, at)
        if answer_index == _NO_ANSWER:
            return answer_index, previous_state, None
        if parent in self._damaged_indices and previous_state.has_ended:
            # A line that follows the end of an answer is a question. This message answers the damaged one, which nobody can read.
            return _NO_ANSWER, _EMPTY_STATE, None
        answer = self.answers[answer_index]
        # The lengths count no mirrors: a mirror may be a sibling of the message it repeats, and is not a branch.
        if previous_state.length == answer.state.length and not answer.is_sealed and (answer.side or not entry.side):
            answer.add(entry, at, ends_turns=self._ends_turns)
            return answer_index, answer.state, None
        return self._add_branch(entry, answer.question, previous_state, at)

    def _join_question(self, entry: Entry, answer_index: int, previous_state: AnswerState) -> bool:
        """Add a user message to the question that the agent is working on. Return False if there is none."""
        if answer_index == _NO_ANSWER:
            return False
        answer = self.answers[answer_index]
        if answer.is_sealed or previous_state.length != answer.state.length or answer.side != entry.side:
            return False
        question = answer.question
        if answer.is_final(ends_turns=self._ends_turns) or len(question.text) >= MAX_JOINED_CHARACTERS:
            return False
        answer.question = msgspec.structs.replace(question, text=f"{question.text}\n\n{entry.text}")
        return True

    def _add_question(self, entry: Entry, previous_index: int, at: datetime) -> tuple[int, AnswerState, None]:
        """Seal the answers that a user message ends, and open an answer to it."""
        if not entry.side:
            self._seal_open_answers()
        elif previous_index != _NO_ANSWER and self.answers[previous_index].side:
            self._seal(self.answers[previous_index])
        self._turns += 1
        provenance = entry.message.get("provenance")
        origin = _ORIGINS.get(str(provenance.get("kind"))) if isinstance(provenance, dict) else None
        question = Question(entry.id, at, self._turns, entry.text, origin)
        answer = Answer(build_answer_key(entry.id), at, question, _EMPTY_STATE, entry.side)
        return self._add_answer(answer), _EMPTY_STATE, None

    def _add_branch(
        self, entry: Entry, question: Question, previous_state: AnswerState, at: datetime
    ) -> tuple[int, AnswerState, Problem | None]:
        """Open a further answer to a question. It shares the messages before the branch."""
        shared = _EMPTY_STATE if previous_state.has_ended else msgspec.structs.replace(previous_state, response="", mirror="")
        self._shared_characters += len(question.text) + shared.thinking_characters
        if self._shared_characters > MAX_SHARED_CHARACTERS:
            problem = Problem("too_many_answers", "parentId: the session has more branches than are kept")
            return _NO_ANSWER, _EMPTY_STATE, problem
        state = extend_state(shared, entry)
        answer = Answer(build_answer_key(question.entry_id, entry.id), at, question, state, side=entry.side)
        return self._add_answer(answer), state, None

    def _add_answer(self, answer: Answer) -> int:
        """Add an answer and return its index."""
        self.answers.append(answer)
        self._open_answers.append(answer)
        return len(self.answers) - 1

    def take_newly_sealed(self) -> list[Answer]:
        """Return the answers that were sealed since the last call, ordered by their start."""
        if not self._newly_sealed:
            return []
        sealed = self._newly_sealed
        self._newly_sealed = []
        return sealed

    def _seal_open_answers(self) -> None:
        for answer in self._open_answers:
            self._seal(answer)
        self._open_answers.clear()

    def _seal(self, answer: Answer) -> None:
        if not answer.is_sealed:
            answer.is_sealed = True
            self._newly_sealed.append(answer)


class Question(msgspec.Struct, frozen=True, gc=False):
    """A user message: its entry, time, number among the session's user messages (from 1), and text.

    `origin` is the tag of a message that was not written by a user.
    """

    entry_id: str
    at: datetime
    turn: int
    text: str
    origin: str | None


class AnswerState(msgspec.Struct, frozen=True):
    """The state of an answer after some of its messages. `length` is the number of these messages, without mirrors."""

    length: int = 0
    thinking: Chain | None = None
    thinking_characters: int = 0
    response: str = ""
    mirror: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    model: str | None = None
    stop: str | None = None

    @property
    def has_ended(self) -> bool:
        """True if the last message ended the answer, so that only a user message is expected next."""
        return self.stop in _FINAL_STOPS

    @property
    def outcome(self) -> str:
        """`answered`, or the reason why there is no text: `error`, `aborted` or `no_response`."""
        return outcome_of(self.text, self.stop)

    @property
    def text(self) -> str:
        """The response, or the mirror if there is no response."""
        return self.mirror if self.is_mirrored else self.response

    @property
    def is_mirrored(self) -> bool:
        """True if the only text is that of a mirror."""
        return not self.response.strip() and bool(self.mirror.strip())


class Answer(msgspec.Struct, gc=False):
    """An answer to a question, which may still grow. `key` is its id within the session, `at` is the time of the question.

    `exchange_id` is empty until it is needed. `is_turn_over` is True if an entry ended the turn. `was_continued` is True if the answer grew
    after it was final, so that its exchange may have been reported before. `last_at` is the time of its last entry.
    """

    key: str
    at: datetime
    question: Question
    state: AnswerState
    side: bool
    is_sealed: bool = False
    exchange_id: str = ""
    is_turn_over: bool = False
    was_continued: bool = False
    last_at: datetime | None = None

    def is_final(self, *, ends_turns: bool) -> bool:
        """Return whether the answer ended by itself, so that it is final. `ends_turns`: entries mark the ends of turns."""
        return self.is_turn_over or (not ends_turns and self.state.has_ended and bool(self.state.text.strip()))

    def add(self, entry: Entry, at: datetime, *, ends_turns: bool) -> None:
        """Add a message."""
        self.was_continued = self.was_continued or self.is_final(ends_turns=ends_turns)
        self.is_turn_over = False
        self.last_at = at
        self.state = extend_state(self.state, entry)

    @property
    def pending_reason(self) -> str:
        """Why the answer is not final yet."""
        if not self.state.length:
            return "it has no answer yet"
        return _REASON_BY_STOP.get(self.state.stop or "", "its turn has not ended")


def outcome_of(text: str, stop: str | None) -> str:
    """Return the outcome of an answer with this text that stopped for this reason."""
    return "answered" if text and not text.isspace() else _FAILURES.get(stop or "", "no_response")


def build_answer_key(*entry_ids: str) -> str:
    """Return the key of an answer within its session, from the id of its question and, for a further answer, of its first message."""
    return _escape(entry_ids[0]) if len(entry_ids) == 1 else "~".join(map(_escape, entry_ids))


def _escape(part: str) -> str:
    if part.isalnum():  # as most
        return part
    return part.replace("%", "%25").replace(":", "%3A").replace("~", "%7E")


def build_exchange_id(session_id: str, key: str) -> str:
    """Return the id of an answer's exchange."""
    return f"{_escape(session_id)}:{key}"


def extend_state(state: AnswerState, entry: Entry) -> AnswerState:
    """Return the state of an answer after one more message."""
    if entry.is_mirror:
        return msgspec.structs.replace(
            state, mirror=entry.text, model=state.model or MIRROR_MODEL, stop=state.stop or entry.stop
        )
    thinking = state.thinking
    characters = state.thinking_characters
    for block in entry.blocks:
        thought = block.get("thinking")
        if isinstance(thought, str) and thought:
            thinking = (thinking, thought)
            characters += len(thought) + 2  # a blank line separates thoughts
    input_tokens = state.input_tokens
    output_tokens = state.output_tokens
    if entry.usage is not None:
        input_tokens = min((input_tokens or 0) + entry.usage.read, MAX_TOKENS)
        output_tokens = min((output_tokens or 0) + entry.usage.output, MAX_TOKENS)
    model = entry.message.get("model")
    return AnswerState(
        length=state.length + 1,
        thinking=thinking,
        thinking_characters=characters,
        response=state.response if entry.stop == "toolUse" else entry.text,
        mirror=state.mirror,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        model=model if isinstance(model, str) else state.model,
        stop=entry.stop,
    )


def join_thinking(state: AnswerState) -> str | None:
    """Return all thinking blocks in order, joined by blank lines; None if there are none."""
    texts = []
    chain = state.thinking
    while chain is not None:
        chain, text = chain
        texts.append(text)
    return "\n\n".join(reversed(texts)) or None


_EMPTY_STATE = AnswerState()
_UNPLACED = Placement(None, is_retry=False, problem=None)
"""Placement of an entry that belongs to no answer."""
