"""What comes out of each capture, kept as goldens. Make them again: `PYTHONPATH=tests .venv/bin/python -m otlp.goldens`."""

from __future__ import annotations

import json
from pathlib import Path

from support.otlp_captures import Json, assembled, dialects, records_of, requests_of

from schemas.records import AgentEvent, Exchange
from streams.sources.otlp.trace_records import Assembly

GOLDENS = Path(__file__).parent / "goldens"
_EXCHANGE = (
    "session_id", "agent", "user_message", "agent_response", "agent_thinking", "agent_model",
    "input_tokens", "output_tokens", "stop_reason", "outcome", "tags",
)  # fmt: skip
_OF_A_RUN = ("event_id", "exchange_id", "duration_ms", "source")
"""Names in an event's payload of which the values are other ones in each capture."""


def golden_of(dialect: str) -> list[Json]:
    """The traces of a capture: their exchanges and events, without what differs from one capture to the next."""
    return [_trace(assembly) for assembly in assembled(records_of(requests_of(dialect)))]


def stored(dialect: str) -> list[Json]:
    """The golden of a capture."""
    kept: list[Json] = json.loads((GOLDENS / f"{dialect}.json").read_text())
    return kept


def _trace(assembly: Assembly) -> Json:
    places = {exchange.exchange_id: place for place, exchange in enumerate(assembly.exchanges)}
    return {
        "state": assembly.decision.state,
        "truncated": assembly.decision.truncated,
        "exchanges": [_exchange(exchange) for exchange in assembly.exchanges],
        "events": [_event(event, places) for event in assembly.events],
    }


def _exchange(exchange: Exchange) -> Json:
    told = {name: getattr(exchange, name) for name in _EXCHANGE}
    return {name: list(value) if name == "tags" else value for name, value in told.items() if value not in (None, ())}


def _event(event: AgentEvent, places: dict[str, int]) -> Json:
    said = {name: value for name, value in json.loads(event.payload).items() if name not in _OF_A_RUN}
    return {"of": None if event.exchange_id is None else places[event.exchange_id], **said}


def _written(golden: list[Json]) -> str:
    """The golden with a line for each exchange and event, so that a change shows as the line that it is."""
    lines = []
    for trace in golden:
        parts = ",\n".join(
            f'  "{name}": [\n{chr(10).join(_lines(value))}\n  ]'
            if isinstance(value, list) and value
            else f'  "{name}": {json.dumps(value)}'
            for name, value in trace.items()
        )
        lines.append("{\n" + parts + "\n}")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _lines(values: list[Json]) -> list[str]:
    told = ["    " + json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values]
    return [f"{line}," for line in told[:-1]] + told[-1:]


if __name__ == "__main__":
    for name in dialects():
        (GOLDENS / f"{name}.json").write_text(_written(golden_of(name)))
