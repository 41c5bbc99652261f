"""Values of a row as what an exchange takes: texts, times, names and counts. What cannot be one is a ValueError that says why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from audit.surrogates import mended_text
from audit.times import parse_timestamp
from schemas.bounds.limits import EARLIEST, LATEST
from streams.sources.exchange_files.mapping import UNITS, TimeSource
from streams.sources.exchange_files.times import exponent_number, moment_of, written_time
from streams.sources.lines import json_type
from streams.sources.otlp.messages import ELIDED, Message, messages_of, spoken_in, text_of
from streams.sources.otlp.reading import read_provider_usage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOSECONDS = 1e17
"""From here on a number since 1970 can only be nanoseconds."""
_DAYS = (36_526, 73_051)
"""The numbers with which spreadsheets count the days of the years 2000 to 2099."""
_NO_ANSWERS = {"data": "embedding", "results": "relevance_score"}
"""The list in what a model of embeddings or a reranker gave, and what each of its items has: nothing that an agent said."""
_SHOWN = 40
_FAR = 1e11
"""Seconds that lie outside all bounds, and within what a datetime holds."""


def as_json(text: str) -> Any:
    """Return the value of a text that is JSON; any other text as it is."""
    if text[:1] not in ("{", "[", '"'):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def find(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path: a column of this name, else the value within the column that the path begins with."""
    if path in row:
        return row[path]
    end = path.rfind(".")
    while end > 0:
        if (head := path[:end]) in row:
            return _within(row[head], path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


def _within(value: Any, path: str) -> Any:
    value = as_json(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return find(value, path)
    step, _, rest = path.partition(".")
    if isinstance(value, Sequence) and not isinstance(value, str) and step.removeprefix("-").isdecimal() and len(step) < 6:
        place = int(step)
        if -len(value) <= place < len(value):
            return _within(value[place], rest) if rest else value[place]
    return None


def question_in(value: Any) -> str:
    """Return what the user says: the last message of the user, where the value is a conversation."""
    return _said(value, "user")


def answer_in(value: Any) -> str:
    """Return what the agent says: its last message after the user's last one, where the value is a conversation."""
    return _said(value, "assistant")


def conversation_in(value: Any, role: str) -> list[Message]:
    """Return the messages of a value, or of the JSON that it holds; none where it is no conversation. `role` is that of a lone one."""
    if not isinstance(value, list | dict) and not (isinstance(value, str) and value[:1] in ("{", "[")):
        return []
    read = as_json(value) if isinstance(value, str) else value
    found = [] if isinstance(read, str) else messages_of(read, role)
    # What a function was called with has the shape of a message, too.
    return found if any(message.has_content for message in found) else []


def _said(value: Any, role: str) -> str:
    if value is None:
        return ""
    messages = conversation_in(value, role)
    if not messages:
        text = mended_text(value) if isinstance(value, str) else _spoken(value)
        if text in ELIDED or any(f'"{marker}"' in text for marker in ELIDED):
            raise ValueError("holds a text that its sender kept back")
        return text
    return mended_text(_last(messages, role))


def _last(messages: Sequence[Message], role: str) -> str:
    """Return the last text of a role, the agent's only where no user speaks after it."""
    for message in reversed(messages):
        if message.role == role and (message.asks if role == "user" else message.text):
            return message.text
        if role == "assistant" and message.role == "user":
            return ""
    return ""


def _spoken(value: Any) -> str:
    """Return the text in a value that is no message: of a number its digits, of an object the member that tells it, else JSON."""
    if isinstance(value, Mapping):
        members = dict(value)
        spoken = spoken_in(members, "user") or spoken_in(members, "assistant") or text_of(members)
        return mended_text(spoken) if members else ""
    return (text_of(value) if value else "") if isinstance(value, list) else str(value)


def helper_output_in(value: Any) -> str | None:
    """Return the sort of things that a helper of the program gave, such as embeddings; None where a value is no such list."""
    read = as_json(value) if isinstance(value, str) else value
    for name, sign in _NO_ANSWERS.items() if isinstance(read, Mapping) else ():
        items = read.get(name)
        if isinstance(items, list) and items and isinstance(items[0], Mapping) and sign in items[0]:
            return f"{sign.replace('_', ' ')}s"
    return None


def name_in(value: Any) -> str | None:
    """Return an id or name; None where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | list | dict):
        raise ValueError(f"is {json_type(value)}, not a text")  # noqa: TRY004 - a value of a row, not of ours
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.strip() or None


def count_in(value: Any) -> int | None:
    """Return a count; None where there is none."""
    if isinstance(value, str):
        try:
            value = float(value) if value.strip() else None
        except ValueError:
            raise ValueError("is no number") from None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ValueError("is no whole number")
    return int(value)


def input_tokens_in(value: Any) -> int | None:
    """Return the tokens that a model read: a count, or that in the usage of a provider's answer, with those from and for a cache."""
    return _tokens_in(value, "input")


def output_tokens_in(value: Any) -> int | None:
    """Return the tokens that a model wrote, alike."""
    return _tokens_in(value, "output")


def _tokens_in(value: Any, sort: str) -> int | None:
    read = as_json(value) if isinstance(value, str) else value
    if not isinstance(read, Mapping):
        return count_in(value)
    usage = read_provider_usage(read)
    count = None if usage is None else getattr(usage.counts, sort)
    if usage is not None and count is None and not usage.is_clear:
        raise ValueError("has counts that contradict their total")
    return count if count is None else int(count)


def time_in(value: Any, source: TimeSource) -> datetime | None:
    """Return a time, by the format, unit and zone that its source gives; None where there is none."""
    if isinstance(value, str):
        value = value.strip().strip('"')
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, date):
        whole = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001 - its zone comes next
        return _in_bounds(moment_of(whole, source.zone))
    if source.format is not None:
        return _in_bounds(moment_of(_by_format(str(value), source.format), source.zone))
    return _moment(value, source)


def _by_format(text: str, form: str) -> datetime:
    try:
        return datetime.strptime(text, form)  # noqa: DTZ007 - a format without a zone is in that of its source
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:_SHOWN]!a} is no time of the form {form[:_SHOWN]}") from None


def _moment(value: Any, source: TimeSource) -> datetime:
    number = _number(value)
    if source.unit is not None:
        if number is None:
            raise ValueError("is no number")
        return _in_bounds(EPOCH + timedelta(seconds=min(max(number * UNITS[source.unit], -_FAR), _FAR)))
    if number is None and isinstance(value, str):
        return _in_bounds(written_time(value, source.zone))
    if number is not None:
        value = number / 1000 if abs(number) >= NANOSECONDS else number
    try:
        moment = parse_timestamp(value)
    except ValueError as error:
        is_day = number is not None and _DAYS[0] <= number < _DAYS[1]
        hint = " (the day number of a spreadsheet? Write the column as ISO 8601)" if is_day else ""
        raise ValueError(str(error).removeprefix("timestamp: ") + hint) from None
    assert moment is not None  # noqa: S101 - it is not blank
    return moment


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    if value.isascii() and value.replace(".", "", 1).removeprefix("-").isdecimal() and (len(value) >= 9 or len(value) == 5):
        return float(value) if "." in value else int(value)
    return exponent_number(value)


def _in_bounds(moment: datetime) -> datetime:
    if not EARLIEST <= moment < LATEST:
        raise ValueError(f"{moment:%Y-%m-%d %H:%M:%S} lies outside the years 2000 to 2099")
    return moment
