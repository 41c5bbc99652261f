"""Rows of a lake whose texts are encrypted: the column `_encrypted` has the record as it is on its topic (`streams.kafka.encryption`).

So an erasure reaches every copy of a file, and every old version of an object. A row is decrypted with the key of its session, and its texts
come from the decrypted record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analytics.deletion.text_keys import UnknownTreeError, UnreadableTextError
from analytics.lake import ENCRYPTED, TEXTS, hide_texts
from schemas.codec.arrow import INDEX, decode_batch, empty_frame
from schemas.errors import LakeError, SettingsError
from schemas.lazy import pl
from schemas.registry import schema_of
from streams.kafka.encryption import DecryptedRecord, TextEncryption
from streams.kafka.reading import RawRecord
from streams.stage_batches import key_column

_ROW = "_row"


def encrypt_rows(
    name: str, topic: str, frame: pl.DataFrame, records: Sequence[RawRecord], encryption: TextEncryption
) -> pl.DataFrame:
    """Return decoded records of a type without their texts, with the column `_encrypted`, and without those of erased sessions.

    `records` are what they were decoded from, by the frame's column of indexes.
    """
    if name not in TEXTS:
        return frame
    values: list[bytes | None] = []
    erased: list[int] = []
    for index in frame[INDEX].to_list():
        record = records[index]
        plain = record.value or b""
        # What another producer has not encrypted is encrypted here.
        is_decrypted = isinstance(record, DecryptedRecord)
        value = record.encrypted if is_decrypted else encryption.encrypt_value(topic, record.key or b"", plain)
        if value is None:
            erased.append(index)
        values.append(None if value == plain else value)
    rows = frame.with_columns(pl.Series(ENCRYPTED, values, dtype=pl.Binary))
    return hide_texts(name, rows.filter(~pl.col(INDEX).is_in(erased)))


class DecryptedRows(NamedTuple):
    """Rows of a table, without the column `_encrypted`."""

    rows: pl.DataFrame
    """The rows with their texts."""
    forgotten: pl.DataFrame
    """The rows of erased sessions, without their texts."""


def decrypt_rows(name: str, topic: str, frame: pl.DataFrame, encryption: TextEncryption | None) -> DecryptedRows:
    """Return the rows of a type on a topic with their texts.

    Raises SettingsError if there are encrypted rows and no encryption, LakeError if a row was changed or encrypted with other keys.
    """
    if ENCRYPTED not in frame.columns:
        return DecryptedRows(frame, frame.clear())
    plain = frame.drop(ENCRYPTED)
    encrypted = frame.select(ENCRYPTED, key=_key(name)).with_row_index(_ROW).filter(pl.col(ENCRYPTED).is_not_null())
    if not encrypted.height:
        return DecryptedRows(plain, plain.clear())
    if encryption is None:
        raise SettingsError(
            f"lake: rows of {schema_of(name).table} are encrypted",
            hint="Set DRIFTLINE_TEXT_KEY_FILE to the key file of the installation, and DRIFTLINE_KAFKA to its cluster.",
        )
    values: list[bytes] = []
    rows: list[int] = []
    forgotten: list[int] = []
    for row, value, key in encrypted.select(_ROW, ENCRYPTED, "key").iter_rows():
        try:
            decrypted = encryption.decrypt_value(topic, key.encode(), value)
        except (UnknownTreeError, UnreadableTextError) as error:
            raise LakeError(f"lake: a row of {schema_of(name).table}, session {key}: {error}") from error
        if decrypted is None:
            forgotten.append(row)
        else:
            rows.append(row)
            values.append(decrypted)
    batch = decode_batch(values)
    if batch.rejected:
        raise LakeError(f"lake: a row of {schema_of(name).table} is no record: {batch.rejected[0].error}")
    columns = list(dict.fromkeys(path.partition(".")[0] for path in TEXTS[name]))
    texts = batch.frames.get(name, empty_frame(name).with_columns(pl.lit(None, pl.UInt32).alias(INDEX)))
    numbers = pl.Series(_ROW, rows, dtype=pl.UInt32)
    texts = texts.select(*columns, numbers.gather(texts[INDEX]))
    numbered = plain.with_row_index(_ROW)
    joined = numbered.join(texts, on=_ROW, how="left", maintain_order="left", suffix=_ROW)
    is_decrypted = pl.col(_ROW).is_in(rows)
    shown = joined.with_columns(
        pl.when(is_decrypted).then(pl.col(column + _ROW)).otherwise(pl.col(column)).alias(column) for column in columns
    )
    is_forgotten = pl.col(_ROW).is_in(forgotten)
    return DecryptedRows(shown.filter(~is_forgotten).select(plain.columns), numbered.filter(is_forgotten).select(plain.columns))


def _key(name: str) -> pl.Expr:
    """Return the keys of sessions, which are those of the records on their topic; other values name the owner of their key themselves."""
    return key_column() if "session_id" in empty_frame(name).columns else pl.lit("")
