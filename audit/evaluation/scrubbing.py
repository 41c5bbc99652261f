"""Scrubbing: removes everything from a run's texts that reveals where it ran, so that the judge sees only the agent's work.

Known ids of the run, ids that look random or numbered, absolute paths (except their last name), images, secrets and log lines
are replaced by `[id]`, `[path]/name`, `[image]`, `[secret]` and `[3 log lines]`. A text that is JSON is also scrubbed value by
value, so that escapes hide nothing. Scrubbing a scrubbed text changes nothing. Known ids that are ordinary words or small
numbers are kept: they reveal nothing, and removing them would damage the text.

The patterns are RE2 and bounded, so all of them are linear in the text. RE2 has no lookbehind, so the character before a match
is part of the match and is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit.patterns import Pattern, compile_pattern, decode, encode
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.bounds import is_too_deep

_MAX_PASSES = 8
"""Maximum number of passes: a replacement may expose another trace, but only an adversarial text needs more passes."""
_UNCLEANED = "[text that could not be cleaned]"
_TOO_DEEP = "[a value that is nested too deeply]"
_JSON_LEVELS = 3
"""Levels of JSON in JSON that are parsed."""
_MAX_CACHED_LENGTH = 256
"""Maximum length of a text whose scrubbed form is cached: names of tools and keys repeat often."""
_MIN_ID_LENGTH = 4
_MIN_NUMBER_LENGTH = 5
"""Minimum length of an id of digits only."""
_MIN_WORD_LENGTH = 12
"""Minimum length of an id of letters only."""
_DISTINCTIVE_LENGTH = 7
"""Ids of this length with a digit are also removed within a longer word."""
_IDS_PER_PATTERN = 1_000
_REDACTOR = Redactor(RedactionSettings())
_MARKER = re.compile(r"\[SECRET:[a-z][a-z0-9_]{0,31}:[0-9a-f]{8}\]")
_KEPT_MARKER, _SECRET = "[SECRET:kept:00000000]", "[secret]"
_LOGS = re.compile(r"\[(?:log line|([0-9]{1,9}) log lines)\](?:(?:\s|\\[nr])*\[(?:log line|[0-9]{1,9} log lines)\])+")
_LOG = re.compile(r"\[(?:([0-9]{1,9}) log lines|log line)\]")
_write = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_OPENERS = ("{", "[", '"')
_ID_KEY = compile_pattern(
    r"(?:^|[_.-])(?:run|session|container|request|trace|span|correlation|execution|invocation|job|pod|exchange|event)_?-?id$",
    where="id key",
)
_IMAGE_KEY = compile_pattern(r"(?:^|[_.-])image(?:_?(?:id|name|ref|tag))?$", where="image key")
_IMAGE_VALUE = compile_pattern(r"^[\w./-]+(?::[0-9]+/[\w./-]+)?[:@][\w.:-]+$", where="image value")
_PATH_KEY = compile_pattern(r"(?:path|file|filename|dir|directory|folder|cwd)$", where="path key")
_ABSOLUTE = re.compile(r"(?i)\s*(?:file:|[/~]|\\\\|[a-z]:[\\/])")
_MAX_PATH_LENGTH, _MAX_KEY_LENGTH = 4_096, 128

_PLACEHOLDERS = ("[id]", "[path]/", "[image]", "[secret]", "[log line]", " log lines]", _UNCLEANED, _TOO_DEEP)

ID, IMAGE, LOG_LINE, PATH = b"[id]", b"[image]", b"[log line]", b"[path]"

_SLASH = r"\\{0,4}/"
_PART = r"""[^\s/\\"'`<>|:*?;,()\[\]{}=&#$!]+"""
_EDGE = r"(?:^|[^\w.~/…\\\]-]|[^h]\]|^\]|(?:^|\s)-[A-Za-z]|\\[nrt])"
_ROOTS = (
    r"(?:home|Users|root|tmp|var|etc|usr|opt|mnt|srv|proc|sys|dev|bin|sbin|lib|lib64|run|boot|media|Volumes|private|workspace|workspaces"
    r"|app|data|code|repo|Library|System)"
)
_DRIVE = r"""[A-Za-z]:(?:\\{1,8}|/{1,2})"""
_FOLDER = r"""(?:[^\\/:*?"<>|\r\n]{1,128}\\{1,8}|[^\s\\/:*?"<>|]{1,128}/)"""
_PATHS = (
    rf"""(?i:file:/{{1,3}}[^\s"'`<>|)\]}}]*)"""
    rf"|{_EDGE}(?:~[\w.-]*(?:{_SLASH}(?:{_PART})?)+"
    rf"|{_SLASH}{_PART}(?:{_SLASH}{_PART})+(?:{_SLASH})?|{_SLASH}{_ROOTS}(?:{_SLASH}|\b)|{_SLASH}[\w-]+(?:\.[A-Za-z0-9]{{1,8}})+\b)"
    rf"""|(?:^|[^\w]|\\[nrt]){_DRIVE}{_FOLDER}*(?:{_PART})?"""
    rf"""|(?:^|[\s"'=(,;])\\{{2,8}}[\w.-]+\\{{1,4}}{_FOLDER}*(?:{_PART})?"""
)
_START = re.compile(rb"(?i:file:/)|[A-Za-z]:[\\/]|~|\\{2,8}[\w.-]|\\{0,4}/")
_SEPARATORS = re.compile(rb"[\\/]+")
_HOMES = (b"home", b"Users")

_TAG = r"(?:latest|stable|edge|nightly|dev|prod|production|staging|main|master|v?[0-9]+\.[0-9][\w.-]*|v[0-9][\w.-]*|[0-9a-f]{7,40}|[0-9]+-[a-z][\w.-]*|sha-[0-9a-f]+)"
_REGISTRIES = (
    r"(?:docker\.io|ghcr\.io|quay\.io|(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+\.pkg\.dev|mcr\.microsoft\.com|public\.ecr\.aws|registry\.[a-z0-9.-]+"
    r"|[a-z0-9-]+\.azurecr\.io|[0-9]+\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com)"
)
_KNOWN_IMAGES = (
    r"(?:python|node|ubuntu|debian|alpine|nginx|redis|postgres|mysql|mariadb|mongo|golang|openjdk|eclipse-temurin|busybox|httpd|rabbitmq"
    r"|php|ruby|rust|centos|fedora|amazonlinux|maven|gradle|traefik|memcached|elasticsearch|kafka|zookeeper|docker)"
)
_NAME = r"[a-z0-9][a-z0-9._-]*"
_IMAGES = (
    rf"(?:(?:{_NAME}(?::[0-9]{{2,5}})?/)?(?:{_NAME}/){{0,6}}{_NAME}(?::[\w.-]+)?@)?\bsha(?:256|512):[0-9a-fA-F]{{8,128}}"
    r"|\bdocker(?:-daemon|-pullable|-image)?://[^\s\"'<>\\]+"
    rf"|\b{_REGISTRIES}(?::[0-9]{{2,5}})?(?:/{_NAME})+(?::[\w.-]+)?"
    rf"|\b(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+|localhost|[a-z0-9-]+):[0-9]{{2,5}}(?:/{_NAME})+:[\w][\w.-]*"
    rf"|\b(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*)(?:/{_NAME})+:{_TAG}\b"
    rf"|\b{_KNOWN_IMAGES}:(?:[0-9]|latest|slim|alpine|bookworm|bullseye|jammy|noble)[\w.-]*"
    r"|\b[a-z0-9]+(?:[._-][a-z0-9]+)*:latest\b|\b[a-z0-9]+(?:[._-][a-z0-9]+)+:v?[0-9]+\.[0-9][\w.-]*\b"
)
_GIVEN = (
    r"(?:toolu|srvtoolu|msg|msgbatch|req|resp|call|chatcmpl|cmpl|run|thread|asst|file|gen|batch|item|rs|fc|org|proj|session|sess|trace|span"
    r"|evt|event|exec|job|container|pod|request|gen|ws|vs|ctr)"
)
_COUNTED = (
    r"(?:run|session|sess|job|exec|execution|trace|span|event|evt|exchange|request|req|conversation|worker|pod|container|node)"
)
_KEYED = (
    r"(?i:\b(?:run|session|container|request|trace|span|correlation|execution|invocation|job|pod|exchange|event|conversation)[_ -]?id"
    r"""\\{0,3}["']?\s{0,3}[:=]\s{0,3}\\{0,3}["']?)"""
)
_IDS = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    rf"|{_KEYED}[A-Za-z0-9][\w:.#-]{{2,127}}"
    rf"|(?i:(?:\b|_){_COUNTED})[_-][0-9][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*"
    rf"|(?:\b|_){_GIVEN}[_-][A-Za-z0-9]{{6,64}}(?:[_-][A-Za-z0-9]+)*"
    r"|(?:\b|_)(?:0x)?[0-9a-fA-F]{12,128}(?:\b|_)"
    r"|\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"
    r"|\b[a-z0-9]+(?:-[a-z0-9]+)*-[0-9a-f]{8,10}-[a-z0-9]{5}\b"
)
_KEY = re.compile(rb"""^(?i:[a-z]+[_ -]?id)\\{0,3}["']?\s{0,3}[:=]\s{0,3}\\{0,3}["']?""")
_HEX = re.compile(rb"_?(?:0x)?([0-9a-fA-F]{12,})_?")
_NUMBERED = re.compile(rb"(?i)_?[a-z]+[_-][0-9]")
_DRAWN = re.compile(rb"_?[a-z]+[_-](?=[A-Za-z]*[0-9]+[A-Za-z])[A-Za-z0-9]{6,}|_?[a-z]+[_-](?=.*[a-z])(?=.*[A-Z])[A-Za-z]{14,}")
_ORDINARY_VALUES = frozenset({b"none", b"null", b"true", b"false", b"string", b"str", b"int", b"integer", b"uuid", b"text"})

_LEVEL = r"(?i:trace|debug|info|notice|warn|warning|error|err|critical|crit|fatal|severe|alert|emerg)"
_DAY = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
_ZONE = r"\s?(?:Z|[+-][0-9]{2}:?[0-9]{2}|UTC)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_REST = r"(?:[^\n\r\\]|\\[^nr\n\r])*"
_LOG_LINES = (
    "(?:"
    rf"\[?{_DAY}[T ]{_CLOCK}{_ZONE}[^\n]{{0,40}}?\b{_LEVEL}\b"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}\.[0-9]{{6,9}}{_ZONE}\s"
    rf"|[0-9]{{4}}/[0-9]{{2}}/[0-9]{{2}} {_CLOCK}\s"
    rf"|\b{_LEVEL}\b[\]\s:|-]{{1,8}}\[?{_DAY}[T ][0-9]{{2}}:[0-9]{{2}}"
    rf"""|(?:time|ts|timestamp|msg|level|lvl|severity)=\S[^\n]{{0,200}}?\b(?:level|lvl|severity|ts|time)=\S"""
    rf"|\b{_MONTH}\s{{1,2}}[0-9]{{1,2}} {_CLOCK} \S{{1,64}} [^\s:\[]{{1,64}}(?:\[[0-9]{{1,8}}\])?:"
    rf"|\b[IWEF][0-9]{{4}} {_CLOCK}\s{{1,8}}[0-9]{{1,8}} \S{{1,64}}:[0-9]{{1,6}}\]"
    rf"|[^\s\"']{{1,64}} [^\s\"']{{1,64}} [^\s\"']{{1,64}} \[[0-9]{{2}}/{_MONTH}/[0-9]{{4}}:{_CLOCK} [+-][0-9]{{4}}\]"
    rf"|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):(?:[A-Za-z_][\w.]{{0,80}}:|\s{{2,8}}\S)"
    rf"|\[?\b{_CLOCK}\]?\s{{1,4}}\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
    r"|\[\s{0,8}[0-9]{1,8}\.[0-9]{6}\] \S"
    rf"""|\{{[^\n]{{0,200}}?"(?:ts|time|timestamp|@timestamp)"\s?:\s?[^\n]{{0,200}}?"(?:level|severity|levelname|lvl)"\s?:"""
    rf"""|\{{[^\n]{{0,200}}?"(?:level|severity|levelname|lvl)"\s?:\s?[^\n]{{0,200}}?"(?:ts|time|timestamp|@timestamp)"\s?:"""
    rf"){_REST}"
)


class Scrubber:
    """Scrubs the texts of one run."""

    def __init__(self, identifiers: Iterable[str]) -> None:
        """`identifiers` are the known ids of the run, in any form."""
        self._known_patterns = _compile_ids(identifiers)
        self._exact = frozenset(identifiers)
        self._clean: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return the scrubbed text."""
        return self._scrub_text(text, _JSON_LEVELS)

    def value(self, value: Any) -> Any:
        """Return the JSON value with all texts scrubbed, including keys; a value that is nested too deeply becomes a placeholder."""
        if is_too_deep([value]):
            return _TOO_DEEP
        return self._scrub_value(value, _JSON_LEVELS)

    def path(self, path: str) -> str:
        """Return a scrubbed path of a file; an absolute path is reduced to its last name."""
        if _ABSOLUTE.match(path):
            path = "[path]/" + re.split(r"[\\/]", path.rstrip("\\/ "))[-1]
        return self.text(path)

    def _scrub_text(self, text: str, json_levels: int) -> str:
        cached = self._clean.get(text)
        if cached is not None:
            return cached
        clean = text
        for _ in range(_MAX_PASSES):
            previous = clean
            clean = self._scrub_once(previous, json_levels)
            if clean == previous:
                break
        else:
            clean = _UNCLEANED
        if len(text) <= _MAX_CACHED_LENGTH:
            self._clean[text] = clean
        return clean

    def _scrub_once(self, text: str, json_levels: int) -> str:
        if json_levels and text.lstrip().startswith(_OPENERS):
            text = self._scrub_json(text, json_levels)
        data = LOG_LINES.remove_from(encode(text))
        text = _replace_secrets(decode(data))
        data = PATHS.remove_from(encode(text))
        for pattern in self._known_patterns:
            data = _replace_ids(pattern, data)
        text = decode(IDS.remove_from(IMAGES.remove_from(data)))
        return _LOGS.sub(_count_lines, text) if "log line" in text else text

    def _scrub_json(self, text: str, json_levels: int) -> str:
        """Return the text, rewritten if it is JSON with something to scrub."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if is_too_deep([value]):
            return text
        clean = self._scrub_value(value, json_levels - 1)
        return text if clean == value else json.dumps(clean, ensure_ascii=False, separators=(",", ":"))

    def _scrub_value(self, value: Any, json_levels: int) -> Any:
        redacted, _ = _REDACTOR.redact_json(value)
        return self._scrub_redacted(redacted, json_levels)

    def _scrub_redacted(self, value: Any, json_levels: int) -> Any:
        if isinstance(value, str):
            return self._scrub_text(value, json_levels)
        if isinstance(value, dict):
            return self._scrub_members(value, json_levels)
        if isinstance(value, list | tuple):
            return [self._scrub_redacted(item, json_levels) for item in value]
        if value is None or isinstance(value, bool):
            return value
        is_known = str(value) in self._exact and len(str(value)) >= _MIN_NUMBER_LENGTH
        is_unwritable = isinstance(value, float) and not math.isfinite(value)
        return decode(ID) if is_known or is_unwritable else value

    def _scrub_members(self, value: dict[str, Any], json_levels: int) -> dict[str, Any]:
        """Return the members with scrubbed names; members whose names became equal are all kept."""
        members: dict[str, Any] = {}
        for key, item in value.items():
            base = self._scrub_text(str(key), json_levels)
            name = base
            copies = 1
            while name in members:
                copies += 1
                name = f"{base} ({copies})"
            members[name] = self._scrub_member(str(key), item, json_levels)
        return members

    def _scrub_member(self, key: str, item: Any, json_levels: int) -> Any:
        name = key[-_MAX_KEY_LENGTH:]
        is_plain = isinstance(item, str | int | float) and not isinstance(item, bool) and item != ""
        if is_plain and _ID_KEY.matches(name):
            return decode(ID)
        if isinstance(item, str) and _IMAGE_KEY.matches(name) and _IMAGE_VALUE.matches(item[:512]):
            return decode(IMAGE)
        if isinstance(item, str) and len(item) <= _MAX_PATH_LENGTH and "\n" not in item and _PATH_KEY.matches(name):
            return self.path(item)
        return self._scrub_redacted(item, json_levels)


def _compile_ids(identifiers: Iterable[str]) -> tuple[Pattern, ...]:
    """Return patterns for the ids that are not ordinary words, the longest first."""
    distinctive = {identifier for identifier in identifiers if _is_distinctive(identifier)}
    ordered = sorted(distinctive, key=lambda identifier: (-len(identifier), identifier))
    chunks = [ordered[start : start + _IDS_PER_PATTERN] for start in range(0, len(ordered), _IDS_PER_PATTERN)]
    return tuple(compile_pattern("|".join(map(_build_id_pattern, chunk)), where="known ids") for chunk in chunks)


def _is_distinctive(identifier: str) -> bool:
    """Return whether an id is no ordinary word or small number, and not part of a placeholder."""
    if identifier.isdigit():
        return len(identifier) >= _MIN_NUMBER_LENGTH
    is_word = identifier.isalpha() and len(identifier) < _MIN_WORD_LENGTH
    return (
        len(identifier) >= _MIN_ID_LENGTH
        and not is_word
        and identifier.strip() != ""
        and not any(identifier.lower() in placeholder for placeholder in _PLACEHOLDERS)
    )


def _build_id_pattern(identifier: str) -> str:
    """Return the pattern of an id; a short id, or one without digits, must not be followed by a letter or digit."""
    quoted = re.sub(
        r"([^\w\s-]|[\s-])", lambda match: "".join(f"\\x{{{ord(character):x}}}" for character in match.group()), identifier
    )
    if len(identifier) >= _DISTINCTIVE_LENGTH and any(character.isdigit() for character in identifier):
        return quoted
    return _word_boundary(identifier[0]) + quoted + _word_boundary(identifier[-1])


def _word_boundary(edge: str) -> str:
    """Return the pattern of a word boundary at this first or last character of an id; empty if it is no part of a word."""
    return r"\b" if edge.isascii() and (edge.isalnum() or edge == "_") else ""


def _replace_secrets(text: str) -> str:
    """Replace secrets, and the markers of secrets that were replaced earlier, by `[secret]`."""
    if _SECRET in text:
        text = text.replace(_SECRET, _KEPT_MARKER)
    text, _ = _REDACTOR.redact(text)
    return _MARKER.sub(_SECRET, text) if "[SECRET:" in text else text


def _replace_ids(pattern: Pattern, data: bytes) -> bytes:
    pieces: list[bytes] = []
    position = 0
    for start, end in pattern.spans(data):
        pieces += [data[position:start], ID]
        position = end
    return b"".join([*pieces, data[position:]])


def _count_lines(match: re.Match[str]) -> str:
    lines = sum(int(line.group(1) or 1) for line in _LOG.finditer(match.group()))
    return f"[{lines} log lines]"


def json_text(value: Any) -> str:
    """Return a JSON value as text with sorted names; a text is returned unchanged."""
    if isinstance(value, str):
        return value
    return _TOO_DEEP if is_too_deep([value]) else _write(value)


@dataclass(frozen=True)
class Trace:
    """A kind of trace: its pattern in UTF-8 text, and its replacement.

    The pattern is compiled on first use: all patterns take 2 MB, and a server without a judge needs none.
    """

    name: str
    regex: str
    replace: Callable[[bytes], bytes]
    has_any_length: bool = False
    """True if a match may have any length, so that the text must not be searched in windows."""

    def remove_from(self, data: bytes) -> bytes:
        """Return the text with the traces of this kind replaced."""
        pieces: list[bytes] = []
        position = 0
        for start, end in self._find_spans(data):
            match = data[start:end]
            replacement = self.replace(match)
            if replacement != match:
                pieces += [data[position:start], replacement]
                position = end
        return b"".join([*pieces, data[position:]]) if pieces else data

    @cached_property
    def pattern(self) -> Pattern:
        """The compiled pattern."""
        return compile_pattern(self.regex, where=self.name, ignore_case=False)

    def _find_spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        return self.pattern.groups(data) if self.has_any_length else self.pattern.spans(data)


def _keep_last_name(path: bytes) -> bytes:
    """Return `[path]/name` for a matched path after its boundary; the name of a home folder is removed as well."""
    boundary = re.match(rb"\\[nrt](?=[~/]|[A-Za-z]:|\\*/)", path)
    begin = _START.search(path, boundary.end() if boundary else 0)
    if begin is None:
        return path
    parts = [part for part in _SEPARATORS.split(path[begin.start() :]) if part]
    is_home = len(parts) < 2 or (parts[-2] in _HOMES and len(parts) < 4) or path.endswith((b"/", b"\\"))
    return path[: begin.start()] + PATH + (b"/" if is_home else b"/" + parts[-1])


def _replace_id(name: bytes) -> bytes:
    """Return the placeholder for a random or numbered id; names in code, such as `run_tests` and `file_report`, stay."""
    key = _KEY.match(name)
    if key is not None:
        value = name[key.end() :]
        is_code = value.lower() in _ORDINARY_VALUES or value.lower().endswith((b"_id", b".id", b"-id"))
        return name if is_code else key.group() + ID
    hexadecimal = _HEX.fullmatch(name)
    if hexadecimal is not None:
        digits = hexadecimal.group(1)
        is_id = not digits.isdigit() and (not digits.isalpha() or len(digits) >= 24)
        return name.replace(name.strip(b"_"), ID) if is_id else name
    if name.startswith(b"_"):
        return b"_" + _replace_id(name[1:])
    if _NUMBERED.match(name) or _DRAWN.match(name):
        return ID
    is_named = re.match(rb"[a-z]+_", name) or re.fullmatch(rb"[a-z]+-[A-Za-z]+", name)
    return name if is_named or not re.search(rb"[0-9]", name) else ID


LOG_LINES = Trace("log line", _LOG_LINES, lambda _found: LOG_LINE, has_any_length=True)
PATHS = Trace("path", _PATHS, _keep_last_name)
IMAGES = Trace("image", _IMAGES, lambda _found: IMAGE)
IDS = Trace("id", _IDS, _replace_id)
