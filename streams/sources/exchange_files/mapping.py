"""Mappings: which column gives each field of an exchange, as a YAML file, and how the values of columns are read.

1. A field has a column, or a constant value. A column is named as the file names it, or by a dotted path into its value:
   `usage.input_tokens`, `messages.0.content`.
2. A column with a whole conversation gives the question and the answer: its last message of the user, and the agent's after it.
3. A value that cannot be what its field takes is a ValueError that says why.

Times are written as ISO 8601, as numbers since 1970, and in the forms of databases, languages and mails (`FORMS`), unless the mapping gives
their `format` or `unit`:

4. Each form says its instant. A text that could be two instants is refused with the reason, never read wrongly.
5. An offset decides; the name of a zone after it (`+0100 CET`, `[Europe/Paris]`) repeats it.
6. UTC, GMT and Z are the only abbreviations that mean one zone everywhere. Any other counts where the mapping gives a zone whose clocks
   have that name at that time. `zone` is that of times without one.
7. A time by the clocks of a zone that comes twice when they are set back, or never because they are set forward, is no instant.
8. A day of the week has to be that of the date: else one of the two is wrong.
9. A number that a spreadsheet or C's `%g` rounded to six digits (`1.79085E+12`) is off by minutes or hours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from zoneinfo import ZoneInfo

import msgspec
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from audit.settings_files import Document
from audit.surrogates import mended_text
from audit.times import parse_timestamp
from schemas.bounds import EARLIEST, LABEL_NAME, LATEST, MAX_LABELS, NO_LABELS
from streams.sources.lines import json_type
from streams.sources.otlp.messages import ELIDED, Message, messages_of, spoken_in, text_of
from streams.sources.otlp.token_usage import read_provider_usage

HINT = "Correct the lines named above; docs/how-to/import-exchanges.md explains every field."
REQUIRED = ("session_id", "occurred_at", "user_message", "agent_response")
"""Fields without which there is no exchange."""
UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOSECONDS = 1e17
"""From here on a number since 1970 can only be nanoseconds."""
_DAYS = (36_526, 73_051)
"""The numbers with which spreadsheets count the days of the years 2000 to 2099."""
_NO_ANSWERS = {"data": "embedding", "results": "relevance_score"}
"""The list in the output of an embedding model or a reranker, and a member of each of its items: no answer of an agent."""
_SHOWN = 40
_FAR = 1e11
"""Seconds outside all bounds, but within the range of a datetime."""
LONGEST = 120
"""Characters of the longest text that is read as a time."""
_CLOCK = r"(?P<clock>\d{1,2}:\d{2}(?::\d{2})?)(?:[.,](?P<fraction>\d{1,12}))?"
_MONTH = r"(?P<month>\d{2}|[A-Z][a-z]{2})"
_WEEKDAY = r"(?P<weekday>[A-Z][a-z]{2})"
FORMS = {
    "SQL, Go, Java's ZonedDateTime and logs": re.compile(
        rf"(?P<year>\d{{4}})-{_MONTH}-(?P<day>\d{{2}})[T ]{_CLOCK}(?P<zone>.{{0,80}})"
    ),
    "RFC 2822": re.compile(rf"(?:{_WEEKDAY}, )?(?P<day>\d{{1,2}}) {_MONTH} (?P<year>\d{{4}}) {_CLOCK}(?P<zone>.{{0,80}})"),
    "Java's Date, Ruby, C": re.compile(
        rf"{_WEEKDAY} {_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}(?: (?P<zone>\S{{1,12}}))? (?P<year>\d{{4}})"
    ),
    "JavaScript's Date": re.compile(rf"{_WEEKDAY} {_MONTH} (?P<day>\d{{1,2}}) (?P<year>\d{{4}}) {_CLOCK}(?P<zone>.{{0,80}})"),
}
"""The forms that are read beside ISO 8601, by who writes them."""
_ZONE = re.compile(
    r" ?(?:"
    r"(?:[A-Z]{1,5})?(?P<offset>[+-]\d{2}(?::?\d{2})?)(?: (?:[A-Z]{1,5}|[+-]\d{2,4}))?(?:\[[\w/+-]{1,40}\])?"
    r"|(?P<abbreviation>(?!AM|PM)[A-Z]{1,5})(?:\[[\w/+-]{1,40}\])?"
    r"|\[?(?P<region>[A-Z]\w{1,30}(?:/[\w+-]{1,30}){1,2})\]?"
    r")(?: \([^()]{1,60}\))?(?: m=[+-]\d{1,12}\.\d{1,12})?",
    re.ASCII,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_UNIVERSAL = frozenset({"UTC", "GMT", "UT", "Z"})
_NUMERIC_DATE = re.compile(r"\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d{2})\b(.*)", re.DOTALL)
_EXPONENT = re.compile(r"-?(?P<digits>\d(?:\.\d{1,20})?)[eE](?P<plus>\+?)\d{1,2}", re.ASCII)
_ROUNDED = 6
"""Digits to which spreadsheets and C's `%g` round a number with an exponent."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(_Part):
    """The source of a field: a column, or a value that is the same in every row."""

    column: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    value: str | int | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        return self


class TimeSource(Source):
    """The source of a time, and how it is written."""

    format: str | None = None
    unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] | None = None
    zone: Annotated[str, AfterValidator(_zone)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> TimeSource:
        if self.format is not None and self.unit is not None:
            raise ValueError("give format or unit, not both")
        return self


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {name[:40]!r}; use a name such as Europe/Berlin") from error
    return name


class Fields(_Part):
    """The sources of the fields of an exchange."""

    session_id: Column
    occurred_at: Moment
    user_message: Column
    agent_response: Column
    exchange_id: Column | None = None
    turn_number: Column | None = None
    agent: Column | None = None
    agent_model: Column | None = None
    agent_thinking: Column | None = None
    stop_reason: Column | None = None
    input_tokens: Column | None = None
    output_tokens: Column | None = None
    labels: Annotated[dict[LabelName, Column], Field(max_length=MAX_LABELS)] = {}

    def sources(self) -> Mapping[str, Source]:
        """Return the sources by the names of the fields, those of labels as `labels.NAME`."""
        named = {name: source for name in type(self).model_fields if isinstance(source := getattr(self, name), Source)}
        return named | {f"labels.{name}": source for name, source in self.labels.items()}


class ExchangeMapping(_Part):
    """A mapping file."""

    version: Literal[1]
    fields: Fields


def load_mapping(path: Path) -> Fields:
    """Load a mapping; PolicyError lists each problem as `FILE:LINE: field: reason`."""
    return Document(path, hint=HINT).validate(ExchangeMapping).fields


def mapping_text(sources: Mapping[str, Source], comment: str = "") -> str:
    """Return a mapping as a file. A required field without a source stands there without a value, to be filled in."""
    fields: dict[str, Any] = dict.fromkeys(REQUIRED)
    for name, source in sources.items():
        written = source.model_dump(exclude_none=True)
        short = written["column"] if set(written) == {"column"} else written
        if name.startswith("labels."):
            fields.setdefault("labels", {})[name.removeprefix("labels.")] = short
        else:
            fields[name] = short
    text = yaml.safe_dump({"version": 1, "fields": fields}, sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


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
        index = int(step)
        if -len(value) <= index < len(value):
            return _within(value[index], rest) if rest else value[index]
    return None


def question_in(value: Any) -> str:
    """Return what the user says: the last message of the user, where the value is a conversation."""
    return _read_spoken(value, "user")


def _read_spoken(value: Any, role: str) -> str:
    if value is None:
        return ""
    messages = conversation_in(value, role)
    if not messages:
        text = mended_text(value) if isinstance(value, str) else _text_of_value(value)
        if text in ELIDED or any(f'"{marker}"' in text for marker in ELIDED):
            raise ValueError("holds a text that its sender kept back")
        return text
    return mended_text(_last(messages, role))


def _text_of_value(value: Any) -> str:
    """Return the text in a value that is no message: of a number its digits, of an object the member that tells it, else JSON."""
    if isinstance(value, Mapping):
        members = dict(value)
        spoken = spoken_in(members, "user") or spoken_in(members, "assistant") or text_of(members)
        return mended_text(spoken) if members else ""
    return (text_of(value) if value else "") if isinstance(value, list) else str(value)


def _last(messages: Sequence[Message], role: str) -> str:
    """Return the last text of a role, the agent's only where no user speaks after it."""
    for message in reversed(messages):
        if message.role == role and (message.asks if role == "user" else message.text):
            return message.text
        if role == "assistant" and message.role == "user":
            return ""
    return ""


def answer_in(value: Any) -> str:
    """Return what the agent says: its last message after the user's last one, where the value is a conversation."""
    return _read_spoken(value, "assistant")


def conversation_in(value: Any, role: str) -> list[Message]:
    """Return the messages of a value, or of the JSON that it holds; none where it is no conversation. `role` is that of a lone one."""
    if not isinstance(value, list | dict) and not (isinstance(value, str) and value[:1] in ("{", "[")):
        return []
    read = as_json(value) if isinstance(value, str) else value
    messages = [] if isinstance(read, str) else messages_of(read, role)
    # What a function was called with has the shape of a message, too.
    return messages if any(message.has_content for message in messages) else []


def helper_output_in(value: Any) -> str | None:
    """Return the kind of output that a helper of the program returned, such as embeddings; None where a value is no such list."""
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


def _tokens_in(value: Any, sort: str) -> int | None:
    read = as_json(value) if isinstance(value, str) else value
    if not isinstance(read, Mapping):
        return count_in(value)
    usage = read_provider_usage(read)
    count = None if usage is None else getattr(usage.counts, sort)
    if usage is not None and count is None and not usage.is_clear:
        raise ValueError("has counts that contradict their total")
    return count if count is None else int(count)


def output_tokens_in(value: Any) -> int | None:
    """Return the tokens that a model wrote, read in the same way."""
    return _tokens_in(value, "output")


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


def _in_bounds(moment: datetime) -> datetime:
    if not EARLIEST <= moment < LATEST:
        raise ValueError(f"{moment:%Y-%m-%d %H:%M:%S} lies outside the years 2000 to 2099")
    return moment


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
    return _parse_exponent(value)


def _parse_exponent(text: str) -> float | None:
    """Return the number that a text with an exponent is; None for any other text. ValueError where its digits were rounded."""
    match = _EXPONENT.fullmatch(text)
    if match is None:
        return None
    if match["plus"] and len(match["digits"].replace(".", "")) <= _ROUNDED:
        raise ValueError(f"{text} is rounded to {_ROUNDED} digits; write the column as whole numbers")
    return float(text)


def written_time(text: str, zone: str | None = None) -> datetime:
    """Return the instant that a text says, in UTC; one without a zone is in the given one, else in UTC.

    ValueError that says why it is none, with a hint for the mapping.
    """
    try:
        plain = datetime.fromisoformat(text)
    except ValueError:
        pass  # it may be of another form
    else:
        return moment_of(plain, zone)
    match = next((match for form in FORMS.values() if (match := form.fullmatch(text))), None) if len(text) <= LONGEST else None
    if match is None:
        _refuse(text)
    return _parse_match(match, text, zone)


def _refuse(text: str) -> NoReturn:
    """Raise the ValueError of a text in no known form, with a hint for the mapping."""
    if (numeric := _NUMERIC_DATE.fullmatch(text)) is not None:
        mark, year, clock = numeric[1], "%Y" if len(numeric[2]) == 4 else "%y", _clock_form(numeric[3])
        forms = " or ".join(f'"{mark.join(order)}{clock}"' for order in (("%d", "%m", year), ("%m", "%d", year)))
        raise ValueError(f"{_show_text(text)} may have day or month first; give its format: {forms}")
    raise ValueError(f'{_show_text(text)} is no time in a form that is read; give its format, such as "%d.%m.%Y %H:%M"')


def _clock_form(rest: str) -> str:
    hours = "%I" if rest.rstrip()[-2:].upper() in ("AM", "PM") else "%H"
    form = re.sub(r"\d{1,2}:\d{2}", f"{hours}:%M", rest[:LONGEST], count=1)
    form = re.sub(r"%M:\d{2}", "%M:%S", form)
    return re.sub(r"[AaPp][Mm]$", "%p", re.sub(r"%S\.\d{1,6}", "%S.%f", form))


def _show_text(text: str) -> str:
    return ascii(text[:40])


def _parse_match(match: re.Match[str], text: str, zone: str | None) -> datetime:
    parts = match.groupdict()
    month = parts["month"]
    try:
        number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
        hour, minute, second = (*map(int, parts["clock"].split(":")), 0)[:3]
        microsecond = int((parts["fraction"] or "")[:6].ljust(6, "0"))
        value = datetime(int(parts["year"]), number, int(parts["day"]), hour, minute, second, microsecond)  # noqa: DTZ001 - its zone comes next
    except ValueError:
        _refuse(text)
    if (weekday := parts.get("weekday")) is not None and _WEEKDAYS[value.weekday()] != weekday:
        raise ValueError(f"{_show_text(text)} names another day of the week than its date has")
    return _in_zone(value, (parts["zone"] or "").strip(), text, zone)


def _in_zone(value: datetime, written: str, text: str, zone: str | None) -> datetime:
    if not written:
        return moment_of(value, zone)
    match = _ZONE.fullmatch(written)
    if match is None:
        _refuse(text)
    if match["offset"] is not None:
        fixed = _fixed_zone(match["offset"])
        if fixed is None:
            _refuse(text)
        return moment_of(value.replace(tzinfo=fixed))
    if match["region"] is not None:
        return _in_region(value, match["region"], text)
    if match["abbreviation"] in _UNIVERSAL:
        return moment_of(value)
    if zone is None:
        raise ValueError(
            f"{_show_text(text)} names {match['abbreviation']}, which is no single zone; give its zone, such as Europe/Berlin"
        )
    return _by_clocks(value, zone, match["abbreviation"]).astimezone(UTC)


def _fixed_zone(offset: str) -> timezone | None:
    digits = offset[1:].replace(":", "").ljust(4, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    is_offset = int(digits[2:]) < 60 and ahead < timedelta(days=1)
    return timezone(-ahead if offset[0] == "-" else ahead) if is_offset else None


def _in_region(value: datetime, region: str, text: str) -> datetime:
    try:
        ZoneInfo(region)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"{_show_text(text)} names no time zone that there is") from None
    return moment_of(value, region)


def _by_clocks(value: datetime, zone: str, abbreviation: str | None = None) -> datetime:
    """The one time at which the clocks of a zone show the value, and are called by the abbreviation if there is one."""
    clocks = ZoneInfo(zone)
    times = {time.utcoffset(): time for time in (value.replace(tzinfo=clocks, fold=fold) for fold in (0, 1))}
    shown = [time for time in times.values() if time.astimezone(UTC).astimezone(clocks).replace(tzinfo=None) == value]
    named = [time for time in shown if abbreviation is None or time.tzname() == abbreviation]
    if len(named) == 1:
        return named[0]
    if not shown:
        raise ValueError(f"{value} is skipped by the clocks of {zone}, which are set forward then")
    if not named:
        raise ValueError(f"{value} is not {abbreviation} by the clocks of {zone}")
    raise ValueError(f"{value} comes twice by the clocks of {zone}, which are set back then")


def moment_of(value: datetime, zone: str | None = None) -> datetime:
    """Return a time in UTC; one without a zone is by the clocks of the given one, else in UTC. ValueError where that is no instant."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC) if zone is None else _by_clocks(value, zone)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} lies outside the years 2000 to 2099") from None


def _from_name(column: Any) -> Any:
    """Accept a column name in place of a source."""
    return {"column": column} if isinstance(column, str) else column


def _label(name: str) -> str:
    if name in NO_LABELS:
        raise ValueError(f"{name} is a field of its own, not a label")
    return name


Column = Annotated[Source, BeforeValidator(_from_name)]
Moment = Annotated[TimeSource, BeforeValidator(_from_name)]
LabelName = Annotated[str, StringConstraints(pattern=rf"^{LABEL_NAME}$"), AfterValidator(_label)]
