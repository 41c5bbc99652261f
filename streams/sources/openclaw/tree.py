"""The tree of a transcript's entries, and which answer each entry belongs to.

1. An entry is a child of its parent, wherever it is in the file. Without a parentId it continues the current leaf. Only earlier entries can
   be parents, so there are no cycles, and earlier results do not change as the file grows.
2. Each entry becomes the leaf, unless its appendMode is `side`. A leaf entry moves the leaf to its target; entries that name the leaf entry
   as their parent become children of the target.
3. A user message opens an answer. The assistant messages below it, up to the next user message, belong to that answer. If they branch, or
   continue after the answer was over, each further branch is a separate answer. A message sent while the agent worked (`joins`) belongs
   to the question under way, because the agent answers both at once.
4. An answer is over when a user message follows, or when nothing follows for longer than the session gap. Nothing is added to it
   afterwards. An answer that ended by itself counts earlier; later messages revise its exchange.
5. An answer is abandoned if its last message is not on the path from the active leaf to the root.
6. An unknown parent may be a damaged line: its children get the position of that line. If no line was damaged, they start a new tree.

An answer is folded message by message:

7. The response is the text of the last message that does not call a tool. Thinking is the sequence of all thinking blocks, usage the sum;
   model and stop reason are those of the last message.
8. Zero usage beside content means that the usage is missing, not that the answer was free.
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

MAX_SHARED = 16 * 1024 * 1024
"""Characters that further answers of one session may share with first answers."""
MAX_JOINED = 64 * 1024
"""Characters of a question from which later messages are separate questions."""
_ORIGINS = {"inter_session": "inter_session", "internal_system": "internal", "subagent_task": "subagent"}
"""Tags of exchanges whose question no user wrote, by the kind of its provenance."""
_ROOT = -1
_NO_ANSWER = -1
Chain = tuple[Any, str]
"""Linked texts, the last first: (the texts before it or None, the last text)."""
_FAILURES = {"error": "error", "aborted": "aborted"}
_REASON_BY_STOP = {
    "toolUse": "a tool was called, and the agent has not answered since",
    "tool_use": "a tool was called, and the agent has not answered since",
    "error": "a request failed, and may be tried again",
    "aborted": "it was interrupted, and may go on",
}
_FINAL_STOPS = frozenset({"stop", "length", "end_turn", "max_tokens", "stop_sequence", "refusal"})


class Placement(msgspec.Struct, frozen=True):
    """Result of placing an entry: its answer, whether it retries a failed request, and a problem."""

    answer: Answer | None
    is_retry: bool
    problem: Problem | None


class Tree:
    """The tree, built entry by entry in linear time and without recursion."""

    def __init__(self, gap: timedelta, *, ends_turns: bool = False) -> None:
        self._ends_turns = ends_turns
        self.answers: list[Answer] = []
        self.just_sealed: list[Answer] = []
        self._gap = gap
        self._parents: list[int] = []
        self._answer_indices: list[int] = []
        self._folds: list[Fold] = []
        self._damaged_indices: set[int] = set()
        self._index: dict[str, int] = {}
        self._leaf = _ROOT
        self._damaged: int | None = None
        self._open: list[Answer] = []
        self._turns = 0
        self._failed: set[int] = set()
        self._shared = 0
        self._last_at: datetime | None = None

    def add(self, entry: Entry, at: datetime) -> Placement:
        """Place an entry with a new id; `at` is its time."""
        if self._last_at is not None and at - self._last_at > self._gap:
            self._seal()
        self._last_at = at
        parent, problem = None if entry.parent is None else self._index.get(entry.parent), None
        if parent is None:
            parent, problem = self._parent_of(entry)
        if entry.kind == "leaf":
            return Placement(None, is_retry=False, problem=self._move_leaf(entry, parent) or problem)
        role = entry.role
        if role == "assistant" or role == "user":  # noqa: PLR1714 - a set of two costs more
            answer, fold, refused = self._place_message(entry, parent, at)
            problem = problem or refused
        elif parent == _ROOT:
            answer, fold = _NO_ANSWER, _EMPTY
        else:
            answer, fold = self._answer_indices[parent], self._folds[parent]
        self._index[entry.id] = index = len(self._parents)
        if not entry.side:
            self._leaf = index
        self._append(parent, answer, fold)
        if answer == _NO_ANSWER:
            return _UNPLACED if problem is None else Placement(None, is_retry=False, problem=problem)
        placed_in = self.answers[answer]
        if entry.kind == TURN_END:
            placed_in.is_turn_over = True
        else:
            placed_in.last_at = at
        may_retry = role == "assistant" and (bool(self._failed) or entry.stop == "error")
        return Placement(placed_in, may_retry and self._is_retry(entry, placed_in), problem)

    def _state_at(self, index: int) -> tuple[int, Fold]:
        """Return the answer that an entry belongs to, and its fold up to the entry."""
        return (_NO_ANSWER, _EMPTY) if index == _ROOT else (self._answer_indices[index], self._folds[index])

    def _append(self, parent: int, answer: int, fold: Fold) -> None:
        self._parents.append(parent)
        self._answer_indices.append(answer)
        self._folds.append(fold)

    def add_damaged(self, entry_id: object = None) -> None:
        """Record a line that could not be read, as the parent of its children and of entries that name an unknown parent."""
        (answer, fold), index = self._state_at(self._leaf), len(self._parents)
        if not isinstance(entry_id, str):
            self._damaged = index
        else:
            self._index.setdefault(entry_id, index)
        self._damaged_indices.add(index)
        self._append(self._leaf, answer, fold)

    def abandoned(self) -> set[str]:
        """Return the keys of the answers whose last message is not on the active path."""
        active: set[int] = set()
        index = self._leaf
        while index != _ROOT:
            answer = self._answer_indices[index]
            if answer != _NO_ANSWER and self._folds[index].length == self.answers[answer].fold.length:
                active.add(answer)
            index = self._parents[index]
        return {answer.key for index, answer in enumerate(self.answers) if index not in active}

    def is_idle(self, now: datetime) -> bool:
        """Return whether the last entry is older than the session gap."""
        return self._last_at is not None and now - self._last_at > self._gap

    def _is_retry(self, entry: Entry, answer: Answer) -> bool:
        """Return whether the previous message under the same user message, on any branch, ended in an error."""
        if entry.is_mirror:
            return False
        turn = answer.question.turn
        is_retry = turn in self._failed
        if entry.stop == "error":
            self._failed.add(turn)
        else:
            self._failed.discard(turn)
        return is_retry

    def _parent_of(self, entry: Entry) -> tuple[int, Problem | None]:
        if entry.parent is None:
            return (_ROOT if entry.linked else self._leaf), None
        parent = self._index.get(entry.parent)
        if parent is not None:
            return parent, None
        problem = Problem("unknown_parent", f"parentId: no entry before this one has the id {entry.parent[:64]!r}")
        if self._damaged is None:
            return _ROOT, problem
        self._index[entry.parent] = damaged = self._damaged
        self._damaged = None
        return damaged, problem

    def _move_leaf(self, entry: Entry, parent: int) -> Problem | None:
        target = entry.body.get("targetId")
        index = self._index.get(target) if isinstance(target, str) else None
        if index is None and target is not None:
            self._index[entry.id] = parent
            return Problem("unknown_target", f"targetId: no entry before this one has the id {str(target)[:64]!r}")
        self._leaf = self._index[entry.id] = _ROOT if index is None else index
        return None

    def _place_message(self, entry: Entry, parent: int, at: datetime) -> tuple[int, Fold, Problem | None]:
        """Return the answer that a user or assistant message belongs to, and its fold including the message."""
        index, before = self._state_at(parent)
        if entry.role == "user":
            joined = entry.message.get("joins") is True and self._join(entry, index, before)
            return (index, before, None) if joined else self._ask(entry, index, at)
        if index == _NO_ANSWER:
            return index, before, None
        if parent in self._damaged_indices and before.has_ended:
            # After an answer that ended, the damaged line was a question, so this answers an unreadable question.
            return _NO_ANSWER, _EMPTY, None
        answer = self.answers[index]
        # A mirror may be a sibling of the message it repeats. It is part of the answer, not a branch.
        if before.length == answer.fold.length and not answer.sealed and (answer.side or not entry.side):
            answer.add(entry, at, ends_turns=self._ends_turns)
            return index, answer.fold, None
        return self._branch(entry, answer.question, before, at)

    def _join(self, entry: Entry, index: int, before: Fold) -> bool:
        """Add a user message to the question whose answer is under way at an index. Return False if there is none."""
        answer = None if index == _NO_ANSWER else self.answers[index]
        if answer is None or answer.sealed or before.length != answer.fold.length or answer.side != entry.side:
            return False
        question = answer.question
        if answer.counts(ends_turns=self._ends_turns) or len(question.text) >= MAX_JOINED:
            return False
        answer.question = msgspec.structs.replace(question, text=f"{question.text}\n\n{entry.text}")
        return True

    def _ask(self, entry: Entry, index: int, at: datetime) -> tuple[int, Fold, None]:
        if not entry.side:
            self._seal()
        elif index != _NO_ANSWER and self.answers[index].side:
            self._seal_one(self.answers[index])
        self._turns += 1
        origin = entry.message.get("provenance")
        kind = _ORIGINS.get(str(origin.get("kind"))) if isinstance(origin, dict) else None
        question = Question(entry.id, at, self._turns, entry.text, kind)
        return self._begin(Answer(key_of(entry.id), at, question, _EMPTY, entry.side)), _EMPTY, None

    def _branch(self, entry: Entry, question: Question, before: Fold, at: datetime) -> tuple[int, Fold, Problem | None]:
        """Begin a further answer to a question. It shares the messages before the branch."""
        shared = _EMPTY if before.has_ended else msgspec.structs.replace(before, response="", mirror="")
        self._shared += len(question.text) + shared.thinking_characters
        if self._shared > MAX_SHARED:
            return (
                _NO_ANSWER,
                _EMPTY,
                Problem("too_many_answers", "parentId: the session branches into more answers than are kept"),
            )
        fold = folded(shared, entry)
        return self._begin(Answer(key_of(question.entry_id, entry.id), at, question, fold, side=entry.side)), fold, None

    def _begin(self, answer: Answer) -> int:
        self.answers.append(answer)
        self._open.append(answer)
        return len(self.answers) - 1

    def take_sealed(self) -> list[Answer]:
        """Return the answers that the last entry ended, by start. Each answer is returned once."""
        sealed, self.just_sealed = self.just_sealed, []
        return sealed

    def _seal(self) -> None:
        for answer in self._open:
            self._seal_one(answer)
        self._open.clear()

    def _seal_one(self, answer: Answer) -> None:
        if not answer.sealed:
            answer.sealed = True
            self.just_sealed.append(answer)


class Question(msgspec.Struct, frozen=True, gc=False):
    """One user message: its entry, time, number among the session's user messages (from 1), and text.

    `origin` is the tag of a message that no user wrote.
    """

    entry_id: str
    at: datetime
    turn: int
    text: str
    origin: str | None


class Fold(msgspec.Struct, frozen=True):
    """Summary of the assistant messages up to a point of a branch. `length` counts them without mirrors."""

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
        """True if the last message ended the answer: after it only a user message is expected."""
        return self.stop in _FINAL_STOPS

    @property
    def outcome(self) -> str:
        """`answered`, or why there is no text: `error`, `aborted` or `no_response`."""
        return outcome_of(self.text, self.stop)

    @property
    def text(self) -> str:
        """The response; the mirror if there is none."""
        return self.mirror if self.is_mirrored else self.response

    @property
    def is_mirrored(self) -> bool:
        """True if there is nothing but a mirror."""
        return not self.response.strip() and bool(self.mirror.strip())


class Answer(msgspec.Struct, gc=False):
    """An answer to a question, which may still grow. `key` is its id within the session, `at` the time of the question.

    `exchange_id` is set once it is known. `is_turn_over`: a line ended the turn. `went_on`: the answer grew after it counted, so its
    exchange may have been reported before. `last_at` is the time of its last entry.
    """

    key: str
    at: datetime
    question: Question
    fold: Fold
    side: bool
    sealed: bool = False
    exchange_id: str = ""
    is_turn_over: bool = False
    went_on: bool = False
    last_at: datetime | None = None

    def counts(self, *, ends_turns: bool) -> bool:
        """Return whether the answer ended by itself and so counts at once. `ends_turns`: a line marks the end of a turn."""
        return self.is_turn_over or (not ends_turns and self.fold.has_ended and bool(self.fold.text.strip()))

    def add(self, entry: Entry, at: datetime, *, ends_turns: bool) -> None:
        """Add a message."""
        self.went_on = self.went_on or self.counts(ends_turns=ends_turns)
        self.is_turn_over, self.last_at = False, at
        self.fold = folded(self.fold, entry)

    @property
    def waits_for(self) -> str:
        """Why the answer does not count yet."""
        if not self.fold.length:
            return "it has no answer yet"
        return _REASON_BY_STOP.get(self.fold.stop or "", "its turn has not ended")


def outcome_of(text: str, stop: str | None) -> str:
    """Return the outcome of an answer with this text that stopped for this reason."""
    return "answered" if text and not text.isspace() else _FAILURES.get(stop or "", "no_response")


def key_of(*entry_ids: str) -> str:
    """Return the key of an answer within its session: the id of the user message, and that of its first message if it is a further answer."""
    return _escape(entry_ids[0]) if len(entry_ids) == 1 else "~".join(map(_escape, entry_ids))


def _escape(part: str) -> str:
    if part.isalnum():  # as most
        return part
    return part.replace("%", "%25").replace(":", "%3A").replace("~", "%7E")


def exchange_id_of(session_id: str, key: str) -> str:
    """Return the id of the exchange of an answer, unique per session and answer."""
    return f"{_escape(session_id)}:{key}"


def folded(fold: Fold, entry: Entry) -> Fold:
    """Return the fold with one more assistant message."""
    if entry.is_mirror:
        model, stop = fold.model or MIRROR_MODEL, fold.stop or entry.stop
        return msgspec.structs.replace(fold, mirror=entry.text, model=model, stop=stop)
    thinking, characters = fold.thinking, fold.thinking_characters
    for block in entry.blocks:
        thought = block.get("thinking")
        if isinstance(thought, str) and thought:
            thinking, characters = (thinking, thought), characters + len(thought) + 2
    usage, stop, model_name = entry.usage, entry.stop, entry.message.get("model")
    return Fold(
        fold.length + 1,
        thinking,
        characters,
        fold.response if stop == "toolUse" else entry.text,
        fold.mirror,
        fold.input_tokens if usage is None else min((fold.input_tokens or 0) + usage.read, MAX_TOKENS),
        fold.output_tokens if usage is None else min((fold.output_tokens or 0) + usage.output, MAX_TOKENS),
        model_name if isinstance(model_name, str) else fold.model,
        stop,
    )


def thinking_text(fold: Fold) -> str | None:
    """Return all thinking blocks in order, joined by blank lines; None if there are none."""
    texts, chain = [], fold.thinking
    while chain is not None:
        chain, text = chain
        texts.append(text)
    return "\n\n".join(reversed(texts)) or None


_EMPTY = Fold()
_UNPLACED = Placement(None, is_retry=False, problem=None)
"""Placement of an entry that belongs to no answer."""
