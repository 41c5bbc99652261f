"""Evidence derived from transcripts that agents do not report: outputs that the answer ignored, and skills that were not followed.

The rules are pure and versioned, and work on the raw events of any transcript source. Derived events carry `derived_by`. An exchange is judged
once, when its answer is over, and only if it was answered. Nothing that the agent says later withdraws an event.

**`output-use-1`.** `output_use` with `used: false` means that the answer shows no trace of an output and contradicts or ignores it:

1. An output is **used** if a mark or two words that are new in it recur in later text, thinking or arguments. A term is new if neither the
   user's message nor earlier calls and texts of the agent have it.
2. Only outputs after the last used one are judged. Outputs that an agent reads before the one it uses are a search, not a failure.
3. These outputs are not judged: errors, outputs with fewer than MIN_TERMS new terms (confirmations), outputs longer than MAX_TEXT_CHARACTERS
   or marked as cut, and outputs of tools whose result needs no use (`NO_USE_NEEDED`, polling, reading a SKILL.md).
4. A lack of common terms is not enough: `everything is fine` is a good answer to a log of forty quiet lines. One of these reasons must apply:
   `unsupported_figure`: the output has figures, and the answer states a figure that no text of the session has and that is not a sum,
   mean, count, difference or ratio of the output's figures;
   `contradicted_alarm`: the output has a line that reports trouble, and the answer reassures and names no trouble;
   `unrelated_answer`: output and answer are English prose, and the answer has at least MIN_NEW_WORDS new words and none of the output's.

The rule cannot detect an ignored output that a later one replaced, answers in general words, figures in sessions of more than
MAX_SESSION_CHARACTERS (there no figure counts as unsupported), and prose in other languages.

**`skill-use-1`.** A skill is a SKILL.md that the agent must read before it acts. `skill_event` reports exactly three failures. An unused
skill is not a failure.

1. **ignored**: the user names a skill of the agent (`/name`, `/skill name`, `$name`, "use the name skill"), and the agent answers without
   having read its SKILL.md in this session. The agent's store lists its skills. Without the list, a skill cannot be told from another
   command, and nothing counts as ignored.
2. **failed**, `read_failed`: reading a SKILL.md failed and did not succeed later.
3. **failed**, `commands_failed`: a SKILL.md was read, and the last command after it failed. Commands are calls of tools that run something.
   A `grep` that finds nothing has not failed.

**Terms** are the parts of a text that can be recognized elsewhere. Outputs are long and answers short, so the terms of an answer are
searched for in the output. The search is linear in the text, of which MAX_TEXT_CHARACTERS are read.

1. *Marks* are figures with at least two digits, and identifiers: words with digits, underscores or inner capitals, paths, addresses. If a
   token is joined by dots, slashes or colons, each part that is a mark counts as well. A time of day is not a mark.
2. *Words* are other words of at least four letters, except English function words. They are reduced to stems, so that `adapters` and
   `adapter` are equal. Case is ignored.
3. A figure with two significant digits matches every longer figure that rounds to it: `about 69k` and `1.2 s` match `68701` and `1234`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.events import is_polling

OUTPUT_USE = "output-use-1"
"""Name and version of the rule for outputs. Increase it with every change of its results."""
MIN_TERMS = 3
"""Minimum number of new marks and words of an output that is judged."""
MIN_NEW_WORDS = 8
"""Minimum number of new words of an answer that is unrelated to an output."""
MIN_FUNCTION_WORDS = 4
"""Minimum number of distinct function words in prose."""
MAX_JUDGED_OUTPUTS = 20
"""Maximum number of outputs of an exchange that are judged, the latest ones."""
MAX_NEW_TERMS = 1000
"""Maximum number of new terms after an output that is judged. More terms would match by chance."""
MAX_EXCHANGE_CHARACTERS = 4 * 1024 * 1024
"""Maximum length of an exchange that is judged."""
MAX_SESSION_CHARACTERS = 8 * 1024 * 1024
"""Maximum length of a session that is searched for figures."""
MAX_SESSION_FIGURES = 250_000
"""Maximum number of figures of a session that are kept in memory."""
MAX_OUTPUT_FIGURES = 64
"""Maximum number of figures of an output that are used for computations. With more of them, any figure could be a result."""
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
"""Tools, by case-folded name, whose result an answer need not use: the result only confirms, delivers or describes something."""
_MAX_COUNTED_CHARACTERS = 2000
"""Length of an output from which counting its words costs more than the prefilter saves."""
_TRUNCATION = re.compile(
    r"\[cut: \d|\[?\.{3} ?\[?truncated|\[truncated|output truncated|\[showing lines|more characters\]", re.IGNORECASE
)
Json = dict[str, Any]
SKILL_USE = "skill-use-1"
"""Name and version of the rule for skills. Increase it with every change of its results."""
COMMAND_TOOLS = frozenset({"exec", "bash", "shell", "process", "code_execution", "local_shell", "run_shell_command"})
"""Tools that run commands, by case-folded name."""
MAX_QUESTION_CHARACTERS = 16 * 1024
"""Characters of a user's message that are searched for skills."""
_SKILL_FILE = re.compile(r"([^/\\\s\"'`]{1,64})[/\\]SKILL\.md\b", re.IGNORECASE)
_SLASH_COMMAND = re.compile(r"\s*/(?:skill\s+)?([A-Za-z0-9_.-]{1,64})(?=\s|$)")
_DOLLAR_SKILL = re.compile(r"(?<![\w\\$])\$([a-z][a-z0-9_-]{1,63})\b")
_SKILL_PHRASE = re.compile(
    r"\b(?:use|using|with|via|follow|apply|run)\s{1,4}(?:the\s{1,4}|your\s{1,4}|my\s{1,4})?[`\"'*]{0,2}([\w.-]{1,64})[`\"'*]{0,2}\s{1,4}skill\b",
    re.IGNORECASE,
)
_SEARCH_COMMAND = re.compile(r"\s*(?:\S*/)?(?:grep|egrep|fgrep|rg|diff|cmp|test|\[|pgrep|which|command)\s")
_FAILED_STATUSES = frozenset({"error", "failed", "not_found"})
MAX_TROUBLE_LINES = 400
"""Maximum number of lines of an output that are searched for reported trouble, the last ones."""
MAX_PAIRED_FIGURES = 16
"""Maximum number of figures of an output of which every pair is subtracted and divided, the first ones."""
_MAX_LINE_CHARACTERS = 500
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
_ALARM_SUBSTRINGS = (
    "ERROR",
    "FATAL",
    "CRITICAL",
    "FAIL",
    "PANIC",
    "EMERG",
    "ALERT",
    "rror:",
    "atal:",
    "anic:",
    "ailed:",
    "ailure:",
)
"""Substrings of which every match of `_ALARM_PATTERN` has at least one."""
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
MAX_TEXT_CHARACTERS = 16 * 1024
"""Characters of one text that are read."""
MAX_OCCURRENCES = 64
"""Maximum number of occurrences of a term that are checked in one text."""
MAX_TOKEN_CHARACTERS = 200
"""Maximum length of a token that is read."""
_CACHED_TOKENS = 16 * 1024
"""Number of tokens whose terms are cached. They take a few megabytes."""
_MAX_CACHED_STRETCH = 40
"""Maximum length of a stretch of text whose terms are cached."""
_CACHED_TEXTS = 32
"""Number of texts whose terms are cached: about those of one exchange."""
# The repetitions are bounded, because rows of dots or dashes would otherwise take quadratic time.
TOKEN = re.compile(r"[^\W_](?:(?:[\w.:/@+=\-]|,(?=\d)){0,200}\w)?|[_/~.][\w./\-]{0,200}\w")
_WORD = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIME = re.compile(
    r"\d{4}-\d\d(?!\d)(?:-\d\d(?:t[\d:.,]*z?)?)?|(?<![\d.])\d{1,2}:\d\d(?::\d\d)?(?!\d)(?:[.,]\d+)?z?", re.IGNORECASE
)
ESCAPES = re.compile(r"\\[nrtu\"\\/]")
_ROUNDABLE = re.compile(r"(\d{1,15}(?:[.,]\d{1,3})*)([kmg])?", re.IGNORECASE | re.ASCII)
_FIGURE_SEQUENCE = re.compile(r"[0-9](?<![^\W_][0-9])[0-9]*(?:[.,][0-9]+)*(?![^\W_])")
"""A figure without adjacent letters or digits, or several figures joined by dots and commas. The pattern starts with a character set, because a
leading lookbehind would be tried at every character.
"""
_SEPARATOR = re.compile(r"([.,])")
_MAX_PARTS = 6
_LONG_FIGURE = re.compile(r"(?<![\d.,])[1-9]\d{3,}", re.ASCII)
ROUNDED_PREFIX = "~"
"""First character of the mark of a rounded figure."""
_SUFFIXES = ("ing", "ed", "es", "ly", "s")
FUNCTION_WORDS = frozenset(
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
"""A term, and whether it is a word; otherwise it is a mark."""


class Answer(NamedTuple):
    """The agent's text after the last output. `claims` are its figures that no earlier text has."""

    text: str
    claims: list[str]


class Output(msgspec.Struct, frozen=True):
    """An output of a tool, with its call. `moment` is its position among the texts and outputs of the exchange."""

    moment: int
    text: str
    event: Json
    call: Json
    event_id: str


class SessionFigures:
    """The figures stated in a session so far, up to a limit.

    Figures are kept in a set instead of being searched for, because a session of weeks has thousands of texts.
    """

    def __init__(self) -> None:
        self._figures: set[str] = set()
        self._unread_texts: list[str] = []
        """Texts that were not searched for figures yet. Most answers state only figures of their own exchange, so this is rarely needed."""
        self._size = 0
        self._is_over_limit = False

    def add(self, texts: Sequence[str]) -> None:
        """Add the figures of texts. Beyond the limits, all figures are dropped."""
        if self._is_over_limit:
            return
        self._size += sum(map(len, texts))
        self._unread_texts += texts
        if self._size > MAX_SESSION_CHARACTERS:
            self._drop_figures()

    def lacks(self, figure: str) -> bool:
        """Return whether none of the texts has the figure; False if this is unknown."""
        texts = self._unread_texts
        self._unread_texts = []
        for text in texts:
            self._figures |= _list_figures(text)
            if len(self._figures) > MAX_SESSION_FIGURES:
                self._drop_figures()
                break
        return not self._is_over_limit and self._figures.isdisjoint(_spell_mark(figure))

    def _drop_figures(self) -> None:
        self._is_over_limit = True
        self._figures = set()
        self._unread_texts = []


def _list_figures(text: str) -> set[str]:
    """Return every separate figure in a text as written. `1,234.5` also gives its parts, such as `1,234` and `5`."""
    figures: set[str] = set()
    for sequence in _FIGURE_SEQUENCE.findall(text):
        # Figures and separators alternate in this list.
        parts = _SEPARATOR.split(sequence)
        for first in range(0, len(parts), 2):
            end = min(first + 2 * _MAX_PARTS, len(parts) + 1)
            figures.update("".join(parts[first:last]) for last in range(first + 1, end, 2))
    return figures


def _spell_mark(mark: str) -> list[str]:
    """Return the spellings of a mark. A figure is also spelled with thousands separators."""
    is_long_figure = len(mark) > 3 and mark.isascii() and mark.isdigit() and mark[0] != "0"
    return [mark, f"{int(mark):,}"] if is_long_figure else [mark]


class ExchangeEvidence:
    """The evidence of one exchange, collected from the user's message and the agent's texts, calls and outputs.

    `question` is the user's message. `session` has the figures of earlier exchanges. `skills` are the names of the agent's skills,
    `read_skills` those that it has read in this session; the set is updated.
    """

    __slots__ = ("_calls", "_moment", "_outputs", "_question", "_session", "_size", "_skill_use", "_spoken")

    def __init__(self, question: str, session: SessionFigures, *, skills: frozenset[str], read_skills: set[str]) -> None:
        self._session = session
        self._question = question
        self._skill_use = _SkillUse(question, skills, read_skills)
        self._spoken: list[tuple[int, str]] = []
        self._outputs: list[Output] = []
        self._calls: dict[str, Json] = {}
        self._size = 0
        self._moment = 0

    def add_text(self, text: str) -> None:
        """Add a text that the agent wrote or thought."""
        self._moment += 1
        self._size += len(text)
        if self._size <= MAX_EXCHANGE_CHARACTERS:
            self._spoken.append((self._moment, text))

    def add_call(self, call: Json) -> None:
        """Add a tool call: a raw `tool_call` event."""
        call_id = call.get("tool_call_id")
        if isinstance(call_id, str):
            self._calls[call_id] = call
        arguments = call.get("arguments")
        self.add_text(arguments if isinstance(arguments, str) else _write_json(arguments))

    def add_output(self, output: Json, event_id: str) -> None:
        """Add a tool output: a raw `tool_output` event, and the id of the event that may be derived from it."""
        call = self._calls.get(str(output.get("tool_call_id")), {})
        self._skill_use.add_output(output, call)
        result = output.get("result")
        text = ""
        if isinstance(result, str):
            self._size += len(result)
            if self._size <= MAX_EXCHANGE_CHARACTERS:
                text = result
        self._moment += 1
        self._outputs.append(Output(self._moment, text, output, call, event_id))

    def derive_events(self) -> list[Json]:
        """Return the derived raw events of an answered exchange. Only the events of outputs have an id."""
        events: list[Json] = []
        if self._outputs and self._size <= MAX_EXCHANGE_CHARACTERS:
            events = self._find_unused_outputs()
        return events + self._skill_use.derive_events()

    def add_to_session(self) -> None:
        """Add the texts to the session, because later exchanges may refer to them."""
        self._session.add([self._question, *[text for _, text in self._spoken], *[output.text for output in self._outputs]])

    def _find_unused_outputs(self) -> list[Json]:
        """Return an event for each unused output after the last used one, with the reason."""
        last_output = self._outputs[-1]
        if len(last_output.text) > MAX_TEXT_CHARACTERS or self._is_certainly_used(last_output):
            return []
        answer = self._answer_after(last_output.moment)
        judged_outputs = self._outputs[-MAX_JUDGED_OUTPUTS:]
        if not any(_may_have_reason(output.text, answer) for output in judged_outputs):
            return []
        if not answer.claims and not reassures(answer.text) and len(find_terms(answer.text).stems) < MIN_NEW_WORDS:
            return []  # no reason can apply to such an answer
        spoken_terms = self._list_spoken_terms()
        events: list[Json] = []
        for output in reversed(judged_outputs):
            # Only terms that first occur after an output can come from it.
            new_terms = [term for term in spoken_terms if term.first > output.moment]
            if len(output.text) > MAX_TEXT_CHARACTERS or len(new_terms) > MAX_NEW_TERMS:
                break
            output_text = fold_case(output.text)
            recurring_words = sum(term.is_word and _occurs_as_word(term.text, output_text) for term in new_terms)
            new_marks = [term.text for term in new_terms if not term.is_word]
            if recurring_words > 1 or _occurs_as_mark(new_marks, output_text):
                break
            reason = self._find_reason(output.text, answer, has_recurring_word=recurring_words > 0)
            if reason is None or not needs_use(output.event, output.call):
                continue
            own_terms = self._count_new_terms(output, spoken_terms)
            if own_terms >= MIN_TERMS:
                events.append(_build_unused_event(output, reason, own_terms))
        return events[::-1]

    def _answer_after(self, moment: int) -> Answer:
        texts = [text for spoken_at, text in self._spoken if spoken_at > moment]
        claims = [figure for figure in self._find_claims(moment) if self._session.lacks(figure)]
        return Answer("\n".join(texts), claims)

    def _is_certainly_used(self, output: Output) -> bool:
        """Prefilter: return whether an output was certainly used. Most are, and their answers need no further checks.

        A term is certainly new if no earlier text has it, not even as part of a longer word.
        """
        output_text = fold_case(output.text)
        earlier_text = ""
        recurring_words: set[str] = set()
        for term, is_word in self._find_terms_after(output.moment):
            # A figure has several spellings, so its absence from the text proves nothing.
            if term not in output_text and (is_word or not term.isdigit()):
                continue
            if not (_occurs_as_word(term, output_text) if is_word else occurs(term, output_text)):
                continue
            if not earlier_text:
                earlier_text = self._find_text_before(output.moment)
            if term in earlier_text:
                continue
            if not is_word:
                return True
            recurring_words.add(term)
            if len(recurring_words) > 1:
                return True
        return False

    def _find_terms_after(self, moment: int) -> Iterator[TermEntry]:
        for spoken_at, text in self._spoken:
            if spoken_at > moment:
                for entries in _iterate_terms(text):
                    yield from entries

    def _find_text_before(self, moment: int) -> str:
        """Return all texts up to a moment, the user's message first, prepared for term searches; never empty.

        The text is repeated without commas, because the terms of figures have no thousands separators.
        """
        texts = [self._question]
        texts += [text for spoken_at, text in self._spoken if spoken_at <= moment]
        joined = "\n".join(text[:MAX_TEXT_CHARACTERS].casefold() for text in texts)
        return f"{joined}\n{joined.replace(',', '')}"

    def _list_spoken_terms(self) -> list[_SpokenTerm]:
        """Return the terms of the exchange with the moment of their first use. The user's message is at 0."""
        first_moments: dict[TermEntry, int] = {}
        for moment, text in [(0, self._question), *self._spoken]:
            terms = find_terms(text)
            for mark in terms.marks:
                first_moments.setdefault((mark, False), moment)
            for word in terms.stems:
                first_moments.setdefault((word, True), moment)
        return [_SpokenTerm(term, is_word, moment) for (term, is_word), moment in first_moments.items()]

    def _count_new_terms(self, output: Output, spoken_terms: list[_SpokenTerm]) -> int:
        """Count the terms of an output that no text before it has."""
        earlier_marks = {term.text for term in spoken_terms if term.first < output.moment and not term.is_word}
        earlier_words = {term.text for term in spoken_terms if term.first < output.moment and term.is_word}
        terms = find_terms(output.text)
        return len(terms.marks - earlier_marks) + len(terms.stems - earlier_words)

    def _find_claims(self, moment: int) -> list[str]:
        """Return the figures that the answer after a moment states although no earlier text of the exchange does."""
        earlier_texts = [self._question, *(output.text for output in self._outputs)]
        earlier_texts += [text for spoken_at, text in self._spoken if spoken_at < moment]
        figures: dict[str, None] = {}
        for spoken_at, text in self._spoken:
            if spoken_at > moment:
                figures.update(dict.fromkeys(find_claimed_figures(text)))
        return [figure for figure in figures if not any(states_figure(earlier, figure) for earlier in earlier_texts)]

    def _find_reason(self, text: str, answer: Answer, *, has_recurring_word: bool) -> str | None:
        """Return the reason why an output with this text counts as ignored; None if it does not."""
        if answer.claims and any(_is_unfounded(float(figure), text) for figure in answer.claims):
            return "unsupported_figure"
        if reassures(answer.text) and reports_trouble(text):
            return "contradicted_alarm"
        if has_recurring_word or _count_function_words(answer.text) < MIN_FUNCTION_WORDS:
            return None
        new_words = find_terms(answer.text).stems - find_terms(self._question).stems
        if len(new_words) < MIN_NEW_WORDS or _count_function_words(text) < MIN_FUNCTION_WORDS:
            return None
        return None if new_words & find_terms(text).stems else "unrelated_answer"


class _SkillUse:
    """The use of skills in one exchange.

    `skills` are the names of the agent's skills. `read_skills` are those that it has read; the set is updated.
    """

    __slots__ = ("_failed_skills", "_followed_skills", "_has_last_command_failed", "_named_skills", "_read_skills")

    def __init__(self, question: str, skills: frozenset[str], read_skills: set[str]) -> None:
        self._read_skills = read_skills
        self._named_skills = find_named_skills(question, skills)
        self._failed_skills: dict[str, None] = {}
        self._followed_skills: dict[str, None] = {}
        self._has_last_command_failed = False

    def add_output(self, output: Json, call: Json) -> None:
        """Add an output and its call, which may be unknown. A SKILL.md counts as read only when the output arrives."""
        tool = _casefold(output.get("tool"))
        failed = has_failed(output, call)
        skills = find_skill_files(tool, call.get("arguments"))
        if skills:
            self._add_read(skills[0], failed=failed)
        elif tool in COMMAND_TOOLS and self._followed_skills and output.get("tool_status") != "running":
            self._has_last_command_failed = failed

    def _add_read(self, skill: str, *, failed: bool) -> None:
        if failed:
            self._failed_skills.setdefault(skill)
            return
        self._failed_skills.pop(skill, None)
        self._followed_skills.setdefault(skill)
        self._read_skills.add(skill)
        self._has_last_command_failed = False

    def derive_events(self) -> list[Json]:
        """Return the skill events of an answer that is over."""
        ignored = [name for name in self._named_skills if name not in self._read_skills and name not in self._failed_skills]
        events = [_build_skill_event(name, "ignored", "not_read") for name in ignored]
        events += [_build_skill_event(name, "failed", "read_failed") for name in self._failed_skills]
        if self._has_last_command_failed:
            last_skill = next(reversed(self._followed_skills))
            events.append(_build_skill_event(last_skill, "failed", "commands_failed"))
        return events


def _casefold(value: Any) -> str:
    return value.casefold() if isinstance(value, str) else ""


def _build_skill_event(name: str, status: str, action: str) -> Json:
    return {"event": "skill_event", "skill": name, "status": status, "action": action, "derived_by": SKILL_USE}


def _write_json(arguments: Any) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (UnicodeEncodeError, RecursionError, TypeError):
        return ""


def _may_have_reason(text: str, answer: Answer) -> bool:
    """Prefilter: return whether a reason may apply to an output with this text. It has no false negatives."""
    return (
        bool(answer.claims)
        or reports_trouble(text)
        or len(text) > _MAX_COUNTED_CHARACTERS
        or _count_function_words(text) >= MIN_FUNCTION_WORDS
    )


def _count_function_words(text: str) -> int:
    """Return the number of distinct function words in a text. Prose has many; lists, logs and other languages have few."""
    return len(FUNCTION_WORDS.intersection(_WORD.findall(text[:MAX_TEXT_CHARACTERS].casefold())))


def _occurs_as_word(word: str, folded: str) -> bool:
    """Return whether a case-folded text has a word with this stem."""
    return _stands_alone(word, folded, only_begins=True)


def _stands_alone(form: str, text: str, *, only_begins: bool = False) -> bool:
    """Return whether a text has this form as a separate word or, with `only_begins`, at the start of a word.

    If the first MAX_OCCURRENCES occurrences are all inside longer words, a separate one is assumed to follow.
    """
    start = -1
    for _ in range(MAX_OCCURRENCES):
        start = text.find(form, start + 1)
        if start < 0:
            return False
        end = start + len(form)
        is_word_start = start == 0 or not text[start - 1].isalnum()
        is_word_end = not text[end : end + 1].isalnum()
        if is_word_start and (only_begins or is_word_end):
            return True
    return True


def _occurs_as_mark(marks: list[str], text: str) -> bool:
    """Return whether a case-folded text has any of the marks, or a longer figure that rounds to one."""
    if any(occurs(mark, text) for mark in marks):
        return True
    rounded = [mark for mark in marks if mark.startswith(ROUNDED_PREFIX)]
    return bool(rounded) and not _list_rounded_figures(text).isdisjoint(rounded)


def _list_rounded_figures(folded: str) -> set[str]:
    """Return the rounded marks of the figures with four or more digits in a text."""
    rounded = set()
    for figure in _LONG_FIGURE.findall(folded):
        scientific = f"{float(figure[:17]):.1e}"  # such as 6.9e+04
        rounded.add(f"{ROUNDED_PREFIX}{scientific[0]}{scientific[2]}")
    return rounded


def _build_unused_event(output: Output, reason: str, terms: int) -> Json:
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
    """Yield the terms of each stretch of text between white space, in order."""
    for stretch in _remove_escapes(text[:MAX_TEXT_CHARACTERS]).split():
        yield _list_terms_cached(stretch) if len(stretch) <= _MAX_CACHED_STRETCH else _list_terms(stretch)


def _remove_escapes(text: str) -> str:
    return ESCAPES.sub(" ", text) if "\\" in text else text


def _list_terms(stretch: str) -> tuple[TermEntry, ...]:
    """Return the terms of the tokens in a stretch of text. The marks of a token come before its words."""
    entries: list[TermEntry] = []
    for token in TOKEN.findall(stretch):
        terms = _find_token_terms(token)
        entries += [(mark, False) for mark in terms.marks]
        entries += [(word, True) for word in terms.stems]
    return tuple(entries)


_list_terms_cached = lru_cache(_CACHED_TOKENS)(_list_terms)
"""Cached version for short stretches of text, which often recur."""


@lru_cache(_CACHED_TOKENS)
def _find_token_terms(token: str) -> Terms:
    """Return the terms of one token. Cached because tokens recur."""
    marks: set[str] = set()
    stems: set[str] = set()
    if len(token) <= MAX_TOKEN_CHARACTERS:
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
    elif len(folded) >= 4 and folded not in FUNCTION_WORDS:
        stems.add(reduce_to_stem(folded))


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
        marks.add(f"{ROUNDED_PREFIX}{digits:0<2}")


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


def _is_unfounded(figure: float, text: str) -> bool:
    """Return whether an output has figures, and this figure cannot be computed from them."""
    figures = _parse_figures(text, MAX_OUTPUT_FIGURES + 1)
    return 2 <= len(figures) <= MAX_OUTPUT_FIGURES and not is_computed(figure, figures)


def _parse_figures(text: str, limit: int) -> list[float]:
    """Return the first `limit` figures of a text. Times are left out."""
    figures = []
    for match in NUMBER.finditer(TIME.sub(" ", ESCAPES.sub(" ", text[:MAX_TEXT_CHARACTERS]))):
        plain = match[0].replace(",", "")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15:
            figures.append(float(plain))
            if len(figures) >= limit:
                break
    return figures


def needs_use(output: Json, call: Json) -> bool:
    """Return whether an answer has to use an output of this kind."""
    tool = output.get("tool")
    arguments = call.get("arguments")
    if not isinstance(tool, str) or tool.casefold() in NO_USE_NEEDED or is_polling(tool, arguments):
        return False
    if find_skill_files(tool, arguments) or has_failed(output) or output.get("tool_status") == "running":
        return False
    text = output.get("result")
    return isinstance(text, str) and 0 < len(text) <= MAX_TEXT_CHARACTERS and not _TRUNCATION.search(text)


def find_named_skills(question: str, skills: frozenset[str]) -> list[str]:
    """Return the skills that a user's message asks for, in order; none if the agent's skills are unknown."""
    if not skills:
        return []
    skill_by_command = {_derive_command_name(name): name.casefold() for name in sorted(skills)}
    text = question[:MAX_QUESTION_CHARACTERS]
    slash_command = _SLASH_COMMAND.match(text)
    mentions = [slash_command[1]] if slash_command else [match[1] for match in _DOLLAR_SKILL.finditer(text)]
    mentions += [match[1] for match in _SKILL_PHRASE.finditer(text)]
    named_skills: list[str] = []
    for mention in mentions:
        skill = skill_by_command.get(_derive_command_name(mention))
        if skill is not None and skill not in named_skills:
            named_skills.append(skill)
    return named_skills


def _derive_command_name(name: str) -> str:
    """Return the command that OpenClaw derives from a skill's name."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")[:32]


def find_skill_files(tool: Any, arguments: Any) -> list[str]:
    """Return the names of the skills whose SKILL.md a call reads. The folder of the file has the skill's name."""
    if not isinstance(arguments, dict) or _casefold(tool) in {"write", "edit", "apply_patch"}:
        return []
    texts = [
        value
        for value in arguments.values()
        if isinstance(value, str) and len(value) <= MAX_QUESTION_CHARACTERS and _may_name_file(value)
    ]
    return [match[1].casefold() for text in texts for match in _SKILL_FILE.finditer(text)]


def _may_name_file(text: str) -> bool:
    """Prefilter: return whether a text may name a skill's file. The pattern is slow, because it tries many lengths at each character."""
    return not text.isascii() or "skill.md" in text.lower()


def has_failed(output: Mapping[str, Any], call: Mapping[str, Any] | None = None) -> bool:
    """Return whether an output reports a failure. A search command without results has not failed."""
    if output.get("is_error") is True or output.get("tool_status") in _FAILED_STATUSES:
        return True
    code = output.get("exit_code")
    if not code:
        return False
    arguments = (call or {}).get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return not (code == 1 and isinstance(command, str) and _SEARCH_COMMAND.match(command))


def find_claimed_figures(answer: str) -> list[str]:
    """Return the figures of at least 10 that an answer states.

    Times, years, identifiers and quoted code do not count, nor do durations, which an agent derives from dates.
    """
    figures = []
    text = answer[:MAX_TEXT_CHARACTERS]
    text = _TIME_SPAN.sub(" ", _QUOTED_CODE.sub(" ", text) if "`" in text else text)
    for token in TOKEN.findall(text):
        if not NUMBER.fullmatch(token) or TIME.fullmatch(token):
            continue
        plain = token.replace(",", "")
        is_year = len(plain) == 4 and plain[:2] in ("19", "20")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15 and float(plain) >= 10 and not is_year:
            figures.append(plain)
    return figures


def states_figure(text: str, figure: str) -> bool:
    """Return whether the text has the figure, with or without thousands separators, but not as part of another figure."""
    return occurs(figure, text)


def is_computed(figure: float, figures: Sequence[float]) -> bool:
    """Return whether the figure may have been computed from these figures.

    It may be a count, sum, mean, difference or percentage, possibly in another unit. The figures may be a table of up to _MAX_COLUMNS
    columns, read row by row.
    """
    values = [float(len(figures)), float(len(figures) - 1), *figures]
    for width in range(1, _MAX_COLUMNS + 1):
        for start in range(min(width, len(figures))):
            column = figures[start::width]
            values += [sum(column), sum(column) / len(column), float(len(column))]
    for value in values:
        if any(_is_about(figure, value / unit) or _is_about(figure, value * unit) for unit in _UNITS):
            return True
    for first, second in combinations(figures[:MAX_PAIRED_FIGURES], 2):
        if not first or not second:
            continue
        ratio = min(first, second) / max(first, second)
        if _is_about(figure, abs(first - second)) or (0.1 < ratio < 1 and _is_about(figure, 100 * ratio)):
            return True
    return False


def _is_about(figure: float, value: float) -> bool:
    """Return whether the value rounds to the figure."""
    return abs(figure - value) <= (0.5 if figure == int(figure) and value != int(value) else 0.050001)


def reports_trouble(output: str) -> bool:
    """Return whether a line of an output reports trouble, as lines of logs do. `0 errors` is no trouble."""
    if not any(word in output for word in _ALARM_SUBSTRINGS):
        return False
    lines = ESCAPES.sub("\n", output).splitlines()[-MAX_TROUBLE_LINES:]
    return any(
        _ALARM_PATTERN.search(line[:_MAX_LINE_CHARACTERS]) and not _NO_ALARM_PATTERN.search(line[:_MAX_LINE_CHARACTERS])
        for line in lines
    )


def reassures(answer: str) -> bool:
    """Return whether an answer says that all is well and names no trouble."""
    text = answer[:MAX_TEXT_CHARACTERS]
    return bool(_REASSURANCE.search(text)) and not _TROUBLE_WORDS.search(_DENIED_TROUBLE.sub(" ", text))


class Terms(NamedTuple):
    """The terms of a text. `marks` are figures and identifiers, `stems` are the stems of other words."""

    marks: frozenset[str]
    stems: frozenset[str]


def find_terms(text: str) -> Terms:
    """Return the terms of the first MAX_TEXT_CHARACTERS characters."""
    return _find_terms(text[:MAX_TEXT_CHARACTERS])


@lru_cache(_CACHED_TEXTS)
def _find_terms(text: str) -> Terms:
    """Return the terms of a text. Cached because an answer is searched for several outputs."""
    marks: set[str] = set()
    stems: set[str] = set()
    for token in set(TOKEN.findall(_remove_escapes(text))):
        token_terms = _find_token_terms(token)
        marks |= token_terms.marks
        stems |= token_terms.stems
    return Terms(frozenset(marks), frozenset(stems))


def occurs(mark: str, folded: str) -> bool:
    """Return whether a case-folded text has a mark that is not part of a longer word or figure."""
    return _stands_alone(mark, folded) or any(_stands_alone(form, folded) for form in _spell_mark(mark)[1:])


def fold_case(text: str) -> str:
    """Return the start of a text prepared for term searches: without escapes and case-folded."""
    return _remove_escapes(text[:MAX_TEXT_CHARACTERS]).casefold()


def reduce_to_stem(word: str) -> str:
    """Return the stem of a word: the first five letters of the word without its suffix."""
    for ending in _SUFFIXES:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:5]
