"""Admission: dead letters contain no secrets, wherever these were in the record."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.records import DeadLetter
from streams.log.admission import (
    DEAD_LETTERS,
    MAX_BODY_BYTES,
    MAX_REDACTED_BYTES,
    Admission,
    EncodedRecords,
    RecordOrigin,
    Refusal,
)

KEY = "ghp_" + "aB3dE5fG7hJ9" * 3
SECRET = "hunter2"


def letter_of(body: bytes, *, source: str = "a.jsonl", detail: str = "broken", size: int | None = None) -> DeadLetter:
    """Return the dead letter for these bytes."""
    accepted = EncodedRecords()
    admission = Admission(Redactor(RedactionSettings()), datetime(2026, 10, 2, tzinfo=UTC))
    admission.add_dead_letter(accepted, RecordOrigin(source, 1), Refusal("import", "invalid", detail), body, size=size)
    [message] = accepted.messages[DEAD_LETTERS]
    letter = decode(message)
    assert isinstance(letter, DeadLetter)
    return letter


@pytest.mark.parametrize(
    "value",
    [
        {"cookie": SECRET},
        {"credentials": {"value": SECRET}},
        {"password": [SECRET]},
        {"headers": [{"name": "Authorization", "value": SECRET}]},
        {"args": ["--password", SECRET]},
    ],
)
def test_a_truncated_json_body_is_redacted_by_its_keys(value: dict[str, Any]) -> None:
    """An invalid line may contain secrets, too."""
    full_body = json.dumps({"a": 1, **value}).encode()
    kept = json.loads(letter_of(full_body).body)
    assert set(kept) == {"a", *value}
    assert all(
        b"hunter" not in letter_of(body).body
        for body in (full_body, full_body[:-1], b"x" + full_body, full_body.rstrip(b']}"'))
    )


def test_a_body_that_holds_no_secret_is_kept() -> None:
    """The problem stays readable, and an encoded record can be put back byte for byte."""
    for body in (b"{not json", b'{"max_tokens":5}', b"\xff\xfe", b"\xc3\x01\x00\x80\xfe"):
        letter = letter_of(body)
        assert body == letter.body
        assert len(body) == letter.size
        assert hashlib.sha256(body).hexdigest() == letter.digest


def test_a_secret_between_binary_bytes_is_redacted() -> None:
    """In an encoded record, texts are surrounded by such bytes."""
    letter = letter_of(b"\xc3\x01\x00\x80 password=hunter2-hunter2 \xfe")
    assert b"hunter2" not in letter.body
    assert b"[SECRET:" in letter.body


@pytest.mark.parametrize("body", [b'{"password":"hunter2","password":null}', b'{"a":"pass\\u0077ord=hunter2-hunter2"}'])
def test_a_json_body_is_stored_as_parsed(body: bytes) -> None:
    """Parts that a JSON parser ignores may hold a secret that would not be checked."""
    assert b"hunter2" not in letter_of(body).body


@pytest.mark.parametrize("size", [MAX_BODY_BYTES * 2, MAX_REDACTED_BYTES + 1])
@pytest.mark.parametrize("border", range(-len(KEY) - 12, 13, 4))
def test_a_key_at_the_truncation_limit_is_redacted(border: int, size: int) -> None:
    """A truncated key no longer matches a pattern, but reveals most of the key."""
    start = b"x " * ((MAX_BODY_BYTES + border) // 2)
    letter = letter_of((start + b" " + KEY.encode() + b" ").ljust(size, b"y"))
    assert b"ghp" not in letter.body
    assert MAX_BODY_BYTES - 64 <= len(letter.body) <= MAX_BODY_BYTES
    assert letter.body.rfind(b"[") <= letter.body.rfind(b"]")


@pytest.mark.parametrize("length", range(5, len(KEY), 4))
def test_a_key_truncated_by_its_source_is_removed(length: int) -> None:
    """A source that truncates lines may cut within a key."""
    letter = letter_of(b"see " + KEY[:length].encode(), size=1000)
    assert letter.body == b"see "
    assert letter.size == 1000


def test_source_and_reason_are_redacted() -> None:
    """File names and error messages may quote secrets."""
    letter = letter_of(b"", source=f"/data/{KEY}.jsonl", detail="x" * 980 + f" {KEY}")
    assert letter.source.startswith("/data/[SECRET:")
    assert "ghp" not in letter.source + letter.detail
    assert letter.detail == "x" * 980 + " "


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 1000 + b"1" + b"}" * 1000, b"9" * 5000, b'"\\ud800"'])
def test_hostile_bodies_are_stored_as_text(body: bytes) -> None:
    """Deep nesting, endless numbers and broken characters must not break the dead letter as well."""
    assert letter_of(body).body
