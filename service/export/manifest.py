"""The manifest of an export: the signed chain that shows later changes. `docs/how-to/verify.md` defines it byte by byte.

An export appends its lines to `driftline.manifest` and never changes an earlier one. Each line about a topic has the digest of the topic's
previous line. Each export ends with the digests of its files, the last digest of every topic and the digest of the previous export, which
are signed. Lines hold no time and no random value, so equal data gives equal lines.

Records are named by their positions: topic, partition and offset. A record is in one line, that of the first export which had it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.fingerprints import canonical_json
from schemas.errors import InputError

MANIFEST = "driftline.manifest"
"""No name of JSON lines, which an import of the folder would take for exchanges."""
CHECK_LENGTH = 4
"""Hexadecimal characters of a record's digest that a line repeats, to name the record that was changed."""
NEW_FOLDER = "Run `driftline verify` on it, and export to a new folder."
Position: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of a record."""
Kind: TypeAlias = Any
"""The kind of a column: one of `SIMPLE_KINDS`, {"list": kind} or {"struct": [[name, kind], …]}."""
SIMPLE_KINDS = ("text", "bytes", "integer", "float", "boolean", "time")
MAX_DEPTH = 8
"""Maximum depth of the kind of a column. A manifest may be hostile."""
Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind"):
    """A line of the manifest."""


class _TopicLine(_Line, frozen=True, kw_only=True):
    """A line about a table of a topic. `previous` is the digest of the topic's previous line, null for its first one."""

    topic: str
    table: str
    previous: str | None = None


class Columns(_TopicLine, frozen=True, tag="columns", kw_only=True):
    """The columns that the digests of the following records of a table cover. The first value in the columns `day` is a record's time."""

    columns: list[tuple[str, Kind]]
    day: list[str]


class Records(_TopicLine, frozen=True, tag="records", kw_only=True):
    """The records of a UTC day that an export was the first to have.

    `positions` are a partition and the first and last offset of each run of consecutive offsets in it, one after the other.
    """

    day: str | None
    count: int
    positions: list[tuple[Partition, list[Offset]]]
    digest: str
    checks: str


class Removed(_TopicLine, frozen=True, tag="removed", kw_only=True):
    """Records of one session that the export no longer has. `connection` and `session` are digests; a row is partition, offset and digest."""

    connection: str
    session: str
    rows: list[tuple[Partition, Offset, str]]
    reason: str
    erasures: list[str]


class Expired(_TopicLine, frozen=True, tag="expired", kw_only=True):
    """Retention has removed the last record of a line of records, whose digest is `records`."""

    records: str
    count: int


class Redacted(_TopicLine, frozen=True, tag="redacted", kw_only=True):
    """Records that were changed in place: partition, offset, digest before and digest after."""

    rows: list[tuple[Partition, Offset, str, str]]
    erasures: list[str]


class Export(_Line, frozen=True, tag="export", kw_only=True):
    """The end of an export.

    `files` are the digests of the files that it wrote, null for a file that it removed. `heads` are the last digests of the topics,
    `lines` is the digest of the export's lines before this one.
    """

    number: int
    files: dict[str, str | None]
    heads: dict[str, str]
    lines: str
    previous: str | None


class Signature(_Line, frozen=True, tag="signature", kw_only=True):
    """The Ed25519 signature of the line before, and the public key."""

    key: str
    signature: str


TopicLine = Columns | Records | Removed | Expired | Redacted
_decoder = msgspec.json.Decoder(TopicLine | Export | Signature)
REASONS = ("erasure", "retention", "withdrawal", "unexplained")


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file as lowercase hexadecimal characters."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes as lowercase hexadecimal characters."""
    return hashlib.sha256(data).hexdigest()


def public_hex(key: Ed25519PrivateKey) -> str:
    """Return the public part of a key, as the manifest and `driftline signing-key` write it."""
    return key.public_key().public_bytes_raw().hex()


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A line of records with its digest and the columns that it covers."""

    digest: str
    records: Records
    columns: Columns


@dataclass
class Manifest:
    """A manifest that was read: its lines by kind, the state that they add up to, and what is wrong with the chain itself."""

    problems: list[str] = field(default_factory=list)
    records: list[RecordLine] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)
    expired: dict[str, Expired] = field(default_factory=dict)
    redacted: list[Redacted] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    """The digests of the exports' last lines: their heads."""
    files: dict[str, str] = field(default_factory=dict)
    earlier_files: set[tuple[str, str | None]] = field(default_factory=set)
    """The paths and digests of the files of all exports."""
    heads: dict[str, str] = field(default_factory=dict)
    columns: dict[tuple[str, str], Columns] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    content: bytes = b""

    @property
    def head(self) -> str | None:
        """The head of the last export."""
        return self.exports[-1] if self.exports else None

    def ends(self) -> dict[tuple[str, str, int], int]:
        """Return the offset after the last record of each topic, table and partition."""
        ends: dict[tuple[str, str, int], int] = {}
        for line in self.records:
            for partition, runs in line.records.positions:
                key = (line.records.topic, line.records.table, partition)
                ends[key] = max(ends.get(key, 0), runs[-1] + 1)
        return ends

    def gone(self) -> set[Position]:
        """Return the positions of the removed records that are listed one by one."""
        return {(line.topic, partition, offset) for line in self.removed for partition, offset, _ in line.rows}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder, and check its chain and signatures. Without one, the result is empty.

    Raises InputError if the file cannot be read.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="Choose a readable folder.") from error
    return parse_manifest(content)


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest from bytes. The lines that fit are used, and the others are problems."""
    manifest = Manifest(content=content)
    reader = _ManifestReader(manifest)
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    if rest:
        manifest.problems.append(f"line {len(lines) + 1}: has no end: the manifest was cut")
    reader.finish()
    return manifest


class _ManifestReader:
    """Reads lines in order and follows the chain."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._pending = hashlib.sha256()
        self._unsigned: tuple[int, bytes] | None = None
        self._is_open = False
        self._by_digest: dict[str, RecordLine] = {}

    def read(self, number: int, content: bytes) -> None:
        """Read a line."""
        try:
            line = _decoder.decode(content)
        except msgspec.MsgspecError as error:
            self._report(number, f"is no line of a manifest: {error}")
            return
        if self._unsigned is not None and not isinstance(line, Signature):
            self._report(self._unsigned[0], "the export is not signed")
            self._unsigned = None
        if isinstance(line, Export):
            self._read_export(number, content, line)
        elif isinstance(line, Signature):
            self._read_signature(number, line)
        else:
            self._read_topic_line(number, content, line)

    def finish(self) -> None:
        """Report what is missing at the end."""
        if self._unsigned is not None:
            self._report(self._unsigned[0], "the export is not signed")
        elif self._is_open:
            self._manifest.problems.append("the last lines belong to no export: the manifest was cut")

    def _report(self, number: int, problem: str) -> None:
        self._manifest.problems.append(f"line {number}: {problem}")

    def _read_topic_line(self, number: int, content: bytes, line: TopicLine) -> None:
        manifest = self._manifest
        self._is_open = True
        self._pending.update(content + b"\n")
        if line.previous != manifest.heads.get(line.topic):
            self._report(number, f"does not continue topic {line.topic}: a line before it was changed, removed or moved")
        digest = sha256(content)
        manifest.heads[line.topic] = digest
        match line:
            case Columns() if not all(is_kind(kind) for _, kind in line.columns):
                self._report(number, f"a column of {line.table} has an unknown kind")
            case Columns():
                manifest.columns[line.topic, line.table] = line
            case Records():
                self._read_records(number, digest, line)
            case Removed():
                if line.reason not in REASONS:
                    self._report(number, f"reason {line.reason} is unknown")
                manifest.removed.append(line)
            case Expired():
                if line.records not in self._by_digest:
                    self._report(number, "no line before it has the records that it says are gone")
                manifest.expired[line.records] = line
            case Redacted():
                manifest.redacted.append(line)

    def _read_records(self, number: int, digest: str, line: Records) -> None:
        columns = self._manifest.columns.get((line.topic, line.table))
        total = sum(count_offsets(runs) for _, runs in line.positions)
        if columns is None:
            self._report(number, f"no line before it has the columns of {line.table}")
        elif not all(runs and len(runs) % 2 == 0 for _, runs in line.positions):
            self._report(number, "has a run without an end")
        elif total != line.count or len(line.checks) != CHECK_LENGTH * line.count:
            self._report(number, f"has {total} positions and {len(line.checks)} characters of checks for {line.count} records")
        else:
            self._by_digest[digest] = RecordLine(digest, line, columns)
            self._manifest.records.append(self._by_digest[digest])

    def _read_export(self, number: int, content: bytes, line: Export) -> None:
        manifest = self._manifest
        if line.number != len(manifest.exports) + 1 or line.previous != manifest.head:
            self._report(number, f"export {line.number} does not continue the export before it")
        if line.lines != self._pending.hexdigest():
            self._report(number, f"export {line.number} has other lines than were signed")
        if line.heads != manifest.heads:
            self._report(number, f"export {line.number} ends its topics with other lines than were signed")
        manifest.exports.append(sha256(content))
        manifest.earlier_files |= set(line.files.items())
        manifest.files = {path: digest for path, digest in {**manifest.files, **line.files}.items() if digest is not None}
        self._unsigned = (number, content)
        self._pending = hashlib.sha256()
        self._is_open = False

    def _read_signature(self, number: int, line: Signature) -> None:
        if self._unsigned is None:
            self._report(number, "signs no export")
            return
        self._manifest.keys.add(line.key)
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(line.key)).verify(bytes.fromhex(line.signature), self._unsigned[1])
        except (InvalidSignature, ValueError):
            self._report(number, "the signature is not that of the key")
        self._unsigned = None


class ManifestWriter:
    """Appends an export to a manifest."""

    def __init__(self, manifest: Manifest, key: Ed25519PrivateKey) -> None:
        self._manifest = manifest
        self._key = key
        self._heads = dict(manifest.heads)
        self._lines: list[bytes] = []
        self.number = len(manifest.exports)
        self.head = manifest.head or ""
        """The number and the head of the last export, or of this one after `finish`."""

    def add(self, line: TopicLine) -> None:
        """Add a line about a topic, which continues the topic's chain."""
        content = _encode(msgspec.structs.replace(line, previous=self._heads.get(line.topic)))
        self._heads[line.topic] = sha256(content)
        self._lines.append(content)

    def finish(self, files: Mapping[str, str | None]) -> bytes:
        """Return the whole manifest with the export at its end, signed, or unchanged if the export changed nothing.

        `files` are the digests of the files that were written, by their path in the folder, and None for those that were removed.
        """
        if (
            self._manifest.exports
            and not self._lines
            and all(self._manifest.files.get(path) == digest for path, digest in files.items())
        ):
            return self._manifest.content
        pending = b"".join(line + b"\n" for line in self._lines)
        self.number += 1
        export = _encode(
            Export(
                number=self.number,
                files=dict(files),
                heads=self._heads,
                lines=sha256(pending),
                previous=self._manifest.head,
            )
        )
        self.head = sha256(export)
        signature = _encode(Signature(key=public_hex(self._key), signature=self._key.sign(export).hex()))
        return self._manifest.content + pending + export + b"\n" + signature + b"\n"


def require_continuable(manifest: Manifest, folder: Path, key: Ed25519PrivateKey) -> None:
    """Raise InputError if an export must not continue a manifest: its chain is broken, or another key signed it."""
    path = folder / MANIFEST
    if manifest.problems:
        raise InputError(f"{path}: {manifest.problems[0]}", hint=NEW_FOLDER)
    others = manifest.keys - {public_hex(key)}
    if others:
        raise InputError(
            f"{path}: signed with the key {min(others)}, and this database has {public_hex(key)}",
            hint="Put the file of the signing key back beside the database, or export to a new folder.",
        )


def is_kind(kind: Kind, depth: int = 0) -> bool:
    """Tell whether a value is the kind of a column."""
    match kind:
        case {"list": item, **rest}:
            return not rest and depth < MAX_DEPTH and is_kind(item, depth + 1)
        case {"struct": [_, *_] as fields, **rest}:
            named = all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in fields)
            return not rest and depth < MAX_DEPTH and named and all(is_kind(inner, depth + 1) for _, inner in fields)
        case str():
            return kind in SIMPLE_KINDS
        case _:
            return False


def count_offsets(runs: Sequence[int]) -> int:
    """Return the number of offsets in runs, given as first and last offsets one after the other."""
    # Topics that several tables share have a run per record, so this must not loop in Python.
    return sum(runs[1::2]) - sum(runs[::2]) + len(runs) // 2


def runs_of(line: Records) -> Iterator[tuple[int, int, int]]:
    """Yield partition, first and last offset of each run of a line."""
    for partition, runs in line.positions:
        yield from ((partition, first, last) for first, last in zip(runs[::2], runs[1::2], strict=True))


def positions_of(line: Records) -> Sequence[tuple[int, int]]:
    """Return the partitions and offsets of a line's records, in the order of its checks."""
    return [(partition, offset) for partition, first, last in runs_of(line) for offset in range(first, last + 1)]


def _encode(line: _Line) -> bytes:
    return canonical_json(msgspec.to_builtins(line)).encode()
