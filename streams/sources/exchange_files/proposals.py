"""Proposals: a mapping by the names of a table's columns and what its first rows hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streams.sources.exchange_files.mapping import Source, TimeSource
from streams.sources.exchange_files.rows import Json
from streams.sources.exchange_files.values import (
    answer_in,
    as_json,
    count_in,
    find,
    helper_output_in,
    input_tokens_in,
    name_in,
    output_tokens_in,
    question_in,
    time_in,
)

DEPTH = 4
"""Levels of objects in which columns are looked for."""
MOST_PATHS = 1_000
MOST = 0.8
"""Share of a column's values that have to be what its name says."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "user_message": (
        "user_message", "user_input", "user_query", "user_prompt", "user_text", "question", "prompt", "query", "input",
        "inputs", "request", "human", "user", "instruction", "messages", "conversation",
    ),
    "agent_response": (
        "agent_response", "assistant_response", "model_response", "response", "answer", "output", "outputs", "completion",
        "reply",
        "assistant", "generated_text", "generation", "model_output", "messages", "conversation",
    ),
    "session_id": (
        # LangSmith's session_id is a project, beside the thread_id of a conversation.
        "thread_id", "conversation_id", "session_id", "session", "conversation", "thread", "chat_id", "dialog_id", "dialogue_id",
        "trace_id",
    ),
    "occurred_at": (
        "occurred_at", "timestamp", "created_at", "created", "created_time", "start_time", "started_at", "request_time",
        "event_time", "datetime", "time", "date", "ts",
    ),
    "exchange_id": ("exchange_id", "message_id", "request_id", "response_id", "run_id", "id", "uuid"),
    "turn_number": ("turn_number", "turn", "turn_index"),
    "agent": ("agent", "agent_name", "agent_id", "assistant_name", "bot", "bot_name"),
    "agent_model": ("agent_model", "model", "model_name", "model_id", "llm", "llm_model", "engine"),
    "agent_thinking": ("agent_thinking", "thinking", "reasoning", "reasoning_content", "chain_of_thought"),
    "stop_reason": ("stop_reason", "finish_reason"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in", "num_input_tokens", "token_count_prompt"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out", "num_output_tokens", "token_count_completion"),
}  # fmt: skip
"""Names under which columns give a field, the best first; letters and digits alone count."""
UNIQUE = frozenset({"exchange_id"})
"""Fields that differ from row to row, but for rows that come twice: an `id` may be that of a session, or of a user."""
STANDS_IN = {"session_id": "exchange_id"}
"""Where no column gives the first, the column of the second does: then each row is a session of its own."""
TIME_FORMATS = (
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d",
)  # fmt: skip
"""Forms of times that are tried where a column is no ISO 8601 and no number; two that both fit are none."""
_OF = frozenset({"id", "name", "text", "content", "value"})
"""Names that say nothing without what stands around them."""
_ODD = re.compile(r"[^a-z0-9]")


_TOKENS: Mapping[str, Callable[[Any], int | None]] = {"input_tokens": input_tokens_in, "output_tokens": output_tokens_in}


class _Column(NamedTuple):
    path: str
    names: frozenset[str]
    values: list[Any]


def proposed(rows: Sequence[Json]) -> dict[str, Source]:
    """Return the sources of the fields that columns of these rows give."""
    columns = list(_columns(rows))
    found: dict[str, Source] = {}
    for field, names in NAMES.items():
        source = next(_fitting(field, names, columns), None)
        if source is not None:
            found[field] = source
    for field, other in STANDS_IN.items():
        if field not in found and other in found:
            found[field] = found[other]
    return found | {field: source for field, read in _TOKENS.items() if (source := _whole_usage(found.get(field), read, rows))}


def _whole_usage(source: Source | None, read: Callable[[Any], int | None], rows: Sequence[Json]) -> Source | None:
    """The object around a count of tokens, where it says another number: Anthropic counts cached tokens beside the input."""
    around = "" if source is None or source.column is None else source.column.rpartition(".")[0]
    if not around or source is None:
        return None
    differ = [_count(read, find(row, around)) not in (None, _count(read, find(row, source.column or ""))) for row in rows]
    return Source(column=around) if any(differ) else None


def _count(read: Callable[[Any], int | None], value: Any) -> int | None:
    try:
        return read(value)
    except ValueError:
        return None


def _fitting(field: str, names: Sequence[str], columns: Sequence[_Column]) -> Iterator[Source]:
    """Yield sources of a field, the best first: by the order of its names, then from the outside in."""
    for name in map(_plain, names):
        for column in columns:
            if name in column.names and (source := _source(field, column)) is not None:
                yield source


def _source(field: str, column: _Column) -> Source | None:
    """Return the column as the source of a field; None where its values are no such thing."""
    if field == "occurred_at":
        return _time_source(column)
    if field in UNIQUE and len(set(map(str, column.values))) < MOST * len(column.values):
        return None
    # A conversation that is only asked in has the shape of one with answers.
    answers = [value for value in column.values if helper_output_in(value) is None]
    if field == "agent_response" and not any(map(_works(_is_said(answer_in)), answers)):
        return None
    return Source(column=column.path) if _most(_FITS[field], column) else None


def _time_source(column: _Column) -> TimeSource | None:
    def is_time(source: TimeSource) -> bool:
        return _most(_works(lambda value: time_in(value, source)), column)

    if is_time(plain := TimeSource(column=column.path)):
        return plain
    found = [one for form in TIME_FORMATS if is_time(one := TimeSource(column=column.path, format=form))]
    return found[0] if len(found) == 1 else None


def time_problem(rows: Sequence[Json]) -> str | None:
    """Return why the column that is named like a time is none, with a value of it; None where none is named so."""
    names = set(map(_plain, NAMES["occurred_at"]))
    for column in _columns(rows):
        for value in column.values if names & column.names else ():
            try:
                time_in(value, TimeSource(column=column.path))
            except ValueError as error:
                return f"column {column.path}: {error}"
    return None


def _most(fits: Callable[[Any], bool], column: _Column) -> bool:
    """Tell whether most values fit: a few rows of any table are broken."""
    return bool(column.values) and sum(map(fits, column.values)) >= MOST * len(column.values)


def _works(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            return bool(read(value))
        except ValueError:
            return False

    return fits


def _is_count(value: Any) -> bool:
    return count_in(value) is not None


def _is_said(read: Callable[[Any], str]) -> Callable[[Any], bool]:
    """Tell a text, or a conversation, that has something of the role; a number is none."""

    def is_said(value: Any) -> bool:
        return isinstance(value, str | list | dict) and bool(read(value).strip())

    return is_said


def _may_be_answer(value: Any) -> bool:
    """Tell a text, object or list. A proxy's log has what helpers gave among the answers: their rows are set aside."""
    return isinstance(value, str | list | dict) and (helper_output_in(value) is not None or answer_in(value) is not None)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(NAMES, _works(name_in)),
    **dict.fromkeys(("input_tokens", "output_tokens", "turn_number"), _works(_is_count)),
    "user_message": _works(_is_said(question_in)),
    "agent_response": _works(_may_be_answer),
    "agent_thinking": _works(_is_said(answer_in)),
}


def _columns(rows: Sequence[Json]) -> Iterator[_Column]:
    """Yield the columns of some rows and those within their objects, from the outside in, with the values that are there."""
    paths = dict.fromkeys(path for row in rows for path in _paths(row, DEPTH))
    for path in sorted(list(paths)[:MOST_PATHS], key=lambda path: path.count(".")):
        values = [value for row in rows if (value := find(row, path)) not in (None, "")]
        yield _Column(path, _names(path), values)


def _paths(value: Mapping[str, Any], depth: int, before: str = "") -> Iterator[str]:
    for name, given in value.items():
        path = f"{before}{name}"
        yield path
        inner = as_json(given) if isinstance(given, str) else given
        if isinstance(inner, Mapping) and depth > 1:
            yield from _paths(inner, depth - 1, f"{path}.")


def _names(path: str) -> frozenset[str]:
    """Return what a column is called: by its last step, and by the last two, which alone say what an `id` is of."""
    *around, last = map(_plain, path.split("."))
    pair = "".join((*around[-1:], last))
    return frozenset({pair} if around and last in _OF else {last, pair})


def _plain(name: str) -> str:
    return _ODD.sub("", name.lower())
