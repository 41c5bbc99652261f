"""Redaction: replaces secrets in texts by `[SECRET:kind:hmac8]` before the texts are stored or judged.

`hmac8` is 8 hexadecimal digits of an HMAC of the secret, so that a secret can be traced through the records without being
revealed. Redacting a redacted text changes nothing, because markers are not redacted again.

Every pattern matches the entire run of characters that may belong to a secret, and fails early, so all searches in a text together
take linear time.
"""

from __future__ import annotations

import base64
import binascii
import copy
import functools
import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from audit.patterns import Pattern, Prefilter, compile_pattern, decode, encode
from audit.policy import RedactionSettings
from schemas.bounds import MAX_DEPTH
from schemas.errors import BoundsError

DEFAULT_KEY = b"driftline redaction marker"
"""Key of the markers' HMAC unless a deployment sets its own. The key is public, so a guess of a secret can be confirmed with it."""

CACHED_NAMES, MAX_CACHED_NAME_LENGTH = 10_000, 256
"""Number of names that are cached, and the maximum length of a cached name."""
CACHED_LABELS, MAX_CACHED_LABELS_LENGTH = 1_000, 1_024
"""Number of sets of labels that are cached, and the maximum length of a cached set."""
_MAX_PASSES = 16
_MARKER = compile_pattern(r"\[SECRET:[a-z][a-z0-9_]{0,31}:[0-9a-f]{8}\]", where="marker", ignore_case=False)
_RANDOM = "high_entropy"
"""The kind of runs that look random."""

_NAME_KEYS = ("name", "key", "header", "Name", "Key", "Header")
_VALUE_KEYS = frozenset(["value", "values", "Value", "Values"])

_NO_COUNTS: Counter[str] = Counter()

Spans = Callable[[bytes], Iterator[tuple[int, int]]]

_PROVIDER_KEYS = (
    r"sk-ant-[\w-]{8,}",  # Anthropic
    r"sk-(?:proj|svcacct|admin|or-v1|live|test)-[\w-]{16,}",  # OpenAI and compatible services
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
SENSITIVE_NAMES = rf"(?:{'|'.join(_SECRET_NAMES)})(?:{_GAP}(?:{_NAME_ENDINGS})|_for_\w{{1,32}})?"
"""Names that mark their value as a secret, with any prefix: DB_PASSWORD, dbPassword, userpassword."""
MODEL_TOKEN_NAMES = rf"(?:max|min|total|num|n|input|output|prompt|completion|cached?|reasoning|per|eos|bos|pad|unk|sep|cls|mask|stop){_GAP}token"
"""Names about tokens of a language model, which are numbers and settings, not secrets."""
_ASSIGNMENT = (
    rf"(?i)(?:\b|_){MODEL_TOKEN_NAMES}{_ASSIGNS}()|{SENSITIVE_NAMES}{_ASSIGNS}"
    r"""(?:\\{0,3}"((?:[^"\\\n]|\\[^"\n]){4,})|\\{0,3}'((?:[^'\\\n]|\\[^'\n]){4,})|((?:[^\s"'\\,;&]|\\[^\s"']){4,}))"""
)
_STRING = r"""(?:"((?:[^"\\\n]|\\.)+)|\\{1,3}"((?:[^"\\\n]|\\[^"\n])+))"""
_MEMBER = (
    rf'(?i)(?:\b|_){MODEL_TOKEN_NAMES}\\{{0,3}}"\s{{0,8}}:()'
    rf'|{SENSITIVE_NAMES}\\{{0,3}}"\s{{0,8}}:\s{{0,8}}(?:{_STRING}|([0-9]+(?:\.[0-9]+)?))'
    rf'|"(?:name|key|header)\\{{0,3}}"\s{{0,8}}:\s{{0,8}}\\{{0,3}}"[\w.-]*{SENSITIVE_NAMES}\\{{0,3}}"\s{{0,8}},\s{{0,8}}\\{{0,3}}"values?\\{{0,3}}"'
    rf"\s{{0,8}}:\s{{0,8}}{_STRING}"
    rf'|"(?:--[\w.-]*{SENSITIVE_NAMES}|(?:proxy-)?authorization|(?:set-)?cookie|x-[\w.-]*{SENSITIVE_NAMES})\\{{0,3}}"\s{{0,8}},\s{{0,8}}{_STRING}'
)
"""Members of JSON objects, pairs and arguments in JSON that may be truncated; short secrets and numbers too."""
_CONTAINER = (
    rf'(?i){SENSITIVE_NAMES}\\{{0,3}}"\s{{0,8}}:\s{{0,8}}(?:[\[{{]\s*(?:\\{{0,3}}"[\w.-]+\\{{0,3}}"\s*:\s*)?)+([^\[\]{{}}]+)'
)
_COOKIE = r"""(?i)\b(?:set-)?cookie2?:\s{0,8}([\w.!#$%&*+^|~-]{1,128}=(?:"[^"\r\n\\]+")?(?:="[^"\r\n\\]+"|[^\r\n"'\\])+)"""
_FLAG = rf"""(?i)--[\w-]*{SENSITIVE_NAMES}(?:=|\s{{1,8}})(?:\\{{0,3}}"((?:[^"\\\n]|\\[^"\n])+)|'([^'\n]+)|([^\s"'`\\-][^\s"'`\\]*))"""
_QUERY = rf"""(?i)[?&;](?:[\w.-]*{SENSITIVE_NAMES}|sig)=([^\s&;"'<>\\]+)"""
_COMMAND = (
    r"""\bcurl\b[^\n|;]*?\s(?:-u|--user|--proxy-user|-U)(?:=|\s{0,8})\\{0,3}["']?[^\s:/"'\\]{0,64}:([^\s"'\\]+)"""
    r"""|\bmysql(?:dump|admin|import)?\b[^\n|;]*?\s-p(?:\\{0,3}["'])?([^\s"'\\]+)"""
    r"""|\bsshpass\s{1,8}-p\s{0,8}(?:\\{0,3}["'])?([^\s"'\\]+)"""
)
_LONG_RUN = r"[A-Za-z0-9+/_-]{24,}={0,2}"
_SPECIFIC = "|".join(
    (
        _PROVIDER_KEY,
        _CLOUD_ID,
        r"-----BEGIN |eyJ[\w-]{8,}\.|(?:AccountKey|SharedAccessKey)=",
        r"""://[^\s:/@"'<>]{0,128}:[^\s/"'<>]{1,256}@""",
        rf"""(?i:\b(?:bearer|basic)\s{{1,8}}\S{{8}}|{SENSITIVE_NAMES}(?:\\{{0,3}}["'])?\s{{0,8}}[:=,])""",
        rf"""(?i:--[\w-]*{SENSITIVE_NAMES}\s|\bcookie2:|[?&;]sig=|"[\w.-]*{SENSITIVE_NAMES}\\{{0,3}}"\s{{0,8}},)""",
        r"\bcurl\b[^\n|;]*?\s(?:-[uU]|--user|--proxy-user)|\bmysql\w*\b[^\n|;]*?\s-p|\bsshpass\s",
    )
)
SPECIFIC_PREFILTER = compile_pattern(_SPECIFIC, where="secret", ignore_case=False)
"""Prefilter for all secrets except random runs. Most ids are only such a run."""
SECRET_PREFILTER = compile_pattern(f"{_LONG_RUN}|{_SPECIFIC}", where="secret", ignore_case=False)
"""Prefilter for all secrets: a text without a match contains no secret."""
_NO_SECRET = compile_pattern(
    r"""(?i)^["'(<\[]*(?:string|str|text|none|null|nil|true|false|undefined|required|optional|redacted|hidden|masked|secret|token"""
    r"""|password|bearer|basic|digest|negotiate|bytes|object|value|missing|invalid|expired|incorrect|\*+|x+|\.+)["')>\]:.!?\s]*$"""
    r"|^(?:\$\{|\$\(|\{\{|<|%[A-Z_]+%)"  # a placeholder
    r"|^[a-z_][\w.]*\(|^(?:self|this|os|process|env|settings|config|request|args|ctx)\."  # code that reads the secret
    r"|^~?/[\w.-]+/"  # a path: PWD is a directory
    r"|^[0-9]{2,5}:[0-9]{2,5}(?:\W|$)",  # a port mapping
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
"""Ids that model providers give to calls, and digests: random but not secret, and needed to follow a session."""
_MIN_RUN = 24
_MIN_ENTROPY = 4.2
_MIN_SWITCHES = 0.25
"""Changes between lower case, upper case and digits per character: 0.45 in random text, 0.2 in CamelCase."""


def _character_class(code: int) -> int:
    """Return the code of `l`, `u` or `d` for a lower-case letter, upper-case letter or digit, and of `-` for other characters."""
    character = chr(code)
    if character.islower():
        return ord("l")
    if character.isupper():
        return ord("u")
    return ord("d") if character.isdigit() else ord("-")


_CLASSES = bytes(_character_class(code) for code in range(128)) + bytes(128)
"""Maps each ASCII character to its class, and other bytes to NUL."""

_IN_RUNS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_RUNS = compile_pattern(_LONG_RUN, where="high_entropy", ignore_case=False)
_SENSITIVE = compile_pattern(rf"{SENSITIVE_NAMES}$", where="sensitive name")
NAME_PREFILTER = compile_pattern(SENSITIVE_NAMES, where="sensitive name")
"""Prefilter for names that `is_sensitive` accepts."""
_MODEL_TOKENS = compile_pattern(rf"(?:^|[_.-]){MODEL_TOKEN_NAMES}$", where="model tokens")
_MAX_NAME_LENGTH = 128
_CACHED_NAME_ENDS = 10_000


class Redactor:
    """Replaces secrets in texts, by built-in kinds and those of a policy. Immutable, so it can be shared."""

    def __init__(self, settings: RedactionSettings, key: bytes = DEFAULT_KEY) -> None:
        """Raises PolicyError if a pattern of the settings does not compile."""
        self._key = key
        self._enabled = settings.enabled
        patterns = [
            compile_pattern(secret.pattern, where=f"redaction.patterns[{index}].pattern", ignore_case=False)
            for index, secret in enumerate(settings.patterns)
        ]
        self._custom = tuple(
            SecretKind(secret.kind, pattern.spans, pattern.found_in)
            for secret, pattern in zip(settings.patterns, patterns, strict=True)
        )
        self._prefilter = _build_prefilter((SECRET_PREFILTER, *patterns))
        self._patterns_without_runs = (SPECIFIC_PREFILTER, *patterns)
        self._redact_cached = lru_cache(CACHED_NAMES)(self.redact)
        self._redact_pairs_cached = lru_cache(CACHED_LABELS)(self._redact_pairs)
        self._clean: frozenset[str] = frozenset()
        self._clean_json: frozenset[str] = frozenset()
        """Texts that contain no secret and do not name one."""

    def with_prefilter(self, texts: Iterable[str], *, json_texts: Iterable[str] = ()) -> Redactor:
        """Return a redactor that knows which of these texts are clean, so that they are not searched again.

        Most suspects are ids, which are only searched for random runs. `json_texts` are the texts that will be passed to
        `is_clean_json`.
        """
        if not self._enabled:
            return self
        distinct = list(dict.fromkeys(texts))
        suspects = {distinct[index] for index in self._find_suspects(list(map(encode, distinct)))}
        names = list(dict.fromkeys(json_texts))
        sensitive: list[str] = []
        if names:
            indexes = _build_prefilter((NAME_PREFILTER,)).find_suspects(list(map(encode, names)))
            sensitive = [names[index] for index in indexes]
        redactor = copy.copy(self)
        redactor._clean = frozenset(distinct).difference(suspects) if suspects else frozenset(distinct)  # noqa: SLF001 - same class
        redactor._clean_json = redactor._clean.intersection(names).difference(sensitive)  # noqa: SLF001 - same class
        return redactor

    def _find_suspects(self, data: Sequence[bytes]) -> Iterator[int]:
        """Yield the indexes of the texts that may contain a secret."""
        ids: list[int] = []
        others: list[int] = []
        for index, text in enumerate(data):
            if is_one_run(text):
                ids.append(index)
            else:
                others.append(index)
        suspects = ids + [others[number] for number in self._prefilter.find_suspects([data[index] for index in others])]
        if not suspects:
            return
        # This prefilter is built on first use, because it is not needed at every start.
        prefilter = _build_prefilter(self._patterns_without_runs)
        specific = {suspects[number] for number in prefilter.find_suspects([data[index] for index in suspects])}
        for index in suspects:
            if index in specific or b"[SECRET:" in data[index] or has_random_run(data[index]):
                yield index

    def are_clean(self, texts: Iterable[str]) -> bool:
        """Return whether all texts are known to be clean, or nothing is redacted; False if unknown."""
        return not self._enabled or self._clean.issuperset(texts)

    def is_clean_json(self, texts: Iterable[str]) -> bool:
        """Return whether `redact_json` is known to leave a value with these texts, including keys, unchanged."""
        return not self._enabled or self._clean_json.issuperset(texts)

    def is_clean(self, text: str) -> bool:
        """Return whether the text is known to be clean, or nothing is redacted; False if unknown."""
        return not text or text in self._clean or not self._enabled

    def redact_function(self, texts: Sequence[str]) -> Callable[[str], tuple[str, Counter[str]]]:
        """Return the function that redacts each of these texts: `redact`, or a trivial one if the prefilter finds them all clean."""
        if not self._enabled or self._prefilter.is_clean(list(map(encode, texts))):
            return _keep_text
        return self.redact

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        """Return the text without its secrets, and the number of each kind."""
        if not self._enabled or not text or text in self._clean:
            return text, Counter()
        data = encode(text)
        if not self._prefilter.found_in(data):
            return text, Counter()
        counts: Counter[str] = Counter()
        for _ in range(_MAX_PASSES):  # replacing a secret can make another one match
            data, pass_counts = self._redact_once(data)
            counts.update(pass_counts)
            if not pass_counts:
                break
        return (decode(data), counts) if counts else (text, counts)

    def redact_text(self, text: str) -> str:
        """Return the text without its secrets."""
        return text if text in self._clean else self.redact(text)[0]

    def redact_labels(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Redact labels like `redact_json`; frequent ones are cached."""
        pairs = tuple(labels.items())
        if sum(len(name) + len(value) for name, value in pairs) > MAX_CACHED_LABELS_LENGTH:
            return self._redact_pairs(pairs)
        return self._redact_pairs_cached(pairs)

    def _redact_pairs(self, pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
        redacted: dict[str, str] = self.redact_json(dict(pairs))[0]
        return redacted

    def redact_name(self, name: str) -> str:
        """Redact a name or id; frequent ones are cached."""
        if name in self._clean:
            return name
        redacted, _ = self.redact(name) if len(name) > MAX_CACHED_NAME_LENGTH else self._redact_cached(name)
        return redacted

    def redact_json(self, value: Any) -> tuple[Any, Counter[str]]:
        """Return the JSON value without its secrets, including those in keys, and the number of each kind.

        Below a key such as `password`, every text and number is replaced entirely. So are the values of `{"name":
        "Authorization", "value": ...}`, of the header `["Authorization", ...]` and of the option `["--password", ...]`.

        Raises BoundsError for a value nested deeper than `MAX_DEPTH`.
        """
        counts: Counter[str] = Counter()
        return (self._redact_value(value, counts, 0) if self._enabled else value), counts

    def _redact_once(self, data: bytes) -> tuple[bytes, Counter[str]]:
        counts: Counter[str] = Counter()
        if SPECIFIC_PREFILTER.found_in(data):
            for kind in BUILT_IN:
                if kind.occurs(data):
                    data = self._replace(data, kind, counts)
        else:
            data = self._replace(data, RANDOM_RUN, counts)
        for kind in self._custom:
            data = self._replace(data, kind, counts)
        return data, counts

    def _replace(self, data: bytes, kind: SecretKind, counts: Counter[str]) -> bytes:
        """Return the text with secrets of one kind between markers replaced."""
        pieces: list[bytes] = []
        section_start = 0
        for marker_start, marker_end in [*_find_markers(data), (len(data), len(data))]:
            section = data[section_start:marker_start]
            secret_end = 0
            for start, end in kind.spans(section):
                first, last = _widen_to_characters(section, start, end)
                first = max(first, secret_end)
                if first < last:
                    pieces += [section[secret_end:first], self._build_marker(kind.name, section[first:last])]
                    counts[kind.name] += 1
                    secret_end = last
            pieces += [section[secret_end:], data[marker_start:marker_end]]
            section_start = marker_end
        return b"".join(pieces)

    def _build_marker(self, kind: str, secret: bytes) -> bytes:
        return f"[SECRET:{kind}:{hmac.digest(self._key, secret, 'sha256')[:4].hex()}]".encode()

    def _redact_value(self, value: Any, counts: Counter[str], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BoundsError(f"a value is nested deeper than {MAX_DEPTH} levels", hint="Flatten the value or send it as text.")
        if isinstance(value, str):
            if value in self._clean:
                return value
            redacted, text_counts = self.redact(value)
            counts.update(text_counts)
            return redacted
        if isinstance(value, dict):
            is_pair = _is_named_secret(value)
            return {
                self._redact_value(key, counts, depth + 1): self._redact_child(
                    item, counts, depth + 1, is_secret=_is_secret_key(key) or (is_pair and key in _VALUE_KEYS)
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            secrets = _find_secret_positions(value)
            return [self._redact_child(item, counts, depth + 1, is_secret=index in secrets) for index, item in enumerate(value)]
        return value

    def _redact_child(self, value: Any, counts: Counter[str], depth: int, *, is_secret: bool) -> Any:
        return self._replace_leaves(value, counts, depth) if is_secret else self._redact_value(value, counts, depth)

    def _replace_leaves(self, value: Any, counts: Counter[str], depth: int) -> Any:
        """Replace every text and number in a value; booleans, null and empty texts stay."""
        if depth > MAX_DEPTH:
            return self._redact_value(value, counts, depth)
        if isinstance(value, dict):
            return {
                self._redact_value(key, counts, depth + 1): self._replace_leaves(item, counts, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._replace_leaves(item, counts, depth + 1) for item in value]
        if value is None or isinstance(value, bool) or value == "":
            return value
        data = encode(str(value))
        if _is_marker(data):
            return value
        counts["secret_field"] += 1
        return decode(self._build_marker("secret_field", data))


@lru_cache(64)
def _build_prefilter(patterns: tuple[Pattern, ...]) -> Prefilter:
    return Prefilter(patterns)


def is_one_run(data: bytes) -> bool:
    """Return whether a text is a single run of letters and digits, as most ids are."""
    return len(data) >= _MIN_RUN and not data.translate(None, _IN_RUNS)


def has_random_run(data: bytes) -> bool:
    """Return whether a text has a run that looks random."""
    return next(_find_random_runs(data), None) is not None


def _find_random_runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the runs that look random; in a possible path, segment by segment."""
    runs: Iterable[tuple[int, int]] = [(0, len(data))] if is_one_run(data) else _RUNS.groups(data)
    for run_start, run_end in runs:
        run = data[run_start:run_end]
        if run.startswith(_KNOWN_IDS):
            continue
        is_base64 = b"+" in run or run.endswith(b"=")
        segments = [run] if is_base64 else run.split(b"/")
        start = run_start
        for segment in segments:
            if _is_random(segment):
                yield start, start + len(segment)
            start += len(segment) + len(b"/")


def _is_random(run: bytes) -> bool:
    """Return whether a run looks random: mixed letters and digits, frequent changes of class, at least 4.2 bits per character."""
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


def _keep_text(text: str) -> tuple[str, Counter[str]]:
    return text, _NO_COUNTS


def _find_markers(data: bytes) -> Iterator[tuple[int, int]]:
    return _MARKER.spans(data) if b"[SECRET:" in data else iter(())


def _widen_to_characters(data: bytes, start: int, end: int) -> tuple[int, int]:
    r"""Widen the span to whole characters: a pattern with `\C` may split one."""
    while start > 0 and data[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return start, end


def _is_named_secret(value: dict[Any, Any]) -> bool:
    """Return whether this object is a pair of a sensitive name and a value: `{"name": "Cookie", "value": ...}`."""
    return not _VALUE_KEYS.isdisjoint(value) and any(_is_secret_key(value.get(key)) for key in _NAME_KEYS)


def _is_secret_key(key: Any) -> bool:
    return isinstance(key, str) and is_sensitive(key)


def is_sensitive(name: str) -> bool:
    """Return whether a key, header, variable or option of this name has a secret as its value."""
    return _is_sensitive_end(name[-_MAX_NAME_LENGTH:].rstrip(" :_[]*"))


@functools.lru_cache(_CACHED_NAME_ENDS)
def _is_sensitive_end(tail: str) -> bool:
    """Decide by the end of a name; cached, because objects repeat their names."""
    return _SENSITIVE.matches(tail) and not _MODEL_TOKENS.matches(tail)


def _find_secret_positions(items: list[Any] | tuple[Any, ...]) -> set[int]:
    """Return the indexes of items that the previous item marks as secrets: in a header of two texts, or after an option."""
    if len(items) == 2 and _is_secret_key(items[0]) and isinstance(items[1], str) and _is_header(*items):
        return {1}
    positions = set()
    for index, (option, value) in enumerate(pairwise(items), start=1):
        is_option = isinstance(option, str) and option.startswith("-") and "=" not in option
        is_value = not (isinstance(value, str) and value.startswith("--"))
        if is_option and is_value and is_sensitive(option):
            positions.add(index)
    return positions


def _is_header(name: str, value: str) -> bool:
    """Return whether two texts are a header with its value, rather than two names such as the required fields of a form."""
    return name[:1].isupper() or "-" in name or not value.replace("_", "").isalpha()


def _is_marker(data: bytes) -> bool:
    return list(_find_markers(data)) == [(0, len(data))]


def find_secret_kinds(value: Any) -> list[str]:
    """Return the kinds of secrets in a JSON value, sorted: those that were redacted, and the built-in kinds in texts that were not.

    Random runs are left out: an id looks like one, and is no secret.
    """
    redacted, _ = _built_in_redactor().redact_json(value)
    kinds = {
        data[start:end].split(b":")[1].decode()
        for data in map(encode, texts_in(redacted))
        for start, end in _find_markers(data)
    }
    return sorted(kinds - {_RANDOM})


@functools.cache
def _built_in_redactor() -> Redactor:
    return Redactor(RedactionSettings())


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value, including keys, without recursion, so that no depth exhausts the stack."""
    pending = [value]
    while pending:
        node = pending.pop()
        if type(node) is str:
            yield node
        elif type(node) is dict:
            pending += node
            pending += node.values()
        elif type(node) is list or type(node) is tuple:
            pending += node


@dataclass(frozen=True, slots=True)
class SecretKind:
    """A kind of secret: its name in markers, and the function that finds its positions in a text (in bytes, from left to right)."""

    name: str
    spans: Spans
    occurs: Callable[[bytes], bool]
    """Prefilter; False if no part of the text can contain a secret of this kind."""


def _is_credentials(value: bytes) -> bool:
    """Return whether this is the Base64 of `user:password`."""
    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


def _has_digit(value: bytes) -> bool:
    return any(byte in b"0123456789" for byte in value)


def _is_value(value: bytes) -> bool:
    return not _NO_SECRET.found_in(value)


def _has_leaf(value: bytes) -> bool:
    """Return whether a container has content other than punctuation and the JSON constants."""
    return value.strip(b" \t\r\n\"'\\,:") not in (b"", b"null", b"true", b"false")


def _is_argument(value: bytes) -> bool:
    """Return whether this is the value of an option, rather than its placeholder or the next word of a sentence."""
    return _is_value(value) and not _NO_ARGUMENT.found_in(value)


def _accept_any(_value: bytes) -> bool:
    return True


def _build_kind(name: str, text: str, *, groups: int = 0, accept: Callable[[bytes], bool] = _accept_any) -> SecretKind:
    """Return the kind defined by a pattern: the entire match is replaced, or with `groups` the group that matched."""
    pattern = compile_pattern(text, where=name, ignore_case=False)

    def spans(data: bytes) -> Iterator[tuple[int, int]]:
        for start, end in pattern.groups(data, range(1, groups + 1) if groups else (0,)):
            if start < end and accept(data[start:end]):
                yield start, end

    return SecretKind(name, spans, pattern.found_in)


RANDOM_RUN = SecretKind(_RANDOM, _find_random_runs, _RUNS.found_in)
BUILT_IN = (
    _build_kind("cookie", _COOKIE, groups=1, accept=_has_leaf),
    _build_kind("password", _CONTAINER, groups=1, accept=_has_leaf),
    _build_kind("private_key", _PEM),
    _build_kind("provider_key", _PROVIDER_KEY),
    _build_kind("jwt", _JWT),
    _build_kind("cloud_key", _CLOUD_ID),
    _build_kind("cloud_key", _CLOUD_SECRET, groups=2),
    _build_kind("connection_password", _CONNECTION, groups=1),
    _build_kind("authorization", _AUTHORIZATION, groups=2),
    _build_kind("authorization", _BEARER, groups=1, accept=_has_digit),
    _build_kind("authorization", _BASIC, groups=1, accept=_is_credentials),
    _build_kind("password", _COMMAND, groups=3, accept=_is_value),
    _build_kind("password", _QUERY, groups=1, accept=_is_value),
    _build_kind("password", _FLAG, groups=3, accept=_is_argument),
    _build_kind("password", _MEMBER, groups=8, accept=_is_value),
    _build_kind("password", _ASSIGNMENT, groups=4, accept=_is_value),
    RANDOM_RUN,
)
"""Kinds in the order of their search: first those that replace an entire list or header, then the most specific ones."""
