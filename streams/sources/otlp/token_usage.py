"""The token usage of a request, read from the attributes of a span or from a provider's response.

Conventions name and count tokens differently (`conventions.TOKEN_CONVENTIONS`). Records use one definition:

1. Input counts all tokens that the model read, including cache reads and writes. Output counts all tokens that it wrote, including reasoning.
2. Impossible readings, such as more cached tokens than input tokens, are discarded.
3. If the total contradicts the convention and exactly one other reading fits it, that reading is used. Otherwise the usage is unclear: the counts
   on which all readings agree are kept, and the others are left empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.bounds import MAX_COUNT
from streams.sources.otlp.attributes import parse_json
from streams.sources.otlp.conventions import PROVIDER_TOKEN_CONVENTIONS, USAGE_OBJECT, Included, TokenConvention
from streams.sources.otlp.kinds import COUNT_FIELDS
from streams.sources.otlp.span_facts import Usage

_MAX_DIGITS = len(str(MAX_COUNT))
_PRICE_TIER = "priority"
"""Part of the names of counts per price tier (`input_cached_tokens_priority`). Their tokens are already included in another count."""


class UsageReading(NamedTuple):
    """The token usage of a request. If it is not clear, the counts that depend on the reading are None."""

    counts: Usage
    is_clear: bool = True


def read_usage(attributes: Mapping[str, Any], conventions: Sequence[TokenConvention]) -> UsageReading | None:
    """Return the usage by the convention with the most counts; the first of them in case of a tie. None if there are no counts."""
    best_reading: UsageReading | None = None
    best_size = 0
    for convention in conventions:
        counts = _read_counts(attributes, convention)
        if counts.size > best_size and counts.has_nonzero_part:
            best_reading = _interpret(counts, convention)
            best_size = counts.size
    return best_reading


def read_provider_usage(usage: Mapping[str, Any]) -> UsageReading | None:
    """Return the usage in the `usage` object of a provider's response; None if it has no counts."""
    return read_usage({USAGE_OBJECT: usage}, PROVIDER_TOKEN_CONVENTIONS)


class _Counts(NamedTuple):
    """The counts as the sender wrote them. A missing count is None."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    total: int | None = None

    @property
    def size(self) -> int:
        """Number of counts that are not missing."""
        return len(self) - self.count(None)

    @property
    def has_nonzero_part(self) -> bool:
        """True if a count other than the total is above zero. Some senders write zeros for unknown counts."""
        return any(self[:-1])

    @property
    def cached(self) -> int:
        """Tokens read from or written to a cache."""
        return (self.cache_read or 0) + (self.cache_write or 0)


def _read_counts(attributes: Mapping[str, Any], convention: TokenConvention) -> _Counts:
    if convention.container is None:
        return _Counts(*(_find_first_count(attributes, getattr(convention, field)) for field in COUNT_FIELDS))
    details = parse_json(attributes[convention.container]).value
    if not isinstance(details, dict):
        return _Counts()
    if convention.parts is None:
        return _Counts(*(_find_first_count_at(details, getattr(convention, field)) for field in COUNT_FIELDS))
    return _add_up_counts(details, convention, convention.parts)


def _find_first_count(attributes: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        count = _parse_count(attributes[name])
        if count is not None:
            return count
    return None


def _find_first_count_at(details: Mapping[str, Any], paths: Iterable[str]) -> int | None:
    for path in paths:
        count = _parse_count(_find_value(details, path))
        if count is not None:
            return count
    return None


def _add_up_counts(details: Mapping[str, Any], convention: TokenConvention, prefixes: tuple[str, str]) -> _Counts:
    """Return the counts of a convention that puts each token into exactly one count, so that the counts of a field add up."""
    names_by_field: dict[str, list[str]] = {field: list(getattr(convention, field)) for field in COUNT_FIELDS}
    assigned = {name for names in names_by_field.values() for name in names}
    for field, prefix in zip(("input", "output"), prefixes, strict=True):
        for name in details:
            if name.startswith(prefix) and _PRICE_TIER not in name and name not in assigned:
                names_by_field[field].append(name)
    return _Counts(*(_sum_counts(details, names) for names in names_by_field.values()))


def _sum_counts(details: Mapping[str, Any], paths: Iterable[str]) -> int | None:
    counts = [_parse_count(_find_value(details, path)) for path in paths]
    present = [count for count in counts if count is not None]
    return min(sum(present), MAX_COUNT) if present else None


def _parse_count(value: Any) -> int | None:
    """Return a whole number from 0 to MAX_COUNT, which may be written as text; None for any other value."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if type(value) not in (int, float) or not 0 <= value <= MAX_COUNT or value != int(value):
        return None
    return int(value)


def _find_value(details: Mapping[str, Any], path: str) -> Any:
    value: Any = details
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _interpret(counts: _Counts, convention: TokenConvention) -> UsageReading:
    readings = _list_possible_readings(counts, convention)
    fitting = [usage for usage in readings if _fits_total(usage, counts)]
    if readings[0] in fitting:
        return UsageReading(readings[0])
    if len(fitting) == 1:
        return UsageReading(fitting[0])
    return UsageReading(_find_agreed_counts(fitting or readings), is_clear=False)


def _list_possible_readings(counts: _Counts, convention: TokenConvention) -> list[Usage]:
    """Return the distinct possible readings. That of the convention comes first."""
    readings: list[Usage] = []
    for tokens_read in _list_possible_sums(counts.input, counts.cached, convention.cache_is):
        for tokens_written in _list_possible_sums(counts.output, counts.reasoning or 0, convention.reasoning_is):
            usage = Usage(tokens_read, tokens_written, counts.cache_read, counts.cache_write)
            if usage not in readings:
                readings.append(usage)
    return readings


def _list_possible_sums(count: int | None, part: int, part_is: Included) -> list[int | None]:
    """Return the possible sums of a count and a part that it may or may not include. That of the convention comes first."""
    if not part:
        return [count]
    beside = min((count or 0) + part, MAX_COUNT)
    if count is None:
        return [beside if part_is == "beside" else None]
    sums = [count, beside] if part_is == "included" else [beside, count]
    return [total for total in sums if total >= part]


def _fits_total(usage: Usage, counts: _Counts) -> bool:
    if counts.total is None or counts.input is None or counts.output is None:
        return True
    if counts.total == (usage.input or 0) + (usage.output or 0):
        return True
    # Some senders add up input and output although their input excludes the cached tokens.
    return counts.cached > counts.input and counts.total == counts.input + counts.output


def _find_agreed_counts(readings: Sequence[Usage]) -> Usage:
    """Return the counts on which all readings agree."""
    agreed = {}
    for field in Usage.__struct_fields__:
        values = {getattr(usage, field) for usage in readings}
        if len(values) == 1:
            agreed[field] = values.pop()
    return Usage(**agreed)
