"""A verifier of exports written from `docs/how-to/verify.md` alone. It shares no code with the product, and reads Parquet with polars."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def digest_of(content: str | bytes) -> str:
    """Return the SHA-256 of a text or of bytes."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def text_of(value: Any, kind: Any) -> str:
    """Return the text of a value."""
    if value is None:
        return "-"
    if isinstance(kind, dict):
        if "list" in kind:
            return "[" + ",".join(text_of(item, kind["list"]) for item in value) + "]"
        return "{" + ",".join(text_of(value[name], inner) for name, inner in kind["struct"]) + "}"
    texts = {
        "text": lambda: f"{len(value.encode())}:{value}",
        "bytes": lambda: f"{2 * len(value)}:{value.hex()}",
        "time": lambda: str((value - EPOCH) // timedelta(microseconds=1)),
        "boolean": lambda: str(value).lower(),
    }
    return texts.get(kind, lambda: repr(value))()


class Chain:
    """The lines of a manifest. Reading one raises AssertionError if it does not continue the chain."""

    def __init__(self, content: bytes, key: str) -> None:
        self.heads: dict[str, str] = {}
        self.columns: dict[tuple[str, str], Any] = {}
        self.records: list[tuple[str, Any, Any]] = []
        self.removed: dict[tuple[str, int, int], tuple[str, str, str]] = {}
        self.redacted: dict[tuple[str, int, int], tuple[str, str]] = {}
        self.expired: set[str] = set()
        self.files: dict[str, str | None] = {}
        head, pending, number, unsigned = None, b"", 0, None
        for raw in content.splitlines():
            line = json.loads(raw)
            if line["kind"] == "export":
                number += 1
                expected = {"number": number, "previous": head, "heads": self.heads, "lines": digest_of(pending)}
                assert line == line | expected
                self.files |= line["files"]
                head, pending, unsigned = digest_of(raw), b"", raw
            elif line["kind"] == "signature":
                assert line["key"] == key
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(line["signature"]), unsigned or b"")
                unsigned = None
            else:
                pending += raw + b"\n"
                self._read_line(raw, line)
        assert unsigned is None
        assert not pending

    def _read_line(self, raw: bytes, line: Any) -> None:
        topic = line["topic"]
        assert line["previous"] == self.heads.get(topic)
        self.heads[topic] = digest_of(raw)
        match line["kind"]:
            case "columns":
                self.columns[topic, line["table"]] = line
            case "records":
                self.records.append((digest_of(raw), line, self.columns[topic, line["table"]]["columns"]))
            case "removed":
                subject = (line["connection"], line["session"])
                self.removed |= {(topic, part, offset): (*subject, digest) for part, offset, digest in line["rows"]}
            case "expired":
                self.expired.add(line["records"])
            case "redacted":
                for part, offset, before, after in line["rows"]:
                    first, _ = self.redacted.get((topic, part, offset), (before, after))
                    self.redacted[topic, part, offset] = (first, after)

    def leaf_of(self, position: tuple[str, int, int], row: Any, columns: Any) -> tuple[str, str, str]:
        """Return the digests of connection, session and record at a position."""
        if row is None:
            return self.removed[position]
        assert position not in self.removed
        record = digest_of(",".join(text_of(row[name], kind) for name, kind in columns))
        before, after = self.redacted.get(position, (record, record))
        connection, session = (digest_of(text_of(row.get(name), "text")) for name in ("connection", "session_id"))
        return connection, session, before if record == after else record


def verify(folder: Path, key: str) -> int:
    """Return the number of records that fit. Raises AssertionError if anything in a folder is not what the key signed."""
    chain = Chain((folder / "driftline.manifest").read_bytes(), key)
    for name, digest in chain.files.items():
        assert digest is None or digest_of((folder / name).read_bytes()) == digest
    rows = {
        table: {
            (row["_topic"], row["_partition"], row["_offset"]): row
            for row in pl.read_parquet(folder / f"{table}.parquet").iter_rows(named=True)
        }
        for table in {line["table"] for _, line, _ in chain.records}
    }
    count = sum(map(len, rows.values()))
    for digest, line, columns in chain.records:
        sessions: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        for part, runs in line["positions"]:
            for offset in (offset for n in range(0, len(runs), 2) for offset in range(runs[n], runs[n + 1] + 1)):
                position = (line["topic"], part, offset)
                row = rows[line["table"]].pop(position, None)
                if digest in chain.expired:
                    assert row is None
                else:
                    connection, session, record = chain.leaf_of(position, row, columns)
                    sessions.setdefault((connection, session), []).append((part, offset, record))
        leaves = [
            digest_of(connection + session + digest_of("".join(record for *_, record in sorted(records))))
            for (connection, session), records in sessions.items()
        ]
        assert digest in chain.expired or digest_of("".join(sorted(leaves))) == line["digest"]
    assert not any(rows.values())
    return count
