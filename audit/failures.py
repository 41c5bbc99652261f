"""Groups of failures: the text of an error without what varies, and which texts are near enough to be one failure.

1. A failure is a run that is not ready or an exchange with an anomaly. Its parts are a kind, a cause, a tool and the line of the error that
   says most. `analytics.sums.failures` reads them; the patterns here are in RE2 syntax, because DuckDB applies them.
2. In the line, numbers, ids, paths, hosts, times and quoted values are replaced by placeholders (`FOLDS`, applied in order). Numbers that
   name the failure stay: the status of an HTTP answer and the exit code of a program.
3. Failures with the same kind, cause and tool form a group if their lines share most of their words. Lines are taken in the order of their
   first failure, and a line joins the first group whose first line is near. So a group is a function of the stored records alone, and new
   records never change an older group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from audit.fingerprints import digest_of_texts

Kind = Literal["tool_error", "run", "attempt", "check", "dimension", "alignment"]
NOT_READY = ("unsafe_for_production", "review_recommended")
"""The readiness of runs that failed."""
FAILED_STATUSES = frozenset(
    {"error", "errored", "failed", "failure", "fail", "timeout", "timed_out", "crashed", "denied", "refused"}
)
"""Statuses of an event that mean that it failed."""
MAX_ERROR = 160
"""Maximum characters of a folded line."""
OTHER = "{other}"
"""The line of failures beyond the bounds: a hostile tool can invent a text per call."""
MAX_FIRST_LINES = 200
"""Groups that share a kind, a cause and a tool; further lines that are near to none of them are `OTHER`."""
NEARNESS = 0.6
"""Words that two lines share, as a share of the words of both, from which on they are near."""
NEARNESS_OF_PART = 0.5
"""The same where one line has all words of the other, of which there are at least two."""

_FAILS = (
    r"error|exception|fail(?:ed|ure)?|fatal|panic|denied|refused|rejected|not found|no such|time[d]?[ -]?out|unable|cannot|can't"
    r"|could not|couldn't|invalid|unauthorized|forbidden|overloaded|exceeded|unavailable|unreachable|missing|rate limit|err!"
)
SAYS_MOST = (
    # The message in JSON, of the whole text or of its first line.
    r'^[^{\n]*\{[\s\S]*?"(?:message|error_message|errorMessage|detail|error|reason)"\s*:\s*"((?:[^"\\\n]|\\.){3}(?:[^"\\\n]|\\.)*)',
    # The last line of a traceback, and the line that pytest marks.
    r"(?:Traceback \(most recent call last\)[\s\S]*\n|(?:^|\n)E +)((?:[A-Za-z_][\w.]*)(?:Error|Exception|Timeout|Interrupt|Exit|Warning|Refused|NotFound)\b[^\n]*)",
    # Programs print their conclusion after this word, and details before it.
    r"(?i)(?:^|\n)((?:error|fatal|panic)\s*:[^\n]+)",
    rf"(?i)(?:^|\n)([^\n]*\b(?:{_FAILS})[^\n]*)",
    r"(\S[^\n]*)",
)
"""Patterns of the line that says most, the first that matches; group 1 is the line."""

_BEFORE = r"(^|[\s\"'`(=:,\[{<])"
_ERROR_NAMES = {
    "ECONNREFUSED": "connection refused",
    "ECONNRESET": "connection reset",
    "ECONNABORTED": "connection aborted",
    "EPIPE": "broken pipe",
    "ETIMEDOUT": "timeout",
    "ENOTFOUND": "name not resolved",
    "EAI_AGAIN": "name not resolved",
    "EHOSTUNREACH": "no route to host",
    "ENOENT": "no such file or directory",
    "EACCES": "permission denied",
    "EPERM": "operation not permitted",
    "EEXIST": "file exists",
    "ENOSPC": "no space left on device",
    "EADDRINUSE": "address already in use",
}
"""Names that some runtimes print in place of the text of an error of the operating system."""
_EXTENSIONS = (
    "py|js|mjs|cjs|ts|tsx|jsx|json|jsonl|ya?ml|toml|ini|cfg|conf|env|md|txt|log|csv|tsv|xml|html?|css|sql|sh|go|rs|java|kt|rb|php|c|cc|cpp|h|hpp"
    "|cs|swift|lock|png|jpe?g|gif|svg|pdf|zip|gz|tar|parquet|db|sqlite|ipynb|vue|proto|tf|xlsx?|docx?"
)
_ENDINGS = "com|org|net|io|dev|app|ai|co|cloud|internal|local|localdomain|lan|corp|svc|cluster|example|test|invalid|de|uk|eu|fr|nl|us|ca|in|jp|cn"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
FOLDS: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;]*[A-Za-z]", ""),
    (r"</?[A-Za-z_][\w-]{0,40}>", " "),
    (r"[\pC\s{}]+", " "),  # braces are ours
    (r'\\+"', '"'),
    (r"\b[A-Za-z]:\\[^\s\"'`<>|]+", "{path}"),
    (r"\\[nrt]", " "),
    *((rf"(?i)\b{name}\b", text) for name, text in _ERROR_NAMES.items()),
    (r"(?i)\btime[d]?[ -]?out\b", "timeout"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?", "{time}"),
    (rf"\b(?:[A-Z][a-z]{{2}},? )?\d{{1,2}} (?:{_MONTHS})[a-z]* \d{{4}}(?: \d\d:\d\d(?::\d\d)?(?: [A-Z]{{3}})?)?", "{time}"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "{time}"),
    (r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'`<>()\[\],]+", "{url}"),
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "{email}"),
    (r"(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "{id}"),
    (rf"{_BEFORE}(?:~|\.{{1,2}})?(?:[\\/][^\s\\/:\"'`<>|(),;\]]+)+[\\/]?(?::\d+){{0,2}}", r"\1{path}"),
    (rf"\b[\w.@-]+(?:/[\w.@-]+)+\.(?:{_EXTENSIONS})\b(?::\d+){{0,2}}", "{path}"),
    (rf"\b[\w-]+(?:\.[\w-]+)*\.(?:{_EXTENSIONS})\b(?::\d+){{0,2}}", "{path}"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "{host}"),
    (r"\[[0-9a-fA-F:]*:[0-9a-fA-F:]*\](?::\d+)?", "{host}"),
    (rf"\b(?:[a-z0-9][a-z0-9-]*\.)+(?:{_ENDINGS})\b(?::\d+)?", "{host}"),
    (r"\b(?:localhost|[a-z][\w-]*(?:\.[\w-]+)*:\d{2,5})\b(?::\d+)?", "{host}"),
    # The arguments of an exception are its message, no value.
    (r"\(((?:[^\"'()]{0,40}, )?)[bru]?[\"']", r"(\1"),
    (rf"{_BEFORE}'[^'\n]*'", r"\1{text}"),
    (r'\\?"[^"\n]*\\?"', "{text}"),
    (r"`[^`\n]*`", "{text}"),
    ("[\u201c\u2018\u00ab][^\u201d\u2019\u00bb\n]*[\u201d\u2019\u00bb]", "{text}"),
    (r"(?i)\b(status(?:[ _-]?code)?|http(?:/[\d.]+)?|code|error)(\W{1,3})([1-5]\d\d)\b", r"\1\2Qx\3"),
    (r"(?i)\b(exit(?:ed)?(?: with)?(?: (?:code|status))?)(\W{1,3})(\d{1,3})\b", r"\1\2Qx\3"),
    (r"(?i)\b(?:0x)?(?:[a-f]*[0-9][0-9a-f]*)\b", "{n}"),
    (r"\b[A-Za-z]+[_-][A-Za-z0-9_-]*\d[A-Za-z0-9_-]*", "{id}"),
    (r"\b(?:[A-Za-z]+\d|\d+[A-Za-z])[A-Za-z0-9]{4,}\b", "{id}"),
    (r"\b\d[\d.,:]*[A-Za-z]{0,3}\b", "{n}"),
    (r"(?:[+-]?\{n\}[\s,;:./%-]*){2,}", "{n} "),
    (r"\b(?:[A-Za-z_]\w*\.)+([A-Z]\w*[a-z])", r"\1"),  # the module of a class
    (r"([a-z])([A-Z])", r"\1 \2"),
    (r"\bQx ?(\d)", r"\1"),
    (r"(?i)^\s*(?:error|fatal|panic)\s*:", ""),  # the name of a group says that it failed
)
"""What varies in an error, as pattern and replacement, in the order of application. A number that stays is a word until the end."""
_PLACEHOLDER = re.compile(r"\{[a-z]+\}?")
_WORD = re.compile(r"[^\W_]{2,}|\d")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "after an and are as at be by for from has have in is it of on or that the this to was with you your error errors exception failed failure "
        "fatal warning while when because caused reason message please request attempt attempts retry retries id errno",
    )
)
"""Words that tell nothing of a failure."""


_Words = tuple[frozenset[str], frozenset[str]]
"""The words of a folded line that tell something, and its numbers."""


class FailureParts(NamedTuple):
    """The parts of a failure that its group and its name are made of."""

    kind: str
    cause: str
    tool: str
    error: str


def group_id(project: str, parts: FailureParts) -> str:
    """Return the id of the group whose first failure has these parts."""
    return digest_of_texts("failure_group", project, *parts)


def first_lines(errors: Sequence[str]) -> list[str]:
    """Return for each folded line the first line of its group; `errors` are distinct, in the order of their first failure.

    All of them have the same kind, cause and tool. Time is linear in their number, because a line is compared with at most
    MAX_FIRST_LINES others.
    """
    groups: dict[_Words, str] = {}
    answers = []
    for error in errors:
        words, numbers = _words_of(error)
        key = (words or frozenset({error}), numbers)
        first = groups.get(key) or _find_near(key, groups)
        if first is None:
            first = error
            if len(groups) < MAX_FIRST_LINES:
                groups[key] = error
            elif error:
                first = OTHER
        answers.append(first)
    return answers


def _words_of(error: str) -> _Words:
    """Return the words of a folded line that tell something, and its numbers."""
    words = _WORD.findall(_PLACEHOLDER.sub(" ", error.lower()))
    numbers = frozenset(word for word in words if word.isdecimal())
    return frozenset(words) - numbers - _COMMON, numbers


def _find_near(key: _Words, groups: Mapping[_Words, str]) -> str | None:
    words, numbers = key
    for (other_words, other_numbers), first in groups.items():
        # Lines with other statuses or exit codes are other failures, however near their words are.
        if numbers != other_numbers:
            continue
        shared, smaller = len(words & other_words), min(len(words), len(other_words))
        is_part = shared == smaller > 1
        if shared >= (NEARNESS_OF_PART if is_part else NEARNESS) * len(words | other_words):
            return first
    return None


def failure_name(parts: FailureParts) -> str:
    """Return the name of a group, made of the parts of its first failure."""
    if parts.kind == "tool_error":
        what = f"{parts.tool or 'tools'} failed"
        return f"{what}: {'other errors' if parts.error == OTHER else parts.error}" if parts.error else what
    name = _name_cause(parts.kind, parts.cause)
    return f"{name[:1].upper()}{name[1:]}: {parts.tool}" if parts.tool else name[:1].upper() + name[1:]


def _name_cause(kind: str, cause: str) -> str:
    if kind == "run":
        from audit.detectors.detectors import DETECTORS  # noqa: PLC0415 - loads every detector

        titles = {detector.failure_type: detector.failure.title for detector in DETECTORS}
        return titles.get(cause, cause.replace("_", " "))
    if kind == "check":
        from audit.exchanges.outcomes import flag_reason  # noqa: PLC0415 - loads the tiers

        return flag_reason(cause).removesuffix(f" ({cause})")
    if kind == "dimension":
        return f"{cause.replace('_', ' ')} scored low"
    return "thinking and answer do not align" if kind == "alignment" else cause.replace("_", " ")
