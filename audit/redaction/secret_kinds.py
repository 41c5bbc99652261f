"""The kinds of secrets that are known: where each one lies in a text.

Every pattern takes a whole run of what may belong to the secret, and none can scan far in vain: the sum of all searches in a text
is linear in its length.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from audit.patterns import compile_pattern
from audit.redaction.secret_names import COUNTED, NAMES

Spans = Callable[[bytes], Iterator[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class SecretKind:
    """A kind of secret: its name in markers and the places of such secrets in a text (bytes, left to right, apart)."""

    name: str
    spans: Spans
    occurs: Callable[[bytes], bool]
    """Cheap question: False when no part of the text can hold one."""


_PROVIDER_KEYS = (
    r"sk-ant-[\w-]{8,}",  # Anthropic
    r"sk-(?:proj|svcacct|admin|or-v1|live|test)-[\w-]{16,}",  # OpenAI and those like it
    r"sk-[A-Za-z0-9]{20,}[\w-]*",
    r"gh[a-z]_[A-Za-z0-9]{20,}",  # GitHub
    r"github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|ptt|cbt|oas|soat|ft|agent)-[\w-]{16,}",  # GitLab
    r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"hooks\.slack\.com/services/[\w/-]{20,}",
    r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",  # Google
    r"hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{40,}|dckr_pat_[\w-]{20,}",  # package and model hubs
    r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{16,}",  # Stripe
    r"SG\.[\w-]{16,}\.[\w-]{16,}|SK[0-9a-f]{32}",  # SendGrid, Twilio
    r"do[opr]_v1_[0-9a-f]{40,}|shp[a-z]{2}_[0-9a-fA-F]{20,}|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}",
    r"gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|tvly-[\w-]{16,}",
    r"[0-9]{8,10}:AA[\w-]{30,}",  # Telegram
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
)
_PROVIDER_KEY = rf"\b(?:{'|'.join(_PROVIDER_KEYS)})"
_PEM = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:\s|\\[nr])+[A-Za-z-]{1,40}: [^\r\n\\]*)*"  # headers of an encrypted key
    r"(?:[A-Za-z0-9+/=\s]|\\[nr])*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_JWT = r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*(?:\.[\w-]+){0,2}"
_CLOUD_ID = r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"
_SEPARATOR = r"""(?:\\{0,3}["'])?\s{0,8}(?::=|=>|[:=])\s{0,8}(?:\\{0,3}["'])?"""
_CLOUD_SECRET = (
    rf"(?i:aws_?)?(?i:secret_?access_?key){_SEPARATOR}([A-Za-z0-9/+]{{16,}}={{0,2}})"
    r"|(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{20,}={0,2})"
)
_AUTHORIZATION = (
    rf"(?i)\bauthorization{_SEPARATOR}"
    r"""(?:(?:bearer|basic|token|digest|apikey|negotiate|aws4-hmac-sha256)\s{1,8}([^\s"',;\\]{4,})|([^\s"',;\\]{16,}))"""
)
_BEARER = r"(?i)\bbearer\s{1,8}([\w.~+/-]{12,}={0,2})"
_BASIC = r"(?i)\bbasic\s{1,8}([A-Za-z0-9+/]{8,}={0,2})"
_CONNECTION = r"""://[^\s:/@"'<>]{0,128}:([^\s/"'<>]{1,256})@"""
_ASSIGNS = r"""(?:\\{0,3}["'])?\s{0,8}(?::=|=>|[:=])\s{0,8}"""
_ASSIGNMENT = (
    rf"(?i)(?:\b|_){COUNTED}{_ASSIGNS}()|{NAMES}{_ASSIGNS}"
    r"""(?:\\{0,3}"((?:[^"\\\n]|\\[^"\n]){4,})|\\{0,3}'((?:[^'\\\n]|\\[^'\n]){4,})|((?:[^\s"'\\,;&]|\\[^\s"']){4,}))"""
)
_STRING = r"""(?:"((?:[^"\\\n]|\\.)+)|\\{1,3}"((?:[^"\\\n]|\\[^"\n])+))"""
_MEMBER = (
    rf'(?i)(?:\b|_){COUNTED}\\{{0,3}}"\s{{0,8}}:()'
    rf'|{NAMES}\\{{0,3}}"\s{{0,8}}:\s{{0,8}}(?:{_STRING}|([0-9]+(?:\.[0-9]+)?))'
    rf'|"(?:name|key|header)\\{{0,3}}"\s{{0,8}}:\s{{0,8}}\\{{0,3}}"[\w.-]*{NAMES}\\{{0,3}}"\s{{0,8}},\s{{0,8}}\\{{0,3}}"values?\\{{0,3}}"'
    rf"\s{{0,8}}:\s{{0,8}}{_STRING}"
    rf'|"(?:--[\w.-]*{NAMES}|(?:proxy-)?authorization|(?:set-)?cookie|x-[\w.-]*{NAMES})\\{{0,3}}"\s{{0,8}},\s{{0,8}}{_STRING}'
)
"""Members of JSON objects, pairs and arguments in JSON that may be broken off; short secrets and numbers too."""
_CONTAINER = rf'(?i){NAMES}\\{{0,3}}"\s{{0,8}}:\s{{0,8}}(?:[\[{{]\s*(?:\\{{0,3}}"[\w.-]+\\{{0,3}}"\s*:\s*)?)+([^\[\]{{}}]+)'
_COOKIE = r"""(?i)\b(?:set-)?cookie2?:\s{0,8}([\w.!#$%&*+^|~-]{1,128}=(?:"[^"\r\n\\]+")?(?:="[^"\r\n\\]+"|[^\r\n"'\\])+)"""
_FLAG = rf"""(?i)--[\w-]*{NAMES}(?:=|\s{{1,8}})(?:\\{{0,3}}"((?:[^"\\\n]|\\[^"\n])+)|'([^'\n]+)|([^\s"'`\\-][^\s"'`\\]*))"""
_QUERY = rf"""(?i)[?&;](?:[\w.-]*{NAMES}|sig)=([^\s&;"'<>\\]+)"""
_COMMAND = (
    r"""\bcurl\b[^\n|;]*?\s(?:-u|--user|--proxy-user|-U)(?:=|\s{0,8})\\{0,3}["']?[^\s:/"'\\]{0,64}:([^\s"'\\]+)"""
    r"""|\bmysql(?:dump|admin|import)?\b[^\n|;]*?\s-p(?:\\{0,3}["'])?([^\s"'\\]+)"""
    r"""|\bsshpass\s{1,8}-p\s{0,8}(?:\\{0,3}["'])?([^\s"'\\]+)"""
)
_LONG_RUN = r"[A-Za-z0-9+/_-]{24,}={0,2}"

_TELLING = "|".join(
    (
        _PROVIDER_KEY,
        _CLOUD_ID,
        r"-----BEGIN |eyJ[\w-]{8,}\.|(?:AccountKey|SharedAccessKey)=",
        r"""://[^\s:/@"'<>]{0,128}:[^\s/"'<>]{1,256}@""",
        rf"""(?i:\b(?:bearer|basic)\s{{1,8}}\S{{8}}|{NAMES}(?:\\{{0,3}}["'])?\s{{0,8}}[:=,])""",
        rf"""(?i:--[\w-]*{NAMES}\s|\bcookie2:|[?&;]sig=|"[\w.-]*{NAMES}\\{{0,3}}"\s{{0,8}},)""",
        r"\bcurl\b[^\n|;]*?\s(?:-[uU]|--user|--proxy-user)|\bmysql\w*\b[^\n|;]*?\s-p|\bsshpass\s",
    )
)
TELLING = compile_pattern(_TELLING, where="telling", ignore_case=False)
"""Cheap question whether a text may hold a secret of another kind than a random run. Most ids are no more than such a run."""
TRIGGER = compile_pattern(f"{_LONG_RUN}|{_TELLING}", where="trigger", ignore_case=False)
"""Cheap question whether a text may hold any of these: no match, no secret."""

_NO_SECRET = compile_pattern(
    r"""(?i)^["'(<\[]*(?:string|str|text|none|null|nil|true|false|undefined|required|optional|redacted|hidden|masked|secret|token"""
    r"""|password|bearer|basic|digest|negotiate|bytes|object|value|missing|invalid|expired|incorrect|\*+|x+|\.+)["')>\]:.!?\s]*$"""
    r"|^(?:\$\{|\$\(|\{\{|<|%[A-Z_]+%)"  # a place holder
    r"|^[a-z_][\w.]*\(|^(?:self|this|os|process|env|settings|config|request|args|ctx)\."  # code that fetches it
    r"|^~?/[\w.-]+/"  # a path: PWD is a directory
    r"|^[0-9]{2,5}:[0-9]{2,5}(?:\W|$)",  # a mapping of ports
    where="no secret",
)
_NO_ARGUMENT = compile_pattern(
    r"^(?:[A-Z][A-Z_]*|\W+|to|the|a|an|is|are|was|and|or|for|with|in|on|if|of|as|at|from|by|option|options|flag|flags|argument"
    r"|parameter|must|should|can|may|will|instead|when|not)[\]>).,:;]*$",
    where="no argument",
    ignore_case=False,
)
_PROVIDERS = "toolu srvtoolu msg msgbatch req resp call chatcmpl run thread asst file"
_KNOWN_IDS = (*(f"{name}_".encode() for name in _PROVIDERS.split()), b"sha256-", b"sha384-", b"sha512-")
"""Ids that model providers give to calls, and digests: random, but no secrets, and needed to follow a session."""

_MIN_RUN = 24
_MIN_ENTROPY = 4.2
_MIN_SWITCHES = 0.25
"""Changes between lower case, upper case and digits a character: 0.45 in random text, 0.2 in CamelCase."""
_CLASSES = bytes(
    ord("l") if chr(c).islower() else ord("u") if chr(c).isupper() else ord("d") if chr(c).isdigit() else ord("-")
    for c in range(128)
) + bytes(128)


def _is_random(run: bytes) -> bool:
    """Tell whether a run of letters and digits looks drawn by lot: mixed, switching often, at least 4.2 bits per character."""
    core = run.rstrip(b"=")
    classes = core.translate(_CLASSES)
    if len(core) < _MIN_RUN or not all(classes.count(kind) for kind in (b"l", b"u", b"d")):
        return False
    if not core.removeprefix(b"0x").translate(None, b"0123456789abcdefABCDEF-_"):
        return False  # hexadecimal: a digest or a UUID
    switches = sum(classes.count(pair) for pair in (b"lu", b"ld", b"dl", b"ud", b"du"))
    if switches < _MIN_SWITCHES * (len(core) - classes.count(b"-")):
        return False
    shares = (core.count(byte) / len(core) for byte in set(core))
    return -sum(share * math.log2(share) for share in shares) >= _MIN_ENTROPY


def is_one_run(data: bytes) -> bool:
    """Tell whether a text is one run of letters and digits and nothing else, as most ids are."""
    return len(data) >= _MIN_RUN and not data.translate(None, _IN_RUNS)


def has_random_run(data: bytes) -> bool:
    """Tell whether a text has a run that looks drawn by lot."""
    return next(_random_runs(data), None) is not None


def _random_runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Runs that look drawn by lot; in what may be a path, segment by segment."""
    for start, end in [(0, len(data))] if is_one_run(data) else _RUNS.groups(data):
        run = data[start:end]
        if run.startswith(_KNOWN_IDS):
            continue
        is_base64 = b"+" in run or run.endswith(b"=")
        for piece in [run] if is_base64 else run.split(b"/"):
            if _is_random(piece):
                yield start, start + len(piece)
            start += len(piece) + 1  # noqa: PLW2901 - walks along the run


_IN_RUNS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_RUNS = compile_pattern(_LONG_RUN, where="high_entropy", ignore_case=False)


def _is_credentials(value: bytes) -> bool:
    """Tell whether this is the Base64 of `user:password`."""
    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


def _has_digit(value: bytes) -> bool:
    return any(byte in b"0123456789" for byte in value)


def _is_value(value: bytes) -> bool:
    return not _NO_SECRET.found_in(value)


def _has_leaf(value: bytes) -> bool:
    """Tell whether there is anything in it but punctuation and words that are no secrets."""
    return value.strip(b" \t\r\n\"'\\,:") not in (b"", b"null", b"true", b"false")


def _is_argument(value: bytes) -> bool:
    """Tell whether this is the value of an option rather than its placeholder or the sentence going on."""
    return _is_value(value) and not _NO_ARGUMENT.found_in(value)


def _anything(_value: bytes) -> bool:
    return True


def _kind(name: str, text: str, *, groups: int = 0, accept: Callable[[bytes], bool] = _anything) -> SecretKind:
    """A kind from a pattern: what is taken out is the match, or with `groups` whichever group took part in it."""
    pattern = compile_pattern(text, where=name, ignore_case=False)

    def spans(data: bytes) -> Iterator[tuple[int, int]]:
        for start, end in pattern.groups(data, range(1, groups + 1) if groups else (0,)):
            if start < end and accept(data[start:end]):
                yield start, end

    return SecretKind(name, spans, pattern.found_in)


RANDOM_RUN = SecretKind("high_entropy", _random_runs, _RUNS.found_in)
BUILT_IN = (
    _kind("cookie", _COOKIE, groups=1, accept=_has_leaf),
    _kind("password", _CONTAINER, groups=1, accept=_has_leaf),
    _kind("private_key", _PEM),
    _kind("provider_key", _PROVIDER_KEY),
    _kind("jwt", _JWT),
    _kind("cloud_key", _CLOUD_ID),
    _kind("cloud_key", _CLOUD_SECRET, groups=2),
    _kind("connection_password", _CONNECTION, groups=1),
    _kind("authorization", _AUTHORIZATION, groups=2),
    _kind("authorization", _BEARER, groups=1, accept=_has_digit),
    _kind("authorization", _BASIC, groups=1, accept=_is_credentials),
    _kind("password", _COMMAND, groups=3, accept=_is_value),
    _kind("password", _QUERY, groups=1, accept=_is_value),
    _kind("password", _FLAG, groups=3, accept=_is_argument),
    _kind("password", _MEMBER, groups=8, accept=_is_value),
    _kind("password", _ASSIGNMENT, groups=4, accept=_is_value),
    RANDOM_RUN,
)
"""In the order they are looked for: what takes a whole list or header first, then what says most about a secret."""
