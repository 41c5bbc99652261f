"""Names of infrastructure in a run's records: ids, machines, containers, images, folders. A judge has no use for them.

What is collected is exact text, to be found again in texts that the run holds. Short common words are left out: a connection
called `local` would otherwise take a word out of every answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from schemas.bounds.limits import MAX_DEPTH
from schemas.records import Exchange

MAX_LENGTH = 500
"""Characters of the longest value that is taken for a name."""
_SHORTEST, _LONG = 4, 12
_SMALLEST = 10_000
"""Integers below this are counts and ports as often as ids."""

_ITSELF = frozenset({"id", "name", "path", "address", "ip", "digest"})
"""Fields that hold the name where a well-known field holds an object."""
# fmt: off
KEYS = frozenset({
    "sessionid", "sessionkey", "exchangeid", "eventid", "entryid", "toolcallid", "tooluseid", "callid", "firstkeptentryid",
    "parentid", "runid", "requestid", "responseid", "messageid", "traceid", "spanid", "parentspanid", "correlationid",
    "conversationid", "threadid", "jobid", "buildid", "taskid", "host", "hostname", "hostip", "server", "machine",
    "machineid", "node", "nodename", "pod", "podname", "podip", "instance", "instanceid", "cluster", "container",
    "containerid", "containername", "image", "imageid", "imagename", "imagedigest", "dockerimage", "cwd", "workdir",
    "workingdirectory", "workspace", "workspacedir", "workspacepath", "homedir", "tempdir", "tmpdir", "sessionfile",
    "transcriptpath",
})
# fmt: on
"""Fields whose values are names of infrastructure: in lower case, without anything but letters."""

_NOT_A_LETTER = re.compile(r"[^a-z]")
_TELLING = re.compile(r"[^A-Za-z]")
_OUR_OWN = re.compile(r"event_\d+(#\d+)?")
"""Ids of events that came without one: they name nothing."""


def identifiers_of(
    connection: str, session_id: str, exchanges: Iterable[Exchange], events: Iterable[Mapping[str, Any]]
) -> frozenset[str]:
    """Every identifier of a session, as it was recorded: a value counts if it is long, or holds more than letters."""
    found = {connection, session_id}
    for exchange in exchanges:
        found.add(exchange.exchange_id)
    for event in events:
        found.update(_named(event))
    return frozenset(name.strip() for name in found if _is_telling(name.strip()))


def _named(event: Mapping[str, Any]) -> Iterator[str]:
    """Values of the well-known fields of an event, at every depth. Goes down level by level, as far as JSON may nest."""
    level: list[tuple[Any, bool]] = [(item, _is_key(field, within=False)) for field, item in event.items()]
    for _ in range(MAX_DEPTH + 1):
        below: list[tuple[Any, bool]] = []
        for value, is_name in level:
            if isinstance(value, dict):
                below += [(item, _is_key(field, within=is_name)) for field, item in value.items()]
            elif isinstance(value, list | tuple):
                below += [(item, is_name) for item in value]
            elif is_name and isinstance(value, str):
                yield value
            elif is_name and type(value) is int and _SMALLEST <= value < 2**63:
                yield str(value)
        if not below:
            return
        level = below


def _is_key(field: Any, *, within: bool) -> bool:
    key = _letters(field) if isinstance(field, str) and len(field) <= MAX_LENGTH else ""
    return key in KEYS or (within and key in _ITSELF)


@lru_cache(maxsize=4096)
def _letters(field: str) -> str:
    """The letters of a field's name, in lower case."""
    return _NOT_A_LETTER.sub("", field.lower())


def _is_telling(name: str) -> bool:
    has_size = _SHORTEST <= len(name) <= MAX_LENGTH and "\n" not in name
    return has_size and (len(name) >= _LONG or _TELLING.search(name) is not None) and not _OUR_OWN.fullmatch(name)
