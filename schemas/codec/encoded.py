"""Records that are in their encoding already: decoded only if a caller looks at them, and not encoded again on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar, cast, overload

from schemas.codec.single_object import decode
from schemas.records import Record

AnyRecord = TypeVar("AnyRecord", bound=Record)


class EncodedRecords(Sequence[AnyRecord], Generic[AnyRecord]):
    """Records in order. Each of `items` is its message if it may be written and keeps its contract, else itself."""

    def __init__(self, items: Sequence[bytes | AnyRecord]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> AnyRecord: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[AnyRecord]: ...

    def __getitem__(self, place: int | slice) -> AnyRecord | Sequence[AnyRecord]:
        if isinstance(place, slice):
            return EncodedRecords(self.items[place])
        item = self.items[place]
        return cast("AnyRecord", decode(item)) if isinstance(item, bytes) else item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none
