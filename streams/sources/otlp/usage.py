"""Usage: the counts of tokens that a request tells, read by the convention that wrote them, and checked against its total.

1. A record has one definition: input are the tokens that the model read, those from and for a cache included; output are those that it
   wrote, reasoning included.
2. The conventions differ in what they include (`conventions.COUNTING`). A reading that cannot be, such as more tokens from a cache than
   were read, is none.
3. Where a total contradicts the convention's reading, it decides if exactly one other fits it. Else the usage is unclear: counts on
   which all readings agree are kept, the others are not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.bounds.limits import MAX_COUNT
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.conventions import PROVIDER_COUNTING, USAGE_OBJECT, Counting, Included
from streams.sources.otlp.present import COUNTS
from streams.sources.otlp.span_facts import Usage

_DIGITS = len(str(MAX_COUNT))
_NUMBERS = frozenset({int, float})


class UsageReading(NamedTuple):
    """The usage of a request. Where it is not clear, the counts that depend on how it is read are None."""

    counts: Usage
    is_clear: bool = True


class _Counts(NamedTuple):
    """The counts as they are written, each None where there is none."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    total: int | None


def read_usage(values: Mapping[str, Any], conventions: Sequence[Counting]) -> UsageReading | None:
    """Return the usage that the attributes tell by one of the conventions; None where they tell none."""
    best: tuple[Counting, _Counts] | None = None
    most = 0
    for convention in conventions:
        counts = _read_counts(values, convention)
        present = len(counts) - counts.count(None)
        # A total alone says nothing of what was read and written, and no request reads and writes nothing: some write zeros for unknown.
        if present > most and any(counts[:-1]):
            best, most = (convention, counts), present
    return None if best is None else _interpret(*best)


def read_provider_usage(usage: Mapping[str, Any]) -> UsageReading | None:
    """Return the usage in an object as a provider's answer has it; None where it has none."""
    return read_usage({USAGE_OBJECT: usage}, PROVIDER_COUNTING)


def _read_counts(values: Mapping[str, Any], convention: Counting) -> _Counts:
    if convention.container is None:
        return _Counts(*(_first(values, getattr(convention, field)) for field in COUNTS))
    details = parsed(values[convention.container]).value
    if not isinstance(details, dict):
        return _NONE
    if convention.parts is None:
        return _Counts(*(next(iter(_counts_at(details, getattr(convention, field))), None) for field in COUNTS))
    # Each token is in one count, so several of one sort are added up.
    named = {field: [*getattr(convention, field)] for field in COUNTS}
    all_named = {name for names in named.values() for name in names}
    for field, beginning in zip(COUNTS, convention.parts, strict=False):
        named[field] += [name for name in details if name.startswith(beginning) and _is_sort(name) and name not in all_named]
    counts = [list(_counts_at(details, names)) for names in named.values()]
    return _Counts(*(min(sum(sorts), MAX_COUNT) if sorts else None for sorts in counts))


def _first(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    return next((count for name in names if (count := _count(values[name])) is not None), None)


def _is_sort(name: str) -> bool:
    """Tell whether a name counts tokens of their own: those of a price's tier (`input_cached_tokens_priority`) are in another count, too."""
    return "priority" not in name


def _counts_at(details: Mapping[str, Any], paths: Iterable[str]) -> Iterator[int]:
    """The counts at these paths, without those that are missing."""
    for path in paths:
        if (count := _count(_at(details, path))) is not None:
            yield count


def _at(details: Mapping[str, Any], path: str) -> Any:
    value: Any = details
    for step in path.split("."):
        if isinstance(value, list):
            value = value[int(step)] if step.isdecimal() and int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _count(value: Any) -> int | None:
    """A whole number from 0, which may be a text; None for anything else."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) <= _DIGITS:
        value = int(value)
    return int(value) if type(value) in _NUMBERS and 0 <= value <= MAX_COUNT and value == int(value) else None


def _interpret(convention: Counting, counts: _Counts) -> UsageReading:
    readings = dict.fromkeys(
        Usage(read, written, counts.cache_read, counts.cache_write)
        for read in _read_tokens(counts, convention.cache_is)
        for written in _written_tokens(counts, convention.reasoning_is)
    )
    fitting = [usage for usage in readings if _fits(usage, counts)]
    usual = next(iter(readings))
    if usual in fitting or len(fitting) == 1:
        return UsageReading(usual if usual in fitting else fitting[0])
    agreed = {
        field: values.pop()
        for field in Usage.__struct_fields__
        if len(values := {getattr(usage, field) for usage in fitting or readings}) == 1
    }
    return UsageReading(Usage(**agreed), is_clear=False)


def _read_tokens(counts: _Counts, cache_is: Included) -> list[int | None]:
    """All that the model read, as it can be: by the convention first, then the other way."""
    cached = (counts.cache_read or 0) + (counts.cache_write or 0)
    return _both_ways(counts.input, cached, cache_is)


def _written_tokens(counts: _Counts, reasoning_is: Included) -> list[int | None]:
    """All that the model wrote, alike."""
    return _both_ways(counts.output, counts.reasoning or 0, reasoning_is)


def _both_ways(count: int | None, part: int, part_is: Included) -> list[int | None]:
    if not part:
        return [count]
    beside = min((count or 0) + part, MAX_COUNT)
    if count is None:
        return [beside if part_is == "beside" else None]
    ways = [count, beside] if part_is == "included" else [beside, count]
    return [way for way in ways if way >= part]  # no count includes more than it is


def _fits(usage: Usage, counts: _Counts) -> bool:
    if counts.total is None or counts.input is None or counts.output is None:
        return True
    # Some add up what they call input and output although more tokens came from a cache than their input has.
    plain = counts.input + counts.output if (counts.cache_read or 0) + (counts.cache_write or 0) > counts.input else None
    return counts.total in ((usage.input or 0) + (usage.output or 0), plain)


_NONE = _Counts(None, None, None, None, None, None)
