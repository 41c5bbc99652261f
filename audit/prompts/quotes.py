"""Quotes of the judge, held against the texts it was shown. Judges retype: differences of looks only do not count.

1. Compared are folded texts: compatibility forms (NFKC), case, white space, kinds of dashes and of quotation marks, and invisible
   characters make no difference, nor does white space around a dash.
2. The judge may copy what it sees, JSON escapes and all, or what they stand for.
3. `…`, `...` and `[...]` leave words out: the parts between them have to be in one text, in their order. One at the end of a quote
   that was cut is an elision like others.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from audit.exchanges.questions import Material

_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(["\\/bfnrt]))')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MARKS = '"`\u00b4\u201a\u201e\u02b9\u02ba\u02bb\u02bc\u02bd\u2032\u2033\u2034\u2035\u2036\u300c\u300d\u300e\u300f\u301d\u301e\u301f\uff02\uff07'
"""Quotation marks that Unicode has in other categories than its own for them."""
_MINUS_SIGNS = "\u2212\u2043\u02d7\u2500"
_KINDS = {"Pd": "-", "Pi": "'", "Pf": "'", "Cf": ""}
"""The character to which those of a category are folded: dashes, quotation marks, and invisible ones."""
_SEEN = (range(0x1_0000), range(0xE_0000, 0xE_0080))
"""Code points that are looked at: the basic plane, and tags, which cannot be seen."""
_TABLE = (
    {code: _KINDS[kind] for code in chain(*_SEEN) if (kind := unicodedata.category(chr(code))) in _KINDS}
    | str.maketrans(dict.fromkeys(_MARKS, "'"))
    | str.maketrans(dict.fromkeys(_MINUS_SIGNS, "-"))
)
_DASHES = re.compile(r" ?-(?:[ -]*-)? ?")
_FEWEST_POINTS = 3
"""Points of an elision, once it is folded."""
_ELISION = re.compile(r"[\[(]? ?\.(?: ?\.){2,} ?[\])]?")


class Quotable:
    """The texts of a question, in which quotes are looked for."""

    def __init__(self, materials: Sequence[Material]) -> None:
        self._literals = [one.literal for one in materials]
        # From the end: most quotes are of the answer, which is the last text and the longest.
        self._ascii = [literal for literal in reversed(self._literals) if literal.isascii()]

    def holds(self, quote: str) -> bool:
        """Tell whether the words are in one of the texts; no quote at all is, one without any words is not."""
        return not quote or self._holds_as_it_is(quote) or self._holds_folded(quote)

    def _holds_as_it_is(self, quote: str) -> bool:
        """Tell whether ASCII text holds the quote unchanged: most quotes are copied, and what holds one holds it folded, too."""
        if quote.isascii() and not quote.isspace():
            for literal in self._ascii:
                if quote in literal:
                    return True
        return False

    def _holds_folded(self, quote: str) -> bool:
        ways = {folded(way) for way in {quote, _ESCAPE.sub(_unescaped, quote)}} - {""}
        return any(_is_in(way, source) for way in ways for literal in self._literals for source in _forms(literal))


@lru_cache(16)
def _forms(literal: str) -> tuple[str, str]:
    """Return the text of a literal and the literal itself, folded; kept for the next questions about the same exchange."""
    return folded(json.loads(literal)), folded(literal)


def folded(text: str) -> str:
    """The text as it is compared; texts that differ in looks only are folded to the same."""
    if not text.isascii():
        # Before compatibility forms: some marks would become a space and an accent.
        text = unicodedata.normalize("NFKC", text.translate(_TABLE))
    text = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text.casefold()).translate(_TABLE)
    return _DASHES.sub("-", " ".join(text.translate(_TABLE).split()))


def _is_in(quote: str, source: str) -> bool:
    """Tell whether a folded quote is in a folded text: as it is, or its parts one after the other."""
    if quote in source:
        return True
    if quote.count(".") < _FEWEST_POINTS:
        return False  # nothing is left out of it
    parts = [part for part in map(str.strip, _ELISION.split(quote)) if part]
    at = 0
    for part in parts:
        found = source.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return bool(parts)


def _unescaped(found: re.Match[str]) -> str:
    code, short = found.groups()
    return chr(int(code, 16)) if code else _ESCAPES.get(short, short)
