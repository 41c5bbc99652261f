"""Schema evolution: after any change of a schema, every record ever written can still be read.

The `avro` package, the reference implementation, checks compatibility. One more rule applies: a new version may only add top-level
fields with a default. Batch decoding (schemas.codec.arrow) can then read old bytes with their own schema and add columns without
changing values. A list that replaces a record of fixed fields is added beside it, and built from it where it is missing
(`schemas.registry`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from schemas.errors import SchemaError
from schemas.registry import Json, RecordSchema


def can_read(reader: RecordSchema, writer: RecordSchema) -> bool:
    """Tell whether `reader` can read all records written with `writer`, by Avro's rules."""
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(  # type: ignore[no-untyped-call]
        avro.schema.parse(json.dumps(reader.definition)), avro.schema.parse(json.dumps(writer.definition))
    )
    return bool(verdict.compatibility is SchemaCompatibilityType.compatible)


def _shape(field: Json) -> str:
    """Return a field's type without docs, for comparison."""

    def strip(node: object) -> object:
        if isinstance(node, dict):
            return {key: strip(value) for key, value in node.items() if key != "doc"}
        if isinstance(node, list):
            return [strip(item) for item in node]
        return node

    return json.dumps(strip(field["type"]), sort_keys=True)


def check_evolution(new: RecordSchema, published: Sequence[RecordSchema]) -> None:
    """Check that `new` may follow the `published` versions. Raises SchemaError otherwise."""
    hint = "Restore the published field and add a new one with a default instead."
    fields = {field["name"]: field for field in new.fields}
    for version, old in enumerate(published, start=1):
        if not can_read(new, old):
            raise SchemaError(f"{new.name} cannot read its published version {version}", hint=hint)
        for field in old.fields:
            if field["name"] not in fields:
                raise SchemaError(f"{new.name}.{field['name']} of version {version} was removed", hint=hint)
            if _shape(fields[field["name"]]) != _shape(field):
                raise SchemaError(f"{new.name}.{field['name']} has a different type than in version {version}", hint=hint)
