"""Topics and records, from the schemas and the table of topics."""

from __future__ import annotations

import json
from typing import Any

from reference.markdown import code, page, table, words
from schemas.registry import RecordSchema, current_schemas
from streams.kafka.topics import TOPICS, TopicSpec
from streams.topology import ASSEMBLING, TOPOLOGY

_DAY = 24 * 60 * 60 * 1000
_STAGES = (*TOPOLOGY, ASSEMBLING)
_ROLES = {
    "session": "`connection/session_id`; as many partitions as all topics keyed by session",
    "other": "the record's id or project; three partitions at most",
    "single": "the project; one partition, because the order of its entries decides",
    "state": "`connection/session_id`; as many partitions as all topics keyed by session",
}


def topics() -> str:
    """Return the page on topics."""
    stages = [(code(one.name), code(one.source), ", ".join(map(code, _written(one)))) for one in _STAGES]
    return page(
        "Topics",
        "A topic is a table is a schema: what travels on a topic lands in the table of its record. Without Kafka the tables are the topics. "
        "`driftline topics create` makes them, with the installation's prefix (`DRIFTLINE_KAFKA_PREFIX`) before each name.",
        "## Stages",
        table(("stage", "reads", "writes"), stages),
        *(part for spec in TOPICS.values() for part in _topic(spec)),
    )


def _written(stage: Any) -> list[str]:
    return [*(["judgements"] if stage.judged is not None else []), *stage.sinks]


def _topic(spec: TopicSpec) -> list[str]:
    schemas = [schema for schema in current_schemas().values() if spec.name in schema.topics]
    held = ", ".join(f"[{schema.name}](records.md#{schema.name.lower()})" for schema in schemas) or words(spec.holds)
    kept = int(spec.config.get("retention.ms", -1))
    rows = [
        ("holds", held),
        ("key", _ROLES[spec.role]),
        ("read by", ", ".join(code(stage.name) for stage in _STAGES if stage.source == spec.name)),
        ("written by", ", ".join(code(stage.name) for stage in _STAGES if spec.name in _written(stage))),
        ("kept", "the newest of each key" if spec.role == "state" else "for ever" if kept < 0 else f"{kept // _DAY} days"),
        ("configuration", ", ".join(code(f"{name}={value}") for name, value in sorted(spec.config.items()))),
    ]
    return [f"## {spec.name}", table(("", ""), [row for row in rows if row[1]])]


def records() -> str:
    """Return the page on records."""
    return page(
        "Records",
        "Each record type is one Avro schema, from which its table, its topic's contract and its Python class come. A field here is a column of "
        "the table of that name; tables show the latest revision of each identity, and `log.TABLE` has every revision with its place. Times are UTC. "
        "The framing on topics is in [Putting records on the topics](../producing.md#the-value).",
        *(part for schema in current_schemas().values() for part in _record(schema)),
    )


def _record(schema: RecordSchema) -> list[str]:
    rows = [
        ("table", code(schema.table)),
        ("topics", ", ".join(f"[{name}](topics.md#{name})" for name in schema.topics) or "none: only the database keeps it"),
        ("known by", ", ".join(map(code, schema.identity))),
        (
            "revisions",
            "a later record of the same identity replaces an earlier one"
            if schema.has_revisions
            else "none: a record stays as it is",
        ),
        ("first ten bytes", code(schema.prefix.hex())),
    ]
    fields = [row for field in schema.fields for row in _rows(field)]
    return [
        f"## {schema.name}",
        words(schema.definition["doc"]),
        table(("", ""), rows),
        table(("field", "type", "what it is", "default"), fields),
    ]


def _rows(field: dict[str, Any], before: str = "") -> list[tuple[str, str, str, str]]:
    """Return the row of a field, and below it those of the fields that it is made of."""
    name = before + field["name"]
    default = code(json.dumps(field["default"])) if "default" in field else ""
    row = (code(name), _type(field["type"]), words(field.get("doc", "")), default)
    inner = _record_in(field["type"])
    return [row, *(more for one in (inner or {}).get("fields", ()) for more in _rows(one, f"{name}."))]


def _type(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(_type(one) for one in kind)
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return f"list of {_type(kind['items'])}"
        return {"timestamp-micros": "time", "date": "date"}.get(
            str(kind.get("logicalType")), str(kind.get("name", kind["type"]))
        )
    return str(kind).removeprefix("driftline.")


def _record_in(kind: Any) -> dict[str, Any] | None:
    """Return the record that a type spells out, wherever in it."""
    if isinstance(kind, list):
        return next((found for one in kind if (found := _record_in(one))), None)
    if not isinstance(kind, dict):
        return None
    return kind if kind["type"] == "record" else _record_in(kind.get("items", kind["type"]))
