"""Names that say that their value is a secret: of JSON members, environment variables, flags, query parameters and headers."""

from __future__ import annotations

import functools

from audit.patterns import compile_pattern

_GAP = r"[_. -]?"
_SECRET_NAMES = (
    r"pass(?:words?|wd|phrase|code)|pwd",
    rf"(?:db|database|user|smtp|imap|mail|ftp|mysql|pg|redis|admin|root|sudo){_GAP}pass",
    r"secrets?",
    rf"token|(?:auth|access|refresh|id|session|bearer|api){_GAP}tokens",
    rf"(?:api|access|private|secret|session|signing|encryption|account|shared|master|auth|subscription){_GAP}keys?",
    rf"authorization|(?:auth{_GAP}|authorization{_GAP})header|basic{_GAP}auth",
    rf"credentials?|creds|cookies?|jwt|signature|connection{_GAP}string",
)
_NAME_ENDINGS = (
    r"[0-9]{1,4}|values?|string|text|plain(?:text)?|raw|data|hash|base|base64|b64|pem|json|key|header|old|new|current|confirm(?:ation)?"
    r"|prod(?:uction)?|dev(?:elopment)?|stag(?:e|ing)|test(?:ing)?|live|main|primary|secondary|backup|default|admin|root|user"
)
NAMES = rf"(?:{'|'.join(_SECRET_NAMES)})(?:{_GAP}(?:{_NAME_ENDINGS})|_for_\w{{1,32}})?"
"""Names that say their value is a secret; what stands before them does not matter: DB_PASSWORD, dbPassword, userpassword."""
COUNTED = rf"(?:max|min|total|num|n|input|output|prompt|completion|cached?|reasoning|per|eos|bos|pad|unk|sep|cls|mask|stop){_GAP}token"
"""Tokens of a language model: counted and configured, no secrets."""

_SENSITIVE = compile_pattern(rf"{NAMES}$", where="sensitive name")
TELLING_NAME = compile_pattern(NAMES, where="telling name")
"""Finds whatever `is_sensitive` takes for a name, and more."""
_MODEL_TOKENS = compile_pattern(rf"(?:^|[_.-]){COUNTED}$", where="model tokens")
_LONGEST_NAME = 128
_REMEMBERED = 10_000


def is_sensitive(name: str) -> bool:
    """Tell whether a key, header, variable or option of this name holds a secret; the same names as in texts."""
    return _tells(name[-_LONGEST_NAME:].rstrip(" :_[]*"))


@functools.lru_cache(_REMEMBERED)
def _tells(tail: str) -> bool:
    """Tell it of the end of a name; remembered, because the members of objects have the same names again and again."""
    return _SENSITIVE.matches(tail) and not _MODEL_TOKENS.matches(tail)
