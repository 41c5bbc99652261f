"""Mappings: YAML files that name the column of each field of an exchange. Reads the values of these columns.

1. A field has a column or a constant value. A column is named as in the file, or by a dotted path into its value: `usage.input_tokens`,
   `messages.0.content`.
2. A column with a whole conversation gives the question and the answer: the user's last message, and the agent's message after it.
3. A value that does not fit its field raises a ValueError with the reason.

Times are ISO 8601, numbers since 1970, or in one of the forms that databases, languages and mail programs write (`FORMS`), unless the mapping
gives their `format` or `unit`:

4. A text that could mean two instants is rejected with the reason. Nothing is guessed.
5. If a time has an offset, a zone name after it (`+0100 CET`, `[Europe/Paris]`) is ignored.
6. UTC, GMT and Z are the only abbreviations that mean the same zone everywhere. Another abbreviation is only accepted if the mapping gives a zone
   that uses it at that time. `zone` applies to times without a zone.
7. A local time that is ambiguous or does not exist because of a DST change is rejected.
8. A weekday has to match its date.
9. A number that a spreadsheet or C's `%g` rounded to six digits (`1.79085E+12`) is rejected, because it is off by minutes or hours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from audit.settings_files import Document
from audit.surrogates import repair_text
from audit.times import parse_timestamp
from schemas.bounds import EARLIEST, LABEL_NAME, LATEST, MAX_LABELS, NO_LABELS
from schemas.errors import InputError
from streams.sources.lines import json_type
from streams.sources.otlp.messages import ELIDED, Message, find_spoken_text, output_text, read_messages
from streams.sources.otlp.token_usage import read_provider_usage

HINT = "Correct the lines named above; docs/how-to/import-exchanges.md explains every field."
REQUIRED = ("session_id", "occurred_at", "user_message", "agent_response")
"""Fields that every exchange must have."""
UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_NANOSECONDS = 1e17
"""Numbers since 1970 from this one on can only be nanoseconds."""
_SPREADSHEET_DAYS = range(36_526, 73_051)
"""The day numbers that spreadsheets use for the years 2000 to 2099."""
_HELPER_OUTPUTS = {"data": "embedding", "results": "relevance_score"}
"""The list in the output of an embedding model or a reranker, and a member of each of its items."""
_SHOWN_CHARACTERS = 40
"""Characters of a value that an error message quotes."""
_MAX_SECONDS = 1e11
"""Number of seconds since 1970 that is out of bounds, but within the range of a datetime."""
_MAX_TIME_CHARACTERS = 120
"""Maximum length of a text that is read as a time."""
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
"""The forms of times that are read besides ISO 8601, by the programs that write them."""
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
_UTC_NAMES = frozenset({"UTC", "GMT", "UT", "Z"})
_NUMERIC_DATE = re.compile(r"\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d{2})\b(.*)", re.DOTALL)
_EXPONENT = re.compile(r"-?(?P<digits>\d(?:\.\d{1,20})?)[eE](?P<plus>\+?)\d{1,2}", re.ASCII)
_ROUNDED_DIGITS = 6
"""Number of digits to which spreadsheets and C's `%g` round a number with an exponent."""


def _check_zone(name: str) -> str:
    if not _is_zone(name):
        raise ValueError(f"no time zone {name[:_SHOWN_CHARACTERS]!r}; use a name such as Europe/Berlin")
    return name


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _check_label(name: str) -> str:
    if name in NO_LABELS:
        raise ValueError(f"{name} is a field, not a label")
    return name


def _accept_column_name(value: Any) -> Any:
    """Return the source of a column name; any other value unchanged."""
    return {"column": value} if isinstance(value, str) else value


class _MappingModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(_MappingModel):
    """The source of a field: a column, or a value that is the same in every row."""

    column: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    value: str | int | None = None

    @model_validator(mode="after")
    def _require_one_source(self) -> Source:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        return self


class TimeSource(Source):
    """The source of a time, and the form in which it is written."""

    format: str | None = None
    unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] | None = None
    zone: Annotated[str, AfterValidator(_check_zone)] | None = None

    @model_validator(mode="after")
    def _require_one_form(self) -> TimeSource:
        if self.format is not None and self.unit is not None:
            raise ValueError("give format or unit, not both")
        return self


Column = Annotated[Source, BeforeValidator(_accept_column_name)]
TimeColumn = Annotated[TimeSource, BeforeValidator(_accept_column_name)]
LabelName = Annotated[str, StringConstraints(pattern=rf"^{LABEL_NAME}$"), AfterValidator(_check_label)]


class Fields(_MappingModel):
    """The sources of the fields of an exchange."""

    session_id: Column
    occurred_at: TimeColumn
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
    tool_calls: Column | None = None
    labels: Annotated[dict[LabelName, Column], Field(max_length=MAX_LABELS)] = {}

    def sources(self) -> Mapping[str, Source]:
        """Return the sources by field name. A label's field name is `labels.NAME`."""
        sources: dict[str, Source] = {}
        for name in SINGLE_FIELDS:
            source = getattr(self, name)
            if isinstance(source, Source):
                sources[name] = source
        for name, source in self.labels.items():
            sources[f"labels.{name}"] = source
        return sources


SINGLE_FIELDS = tuple(name for name in Fields.model_fields if name != "labels")
"""The fields that have one source."""
_LABEL_NAMES: TypeAdapter[str] = TypeAdapter(LabelName)


class ExchangeMapping(_MappingModel):
    """The content of a mapping file."""

    version: Literal[1]
    fields: Fields


def load_mapping(path: Path) -> Fields:
    """Load a mapping file.

    Raises PolicyError with each problem as `FILE:LINE: field: reason`.
    """
    return Document(path, hint=HINT).validate(ExchangeMapping).fields


def parse_columns(assignments: Sequence[str]) -> dict[str, str]:
    """Parse `FIELD=COLUMN` texts; a label's field is `labels.NAME`. Raises InputError that names a wrong one."""
    columns: dict[str, str] = {}
    for assignment in assignments:
        field, _, column = assignment.partition("=")
        label = field.removeprefix("labels.")
        try:
            if label != field:
                _LABEL_NAMES.validate_python(label)
            is_field = label != field or field in SINGLE_FIELDS
        except ValidationError:
            is_field = False
        if not is_field or not column:
            raise InputError(
                f"--set {assignment}: is not FIELD=COLUMN", hint=f"FIELD is {', '.join(SINGLE_FIELDS)} or labels.NAME."
            )
        columns[field] = column
    return columns


def mapping_text(sources: Mapping[str, Source], comment: str = "") -> str:
    """Return the text of a mapping file. Required fields without a source are left blank, to be filled in by the user."""
    fields: dict[str, Any] = dict.fromkeys(REQUIRED)
    for name, source in sources.items():
        settings = source.model_dump(exclude_none=True)
        value = settings["column"] if set(settings) == {"column"} else settings
        if name.startswith("labels."):
            fields.setdefault("labels", {})[name.removeprefix("labels.")] = value
        else:
            fields[name] = value
    text = yaml.safe_dump({"version": 1, "fields": fields}, sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


def as_json(text: str) -> Any:
    """Return the value of a JSON text; any other text unchanged."""
    if text[:1] not in ("{", "[", '"'):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def find_value(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path: that of the column with this name, else a value inside the column that the path starts with."""
    if path in row:
        return row[path]
    end = path.rfind(".")
    while end > 0:
        column = path[:end]
        if column in row:
            return _find_inside(row[column], path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


def _find_inside(value: Any, path: str) -> Any:
    if isinstance(value, str):
        value = as_json(value)
    if isinstance(value, Mapping):
        return find_value(value, path)
    step, _, remaining_path = path.partition(".")
    if not isinstance(value, Sequence) or isinstance(value, str) or not step.removeprefix("-").isdecimal() or len(step) >= 6:
        return None
    index = int(step)
    if not -len(value) <= index < len(value):
        return None
    return _find_inside(value[index], remaining_path) if remaining_path else value[index]


def read_question(value: Any) -> str:
    """Return the question in a value. In a conversation, it is the user's last message."""
    return _read_text(value, "user")


def read_answer(value: Any) -> str:
    """Return the answer in a value. In a conversation, it is the agent's last message after the user's last message."""
    return _read_text(value, "assistant")


def _read_text(value: Any, role: str) -> str:
    if value is None:
        return ""
    messages = read_conversation(value, role)
    if messages:
        return repair_text(_find_last_text(messages, role))
    text = repair_text(value) if isinstance(value, str) else _read_value_text(value)
    if text in ELIDED or any(f'"{marker}"' in text for marker in ELIDED):
        raise ValueError("has a placeholder for a text that its sender withheld")
    return text


def _read_value_text(value: Any) -> str:
    """Return the text of a value that is not a message: a number as text, the text member of an object, else JSON."""
    if isinstance(value, list):
        return output_text(value) if value else ""
    if not isinstance(value, Mapping):
        return str(value)
    if not value:
        return ""
    members = dict(value)
    return repair_text(find_spoken_text(members, "user") or find_spoken_text(members, "assistant") or output_text(members))


def _find_last_text(messages: Sequence[Message], role: str) -> str:
    """Return the last text of a role. A text of the agent only counts if no user message follows it."""
    for message in reversed(messages):
        if message.role == role and (message.is_user_turn if role == "user" else message.text):
            return message.text
        if role == "assistant" and message.role == "user":
            return ""
    return ""


def read_conversation(value: Any, role: str) -> list[Message]:
    """Return the messages of a conversation, which may be JSON text; none for any other value. Messages without a role get `role`."""
    if not isinstance(value, list | dict) and not (isinstance(value, str) and value[:1] in ("{", "[")):
        return []
    read = as_json(value) if isinstance(value, str) else value
    messages = [] if isinstance(read, str) else read_messages(read, role)
    # The arguments of a function may have the shape of a message without content.
    return messages if any(message.has_content for message in messages) else []


def find_helper_output(value: Any) -> str | None:
    """Return the kind of a helper model's output, such as `embeddings`; None if the value is no such output."""
    output = as_json(value) if isinstance(value, str) else value
    if not isinstance(output, Mapping):
        return None
    for name, item_member in _HELPER_OUTPUTS.items():
        items = output.get(name)
        if isinstance(items, list) and items and isinstance(items[0], Mapping) and item_member in items[0]:
            return f"{item_member.replace('_', ' ')}s"
    return None


def read_name(value: Any) -> str | None:
    """Return an id or name; None if the value is missing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | list | dict):
        raise ValueError(f"is {json_type(value)}, not a text")  # noqa: TRY004 - the value comes from a file, not from a caller
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.strip() or None


def read_count(value: Any) -> int | None:
    """Return a count; None if the value is missing."""
    if isinstance(value, str):
        try:
            value = float(value) if value.strip() else None
        except ValueError:
            raise ValueError("is not a number") from None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ValueError("is not a whole number")
    return int(value)


def read_input_tokens(value: Any) -> int | None:
    """Return the number of tokens that a model read, including cached ones, from a count or a provider's usage object."""
    return _read_tokens(value, "input")


def read_output_tokens(value: Any) -> int | None:
    """Return the number of tokens that a model wrote, from a count or a provider's usage object."""
    return _read_tokens(value, "output")


def _read_tokens(value: Any, field: str) -> int | None:
    usage = as_json(value) if isinstance(value, str) else value
    if not isinstance(usage, Mapping):
        return read_count(value)
    reading = read_provider_usage(usage)
    if reading is None:
        return None
    count: int | None = getattr(reading.counts, field)
    if count is None and not reading.is_clear:
        raise ValueError("has counts that contradict their total")
    return count


def read_time(value: Any, source: TimeSource) -> datetime | None:
    """Return a time in UTC, by the format, unit and zone of its source; None if the value is missing."""
    if isinstance(value, str):
        value = value.strip().strip('"')
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, date):
        local = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001
        return _check_bounds(_to_utc(local, source.zone))
    if source.format is not None:
        return _check_bounds(_to_utc(_parse_format(str(value), source.format), source.zone))
    return _parse_time(value, source)


def _parse_time(value: Any, source: TimeSource) -> datetime:
    number = _parse_number(value)
    if source.unit is not None:
        return _check_bounds(_convert_units_to_time(number, UNITS[source.unit]))
    if number is not None:
        return _convert_number_to_time(number)
    if isinstance(value, str):
        return _check_bounds(_parse_text(value, source.zone))
    return _parse_timestamp(value)


def _check_bounds(time: datetime) -> datetime:
    if not EARLIEST <= time < LATEST:
        raise ValueError(f"{time:%Y-%m-%d %H:%M:%S} lies outside the years 2000 to 2099")
    return time


def _parse_format(text: str, form: str) -> datetime:
    try:
        return datetime.strptime(text, form)  # noqa: DTZ007 - the caller adds the zone
    except (ValueError, OverflowError):
        raise ValueError(f"{_quote(text)} is not a time of the form {form[:_SHOWN_CHARACTERS]}") from None


def _convert_units_to_time(number: float | None, unit_seconds: float) -> datetime:
    if number is None:
        raise ValueError("is not a number")
    seconds = min(max(number * unit_seconds, -_MAX_SECONDS), _MAX_SECONDS)
    return EPOCH + timedelta(seconds=seconds)


def _convert_number_to_time(number: float) -> datetime:
    if abs(number) >= _MIN_NANOSECONDS:
        return _parse_timestamp(number / 1000)
    try:
        return _parse_timestamp(number)
    except ValueError as error:
        if _SPREADSHEET_DAYS.start <= number < _SPREADSHEET_DAYS.stop:
            raise ValueError(f"{error}; it may be the day number of a spreadsheet: write the column as ISO 8601") from None
        raise


def _parse_timestamp(value: Any) -> datetime:
    try:
        time = parse_timestamp(value)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("timestamp: ")) from None
    assert time is not None  # noqa: S101 - it is not blank
    return time


def _parse_number(value: Any) -> float | None:
    """Return a number since 1970, which may be text; None for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    digits = value.replace(".", "", 1).removeprefix("-")
    # A text of nine or more digits is a time since 1970. One of five digits may be the day number of a spreadsheet.
    if value.isascii() and digits.isdecimal() and (len(value) >= 9 or len(value) == 5):
        return float(value) if "." in value else int(value)
    return _parse_exponent(value)


def _parse_exponent(text: str) -> float | None:
    """Return the number in a text with an exponent; None for any other text. Raises ValueError if the number was rounded."""
    match = _EXPONENT.fullmatch(text)
    if match is None:
        return None
    if match["plus"] and len(match["digits"].replace(".", "")) <= _ROUNDED_DIGITS:
        raise ValueError(f"{text} is rounded to {_ROUNDED_DIGITS} digits; write the column as whole numbers")
    return float(text)


def _parse_text(text: str, zone: str | None) -> datetime:
    """Return the time in a text, in UTC. A time without a zone is in `zone`, or in UTC if that is None.

    Raises ValueError with the reason and a hint for the mapping.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return _parse_form(text, zone)
    return _to_utc(time, zone)


def _parse_form(text: str, zone: str | None) -> datetime:
    if len(text) <= _MAX_TIME_CHARACTERS:
        for form in FORMS.values():
            match = form.fullmatch(text)
            if match is not None:
                return _build_time(match, text, zone)
    raise _build_form_error(text)


def _build_form_error(text: str) -> ValueError:
    """Return the error for a text in an unknown form, with a hint for the mapping."""
    numeric = _NUMERIC_DATE.fullmatch(text)
    if numeric is None:
        return ValueError(f'{_quote(text)} is not a time in a known form; give its format, such as "%d.%m.%Y %H:%M"')
    separator = numeric[1]
    year = "%Y" if len(numeric[2]) == 4 else "%y"
    clock = _guess_clock_format(numeric[3])
    day_first = separator.join(("%d", "%m", year)) + clock
    month_first = separator.join(("%m", "%d", year)) + clock
    return ValueError(f'{_quote(text)} may have day or month first; give its format: "{day_first}" or "{month_first}"')


def _guess_clock_format(clock: str) -> str:
    """Return the likely format of the text after a date, for an error message."""
    hours = "%I" if clock.rstrip()[-2:].upper() in ("AM", "PM") else "%H"
    form = re.sub(r"\d{1,2}:\d{2}", f"{hours}:%M", clock[:_MAX_TIME_CHARACTERS], count=1)
    form = re.sub(r"%M:\d{2}", "%M:%S", form)
    form = re.sub(r"%S\.\d{1,6}", "%S.%f", form)
    return re.sub(r"[AaPp][Mm]$", "%p", form)


def _quote(text: str) -> str:
    return ascii(text[:_SHOWN_CHARACTERS])


def _build_time(match: re.Match[str], text: str, zone: str | None) -> datetime:
    parts = match.groupdict()
    hour, minute, *seconds = map(int, parts["clock"].split(":"))
    try:
        time = datetime(  # noqa: DTZ001 - the return adds the zone
            year=int(parts["year"]),
            month=_MONTHS.index(parts["month"]) + 1 if parts["month"] in _MONTHS else int(parts["month"]),
            day=int(parts["day"]),
            hour=hour,
            minute=minute,
            second=seconds[0] if seconds else 0,
            microsecond=int((parts["fraction"] or "")[:6].ljust(6, "0")),
        )
    except ValueError:
        raise _build_form_error(text) from None
    weekday = parts.get("weekday")
    if weekday is not None and _WEEKDAYS[time.weekday()] != weekday:
        raise ValueError(f"{_quote(text)}: the day of the week does not match the date")
    return _apply_zone_text(time, (parts["zone"] or "").strip(), text, zone)


def _apply_zone_text(time: datetime, zone_text: str, text: str, zone: str | None) -> datetime:
    """Return the time in UTC, by the zone that its text names, else by `zone`."""
    if not zone_text:
        return _to_utc(time, zone)
    match = _ZONE.fullmatch(zone_text)
    if match is None:
        raise _build_form_error(text)
    if match["offset"] is not None:
        offset = _parse_offset(match["offset"])
        if offset is None:
            raise _build_form_error(text)
        return _to_utc(time.replace(tzinfo=offset))
    if match["region"] is not None:
        if not _is_zone(match["region"]):
            raise ValueError(f"{_quote(text)}: unknown time zone {match['region']!r}")
        return _to_utc(time, match["region"])
    abbreviation = match["abbreviation"]
    if abbreviation in _UTC_NAMES:
        return _to_utc(time)
    if zone is None:
        raise ValueError(f"{_quote(text)}: {abbreviation} may mean several time zones; give the zone, such as Europe/Berlin")
    return _resolve_local_time(time, zone, abbreviation).astimezone(UTC)


def _parse_offset(offset: str) -> timezone | None:
    """Return the zone of an offset such as `+01:30`; None if it is out of range."""
    digits = offset[1:].replace(":", "").ljust(4, "0")
    hours = int(digits[:2])
    minutes = int(digits[2:])
    if hours >= 24 or minutes >= 60:
        return None
    difference = timedelta(hours=hours, minutes=minutes)
    return timezone(-difference if offset[0] == "-" else difference)


def _resolve_local_time(time: datetime, zone: str, abbreviation: str | None = None) -> datetime:
    """Return the only instant with this local time in a zone, and with this abbreviation if one is given.

    Raises ValueError if the local time is ambiguous or does not exist.
    """
    candidates = _list_local_instants(time, ZoneInfo(zone))
    if not candidates:
        raise ValueError(f"{time} does not exist in {zone}: it is skipped when DST begins")
    if abbreviation is not None:
        candidates = [candidate for candidate in candidates if candidate.tzname() == abbreviation]
        if not candidates:
            raise ValueError(f"{time} is not {abbreviation} in {zone}")
    if len(candidates) > 1:
        raise ValueError(f"{time} is ambiguous in {zone}: it occurs twice when DST ends")
    return candidates[0]


def _list_local_instants(time: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the instants at which clocks in the zone show this time: none, one, or two with different offsets."""
    instants: list[datetime] = []
    for fold in (0, 1):
        instant = time.replace(tzinfo=zone, fold=fold)
        exists = instant.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == time
        if exists and all(instant.utcoffset() != other.utcoffset() for other in instants):
            instants.append(instant)
    return instants


def _to_utc(time: datetime, zone: str | None = None) -> datetime:
    """Return a time in UTC. A time without a zone is in `zone`, or in UTC if that is None."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC) if zone is None else _resolve_local_time(time, zone)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{time} lies outside the years 2000 to 2099") from None
