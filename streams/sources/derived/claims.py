"""Claims of an answer, and what an output must say to support them: figures and troubles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from streams.sources.derived.terms import ESCAPES, MAX_TEXT, NUMBER, TIME, TOKEN, occurs

MAX_LINES = 400
"""Lines of an output in which a report of trouble is looked for, the last ones."""
MAX_PAIRED = 16
"""Figures of an output, the first ones, of which each two are subtracted and divided."""
_MAX_LINE = 500
_MAX_COLUMNS = 4
_UNITS = (1.0, 60.0, 100.0, 1000.0, 1024.0, 3600.0, 10.0**6, 2.0**20)

_SPAN = re.compile(
    r"\d(?<!\w\d)\d{0,5}(?:[.,]\d{1,3})?[ -]?(?:days?|weeks?|months?|years?|hours?|minutes?|mins?|tagen?|wochen?|monaten?|jahren?|stunden?|dias?|"
    r"semanas?|meses|horas?|jours?|semaines?|mois|ans?|heures?)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"```[^`]*```|`[^`]*`")
_ALARM = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|FAILED|FAILURE|PANIC|EMERG|ALERT)\b|\b(?:[Ee]rror|[Ff]atal|[Pp]anic|[Ff]ailed|[Ff]ailure):"
)
_ALARM_WORDS = ("ERROR", "FATAL", "CRITICAL", "FAIL", "PANIC", "EMERG", "ALERT", "rror:", "atal:", "anic:", "ailed:", "ailure:")
"""Without any of these no line can match."""
_NO_ALARM = re.compile(
    r"\b(?:no|0|zero|without)\s{1,4}(?:\w{1,20}\s{1,4})?(?:errors?|fail\w{0,10}|problems?|warnings?)\b"
    r"|\b(?:errors?|failed|failures?)\s{0,4}[:=]\s{0,4}0\b",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"\b(?:err\w*|fail\w*|problem\w*|issue\w*|trouble\w*|broke\w*|crash\w*|denied|refused|full|mismatch\w*|corrupt\w*|warn\w*|"
    r"unhealthy|wrong|timeout|killed|died|fehler\w*|falh\w*|fallo\w*|échec\w*|but|however|although|aber|except)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    r"\b(?:no|without|zero|0|any|not|never|keine?\w{0,2}|ohne|sem|nenhum|sin|ningun\w?|sans|aucune?)\s{1,4}(?:\w{1,20}\s{1,4})?"
    r"(?:err|fail|problem|issue|trouble|warn|fehler|falh|fallo|wrong)\w*",
    re.IGNORECASE,
)
_REASSURES = re.compile(
    r"\b(?:fine|healthy|all good|all well|looks good|ok|okay|success\w*|passed|ran through|quiet|sleep well|everything works|"
    r"in ordnung|tudo certo|tudo bem|todo bien|tout va bien|no (?:errors?|problems?|issues?))\b",
    re.IGNORECASE,
)


def claimed_figures(answer: str) -> list[str]:
    """The figures from 10 that an answer states as such.

    Times, years, spans of time (which an agent counts from dates), identifiers and what is quoted as code state nothing.
    """
    found = []
    text = answer[:MAX_TEXT]
    text = _SPAN.sub(" ", _CODE.sub(" ", text) if "`" in text else text)
    for token in TOKEN.findall(text):
        if not NUMBER.fullmatch(token) or TIME.fullmatch(token):
            continue
        plain = token.replace(",", "")
        is_year = len(plain) == 4 and plain[:2] in ("19", "20")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15 and float(plain) >= 10 and not is_year:
            found.append(plain)
    return found


def figures_of(text: str, limit: int) -> list[float]:
    """The figures of a text in order, the first `limit` of them; times are none."""
    found = []
    for match in NUMBER.finditer(TIME.sub(" ", ESCAPES.sub(" ", text[:MAX_TEXT]))):
        plain = match[0].replace(",", "")
        if plain.isascii() and plain.count(".") <= 1 and len(plain) <= 15:
            found.append(float(plain))
            if len(found) >= limit:
                break
    return found


def states(text: str, figure: str) -> bool:
    """Tell whether the figure is in the text, with or without separated thousands, and not as a part of another figure."""
    return occurs(figure, text)


def is_computed(figure: float, figures: Sequence[float]) -> bool:
    """Tell whether an agent may have computed the figure from these.

    It may be a count, sum, mean, difference, ratio or share, or the same in another unit.
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
    """Tell whether the figure is the value, rounded to the figure's own digits."""
    return abs(figure - value) <= (0.5 if figure == int(figure) and value != int(value) else 0.050001)


def reports_trouble(output: str) -> bool:
    """Tell whether a line of an output reports trouble, as a log does; `0 errors` is none."""
    if not any(word in output for word in _ALARM_WORDS):
        return False
    lines = ESCAPES.sub("\n", output).splitlines()[-MAX_LINES:]
    return any(_ALARM.search(line[:_MAX_LINE]) and not _NO_ALARM.search(line[:_MAX_LINE]) for line in lines)


def reassures(answer: str) -> bool:
    """Tell whether an answer says that all is well, and names no trouble."""
    text = answer[:MAX_TEXT]
    return bool(_REASSURES.search(text)) and not _TROUBLE.search(_DENIAL.sub(" ", text))
