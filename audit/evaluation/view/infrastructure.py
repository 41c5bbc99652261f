r"""Patterns that reveal where a run took place: paths, images, ids and log lines, each with its replacement.

The patterns are RE2 and each gives up soon, so all of them are linear in the text. A boundary is a character that the name could
not go on with on the left; RE2 cannot look behind, so it is part of the match and stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from audit.patterns import Pattern, compile_pattern

ID, IMAGE, LOG_LINE, PATH = b"[id]", b"[image]", b"[log line]", b"[path]"


@dataclass(frozen=True)
class Trace:
    """A kind of trace: where it lies in a text (bytes), and what is put in its place.

    Its pattern is compiled where it is first looked for: the patterns take 2 MB, and a server without a judge needs none of them.
    """

    name: str
    regex: str
    instead: Callable[[bytes], bytes]
    whole_lines: bool = False
    """True if a match may be of any length, so that no window may cut it."""

    def removed(self, data: bytes) -> bytes:
        """The text without these traces."""
        pieces: list[bytes] = []
        done = 0
        for start, end in self._places(data):
            found = data[start:end]
            if (instead := self.instead(found)) != found:
                pieces += [data[done:start], instead]
                done = end
        return b"".join([*pieces, data[done:]]) if pieces else data

    @cached_property
    def pattern(self) -> Pattern:
        """The compiled pattern."""
        return compile_pattern(self.regex, where=self.name, ignore_case=False)

    def _places(self, data: bytes) -> Iterator[tuple[int, int]]:
        return self.pattern.groups(data) if self.whole_lines else self.pattern.spans(data)


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


def _without_folders(found: bytes) -> bytes:
    """`[path]/name` for what a match holds after its boundary; the name of a home folder is left out as well."""
    boundary = re.match(rb"\\[nrt](?=[~/]|[A-Za-z]:|\\*/)", found)
    begin = _START.search(found, boundary.end() if boundary else 0)
    if begin is None:
        return found
    parts = [part for part in _SEPARATORS.split(found[begin.start() :]) if part]
    is_home = len(parts) < 2 or (parts[-2] in _HOMES and len(parts) < 4) or found.endswith((b"/", b"\\"))
    return found[: begin.start()] + PATH + (b"/" if is_home else b"/" + parts[-1])


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


def _without_id(found: bytes) -> bytes:
    """The placeholder for what was drawn or counted; names in code, such as `run_tests` and `file_report`, stay."""
    if key := _KEY.match(found):
        value = found[key.end() :]
        is_code = value.lower() in _ORDINARY_VALUES or value.lower().endswith((b"_id", b".id", b"-id"))
        return found if is_code else key.group() + ID
    if hexadecimal := _HEX.fullmatch(found):
        digits = hexadecimal.group(1)
        is_id = not digits.isdigit() and (not digits.isalpha() or len(digits) >= 24)
        return found.replace(found.strip(b"_"), ID) if is_id else found
    if found.startswith(b"_"):
        return b"_" + _without_id(found[1:])
    if _NUMBERED.match(found) or _DRAWN.match(found):
        return ID
    is_named = re.match(rb"[a-z]+_", found) or re.fullmatch(rb"[a-z]+-[A-Za-z]+", found)
    return found if is_named or not re.search(rb"[0-9]", found) else ID


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

LOG_LINES = Trace("log line", _LOG_LINES, lambda _found: LOG_LINE, whole_lines=True)
PATHS = Trace("path", _PATHS, _without_folders)
IMAGES = Trace("image", _IMAGES, lambda _found: IMAGE)
IDS = Trace("id", _IDS, _without_id)
