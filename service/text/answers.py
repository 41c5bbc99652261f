"""Answers: one type per entity, used by the API and its documentation, the pages, the command line and alerts.

Lists are paged, newest first. Each page has the cursor of the next one, which stays valid while the list grows. A cursor encodes the
place of a page's last entry: its time, and the key that orders entries of the same time. Cursors are not signed, because a forged
one only starts at another place of a list that the caller may see.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec

from schemas.bounds import EARLIEST, LATEST

Document = dict[str, Any]
REFERENCE = "#/components/schemas/"
"""The place of a description in OpenAPI's document."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time, UTC."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""Documented, not checked: a score minimally above 1 must not make an answer fail."""


def camel(name: str) -> str:
    """Return the name in camelCase; Tier 2.5 keeps its underscore, so that it does not read as tier 25."""
    first, *parts = name.split("_")
    return (first + "".join(part[:1].upper() + part[1:] for part in parts)).replace("ier25", "ier2_5")


class Answer(msgspec.Struct, frozen=True, rename=camel):
    """The base of every answer. Fields are described by `msgspec.Meta`; their names are camelCase in JSON."""

    record_type: ClassVar[str] = ""
    """The record type it is built from. Its schema describes the fields of the same names that have no description here."""

    @classmethod
    def of(cls, row: Mapping[str, Any], **others: Any) -> Self:
        """Fill the fields from the columns of the same names; `others` are fields that the row lacks or has in another form."""
        columns = {name: row[name] for name in cls.__struct_fields__ if name in row}
        return cls(**(columns | others))


def document(answer: Answer) -> Document:
    """Return an answer as in JSON: names in camelCase, times in ISO 8601 UTC with a Z. Numbers are not rounded."""
    fields: Document = msgspec.to_builtins(answer)
    return fields


def any_of(*kinds: type[Answer]) -> Document:
    """Describe a value that is one of some answers: msgspec describes no union of structs without tags."""
    schemas = msgspec.json.schema_components(kinds, ref_template=f"{REFERENCE}{{name}}")[1]
    return {"anyOf": [schemas[kind.__name__] for kind in kinds]}


Entry = TypeVar("Entry")
MAX_CURSOR = 2048
"""Characters of a cursor: a connection's name and a session id, which has 256 characters of up to four bytes, take 1500."""
NextCursor = Annotated[str | None, msgspec.Meta(description="Cursor of the next page; null on the last one.")]
"""The field `next_cursor` of a list."""
NO_CURSOR = "must be the nextCursor of an earlier answer"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASE64 = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CURSOR}}}")


class Place(msgspec.Struct, frozen=True, order=True):
    """The place of an entry in a list ordered by all of these fields, descending."""

    at: datetime
    """UTC."""
    id: str
    """Distinguishes the entries of one time."""
    number: int = -1
    """Comes before the id, in lists that are ordered by it, too."""


def encode_place(entry: Place) -> str:
    """Encode a place as a cursor, a text that is safe in an address."""
    body = msgspec.json.encode(((entry.at - _EPOCH) // timedelta(microseconds=1), entry.number, entry.id))
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode_place(text: Any) -> Place:
    """Decode the place from a cursor; ValueError for an invalid text, which the message does not repeat."""
    try:
        if not _BASE64.fullmatch(text):
            raise ValueError(NO_CURSOR)
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        micros, number, identity = msgspec.json.decode(body, type=tuple[int, int, str])
        at = _EPOCH + timedelta(microseconds=micros)
    except (TypeError, binascii.Error, msgspec.MsgspecError, UnicodeDecodeError, OverflowError):
        raise ValueError(NO_CURSOR) from None
    if not (EARLIEST <= at < LATEST and -1 <= number < 2**63):
        raise ValueError(NO_CURSOR)
    return Place(at, identity, number)


def page_of(entries: Sequence[Entry], limit: int, place_of: Callable[[Entry], Place]) -> tuple[list[Entry], str | None]:
    """Return the first `limit` entries, and the next page's cursor if there are more. Callers read one entry more than the limit."""
    page = list(entries[:limit])
    next_cursor = encode_place(place_of(page[-1])) if len(entries) > limit else None
    return page, next_cursor


def after(cursor: Place | None) -> tuple[datetime, str] | None:
    """Return the time and id after which a list continues, as query parameters; None for its beginning."""
    return None if cursor is None else (cursor.at, cursor.id)
