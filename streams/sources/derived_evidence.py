"""Evidence derived from transcripts that agents do not report: outputs that the answer ignored, and skills that were not followed.

The rules are pure and versioned, and work on the raw events of any transcript source. Their events carry `derived_by`. An exchange is judged
once, when its answer is over, and only if it was answered. Nothing the agent says later withdraws an event.

**`output-use-1`.** `output_use` with `used: false` says that the answer shows no trace of an output and contradicts or ignores it:

1. An output is **used** if a mark or two words of it that are new (not in the user's message, the calls or earlier text of the agent) recur
   in later text, thinking or arguments.
2. Only outputs after the last used one are judged. Outputs that an agent reads before the one it uses are a search, not a failure.
3. Not judged are errors, outputs with fewer than MIN_TERMS new terms (confirmations), outputs longer than MAX_TEXT or marked as cut, and
   those of tools whose result needs no use (`NO_USE_NEEDED`, polling, reading a SKILL.md).
4. A lack of common terms is not enough: `everything is fine` is a good answer to a log of forty quiet lines. One of these must hold, and is
   the `reason`:
   `unsupported_figure`: the output has figures, and the answer states a figure that is nowhere in the session and that is not a sum,
   mean, count, difference or ratio of the output's figures;
   `contradicted_alarm`: the output has a line that reports trouble, and the answer reassures and names no trouble;
   `unrelated_answer`: output and answer are English prose, and the answer has at least MIN_OWN_WORDS new words and none of the
   output's.

The rule cannot detect an ignored output that a later one replaced, answers in general words, figures in sessions of more than MAX_SESSION
characters (there no figure counts as unsupported), and prose in other languages.

**`skill-use-1`.** A skill is a SKILL.md that the agent must read before it acts. `skill_event` reports exactly three failures. An unused
skill is not a failure.

1. **ignored**: the user names a skill the agent has (`/name`, `/skill name`, `$name`, "use the name skill") and the agent answers
   without having read its SKILL.md in this session. The agent's store lists its skills. Without the list a skill cannot be distinguished
   from another command, and nothing counts as ignored.
2. **failed**, `read_failed`: reading a SKILL.md failed and did not succeed later.
3. **failed**, `commands_failed`: a SKILL.md was read, and the last command after it failed. Commands are calls of tools that run something.
   A `grep` that finds nothing has not failed.

**Terms** are the parts of a text that can be recognised elsewhere. Outputs are long and answers short, so the terms of an answer are
searched for in the output. All of it is linear in the text, of which MAX_TEXT characters are read.

1. *Marks* are figures with at least two digits, and identifiers: words with digits, underscores or inner capitals, paths, addresses. In a
   token joined by points, slashes or colons, each part that is a mark counts as well. A time of day is not a mark.
2. *Words* are other words of at least four letters, without English function words, reduced to their stems, so that `adapters` and
   `adapter` are equal. Case is folded.
3. A figure with two significant digits matches every longer one that rounds to it: `about 69k` and `1.2 s` match `68701` and `1234`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.events import is_polling

OUTPUT_USE = "output-use-1"
"""Name and version of the rule for outputs. Increase it with every change of its results."""
MIN_TERMS = 3
"""New marks and words from which an output is judged."""
MIN_OWN_WORDS = 8
"""New words from which an answer without any of the output's is unrelated."""
MIN_PROSE = 4
"""Distinct function words from which a text counts as prose."""
MAX_JUDGED = 20
"""Latest outputs of an exchange that are judged."""
MAX_NEW_TERMS = 1000
"""New terms after an output beyond which it is not judged: so many would match by chance."""
MAX_EXCHANGE = 4 * 1024 * 1024
"""Characters of one exchange beyond which it is not judged."""
MAX_SESSION = 8 * 1024 * 1024
"""Characters of a session that are searched for figures."""
MAX_REMEMBERED = 250_000
"""Figures of a session kept in memory."""
MAX_FIGURES = 64
"""Figures of an output used for computations. With more, any figure could be a result."""
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
"""Tools, by case-folded name, whose result an answer need not use: it confirms, delivers or describes."""
_COUNTED_CHARACTERS = 2000
"""Characters of an output beyond which counting its words costs more than it saves."""
_TRUNCATION = re.compile(
    r"\[cut: \d|\[?\.{3} ?\[?truncated|\[truncated|output truncated|\[showing lines|more characters\]", re.IGNORECASE
)
Json = dict[str, Any]
SKILL_USE = "skill-use-1"
"""Name and version of the rule for skills. Increase it with every change of its results."""
COMMANDS = frozenset({"exec", "bash", "shell", "process", "code_execution", "local_shell", "run_shell_command"})
"""Tools that run commands, by case-folded name."""
MAX_QUESTION = 16 * 1024
"""Characters of a user's message that are searched for skills."""
_SKILL_FILE = re.compile(r"([^/\\\s\"'`]{1,64})[/\\]SKILL\.md\b", re.IGNORECASE)
_SLASH_COMMAND = re.compile(r"\s*/(?:skill\s+)?([A-Za-z0-9_.-]{1,64})(?=\s|$)")
_DOLLAR_SKILL = re.compile(r"(?<![\w\\$])\$([a-z][a-z0-9_-]{1,63})\b")
_SKILL_PHRASE = re.compile(
    r"\b(?:use|using|with|via|follow|apply|run)\s{1,4}(?:the\s{1,4}|your\s{1,4}|my\s{1,4})?[`\"'*]{0,2}([\w.-]{1,64})[`\"'*]{0,2}\s{1,4}skill\b",
    re.IGNORECASE,
)
_SEARCH_COMMAND = re.compile(r"\s*(?:\S*/)?(?:grep|egrep|fgrep|rg|diff|cmp|test|\[|pgrep|which|command)\s")
_FAILED = frozenset({"error", "failed", "not_found"})
MAX_LINES = 400
"""Last lines of an output that are searched for reported trouble."""
MAX_PAIRED = 16
"""First figures of an output of which every pair is subtracted and divided."""
_MAX_LINE = 500
_MAX_COLUMNS = 4
_UNITS = (1.0, 60.0, 100.0, 1000.0, 1024.0, 3600.0, 10.0**6, 2.0**20)
_TIME_SPAN = re.compile(
    r"\d(?<!\w\d)\d{0,5}(?:[.,]\d{1,3})?[ -]?(?:days?|weeks?|months?|years?|hours?|minutes?|mins?|tagen?|wochen?|monaten?|jahren?|stunden?|dias?|"
    r"semanas?|meses|horas?|jours?|semaines?|mois|ans?|heures?)\b",
    re.IGNORECASE,
)
_QUOTED_CODE = re.compile(r"```[^`]*```|`[^`]*`")
_ALARM_PATTERN = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|FAILED|FAILURE|PANIC|EMERG|ALERT)\b|\b(?:[Ee]rror|[Ff]atal|[Pp]anic|[Ff]ailed|[Ff]ailure):"
)
_ALARM_WORDS = ("ERROR", "FATAL", "CRITICAL", "FAIL", "PANIC", "EMERG", "ALERT", "rror:", "atal:", "anic:", "ailed:", "ailure:")
"""Substrings of which every match has at least one."""
_NO_ALARM_PATTERN = re.compile(
    r"\b(?:no|0|zero|without)\s{1,4}(?:\w{1,20}\s{1,4})?(?:errors?|fail\w{0,10}|problems?|warnings?)\b"
    r"|\b(?:errors?|failed|failures?)\s{0,4}[:=]\s{0,4}0\b",
    re.IGNORECASE,
)
_TROUBLE_WORDS = re.compile(
    r"\b(?:err\w*|fail\w*|problem\w*|issue\w*|trouble\w*|broke\w*|crash\w*|denied|refused|full|mismatch\w*|corrupt\w*|warn\w*|"
    r"unhealthy|wrong|timeout|killed|died|fehler\w*|falh\w*|fallo\w*|échec\w*|but|however|although|aber|except)\b",
    re.IGNORECASE,
)
_DENIED_TROUBLE = re.compile(
    r"\b(?:no|without|zero|0|any|not|never|keine?\w{0,2}|ohne|sem|nenhum|sin|ningun\w?|sans|aucune?)\s{1,4}(?:\w{1,20}\s{1,4})?"
    r"(?:err|fail|problem|issue|trouble|warn|fehler|falh|fallo|wrong)\w*",
    re.IGNORECASE,
)
_REASSURANCE = re.compile(
    r"\b(?:fine|healthy|all good|all well|looks good|ok|okay|success\w*|passed|ran through|quiet|sleep well|everything works|"
    r"in ordnung|tudo certo|tudo bem|todo bien|tout va bien|no (?:errors?|problems?|issues?))\b",
    re.IGNORECASE,
)
MAX_TEXT = 16 * 1024
"""Characters of one text that are read."""
MAX_TRIES = 64
"""Occurrences of a term that are checked in one text."""
MAX_TOKEN = 200
"""Characters of the longest token that is read."""
_CACHED_TOKENS = 16 * 1024
"""Tokens whose terms are cached, in a few megabytes."""
_MAX_CACHED_STRETCH = 40
"""Characters of the longest stretch whose terms are cached."""
_CACHED_TEXTS = 32
"""Texts whose terms are cached: those of one exchange."""
# Bounded repetitions keep rows of points or dashes from taking quadratic time.
TOKEN = re.compile(r"[^\W_](?:(?:[\w.:/@+=\-]|,(?=\d)){0,200}\w)?|[_/~.][\w./\-]{0,200}\w")
_WORD = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIME = re.compile(
    r"\d{4}-\d\d(?!\d)(?:-\d\d(?:t[\d:.,]*z?)?)?|(?<![\d.])\d{1,2}:\d\d(?::\d\d)?(?!\d)(?:[.,]\d+)?z?", re.IGNORECASE
)
ESCAPES = re.compile(r"\\[nrtu\"\\/]")
_ROUNDABLE = re.compile(r"(\d{1,15}(?:[.,]\d{1,3})*)([kmg])?", re.IGNORECASE | re.ASCII)
_FIGURE_SEQUENCE = re.compile(r"[0-9](?<![^\W_][0-9])[0-9]*(?:[.,][0-9]+)*(?![^\W_])")
"""A figure without adjacent letters or digits, or several joined by points and commas. A pattern that starts with a character set is searched
fast; a leading lookbehind would be tried at every character.
"""
_SEPARATOR = re.compile(r"([.,])")
_MAX_PARTS = 6
_LONG_FIGURE = re.compile(r"(?<![\d.,])[1-9]\d{3,}", re.ASCII)
ROUNDED = "~"
"""First character of the mark of a rounded figure."""
_ENDINGS = ("ing", "ed", "es", "ly", "s")
GRAMMAR = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "again",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "below",
        "between",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "me",
        "more",
        "most",
        "my",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "ours",
        "out",
        "over",
        "own",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
        "yours",
    ]
)
"""English function words. They also distinguish prose from lists."""
TermEntry = tuple[str, bool]
"""A term, and whether it is a word."""


class Answer(NamedTuple):
    """The agent's text after the last output, and its figures that no earlier text has."""

    text: str
    claims: list[str]


class Output(msgspec.Struct, frozen=True):
    """The output of a tool, its call, and its moment in the exchange."""

    moment: int
    text: str
    event: Json
    call: Json
    event_id: str


class SessionTexts:
    """The figures stated in a session so far, up to a limit.

    Figures are kept in a set instead of searched for, because a session of weeks has thousands of texts and each answer asks.
    """

    def __init__(self) -> None:
        self._figures: set[str] = set()
        self._unread: list[str] = []
        """Texts not yet searched for figures. Most answers state no figure from outside their exchange."""
        self._size = 0
        self._is_full = False

    def add(self, texts: Sequence[str]) -> None:
        """Add the figures of texts. Beyond the limits, all figures are dropped."""
        if self._is_full:
            return
        self._size += sum(map(len, texts))
        self._unread += texts
        if self._size > MAX_SESSION:
            self._forget()

    def lacks(self, figure: str) -> bool:
        """Return whether the figure is in none of the texts; False if unknown."""
        unread, self._unread = self._unread, []
        for text in unread:
            self._figures |= _stated_figures(text)
            if len(self._figures) > MAX_REMEMBERED:
                self._forget()
                break
        return not self._is_full and self._figures.isdisjoint(_spell_mark(figure))

    def _forget(self) -> None:
        self._is_full = True
        self._figures = set()
        self._unread = []


def _stated_figures(text: str) -> set[str]:
    """Return every separate figure in a text as written. Of `1,234.5`, the parts are included."""
    figures: set[str] = set()
    for sequence in _FIGURE_SEQUENCE.findall(text):
        parts = _SEPARATOR.split(sequence)
        # Parts and separators alternate.
        for first in range(0, len(parts), 2):
            figures.update(
                "".join(parts[first:last]) for last in range(first + 1, min(first + 2 * _MAX_PARTS, len(parts) + 1), 2)
            )
    return figures


def _spell_mark(mark: str) -> list[str]:
    """Return the spellings of a mark. A figure is also spelled with thousands separators."""
    is_long_figure = len(mark) > 3 and mark.isascii() and mark.isdigit() and mark[0] != "0"
    return [mark, f"{int(mark):,}"] if is_long_figure else [mark]


class ExchangeEvidence:
    """The evidence of one exchange, collected from the user's message and the agent's texts, calls and outputs.

    `question` is the user's message and `session` has the earlier figures; `skills` are the names of the agent's skills, `read` those that
    it read earlier in this session.
    """

    __slots__ = ("_calls", "_moment", "_outputs", "_question", "_session", "_size", "_skill_use", "_spoken")

    def __init__(self, question: str, session: SessionTexts, *, skills: frozenset[str], read: set[str]) -> None:
        self._session = session
        self._question = question
        self._skill_use = _SkillUse(question, skills, read)
        self._spoken: list[tuple[int, str]] = []
        self._outputs: list[Output] = []
        self._calls: dict[str, Json] = {}
        self._size = 0
        self._moment = 0

    def add_text(self, text: str) -> None:
        """Add a text that the agent wrote or thought."""
        self._moment += 1
        self._size += len(text)
        if self._size <= MAX_EXCHANGE:
            self._spoken.append((self._moment, text))

    def called(self, call: Json) -> None:
        """Add a tool call: a raw `tool_call` event."""
        call_id = call.get("tool_call_id")
        if isinstance(call_id, str):
            self._calls[call_id] = call
        arguments = call.get("arguments")
        self.add_text(arguments if isinstance(arguments, str) else _write_json(arguments))

    def returned(self, output: Json, event_id: str) -> None:
        """Add a tool output: a raw `tool_output` event, and the id of the event that may be derived from it."""
        call = self._calls.get(str(output.get("tool_call_id")), {})
        self._skill_use.returned(output, call)
        result = output.get("result")
        text = ""
        if isinstance(result, str):
            self._size += len(result)
            if self._size <= MAX_EXCHANGE:
                text = result
        self._moment += 1
        self._outputs.append(Output(self._moment, text, output, call, event_id))

    def over(self) -> list[Json]:
        """Return the derived raw events of an answered exchange. Only those of outputs have an id."""
        unused = self._unused() if self._outputs and self._size <= MAX_EXCHANGE else []
        return unused + self._skill_use.over()

    def hand_over(self) -> None:
        """Add the texts to the session, because later exchanges may refer to them."""
        self._session.add([self._question, *[text for _, text in self._spoken], *[output.text for output in self._outputs]])

    def _unused(self) -> list[Json]:
        """Return an event for each output after the last one that was used, with the reason why it counts as unused."""
        last = self._outputs[-1]
        if len(last.text) > MAX_TEXT or self._is_taken_up(last):
            return []
        answer = self._answer_after(last.moment)
        judged = self._outputs[-MAX_JUDGED:]
        if not any(_may_have_reason(output.text, answer) for output in judged):
            return []
        if not answer.claims and not reassures(answer.text) and len(terms_of(answer.text).stems) < MIN_OWN_WORDS:
            return []  # no reason can apply to such an answer
        spoken_terms = self._spoken_terms()
        events: list[Json] = []
        for output in reversed(judged):
            # Only terms that are said for the first time after an output may come from it.
            new_terms = [term for term in spoken_terms if term.first > output.moment]
            if len(output.text) > MAX_TEXT or len(new_terms) > MAX_NEW_TERMS:
                break
            text = folded(output.text)
            repeated_words = sum(term.is_word and _has_word(term.text, text) for term in new_terms)
            if repeated_words > 1 or _has_mark([term.text for term in new_terms if not term.is_word], text):
                break
            reason = self._reason(output.text, answer, has_words=repeated_words > 0)
            if reason is None or not is_judged(output.event, output.call):
                continue
            own_terms = self._own_terms(output, spoken_terms)
            if own_terms >= MIN_TERMS:
                events.append(_unused_event(output, reason, own_terms))
        return events[::-1]

    def _answer_after(self, moment: int) -> Answer:
        texts = [text for spoken_at, text in self._spoken if spoken_at > moment]
        claims = [figure for figure in self._claims(moment) if self._session.lacks(figure)]
        return Answer("\n".join(texts), claims)

    def _is_taken_up(self, output: Output) -> bool:
        """Return whether the output was certainly used. Most are, and their answers need no further checks.

        A term is certainly new if no earlier text has it, not even as part of a longer word.
        """
        text = folded(output.text)
        earlier_text = ""
        repeated_words: set[str] = set()
        for term, is_word in self._terms_after(output.moment):
            # A figure has several spellings, so its absence from the text proves nothing.
            if term not in text and (is_word or not term.isdigit()):
                continue
            if not (_has_word(term, text) if is_word else occurs(term, text)):
                continue
            earlier_text = earlier_text or self._folded_before(output.moment)
            if term in earlier_text:
                continue
            if not is_word or (repeated_words and term not in repeated_words):
                return True
            repeated_words.add(term)
        return False

    def _terms_after(self, moment: int) -> Iterator[TermEntry]:
        for spoken_at, text in self._spoken:
            if spoken_at > moment:
                for entries in _iterate_terms(text):
                    yield from entries

    def _folded_before(self, moment: int) -> str:
        """Return all texts up to a moment, the user's message first, prepared for term searches; never empty.

        The text is repeated without thousands separators, which the terms of figures do not have.
        """
        texts = (self._question, *(text for at, text in self._spoken if at <= moment))
        whole = "\n".join(text[:MAX_TEXT].casefold() for text in texts)
        return f"{whole}\n{whole.replace(',', '')}"

    def _spoken_terms(self) -> list[_SpokenTerm]:
        """Return the terms of the exchange with the moment of their first use. The user's message is at 0."""
        first: dict[tuple[str, bool], int] = {}
        for moment, text in [(0, self._question), *self._spoken]:
            terms = terms_of(text)
            for is_word, listed in ((False, terms.marks), (True, terms.stems)):
                for term in listed:
                    first.setdefault((term, is_word), moment)
        return [_SpokenTerm(term, is_word, moment) for (term, is_word), moment in first.items()]

    def _own_terms(self, output: Output, spoken_terms: list[_SpokenTerm]) -> int:
        """Count the terms of an output that no text before it has."""
        earlier_marks = {term.text for term in spoken_terms if term.first < output.moment and not term.is_word}
        earlier_words = {term.text for term in spoken_terms if term.first < output.moment and term.is_word}
        terms = terms_of(output.text)
        return len(terms.marks - earlier_marks) + len(terms.stems - earlier_words)

    def _claims(self, moment: int) -> list[str]:
        """Return the figures that the answer after a moment states and no earlier text of the exchange does."""
        earlier_texts = [self._question, *(output.text for output in self._outputs)]
        earlier_texts += [text for spoken_at, text in self._spoken if spoken_at < moment]
        claims: list[str] = []
        checked: set[str] = set()
        for spoken_at, text in self._spoken:
            if spoken_at <= moment:
                continue
            for figure in claimed_figures(text):
                if figure in checked:
                    continue
                checked.add(figure)
                if not any(states(earlier, figure) for earlier in earlier_texts):
                    claims.append(figure)
        return claims

    def _reason(self, text: str, answer: Answer, *, has_words: bool) -> str | None:
        """Return why the output counts as ignored; None if it does not. `has_words`: one of its words recurs."""
        if answer.claims and any(_lacks_ground(float(figure), text) for figure in answer.claims):
            return "unsupported_figure"
        if reassures(answer.text) and reports_trouble(text):
            return "contradicted_alarm"
        if has_words or _count_grammar_words(answer.text) < MIN_PROSE:
            return None
        own = terms_of(answer.text).stems - terms_of(self._question).stems
        if len(own) < MIN_OWN_WORDS or _count_grammar_words(text) < MIN_PROSE:
            return None
        return None if own & terms_of(text).stems else "unrelated_answer"


class _SkillUse:
    """Tracks the use of skills in one exchange.

    `skills` are the agent's skills. `read` are those that it has read; it is updated.
    """

    __slots__ = ("_failed", "_followed", "_last_command", "_named", "_read")

    def __init__(self, question: str, skills: frozenset[str], read: set[str]) -> None:
        self._read = read
        self._named = named_skills(question, skills) if skills else []
        self._failed: dict[str, None] = {}
        self._followed: dict[str, None] = {}
        self._last_command: bool | None = None

    def returned(self, output: Json, call: Json) -> None:
        """Add the output of a call, which may be unknown."""
        tool = _casefold(output.get("tool"))
        failed = has_failed(output, call)
        # Only a call with an output has read a file.
        for name in skill_files(tool, call.get("arguments")):
            if failed:
                self._failed.setdefault(name)
            else:
                self._failed.pop(name, None)
                self._followed.setdefault(name)
                self._read.add(name)
                self._last_command = None
            return
        if tool in COMMANDS and self._followed and output.get("tool_status") != "running":
            self._last_command = failed

    def over(self) -> list[Json]:
        """Return the skill events of an answer that is over."""
        if not (self._named or self._failed or self._last_command):  # as most
            return []
        ignored = [name for name in self._named if name not in self._read and name not in self._failed]
        events = [_skill_event(name, "ignored", "not_read") for name in ignored]
        events += [_skill_event(name, "failed", "read_failed") for name in self._failed]
        if self._last_command:
            events.append(_skill_event(next(reversed(self._followed)), "failed", "commands_failed"))
        return events


def _casefold(value: Any) -> str:
    return value.casefold() if isinstance(value, str) else ""


def _skill_event(name: str, status: str, action: str) -> Json:
    return {"event": "skill_event", "skill": name, "status": status, "action": action, "derived_by": SKILL_USE}


def _write_json(arguments: Any) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (UnicodeEncodeError, RecursionError, TypeError):
        return ""


def _may_have_reason(text: str, answer: Answer) -> bool:
    """Prefilter: return whether there may be a reason for an ignored output. It has no false negatives."""
    return (
        bool(answer.claims)
        or reports_trouble(text)
        or len(text) > _COUNTED_CHARACTERS
        or _count_grammar_words(text) >= MIN_PROSE
    )


def _count_grammar_words(text: str) -> int:
    """Count the distinct function words in a text. Prose has many; lists, logs and other languages have few."""
    return len(GRAMMAR.intersection(_WORD.findall(text[:MAX_TEXT].casefold())))


def _has_word(word: str, folded: str) -> bool:
    """Return whether a case-folded text has a word with this stem."""
    return _stands_alone(word, folded, only_begins=True)


def _stands_alone(form: str, text: str, *, only_begins: bool = False) -> bool:
    """Return whether a text has this form as a separate word, or, with `only_begins`, at the start of a word.

    A text with MAX_TRIES occurrences inside longer words is assumed to have a separate one as well.
    """
    at = -1
    for _ in range(MAX_TRIES):
        at = text.find(form, at + 1)
        if at < 0:
            return False
        end = at + len(form)
        if not (at and text[at - 1].isalnum()) and (only_begins or not text[end : end + 1].isalnum()):
            return True
    return True


def _has_mark(marks: list[str], text: str) -> bool:
    """Return whether a case-folded text has any of the marks, or a longer figure that rounds to one."""
    if any(occurs(mark, text) for mark in marks):
        return True
    rounded = [mark for mark in marks if mark.startswith(ROUNDED)]
    return bool(rounded) and not _rounded_figures(text).isdisjoint(rounded)


def _rounded_figures(folded: str) -> set[str]:
    """Return the rounded marks of the figures with four or more digits in a text."""
    return {f"{ROUNDED}{f'{float(figure[:17]):.1e}'.replace('.', '')[:2]}" for figure in _LONG_FIGURE.findall(folded)}


def _unused_event(output: Output, reason: str, terms: int) -> Json:
    call: Json = {name: output.event[name] for name in ("tool", "tool_call_id", "via") if name in output.event}
    return {
        "event": "output_use",
        "used": False,
        "reason": reason,
        "terms": terms,
        "derived_by": OUTPUT_USE,
        "event_id": output.event_id,
        **call,
    }


def _iterate_terms(text: str) -> Iterator[Sequence[TermEntry]]:
    """Yield the terms of each stretch without white space, in the order of the text."""
    for stretch in _without_escapes(text[:MAX_TEXT]).split():
        yield _list_terms_cached(stretch) if len(stretch) <= _MAX_CACHED_STRETCH else _list_terms(stretch)


def _without_escapes(text: str) -> str:
    return ESCAPES.sub(" ", text) if "\\" in text else text


def _list_terms(stretch: str) -> tuple[TermEntry, ...]:
    """Return the terms of the tokens in a stretch of text, the marks of a token first, each with whether it is a word."""
    entries: list[TermEntry] = []
    for token in TOKEN.findall(stretch):
        terms = _terms_of_token(token)
        entries += [(mark, False) for mark in terms.marks]
        entries += [(word, True) for word in terms.stems]
    return tuple(entries)


_list_terms_cached = lru_cache(_CACHED_TOKENS)(_list_terms)
"""Cached version for short stretches, which recur."""


@lru_cache(_CACHED_TOKENS)
def _terms_of_token(token: str) -> Terms:
    """Return the terms of one token. Cached because tokens recur."""
    marks: set[str] = set()
    stems: set[str] = set()
    if len(token) <= MAX_TOKEN:
        _add_terms(token, marks, stems)
    return Terms(frozenset(marks), frozenset(stems))


def _add_terms(token: str, marks: set[str], stems: set[str]) -> None:
    if token.isalpha():
        _add_word(token, marks, stems)
    elif TIME.fullmatch(token):
        marks.add(token.casefold())
    elif NUMBER.fullmatch(token):
        _add_figure(token, marks)
    elif token.replace("-", "").isalpha():
        for word in token.split("-"):
            _add_word(word, marks, stems)
    else:
        marks.add(token.casefold())
        for part in _WORD.findall(TIME.sub(" ", token)):
            _add_part(part, marks, stems)
        _add_rounded(token, marks)


def _add_word(word: str, marks: set[str], stems: set[str]) -> None:
    folded = word.casefold()
    if len(word) > 1 and not (word.islower() or word.isupper() or word.istitle()):
        marks.add(folded)
    elif len(folded) >= 4 and folded not in GRAMMAR:
        stems.add(stem(folded))


def _add_figure(figure: str, marks: set[str]) -> None:
    if len(figure) >= 2:
        marks.update((figure, figure.replace(",", "")))
        _add_rounded(figure, marks)


def _add_rounded(token: str, marks: set[str]) -> None:
    match = _ROUNDABLE.fullmatch(token)
    if match is None:
        return
    digits = match[1].replace(",", "").replace(".", "").strip("0")
    if len(digits) in (1, 2) and (match[2] or not match[1].isdigit() or len(match[1]) > 2):
        marks.add(f"{ROUNDED}{digits:0<2}")


def _add_part(part: str, marks: set[str], stems: set[str]) -> None:
    if part.isdigit():
        _add_figure(part, marks)
    elif part.isalpha():
        _add_word(part, marks, stems)
    elif len(part) > 1:
        marks.add(part.casefold())


class _SpokenTerm(NamedTuple):
    """A term, and the moment of its first use in the exchange."""

    text: str
    is_word: bool
    first: int


def _lacks_ground(figure: float, text: str) -> bool:
    """Return whether an output has figures from which this one cannot be computed."""
    figures = _parse_figures(text, MAX_FIGURES + 1)
    return 2 <= len(figures) <= MAX_FIGURES and not is_computed(figure, figures)


def _parse_figures(text: str, limit: int) -> list[float]:
    """Return the first `limit` figures of a text, without times."""
    figures = []
    for match in NUMBER.finditer(TIME.sub(" ", ESCAPES.sub(" ", text[:MAX_TEXT]))):
        plain = match[0].replace(",", "")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15:
            figures.append(float(plain))
            if len(figures) >= limit:
                break
    return figures


def is_judged(output: Json, call: Json) -> bool:
    """Return whether an output of this kind has to be used in the answer."""
    tool = output.get("tool")
    arguments = call.get("arguments")
    if not isinstance(tool, str) or tool.casefold() in NO_USE_NEEDED or is_polling(tool, arguments):
        return False
    if skill_files(tool, arguments) or has_failed(output) or output.get("tool_status") == "running":
        return False
    text = output.get("result")
    return isinstance(text, str) and 0 < len(text) <= MAX_TEXT and not _TRUNCATION.search(text)


def named_skills(question: str, skills: frozenset[str]) -> list[str]:
    """Return the skills that a user's message asks for, in order."""
    if not skills:
        return []
    skill_by_command = {_command_name(name): name.casefold() for name in sorted(skills)}
    text = question[:MAX_QUESTION]
    slash_command = _SLASH_COMMAND.match(text)
    mentions = [slash_command[1]] if slash_command else [match[1] for match in _DOLLAR_SKILL.finditer(text)]
    mentions += [match[1] for match in _SKILL_PHRASE.finditer(text)]
    named: list[str] = []
    for mention in mentions:
        skill = skill_by_command.get(_command_name(mention))
        if skill is not None and skill not in named:
            named.append(skill)
    return named


def _command_name(name: str) -> str:
    """Return the command that OpenClaw derives from a skill's name."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")[:32]


def skill_files(tool: Any, arguments: Any) -> list[str]:
    """Return the names of the skills whose SKILL.md a call reads. The folder has the skill's name."""
    if not isinstance(arguments, dict) or _casefold(tool) in {"write", "edit", "apply_patch"}:
        return []
    texts = [
        value for value in arguments.values() if isinstance(value, str) and len(value) <= MAX_QUESTION and _may_name_file(value)
    ]
    return [match[1].casefold() for text in texts for match in _SKILL_FILE.finditer(text)]


def _may_name_file(text: str) -> bool:
    """Prefilter: return whether a text may name a skill's file. The pattern is slow: it tries some sixty lengths at each character."""
    return not text.isascii() or "skill.md" in text.lower()


def has_failed(output: Json, call: Json | None = None) -> bool:
    """Return whether an output is a failure. A search command without results has not failed."""
    if output.get("is_error") is True or output.get("tool_status") in _FAILED:
        return True
    code = output.get("exit_code")
    if not code:
        return False
    arguments = (call or {}).get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return not (code == 1 and isinstance(command, str) and _SEARCH_COMMAND.match(command))


def claimed_figures(answer: str) -> list[str]:
    """Return the figures of at least 10 that an answer states.

    Times, years, durations (which an agent derives from dates), identifiers and quoted code do not count.
    """
    figures = []
    text = answer[:MAX_TEXT]
    text = _TIME_SPAN.sub(" ", _QUOTED_CODE.sub(" ", text) if "`" in text else text)
    for token in TOKEN.findall(text):
        if not NUMBER.fullmatch(token) or TIME.fullmatch(token):
            continue
        plain = token.replace(",", "")
        is_year = len(plain) == 4 and plain[:2] in ("19", "20")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15 and float(plain) >= 10 and not is_year:
            figures.append(plain)
    return figures


def states(text: str, figure: str) -> bool:
    """Return whether the text has the figure, with or without thousands separators, and not as part of another figure."""
    return occurs(figure, text)


def is_computed(figure: float, figures: Sequence[float]) -> bool:
    """Return whether the figure may have been computed from these figures.

    It may be a count, sum, mean, difference, ratio or share, possibly in another unit.
    """
    plain = [float(len(figures)), float(len(figures) - 1), *figures]
    for width in range(1, _MAX_COLUMNS + 1):
        columns = (figures[start::width] for start in range(min(width, len(figures))))
        plain += (value for column in columns for value in (sum(column), sum(column) / len(column), float(len(column))))
    if any(_is_about(figure, value / unit) or _is_about(figure, value * unit) for value in plain for unit in _UNITS):
        return True
    pairs = [pair for pair in combinations(figures[:MAX_PAIRED], 2) if pair[0] and pair[1]]
    if any(_is_about(figure, abs(first - second)) for first, second in pairs):
        return True
    ratios = (quotient for first, second in pairs for quotient in (first / second, second / first))
    return any(_is_about(figure, 100 * ratio) for ratio in ratios if 0.1 < ratio < 1)


def _is_about(figure: float, value: float) -> bool:
    """Return whether the value rounds to the figure."""
    return abs(figure - value) <= (0.5 if figure == int(figure) and value != int(value) else 0.050001)


def reports_trouble(output: str) -> bool:
    """Return whether a line of an output reports trouble, as in a log. `0 errors` does not."""
    if not any(word in output for word in _ALARM_WORDS):
        return False
    lines = ESCAPES.sub("\n", output).splitlines()[-MAX_LINES:]
    return any(_ALARM_PATTERN.search(line[:_MAX_LINE]) and not _NO_ALARM_PATTERN.search(line[:_MAX_LINE]) for line in lines)


def reassures(answer: str) -> bool:
    """Return whether an answer says that all is well and names no trouble."""
    text = answer[:MAX_TEXT]
    return bool(_REASSURANCE.search(text)) and not _TROUBLE_WORDS.search(_DENIED_TROUBLE.sub(" ", text))


class Terms(NamedTuple):
    """The terms of a text: `marks` are figures and identifiers, `stems` are those of other words."""

    marks: frozenset[str]
    stems: frozenset[str]


def terms_of(text: str) -> Terms:
    """Return the terms of the first MAX_TEXT characters."""
    return _terms_of_start(text[:MAX_TEXT])


@lru_cache(_CACHED_TEXTS)
def _terms_of_start(text: str) -> Terms:
    """Return the terms of a text. Cached because an answer is checked for several reasons."""
    marks: set[str] = set()
    stems: set[str] = set()
    for token in set(TOKEN.findall(_without_escapes(text))):
        own = _terms_of_token(token)
        marks |= own.marks
        stems |= own.stems
    return Terms(frozenset(marks), frozenset(stems))


def occurs(mark: str, folded: str) -> bool:
    """Return whether a case-folded text has a mark that is not part of a longer word or figure."""
    return _stands_alone(mark, folded) or any(_stands_alone(form, folded) for form in _spell_mark(mark)[1:])


def folded(text: str) -> str:
    """Return the text prepared for term searches: cut, without escapes, case-folded."""
    return _without_escapes(text[:MAX_TEXT]).casefold()


def stem(word: str) -> str:
    """Return the stem of a word: without its ending, at most five letters."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:5]
