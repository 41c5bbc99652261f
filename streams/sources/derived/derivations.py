"""Evidence that no agent reports and a transcript shows: outputs that the answer passed over, skills that were not followed.

The rules are pure, work on the raw events of any source of transcripts, and are versioned: what they tell carries `derived_by`. An
exchange is judged once, when its answer is over, and only if it was answered; what the agent says after that takes nothing back.

**`output-use-1`.** `output_use` with `used: false` says that the answer shows no trace of an output and contradicts or passes it by:

1. An output is **taken up** when a mark or two words of it that were not there before (in the user's message, the calls or what the agent
   said) come again in later text, thinking or arguments (`derived_terms`).
2. Looking from the end, only outputs after the last one that was taken up are judged. What an agent looks at on its way to
   what it uses is a search, and no failure.
3. Not judged are: outputs that are errors, that have fewer than MIN_TERMS terms of their own (confirmations), that are longer
   than MAX_TEXT or say they were cut, and those of tools whose result needs no use (`NO_USE_NEEDED`, polling, reading a SKILL.md).
4. That nothing comes again is not enough, for `everything is fine` is a good answer to a log of forty quiet lines. One of these has
   to be so, and is the `reason`:
   `unsupported_figure`: the output states figures, and the answer states one that is nowhere in the session and that no sum, mean,
   count, difference or ratio of the output's gives;
   `contradicted_alarm`: the output has a line that reports trouble, and the answer reassures and names no trouble;
   `unrelated_answer`: output and answer are English prose, and the answer has MIN_OWN_WORDS or more words of its own and none of
   the output's.

What this cannot see: an ignored output that a later one made up for, answers in general words, figures from a long context (more than
MAX_SESSION characters of a session are not remembered, and then no figure counts as unsupported), and prose in other languages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from audit.detectors.polling import is_polling
from streams.sources.derived.claims import claimed_figures, figures_of, is_computed, reassures, reports_trouble, states
from streams.sources.derived.skills import SkillUse, has_failed, skill_files
from streams.sources.derived.terms import (
    MAX_TEXT,
    ROUNDED,
    folded,
    forms_of,
    grammar_words,
    has_word,
    occurs,
    rounded_figures,
    stated_figures,
    terms_in,
    terms_of,
)

OUTPUT_USE = "output-use-1"
"""Name and version of the rule for outputs. Raise it with every change of what the rule tells."""
MIN_TERMS = 3
"""Marks and words of its own from which an output is worth using."""
MIN_OWN_WORDS = 8
"""Words of its own from which an answer that takes up nothing of an output is about something else."""
MIN_PROSE = 4
"""Different words of grammar from which a text is prose; an answer that is too short for them is none."""
MAX_JUDGED = 20
"""Outputs of one exchange that are judged, the last ones."""
MAX_NEW_TERMS = 1000
"""Terms said after an output from which it is not judged: so many terms say something of it."""
MAX_EXCHANGE = 4 * 1024 * 1024
"""Characters of one exchange beyond which it is not judged."""
MAX_SESSION = 8 * 1024 * 1024
"""Characters of a session in which figures are looked for."""
MAX_REMEMBERED = 250_000
"""Figures of a session that are remembered."""
MAX_FIGURES = 64
"""Figures of an output that are computed with; with more, any figure may be their result."""

NO_USE_NEEDED = frozenset(
    [
        "write",
        "edit",
        "apply_patch",
        "message",
        "conversations_send",
        "conversations_turn",
        "sessions_send",
        "sessions_spawn",
        "sessions",
        "tts",
        "canvas",
        "dashboard",
        "progress_card",
        "theme",
        "talk_voice",
        "skill_workshop",
        "create_goal",
        "update_goal",
        "file_write",
        "intent",
        "secrets",
        "update_plan",
        "ask_user",
        "tool_search",
        "tool_describe",
        "openclaw",
        "todo_write",
        "todowrite",
        "multiedit",
        "notebookedit",
    ]
)
"""Tools whose result confirms, delivers or describes: an answer need not come back to it. Names are folded."""

_LONG = 2000
"""Characters of an output from which counting its words takes longer than it saves."""
_CUT = re.compile(
    r"\[cut: \d|\[?\.{3} ?\[?truncated|\[truncated|output truncated|\[showing lines|more characters\]", re.IGNORECASE
)

Json = dict[str, Any]


class Answer(NamedTuple):
    """The agent's text after the last output, and its figures that come from nowhere."""

    text: str
    claims: list[str]


class _Said(NamedTuple):
    """A term, and when it was said first in the exchange."""

    text: str
    is_word: bool
    first: int


class Output(msgspec.Struct, frozen=True):
    """The output of a tool, the call that it answers, and its moment in the exchange."""

    moment: int
    text: str
    event: Json
    call: Json
    event_id: str


class SessionTexts:
    """The figures that were stated in a session so far, as far as they are remembered.

    A figure is looked up and not searched for: a session of weeks has thousands of texts, and each answer asks.
    """

    def __init__(self) -> None:
        self._figures: set[str] = set()
        self._unread: list[str] = []
        """Texts whose figures were not asked for yet: most answers state none that their own exchange does not have."""
        self._size = 0
        self._is_full = False

    def add(self, texts: Sequence[str]) -> None:
        """Remember the figures of texts; nothing is remembered any more once there is too much."""
        if self._is_full:
            return
        self._size += sum(map(len, texts))
        self._unread += texts
        if self._size > MAX_SESSION:
            self._forget()

    def lacks(self, figure: str) -> bool:
        """Tell whether the figure is in none of the texts; False if that is not known."""
        unread, self._unread = self._unread, []
        for text in unread:
            self._figures |= stated_figures(text)
            if len(self._figures) > MAX_REMEMBERED:
                self._forget()
                break
        return not self._is_full and self._figures.isdisjoint(forms_of(figure))

    def _forget(self) -> None:
        self._is_full, self._figures, self._unread = True, set(), []


class ExchangeEvidence:
    """One exchange as it is read: told what the user asked, what the agent said, called and got, it tells what that shows.

    `question` is the user's message and `session` what was said before; `skills` are the names of the skills the agent has, `read`
    those that it read before in this session.
    """

    __slots__ = ("_calls", "_moment", "_outputs", "_question", "_said", "_session", "_size", "_skill_use")

    def __init__(self, question: str, session: SessionTexts, *, skills: frozenset[str], read: set[str]) -> None:
        self._session = session
        self._question = question
        self._skill_use = SkillUse(question, skills, read)
        self._said: list[tuple[int, str]] = []
        self._outputs: list[Output] = []
        self._calls: dict[str, Json] = {}
        self._size = 0
        self._moment = 0

    def said(self, text: str) -> None:
        """The agent wrote or thought this."""
        self._moment += 1
        self._size += len(text)
        if self._size <= MAX_EXCHANGE:
            self._said.append((self._moment, text))

    def called(self, call: Json) -> None:
        """The agent called a tool; a raw `tool_call` event."""
        call_id = call.get("tool_call_id")
        if isinstance(call_id, str):
            self._calls[call_id] = call
        arguments = call.get("arguments")
        self.said(arguments if isinstance(arguments, str) else _written(arguments))

    def returned(self, output: Json, event_id: str) -> None:
        """A tool gave this back; a raw `tool_output` event, and the id that is to stand on what is derived of it."""
        call = self._calls.get(str(output.get("tool_call_id")), {})
        self._skill_use.returned(output, call)
        given = output.get("result")
        text = ""
        if isinstance(given, str):
            self._size += len(given)
            if self._size <= MAX_EXCHANGE:
                text = given
        self._moment += 1
        self._outputs.append(Output(self._moment, text, output, call, event_id))

    def over(self) -> list[Json]:
        """The answer is over, and was one: what it shows, as raw events. Only those of outputs have an id."""
        unused = self._unused() if self._outputs and self._size <= MAX_EXCHANGE else []
        return unused + self._skill_use.over()

    def hand_over(self) -> None:
        """Leave what was said to the session, whose later exchanges may come back to it."""
        self._session.add([self._question, *[text for _, text in self._said], *[output.text for output in self._outputs]])

    def _unused(self) -> list[Json]:
        """The outputs after the last one that was taken up, each with why it counts as not used."""
        last = self._outputs[-1]
        if len(last.text) > MAX_TEXT or self._is_taken_up(last):
            return []
        end = last.moment
        answer = Answer(
            "\n".join(text for moment, text in self._said if moment > end),
            [figure for figure in self._claims(end) if self._session.lacks(figure)],
        )
        judged = self._outputs[-MAX_JUDGED:]
        if not any(_may_have_reason(output.text, answer) for output in judged):
            return []
        if not answer.claims and not reassures(answer.text) and len(terms_of(answer.text).words) < MIN_OWN_WORDS:
            return []  # such an answer gives no reason
        said = self._said_terms()
        found: list[Json] = []
        for output in reversed(judged):
            # What is said for the first time after an output may come from it.
            new = [term for term in said if term.first > output.moment]
            if len(output.text) > MAX_TEXT or len(new) > MAX_NEW_TERMS:
                break
            text = folded(output.text)
            words = sum(term.is_word and has_word(term.text, text) for term in new)
            if words > 1 or _has_mark([term.text for term in new if not term.is_word], text):
                break
            reason = self._reason(output.text, answer, has_words=words > 0)
            if reason is not None and is_judged(output.event, output.call):
                own = self._own_terms(output, said)
                found += [_unused_event(output, reason, own)] if own >= MIN_TERMS else []
        return found[::-1]

    def _is_taken_up(self, output: Output) -> bool:
        """Tell whether it is certain that the output was taken up: most are, and their answers need not be looked at further.

        A term is certainly new if it is in nothing that was said before, not even as a part of a longer word.
        """
        text, before = folded(output.text), ""
        words: set[str] = set()
        later = [terms_in(said) for moment, said in self._said if moment > output.moment]
        for term, is_word in chain.from_iterable(chain.from_iterable(later)):
            if term not in text and (is_word or not term.isdigit()):  # most; of figures there are several spellings
                continue
            if not (has_word(term, text) if is_word else occurs(term, text)):
                continue
            before = before or self._folded_before(output.moment)
            if term not in before:
                if not is_word or (words and term not in words):
                    return True
                words.add(term)
        return False

    def _folded_before(self, moment: int) -> str:
        """Return all that was said up to a moment, the user's message first, as terms are looked for in it; never empty.

        The terms of figures have no commas between thousands, so the text stands there without them, too.
        """
        texts = (self._question, *(text for at, text in self._said if at <= moment))
        whole = "\n".join(text[:MAX_TEXT].casefold() for text in texts)
        return f"{whole}\n{whole.replace(',', '')}"

    def _said_terms(self) -> list[_Said]:
        """The terms that were said, each with when it was said first; what the user said was said at 0."""
        first: dict[tuple[str, bool], int] = {}
        for moment, text in [(0, self._question), *self._said]:
            terms = terms_of(text)
            for is_word, known in ((False, terms.marks), (True, terms.words)):
                for term in known:
                    first.setdefault((term, is_word), moment)
        return [_Said(term, is_word, moment) for (term, is_word), moment in first.items()]

    def _own_terms(self, output: Output, said: list[_Said]) -> int:
        """Count the terms of an output that were not said before it."""
        before = {(term.text, term.is_word) for term in said if term.first < output.moment}
        given = terms_of(output.text)
        return sum((mark, False) not in before for mark in given.marks) + sum(
            (word, True) not in before for word in given.words
        )

    def _claims(self, end: int) -> list[str]:
        """The figures that the answer states and that were not stated before it in this exchange."""
        before = [
            self._question,
            *(text for moment, text in self._said if moment < end),
            *(output.text for output in self._outputs),
        ]
        claimed = (figure for moment, text in self._said if moment > end for figure in claimed_figures(text))
        return [figure for figure in dict.fromkeys(claimed) if not any(states(text, figure) for text in before)]

    def _reason(self, text: str, answer: Answer, *, has_words: bool) -> str | None:
        """Return why the answer shows that the output was passed over; `has_words` says that one word of it came again."""
        if answer.claims and any(_lacks_ground(float(figure), text) for figure in answer.claims):
            return "unsupported_figure"
        if reassures(answer.text) and reports_trouble(text):
            return "contradicted_alarm"
        if has_words or grammar_words(answer.text) < MIN_PROSE:
            return None
        own = terms_of(answer.text).words - terms_of(self._question).words
        if len(own) < MIN_OWN_WORDS or grammar_words(text) < MIN_PROSE:
            return None
        return None if own & terms_of(text).words else "unrelated_answer"


def _written(arguments: Any) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (UnicodeEncodeError, RecursionError, TypeError):
        return ""


def _may_have_reason(text: str, answer: Answer) -> bool:
    """Tell whether there may be a reason why an answer passed over an output: a first look, which misses none."""
    return bool(answer.claims) or reports_trouble(text) or len(text) > _LONG or grammar_words(text) >= MIN_PROSE


def _has_mark(marks: list[str], text: str) -> bool:
    """Tell whether any of the marks, or a longer figure that rounds to one, is in a folded text."""
    if any(occurs(mark, text) for mark in marks):
        return True
    rounded = [mark for mark in marks if mark.startswith(ROUNDED)]
    return bool(rounded) and not rounded_figures(text).isdisjoint(rounded)


def _lacks_ground(figure: float, text: str) -> bool:
    """Tell whether an output states figures, and this one is not computed from them."""
    figures = figures_of(text, MAX_FIGURES + 1)
    return 2 <= len(figures) <= MAX_FIGURES and not is_computed(figure, figures)


def is_judged(output: Json, call: Json) -> bool:
    """Tell whether an answer must use this output of this call, by the kind of output."""
    tool = output.get("tool")
    arguments = call.get("arguments")
    if not isinstance(tool, str) or tool.casefold() in NO_USE_NEEDED or is_polling(tool, arguments):
        return False
    if skill_files(tool, arguments) or has_failed(output) or output.get("tool_status") == "running":
        return False
    text = output.get("result")
    return isinstance(text, str) and 0 < len(text) <= MAX_TEXT and not _CUT.search(text)


def _unused_event(output: Output, reason: str, terms: int) -> Json:
    named: Json = {name: output.event[name] for name in ("tool", "tool_call_id", "via") if name in output.event}
    return {
        "event": "output_use",
        "used": False,
        "reason": reason,
        "terms": terms,
        "derived_by": OUTPUT_USE,
        "event_id": output.event_id,
        **named,
    }
