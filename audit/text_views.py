"""Normalized views of a text for patterns: escapes undone, lower case, lookalike letters replaced; and what a text hides.

All steps work character by character or with patterns of bounded length, so they are linear in the length of the text. Unicode's
own normalization is not, because it sorts runs of combining characters.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise, repeat

from audit.patterns import Pattern, compile_pattern, decode, encode, straighten

_MIN_SUSPICIOUS_RUN = 256
"""Shortest run of Base64, in characters, that is suspicious for containing language at all."""
_MIN_BASE64_LENGTH = 24
_MIN_TEXT_BYTES = 12
_BINARY = re.compile(rb"(?:[01]{8})+")
_HEXADECIMAL = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_BASE32 = re.compile(rb"[A-Z2-7]+")
_MIN_ZERO_WIDTH_RUN = 8
"""Shortest suspicious run of zero-width characters. No script and no emoji has as many."""
_MIN_SPLIT_WORDS = 8
"""Smallest suspicious number of Latin words split by a zero-width character. A copied text may have one or two."""
_MAX_FLAG_TAGS = 8
_ZERO_WIDTH = "\u180e\u200b-\u200d\u2060-\u2064\ufeff"
_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4}")
_ZERO_WIDTH_RUN = re.compile(f"[{_ZERO_WIDTH}\u00ad\u115f\u1160\u3164\uffa0]{{{_MIN_ZERO_WIDTH_RUN}}}")
_SPLIT_WORD = re.compile(f"[a-zA-Z][{_ZERO_WIDTH}](?=[a-zA-Z])")
_REVERSED_TEXT = re.compile("[\u202d\u202e][^a-zA-Z\u202c]{0,16}[a-zA-Z]{4}")
_INVISIBLE = re.compile(f"[{_ZERO_WIDTH}\u00ad\u115f\u1160\u202d\u202e\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e01ef]")
"""A character of those in which `hides_text` finds text."""
_FLAG_EMOJI = "\U0001f3f4"
_CANCEL_TAG = "\U000e007f"
ENCODED = compile_pattern(
    r"(?:[0-9A-Fa-f]{2}[ :]){11,}[0-9A-Fa-f]{2}|(?:[01]{8}[ ,]){5,}[01]{8}"
    rf"|[A-Za-z0-9+/_-]{{40,}}(?:\r?\n[A-Za-z0-9+/_-]{{4,}})*={{0,6}}|[A-Za-z0-9+/_-]{{{_MIN_BASE64_LENGTH},}}={{0,6}}",
    where="encoded",
    ignore_case=False,
)
"""A run of Base64, Base32, hexadecimal or binary digits that is long enough to be decoded."""
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PRINTABLE_BYTES = bytes(range(0x20, 0x7F)) + b"\t\r\n" + bytes(range(0x80, 0x100))
_PRINTABLE_RATIO = 20
"""At most one byte of this many may be unprintable in a text."""
_MAX_WORD_BYTES = 12
"""Average bytes per white space up to which a text counts as words."""

_MAX_LEVELS = 3
"""Levels of nested encodings that are undone, such as JSON in JSON in JSON."""
_ESCAPE = re.compile(
    r"""\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(["'\\/bfnrt]))|&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|(lt|gt|amp|quot|apos|nbsp));|((?:%[0-9A-Fa-f]{2})+)"""
)
_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_ESCAPED_CHARACTERS = {"b": " ", "f": "\n", "n": "\n", "r": "\n", "t": "\t"}
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "nbsp": " "}
_STYLED_CHARACTERS = (
    *range(0xC0, 0x250),  # letters with accents
    *range(0x1E00, 0x1F00),
    *range(0x2100, 0x2150),  # letters of mathematics
    *range(0x2460, 0x2500),  # in circles and brackets
    *range(0xFB00, 0xFB07),  # ligatures
    *range(0xFF01, 0xFF5F),  # full width
    *range(0x1D400, 0x1D800),  # bold, italic, script, double-struck
    *range(0x1F110, 0x1F14A),  # in squares
)
_INVISIBLE_CHARACTERS = (
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0, 0xE0001, 0xE007F),
    *range(0x300, 0x370),  # combining accents
    0x640,
    *range(0x64B, 0x660),  # Arabic vowel marks
    0x670,
    *range(0x180B, 0x1810),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
)
_SPACES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_BRACKETS = {0x2039: "<", 0x203A: ">", 0x2329: "<", 0x232A: ">", 0x27E8: "<", 0x27E9: ">", 0x3008: "<", 0x3009: ">"}
_LOOKALIKES = str.maketrans(
    "\u0430\u0432\u0435\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0501\u051b\u051d\u04bb\u0261\u0131"
    "\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03f2",
    "abeijkmhopctyxsdqwhgiabenikvoptuxc",
)
"""Cyrillic, Greek and other small letters that look like Latin ones."""
_LOOKALIKE = re.compile(f"[{''.join(map(chr, _LOOKALIKES))}]")


def _map_styled_characters() -> dict[int, str]:
    """Map styled letters and digits to the ASCII characters that they are variants of."""
    letters_by_code = {}
    for code in _STYLED_CHARACTERS:
        parts = unicodedata.normalize("NFKD", chr(code))
        letters = "".join(part for part in parts if not unicodedata.combining(part))
        if letters and letters.isascii():
            letters_by_code[code] = letters
    return letters_by_code


_PLAIN_CHARACTERS = (
    _map_styled_characters()
    | dict.fromkeys(_INVISIBLE_CHARACTERS, "")
    | dict.fromkeys(_SPACES, " ")
    | _BRACKETS
    | dict.fromkeys((0x85, 0x2028, 0x2029), "\n")
    | {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}  # tags: invisible ASCII
)
"""Maps characters to their plain form; invisible ones to nothing."""
_UNPLAIN = re.compile(
    f"[{''.join(chr(code) for code in _PLAIN_CHARACTERS if 0x80 <= code <= 0xFFFF)}\U0001d400-\U0001f14a\U000e0000-\U000e01ef]+"
)
"""Runs that contain all of these characters. Most texts have few of them, and `translate` is slow."""
_Piece = tuple[str, int, int]
"""A character of a view, and its span in the text of the parent."""


@dataclass(frozen=True)
class View:
    """A form of a text, and the characters of the text that each of its characters stands for."""

    text: str
    parent: View | None = None
    """The view that this one was made from; None for the text itself."""
    trace: Callable[[str], Iterable[tuple[int, int]]] | None = None
    """Yields, for each character, its span in the text of the parent; None if each stands for one character there."""

    @cached_property
    def data(self) -> bytes:
        """The text in the form that patterns search."""
        return encode(self.text)

    def locate(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the spans, in characters of the original text, of non-empty spans in bytes of `data`, ascending."""
        located = self._count_characters(sorted(spans))
        view: View = self
        while view.parent is not None and located:
            if view.trace is not None:
                origins = list(view.trace(view.parent.text))
                located = [
                    (min(origins[start][0], origins[end - 1][0]), max(origins[start][1], origins[end - 1][1]))
                    for start, end in located
                ]
            view = view.parent
        return sorted(located)

    def _count_characters(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Convert spans in bytes to spans in characters."""
        offsets = sorted({offset for span in spans for offset in span})
        counts = accumulate(len(decode(self.data[start:end])) for start, end in pairwise([0, *offsets]))
        characters = dict(zip(offsets, counts, strict=True))
        return [(characters[start], characters[end]) for start, end in spans]


def decode_levels(text: str) -> Iterator[View]:
    """Yield the text, then the text with the escapes of JSON and HTML undone once, twice and so on while there are any."""
    view = View(text)
    yield view
    for _ in range(_MAX_LEVELS):
        if not has_escapes(view.text):
            return
        unescaped = _ESCAPE.sub(_unescape, view.text)
        if unescaped == view.text:
            return
        view = View(_join_surrogates(unescaped), view, _trace_escapes)
        yield view


def _trace_escapes(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each character that remains when escapes are undone and surrogates joined."""
    pending: tuple[int, int] | None = None
    for character, first, last in _replace(
        text, _ESCAPE, lambda match: ((letter, *match.span()) for letter in _unescape(match))
    ):
        if pending and "\udc00" <= character <= "\udfff":
            yield pending[0], last
            pending = None
            continue
        if pending:
            yield pending
        pending = (first, last) if "\ud800" <= character <= "\udbff" else None
        if pending is None:
            yield first, last
    if pending:
        yield pending


def _replace(text: str, pattern: re.Pattern[str], replace: Callable[[re.Match[str]], Iterable[_Piece]]) -> Iterator[_Piece]:
    """Yield the characters of a text in which each match of a pattern is replaced, with their spans in the text."""
    offset = 0
    for match in pattern.finditer(text):
        yield from ((text[index], index, index + 1) for index in range(offset, match.start()))
        yield from replace(match)
        offset = match.end()
    yield from ((text[index], index, index + 1) for index in range(offset, len(text)))


def _rebuild(view: View, pattern: re.Pattern[str], replace: Callable[[re.Match[str]], Iterable[_Piece]]) -> View:
    """Return the view with each match of a pattern replaced."""
    pieces = list(_replace(view.text, pattern, replace))
    return View(
        "".join(character for character, _, _ in pieces), view, lambda _text: ((start, end) for _, start, end in pieces)
    )


def _unescape(match: re.Match[str]) -> str:
    """Return the characters of an escape; nothing for a number that is no character."""
    unicode_digits, byte_digits, letter, decimal, hexadecimal, entity, percent = match.groups()
    if percent:
        return bytes.fromhex(percent.replace("%", "")).decode("utf-8", "replace")
    if letter:
        return _ESCAPED_CHARACTERS.get(letter, letter)
    if entity:
        return _ENTITIES[entity]
    code = int(decimal) if decimal else int(unicode_digits or byte_digits or hexadecimal, 16)
    return chr(code) if code <= sys.maxunicode else ""


def has_escapes(text: str) -> bool:
    """Return whether a text may contain escapes of JSON, HTML or URLs."""
    return "\\" in text or "&" in text or ("%" in text and _PERCENT.search(text) is not None)


def _join_surrogates(text: str) -> str:
    """Join pairs of surrogates into the characters that they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def fold_views(view: View) -> Iterator[View]:
    """Yield the view in plain lower case, and once more with lookalike letters replaced by Latin ones."""
    plain = View(_fold(view.text), view, None if view.text.isascii() else _trace_fold)
    yield plain
    if plain.text.isascii():
        return
    if _LOOKALIKE.search(plain.text):
        yield View(plain.text.translate(_LOOKALIKES), plain)


def undisguised_views(view: View) -> Iterator[View]:
    """Yield a folded view with disguises of its words undone, for each disguise that one of the key words wears.

    Undone are digits for letters, rot13, words written backwards, letters set apart, and misspelled key words.
    """
    for pattern, undo in _DISGUISES:
        if pattern.found_in(view.data):
            yield from undo(view)


def _fold(text: str) -> str:
    visible = text if text.isascii() else _UNPLAIN.sub(lambda match: match[0].translate(_PLAIN_CHARACTERS), text)
    return straighten(visible).lower()


def _trace_fold(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each character that remains: folding replaces each character separately."""
    for index, character in enumerate(text):
        yield from [(index, index + 1)] * len(_fold(character))


def hides_text(text: str) -> bool:
    """Return whether invisible characters carry or cover text.

    Ordinary uses are not counted: a byte order mark, joiners in emoji and in Persian or Indian words, a few soft hyphens and
    stray zero-width spaces, flags of regions (a black flag and up to eight tags), one variation selector after a character.
    """
    return not text.isascii() and any(True for _ in _match_hidden(text))


def hidden_spans(view: View) -> list[tuple[int, int]]:
    """Return the spans, in bytes of the view's data, of the invisible characters that `hides_text` counts."""
    if view.text.isascii():
        return []
    spans = [match.span() for match in _match_hidden(view.text)]
    offsets = sorted({offset for span in spans for offset in span})
    lengths = accumulate(len(encode(view.text[start:end])) for start, end in pairwise([0, *offsets]))
    in_bytes = dict(zip(offsets, lengths, strict=True))
    return [(in_bytes[start], in_bytes[end]) for start, end in spans]


def _match_hidden(text: str) -> Iterator[re.Match[str]]:
    if not _INVISIBLE.search(text):
        return
    for pattern in (_SELECTORS, _ZERO_WIDTH_RUN, _REVERSED_TEXT):
        yield from pattern.finditer(text)
    yield from (tags for tags in _TAGS.finditer(text) if not _is_flag(text, tags))
    split_words = list(_SPLIT_WORD.finditer(text))
    if len(split_words) >= _MIN_SPLIT_WORDS:
        yield from split_words


def _is_flag(text: str, tags: re.Match[str]) -> bool:
    """Return whether the tags belong to the flag emoji of a region."""
    preceding = text[tags.start() - 1 : tags.start()]
    return preceding == _FLAG_EMOJI and tags.group().endswith(_CANCEL_TAG) and len(tags.group()) <= _MAX_FLAG_TAGS


def decoded_runs(view: View) -> Iterator[tuple[View, bool]]:
    """Yield the decoded text of each run of Base64, Base32, hexadecimal or binary digits, and whether the run alone is suspicious: it is long and contains language.

    Digests, keys, certificates, images, tokens and source maps decode to bytes, or to text without spaces between words.
    """
    data = view.data
    characters = offset = 0
    for start, end in ENCODED.groups(data):
        characters += len(decode(data[offset:start]))
        offset = start
        run = b"".join(data[start:end].translate(None, b" :,").rstrip(b"=").split())
        for content, is_base64 in _decode_run(run):
            if len(content) >= _MIN_TEXT_BYTES and _is_text(content):
                decoded = _decode_leniently(content)
                yield (
                    View(decoded, view, partial(_trace_run, (characters, characters + end - start), len(decoded))),
                    is_base64 and len(run) >= _MIN_SUSPICIOUS_RUN and _is_language(content),
                )


def _trace_run(span: tuple[int, int], length: int, _text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of the run for each of its decoded characters."""
    return repeat(span, length)


def _decode_run(run: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes that a run of characters stands for in each encoding that it is valid in, and whether that is Base64."""
    if _BINARY.fullmatch(run):
        yield int(run, 2).to_bytes(len(run) // 8), False
    if _HEXADECIMAL.fullmatch(run):
        yield bytes.fromhex(run.decode()), False
    with suppress(binascii.Error):
        if _BASE32.fullmatch(run):
            yield base64.b32decode(run + b"=" * (-len(run) % 8)), False
    with suppress(binascii.Error):
        complete = run[:-1] if len(run) % 4 == 1 else run  # a last character without a partner
        yield base64.b64decode(complete.translate(_URL_SAFE) + b"=" * (-len(complete) % 4)), True


def _is_text(data: bytes) -> bool:
    """Return whether the bytes are UTF-8 and nearly all of them printable."""
    unprintable = len(data.translate(None, _PRINTABLE_BYTES))
    replaced = data.decode("utf-8", "replace").count("\ufffd")
    return (unprintable + replaced) * _PRINTABLE_RATIO <= len(data)


def _decode_leniently(data: bytes) -> str:
    """Decode bytes, and replace invalid ones. Lone surrogates are allowed."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _is_language(data: bytes) -> bool:
    """Return whether the text has words: separated by white space, or in a script other than Latin."""
    spaces = sum(data.count(space) for space in (b" ", b"\n", b"\t"))
    non_ascii = len(data) - len(data.translate(None, bytes(range(0x80, 0x100))))
    return spaces * _MAX_WORD_BYTES >= len(data) or non_ascii * 2 >= len(data)


def _undo_digits(view: View) -> Iterator[View]:
    """Yield the view with letters for digits: a 1 is an i in the first view and an l in the second."""
    for letters in (_LETTERS_OF_DIGITS, _LETTERS_OF_DIGITS | {ord("1"): ord("l")}):
        yield View(_WORD_WITH_DIGITS.sub(partial(_translate_match, letters), view.text), view)


def _translate_match(letters: Mapping[int, int], match: re.Match[str]) -> str:
    return match[0].translate(letters)


def _undo_rot13(view: View) -> Iterator[View]:
    yield View(view.text.translate(_ROT13), view)


def _undo_reversal(view: View) -> Iterator[View]:
    yield View(view.text[::-1], view, lambda text: ((index, index + 1) for index in range(len(text) - 1, -1, -1)))


def _join_letters(view: View) -> Iterator[View]:
    """Yield the view with letters that are set apart joined; two separators or more are the space between words.

    If all letters are equally far apart, the words are found in a list of those that attempts use.
    """
    yield _rebuild(view, _SPACED_RUN, _join_run)


def _join_run(match: re.Match[str]) -> Iterator[_Piece]:
    """Yield the letters of a run, with a space between its words."""
    run = match.group()
    letters = [(letter, match.start() + index) for index, letter in enumerate(run) if letter not in _SEPARATORS]
    has_gaps = _GAP.search(run) is not None
    word_starts = set() if has_gaps else _find_word_starts("".join(letter for letter, _ in letters))
    previous = match.start()
    for number, (letter, index) in enumerate(letters):
        if number and (index - previous > _MAX_LETTER_DISTANCE if has_gaps else number in word_starts):
            yield " ", index, index + 1
        yield letter, index, index + 1
        previous = index


def _find_word_starts(letters: str) -> set[int]:
    """Return the offsets at which words begin and end in letters without spaces."""
    return {offset for match in _JOINED_WORD.finditer(letters) for offset in match.span()}


def _correct_spelling(view: View) -> Iterator[View]:
    """Yield the view with misspelled key words corrected."""
    yield _rebuild(view, _MISSPELLED_WORD, lambda match: ((letter, *match.span()) for letter in _SPELLINGS[match.group()]))


def _misspell(word: str) -> Iterator[str]:
    """Yield the word with one letter missing, doubled or swapped with the next, its first letter excepted."""
    for index in range(1, len(word)):
        yield word[:index] + word[index + 1 :]
        yield word[:index] + word[index] + word[index:]
        yield word[:index] + word[index + 1 : index + 2] + word[index] + word[index + 2 :]


def _write_in_digits(word: str) -> Iterator[str]:
    """Yield patterns for the word with one of its letters, and perhaps more, written as digits."""
    classes = [_DIGITS_OF_LETTERS.get(letter, "") for letter in word]
    for position, digits in enumerate(classes):
        if digits:
            yield "".join(
                f"[{class_}]" if index == position else f"[{letter}{class_}]" if class_ else letter
                for index, (letter, class_) in enumerate(zip(word, classes, strict=True))
            )


_DIGITS_OF_LETTERS = {"a": "4@", "e": "3", "i": "1!", "l": "1|", "o": "0", "s": "5$", "t": "7+"}
_LETTERS_OF_DIGITS = str.maketrans("4@31!05$7+|", "aaeiiossttl")
_WORD_WITH_DIGITS = re.compile(r"[0-9@$!|+]*[a-z][a-z0-9@$!|+]*")
_ROT13 = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")
_SEPARATORS = " \t._*/|-"
_MAX_LETTER_DISTANCE = 2
_SPACED_RUN = re.compile(r"(?<![a-z0-9])(?:[a-z0-9'][ \t._*/|:,-]{1,4}){9,}[a-z0-9]\b")
_GAP = re.compile(r"[ \t._*/|-]{2}")
_KEY_WORDS = (
    "judge", "grader", "evaluator", "auditor", "reviewer", "scorer", "evaluation", "response", "instructions", "instruction",
    "previous", "ignore", "disregard", "prompt", "score", "marks", "rating", "verdict", "system",
)  # fmt: skip
"""Words of which an attempt in disguise has at least one."""
_JOINED_WORD = re.compile(
    "|".join(
        sorted(
            {
                *_KEY_WORDS,
                *[
                    "please",
                    "give",
                    "this",
                    "that",
                    "the",
                    "to",
                    "for",
                    "dear",
                    "note",
                    "full",
                    "top",
                    "best",
                    "highest",
                    "perfect",
                    "award",
                    "assign",
                    "mark",
                    "rate",
                    "flag",
                    "do",
                    "not",
                    "my",
                    "all",
                    "any",
                    "your",
                    "and",
                    "with",
                    "as",
                    "is",
                    "it",
                    "pass",
                    "of",
                    "from",
                    "model",
                    "grading",
                    "scoring",
                    "output",
                    "return",
                    "system",
                    "reveal",
                    "show",
                    "forget",
                    "rules",
                    "five",
                    "ten",
                    "out",
                    "above",
                    "answer",
                    "exchange",
                    "be",
                    "should",
                    "must",
                ],
            },
            key=len,
            reverse=True,
        )
    )
)
_MISSPELLABLE = (
    "evaluator", "evaluators", "evaluation", "instructions", "instruction", "previous", "disregard", "response", "auditor",
    "reviewer", "grader", "highest", "maximum", "perfect", "ignore", "rubric", "grading", "scoring", "transcript", "compliant",
    "assessor", "assign", "possible",
)  # fmt: skip
_REAL_WORDS = {"grade", "gader", "garder", "rade", "prefect", "reponse", "ignor", *_MISSPELLABLE}
"""What a misspelling must not be; some are words of other languages."""
_SPELLINGS = {spelling: word for word in _MISSPELLABLE for spelling in _misspell(word) if spelling not in _REAL_WORDS} | {
    "jugde": "judge",
    "jduge": "judge",
    "judeg": "judge",
    "scroe": "score",
    "socre": "score",
    "sorce": "score",
    "scoer": "score",
    "makrs": "marks",
    "maximun": "maximum",
    "respons": "response",
    "evalution": "evaluation",
    "respones": "response",
}
"""The key word of each misspelling."""
_MISSPELLED_WORD = re.compile(rf"\b(?:{'|'.join(_SPELLINGS)})\b")
_DISGUISES: tuple[tuple[Pattern, Callable[[View], Iterator[View]]], ...] = (
    (
        compile_pattern(
            "|".join(rf"\b{spelling}" for word in _KEY_WORDS for spelling in _write_in_digits(word)),
            where="digits",
            ignore_case=False,
        ),
        _undo_digits,
    ),
    (
        compile_pattern(
            rf"\b(?:{'|'.join(word.translate(_ROT13) for word in _KEY_WORDS)})\b", where="rot13", ignore_case=False
        ),
        _undo_rot13,
    ),
    (
        compile_pattern(rf"\b(?:{'|'.join(word[::-1] for word in _KEY_WORDS)})\b", where="reversed", ignore_case=False),
        _undo_reversal,
    ),
    (
        compile_pattern(r"\b(?:[a-z0-9'][ \t._*/|:,-]{1,4}){9,}[a-z0-9]\b", where="spaced", ignore_case=False),
        _join_letters,
    ),
    (compile_pattern(rf"\b(?:{'|'.join(_SPELLINGS)})\b", where="misspelled", ignore_case=False), _correct_spelling),
)
DISGUISES = tuple(pattern for pattern, _ in _DISGUISES)
"""Patterns of which one matches every folded view that `undisguised_views` has views for."""
