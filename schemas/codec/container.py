"""An object container made around bodies of one schema, and what the columnar decoder makes of it.

Nothing is encoded again: a header, the number of rows, the joined bodies. What comes out is not to be believed before it is proven
(`schemas.codec.canonical`).
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from typing import Any

from schemas.codec.canonical import Layout
from schemas.codec.single_object import writer_schema
from schemas.lazy import pl
from schemas.registry import NAMESPACE, Json, RecordSchema

SYNC = bytes(16)
_NAMES = itertools.count()


def _varint(number: int) -> bytes:
    """A non-negative long as Avro writes it: zigzag, seven bits a byte, lowest first."""
    rest, out = number << 1, bytearray()
    while rest & ~0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _without_references(node: Any, named: dict[str, Json]) -> Any:
    """The type with each reference to a named type replaced by its definition under a name of its own.

    Polars resolves no references; names are not part of the encoding, so the bodies stay valid.
    """
    if isinstance(node, str):
        return _without_references(named[node], named) if node in named else node
    if isinstance(node, list):
        return [_without_references(branch, named) for branch in node]
    if node["type"] == "array":
        return {**node, "items": _without_references(node["items"], named)}
    if node["type"] != "record":
        return node
    # Docs and defaults are left out: polars stumbles over a boolean default, and neither is needed to decode.
    fields = [{"name": known["name"], "type": _without_references(known["type"], named)} for known in node["fields"]]
    named[f"{NAMESPACE}.{node['name']}"] = node
    return {"type": "record", "name": f"R{next(_NAMES)}", "fields": fields}


@functools.cache
def wire_of(prefix: bytes) -> tuple[bytes, Layout]:
    """Header of an object container of the writer's schema, and the layout of the bodies in it."""
    schema = writer_schema(prefix)
    record = _without_references({"type": "record", "name": schema.name, "fields": schema.fields}, {})
    text = json.dumps(record).encode()
    pairs = _varint(2) + _varint(11) + b"avro.schema" + _varint(len(text)) + text
    header = b"Obj\x01" + pairs + _varint(10) + b"avro.codec" + _varint(4) + b"null" + _varint(0) + SYNC
    return header, Layout(record["fields"])


def decode_columns(schema: RecordSchema, block: bytes, rows: int) -> pl.DataFrame | None:
    """Decode joined bodies by columns; return None if the decoder fails, or yields too many or too few rows."""
    header, _ = wire_of(schema.prefix)
    container = b"".join((header, _varint(rows), _varint(len(block)), block, SYNC))
    try:
        frame = pl.read_avro(io.BytesIO(container))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - polars panics on some damage, and its panic is a BaseException
        return None
    return frame if frame.height == rows else None
