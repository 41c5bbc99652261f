"""Tables as exchanges: each row of a file is one, by a mapping.

An id that no column gives is made of the content: session, time, question and answer, and which one of its equals it is. So
a file gives the same ids wherever it lies, and a later export with the same rows gives them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from audit.diagnosis.duplicate_rules import read_digest
from audit.exchanges.labels import read_labels
from audit.fingerprints import stable_id
from schemas.bounds.contract import check_record
from schemas.errors import RecordError
from schemas.records import Exchange, Label
from streams.sources.exchange_builder import Clean, Filing, ToldExchange, build_exchange
from streams.sources.exchange_files.mapping import REQUIRED, Fields, Source, TimeSource
from streams.sources.exchange_files.rows import Json
from streams.sources.exchange_files.values import (
    answer_in,
    count_in,
    find,
    helper_output_in,
    input_tokens_in,
    name_in,
    output_tokens_in,
    question_in,
    time_in,
)
from streams.sources.lines import Problem
from streams.sources.openclaw.tree import outcome_of
from streams.sources.source import ReadingContext

EQUALS = 65_536
"""Contents without an id of their own among which equal ones are counted."""


def _time(value: Any, source: Source) -> datetime | None:
    return time_in(value, source if isinstance(source, TimeSource) else TimeSource(column="-"))


def _read_answer(value: Any) -> str:
    """Return what the agent says; ValueError where a helper of the program gave this."""
    helper_output = helper_output_in(value)
    if helper_output is not None:
        raise ValueError(f"holds {helper_output}, which are no answer of an agent")
    return answer_in(value)


_READ: Mapping[str, Callable[[Any, Source], Any]] = {
    **dict.fromkeys(
        ("exchange_id", "session_id", "agent", "agent_model", "stop_reason"), lambda value, _source: name_in(value)
    ),
    "turn_number": lambda value, _source: count_in(value),
    "input_tokens": lambda value, _source: input_tokens_in(value),
    "output_tokens": lambda value, _source: output_tokens_in(value),
    "occurred_at": _time,
    "user_message": lambda value, _source: question_in(value),
    "agent_response": lambda value, _source: _read_answer(value),
    "agent_thinking": lambda value, _source: answer_in(value) or None,
}
"""How the value of each field is read."""
_MAY_BE_EMPTY = frozenset({"agent_response"})
"""Required fields that need a column, and no text in every row: an agent may give no answer."""


class _Given(NamedTuple):
    values: dict[str, Any]
    labels: dict[str, str]


class TableReader:
    """Makes the rows of one file into exchanges, in their order."""

    def __init__(self, fields: Fields, context: ReadingContext) -> None:
        self._sources = dict(fields.sources())
        self._context = context
        self._filing = Filing(
            connection=context.connection,
            project=context.project,
            ingested_at=context.ingested_at,
            redact=context.redactor.redact,
            agent=context.agent,
        )
        self._met: OrderedDict[str, int] = OrderedDict()

    def exchange(self, row: Json) -> Exchange | Problem:
        """Return the exchange that a row is, or why it is none."""
        given = self._given(row)
        if isinstance(given, Problem):
            return given
        try:
            labels = read_labels(given.labels or None, self._context.redactor)
            exchange = self._built(given.values, labels)
            check_record(exchange, self._context.ingested_at)
        except RecordError as error:
            return Problem("bounds", str(error).removeprefix("Exchange."))
        return exchange

    def _given(self, row: Json) -> _Given | Problem:
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        for name, source in self._sources.items():
            value = source.value if source.column is None else find(row, source.column)
            label = name.removeprefix("labels.") if name.startswith("labels.") else None
            try:
                read = name_in(value) if label is not None else _READ[name](value, source)
            except ValueError as error:
                return Problem("wrong_type", f"{name}: {_place(source)} {error}")
            if label is None:
                values[name] = read
            elif read is not None:
                labels[label] = read
        missing = next((name for name in REQUIRED if name not in _MAY_BE_EMPTY and not values[name]), None)
        if missing is not None:
            return Problem("missing_field", f"{missing}: {_place(self._sources[missing])} is empty")
        return _Given(values, labels)

    def _built(self, values: Mapping[str, Any], labels: tuple[Label, ...]) -> Exchange:
        question, answer, at, session = (
            values[name] for name in ("user_message", "agent_response", "occurred_at", "session_id")
        )
        stop = values.get("stop_reason")
        told = ToldExchange(
            exchange_id=values.get("exchange_id") or self._id_of(session, at, question, answer),
            session_id=session,
            at=at,
            question=question,
            answer=answer,
            outcome=outcome_of(answer, stop),
            thinking=values.get("agent_thinking"),
            agent=values.get("agent"),
            turn_number=values.get("turn_number"),
            model=values.get("agent_model"),
            input_tokens=values.get("input_tokens"),
            output_tokens=values.get("output_tokens"),
            stop_reason=stop,
            labels=labels,
        )

        def identify(clean: Clean) -> str:
            return read_digest(clean.question, clean.answer, clean.thinking, at)

        return build_exchange(told, self._filing, identify)

    def _id_of(self, session: str, at: datetime, question: str, answer: str) -> str:
        content = stable_id("exchange-content", session, at.isoformat(), question, answer)
        equals = self._met.pop(content, 0)
        self._met[content] = equals + 1
        if len(self._met) > EQUALS:
            self._met.popitem(last=False)
        return content if not equals else stable_id("exchange-content", content, equals)


def _place(source: Source) -> str:
    return "its value" if source.column is None else f"column {source.column}"
