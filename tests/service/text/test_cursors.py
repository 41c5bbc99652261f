"""Pages: whatever the cursor, it leads to the next entry or is refused, and is never an error of the server."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.answers import MAX_CURSOR, Place, decode_place, encode_place, page_of

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is beside it
IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)


@given(TIMES, IDS, st.integers(-1, 2**31))
def test_a_cursor_returns_to_its_position(at: datetime, identity: str, number: int) -> None:
    """It is exact to the microsecond, because an error would skip or repeat entries."""
    position = Place(at, identity, number)
    assert decode_place(encode_place(position)) == position


@given(st.text(max_size=200) | st.binary(max_size=90).map(lambda raw: raw.hex()) | st.integers())
def test_an_invalid_cursor_is_refused(text: object) -> None:
    """It is a client error, never a server error."""
    with pytest.raises(ValueError, match="nextCursor"):
        decode_place(text)


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b'[1,-1,"a"]', b'[1e300,-1,"a"]', b'[99999999999999999999,-1,"a"]', b'[1790000000000000,-2,"a"]', b"[null]"],
)
def test_a_forged_cursor_follows_the_same_rules(body: bytes) -> None:
    """It only decides where a query begins, and an impossible time has no effect."""
    with pytest.raises(ValueError, match="must be"):
        decode_place(base64.urlsafe_b64encode(body).rstrip(b"=").decode())


def test_the_longest_id_fits_into_a_cursor() -> None:
    """Ingest accepts 256 characters of four bytes each, and a page that ends with one needs a cursor."""
    position = Place(datetime(2026, 1, 1, tzinfo=UTC), f"{'c' * 63}/{chr(0x1F9ED) * 256}", 7)
    cursor = encode_place(position)
    assert len(cursor) <= MAX_CURSOR
    assert position == decode_place(cursor)


@given(st.integers(0, 12), st.integers(1, 5))
def test_pages_together_make_up_the_list(total: int, limit: int) -> None:
    """Nothing is missing or repeated, and the last page has no cursor."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    places = [Place(start, f"{number:02}") for number in range(total, 0, -1)]
    paged: list[Place] = []
    cursor: str | None = ""
    while cursor is not None:
        after = decode_place(cursor) if cursor else None
        remaining = [place for place in places if after is None or place < after]
        page, cursor = page_of(remaining[: limit + 1], limit, lambda place: place)
        paged += page
    assert places == paged
