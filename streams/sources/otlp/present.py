"""The attributes of the conventions that a span has, found once for each set of names: the spans of an instrumentor repeat few sets.

What is looked up in a span is then what is there, and not every name that some dialect has for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from streams.sources.otlp import conventions as named
from streams.sources.otlp.kinds import KINDS, SIGNS

KEPT_SETS = 1_024
"""Sets of names that are remembered."""
MAX_NAMES, MAX_CHARACTERS = 128, 8 * 1024
"""Names of a set that is remembered, and characters of all of them: a sender can make up sets without end."""
Names = tuple[str, ...]
COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning", "total")
"""The fields of a convention that name counts of tokens."""


class Present(NamedTuple):
    """The names that are there, in the order of their table in `conventions`."""

    kinds: Names
    signs: Names
    quoted: Names
    sent: tuple[named.Place, ...]
    came: tuple[named.Place, ...]
    whole: tuple[named.Place, ...]
    called: Names
    thought: Names
    session: Names
    agent: Names
    agent_of_entity: Names
    agent_node: Names
    metadata: Names
    model: Names
    model_of_request: Names
    response_id: Names
    output: Names
    counting: tuple[named.Counting, ...]
    stop: Names
    tool: Names
    tool_call_id: Names
    arguments: Names
    result: Names
    error: Names


def present_in(values: Mapping[str, Any]) -> Present:
    """The attributes among these that the conventions know."""
    names = tuple(values)
    if len(names) <= MAX_NAMES and sum(map(len, names)) <= MAX_CHARACTERS:
        return _remembered(names)
    return _found(names)


def _found(names: Names) -> Present:
    there = frozenset(names)

    def among(table: Iterable[str]) -> Names:
        return tuple(name for name in table if name in there)

    def holding(places: Iterable[named.Place]) -> tuple[named.Place, ...]:
        return tuple(
            place for place in places if (_has_flat(names, place.name) if place.shape == "flat" else place.name in there)
        )

    return Present(
        kinds=among(name for _, name, _ in KINDS),
        signs=among(SIGNS),
        quoted=among(named.QUOTED),
        sent=holding(named.SENT),
        came=holding(named.CAME),
        whole=holding(named.Place(name, "json") for name in named.WHOLE),
        called=among(named.CALLED),
        thought=among(named.THOUGHT),
        session=among(named.SESSION),
        agent=among(named.AGENT),
        agent_of_entity=among((named.AGENT_OF_ENTITY,)),
        agent_node=among((named.AGENT_NODE,)),
        metadata=among((named.METADATA,)),
        model=among(named.MODEL),
        model_of_request=among((named.MODEL_OF_REQUEST,)),
        response_id=among(named.RESPONSE_ID),
        output=among((named.OUTPUT,)),
        counting=tuple(_counting(there)),
        stop=among(named.STOP),
        tool=among(named.TOOL),
        tool_call_id=among(named.TOOL_CALL_ID),
        arguments=among(named.ARGUMENTS),
        result=among(named.RESULT),
        error=among(named.ERROR),
    )


def _counting(there: frozenset[str]) -> Iterator[named.Counting]:
    """The conventions whose counts may be among these names, each with those of its names that are."""
    for convention in named.COUNTING:
        if convention.container is not None:
            if convention.container in there:
                yield convention
            continue
        present = [tuple(filter(there.__contains__, getattr(convention, field))) for field in COUNTS]
        if any(present):
            yield convention._replace(**dict(zip(COUNTS, present, strict=True)))  # type: ignore[arg-type]


def _has_flat(names: Iterable[str], prefix: str) -> bool:
    start = f"{prefix}."
    return any(name.startswith(start) for name in names)


_remembered = functools.lru_cache(KEPT_SETS)(_found)
