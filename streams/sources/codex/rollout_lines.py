"""Lines of rollouts before Codex put each into an envelope of a type and a payload, in the middle of 2025.

The first line was the bare header, `{"id", "timestamp", "instructions", "git"}`; the others were bare items of the conversation, without
times, and `{"record_type": "state"}` between them. Still older rollouts were one JSON object, of a session and its items.
"""

from __future__ import annotations

from typing import Any

import msgspec

from audit.surrogates import mended
from streams.sources.codex.items import CALLS, OUTPUTS
from streams.sources.codex.kinds import IGNORED_ITEMS
from streams.sources.lines import Line, decode_json

Json = dict[str, Any]

_ITEMS = CALLS | OUTPUTS | IGNORED_ITEMS | {"message", "reasoning"}
STATE = "state"
"""Type of the envelope of a line that only marks that the program was there."""


def in_envelope(line: Json) -> Json:
    """Return a line as today's rollouts have it; one that is not known is returned as it is."""
    if "payload" in line:
        return line
    kind = line.get("type")
    if kind is None and line.get("record_type") == STATE:
        return {"type": STATE, "payload": {}}
    if kind is None and "id" in line and "timestamp" in line:
        return {"type": "session_meta", "timestamp": line["timestamp"], "payload": line}
    if isinstance(kind, str) and kind in _ITEMS:
        return {"type": "response_item", "timestamp": line.get("timestamp"), "payload": line}
    return line


def document_lines(document: bytes) -> list[Line]:
    """The lines that a rollout of one JSON object stands for: its session, then its items; ValueError where it is none."""
    try:
        rollout = msgspec.convert(decode_json(document), _Document)
    except msgspec.ValidationError as error:
        raise ValueError("has no session with its items") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    parts = (msgspec.json.encode(mended(part)) for part in (rollout.session, *rollout.items))
    return [Line(number, part, len(part), ended=True) for number, part in enumerate(parts, 1)]


class _Document(msgspec.Struct):
    session: Json
    items: list[Any]
