"""Access store: connections, operators and their tokens, in a SQLite file of its own.

1. A token is `dl_<prefix>_<secret>`. The prefix (48 random bits) is public and the key of the look-up; the secret has 256 random
   bits. A token is shown once. Only its SHA-256 is stored, and compared as bytes in constant time.
2. A connection's token may deliver records, and decides their connection and project. An operator's token has the rights of its
   scopes, everywhere or in one project.
3. A holder has at most two live tokens, so that one can be replaced while the other still works. Names are never reused: records
   filed under a name stay with its project.
4. DuckDB's file belongs to one process, but this file is shared, so that commands work while the server runs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from msgspec import Meta

from audit.anchors import is_reserved
from schemas.bounds import NAME
from schemas.errors import InputError
from service.setup.access.audit_log import AuditLog
from service.setup.access.saved_views import VIEWS_TABLE, SavedViews
from service.setup.access.shared_file import SharedFile, stamped
from service.setup.access.sign_ins import SignIns
from service.text.answers import Answer, Moment

MARK = "dl"
"""The beginning of every token; no holder's name begins with it and an underscore."""
_PREFIX = re.compile(rb"dl_([0-9a-f]{12})_[A-Za-z0-9_-]{1,64}")
Kind = Literal["connection", "operator"]
Scope = Literal["read", "review", "query", "admin"]
"""Rights of an operator: read; score and decide as a person; run SQL; change, purge and give access."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

MAX_LIVE = 2
_MIGRATIONS = (
    (
        """CREATE TABLE holders (
            kind TEXT NOT NULL CHECK (kind IN ('connection', 'operator')), name TEXT NOT NULL, project TEXT, agent TEXT,
            created_at TEXT NOT NULL, PRIMARY KEY (kind, name)
        ) STRICT""",
        """CREATE TABLE tokens (
            prefix TEXT PRIMARY KEY, digest BLOB NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, created_at TEXT NOT NULL,
            expires_at TEXT, revoked_at TEXT, FOREIGN KEY (kind, name) REFERENCES holders (kind, name)
        ) STRICT""",
    ),
    (
        "ALTER TABLE holders ADD COLUMN scopes TEXT",
        # Before scopes existed, an operator had every right.
        "UPDATE holders SET scopes = 'read review query admin' WHERE kind = 'operator'",
        """CREATE TABLE writes (
            id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('operator', 'command')),
            name TEXT NOT NULL, token TEXT, method TEXT NOT NULL, route TEXT NOT NULL, project TEXT, subject TEXT,
            request_id TEXT, status INTEGER, outcome TEXT CHECK (outcome IN ('done', 'refused', 'failed'))
        ) STRICT""",
        """CREATE TRIGGER writes_stay BEFORE UPDATE ON writes WHEN old.outcome IS NOT NULL OR new.outcome IS NULL
        BEGIN SELECT RAISE(ABORT, 'a line of the audit log stays as it is'); END""",
    ),
    (
        """CREATE TABLE sign_ins (
            digest BLOB PRIMARY KEY, prefix TEXT NOT NULL REFERENCES tokens (prefix), created_at TEXT NOT NULL, expires_at TEXT NOT NULL
        ) STRICT""",
    ),
    ("ALTER TABLE tokens ADD COLUMN last_used_at TEXT",),
    (VIEWS_TABLE,),
)
_LIVE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)"
_NOBODY = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a token. `project` is None for an operator of every project; `scopes` have no meaning for a connection."""

    kind: Kind
    name: str
    project: str | None
    agent: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)


class _Found(NamedTuple):
    """The holder of a valid token, and the version of the file in which it is valid."""

    holder: Holder
    expires_at: str | None
    version: int
    prefix: str


class Token(Answer, frozen=True):
    """A token, without its secret."""

    token: Annotated[str, Meta(description="Its public prefix.", examples=["dl_0f3a77c1b2d4"])]
    state: Literal["live", "expired", "revoked"]
    created_at: Moment
    expires_at: Annotated[Moment | None, Meta(description="When the token expires.")]
    last_used_at: Annotated[Moment | None, Meta(description="When it last opened anything, to the minute; null: not yet.")]


def access_file(database: Path) -> Path:
    """Return the file of a database's tokens, which is beside it."""
    return database.with_suffix(".access")


def scopes_of(names: Iterable[str]) -> frozenset[str]:
    """Return the scopes of these names; InputError for an unknown one, or if there are none."""
    given = frozenset(names)
    if not given or not given <= set(SCOPES):
        unknown = ", ".join(sorted(given - set(SCOPES)))[:64]
        raise InputError(f"scopes: {unknown or 'none'} cannot be granted", hint=f"Use some of {', '.join(SCOPES)}.")
    return given


class AccessStore:
    """The open file; created if missing, readable for its owner alone. It can be shared between threads.

    StoreError when the file cannot be used.
    """

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self.path = path
        self._now = now
        self._file = SharedFile(path, _MIGRATIONS)
        self._found: dict[bytes, _Found] = {}
        self._used: set[str] = set()
        self.audit_log = AuditLog(self._file, now)
        """The changes by operators and commands."""
        self.sign_ins = SignIns(self._file, now)
        """The sign-ins to the pages."""
        self.saved_views = SavedViews(self._file, now)
        """The saved views of the inbox."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, holder: Holder, lasts: timedelta | None = None) -> str:
        """Add a connection or operator; return its first token, which expires after `lasts`, or never.

        InputError if the name is taken or invalid.
        """
        for name in (holder.name, holder.project):
            if name is not None and not re.fullmatch(NAME, name):
                raise InputError(f"{name[:64]!r} is no name", hint="Use a-z, 0-9, _ . - and at most 63 characters.")
            if name is not None and is_reserved(name):
                raise InputError(
                    f"{name!r} is a name for anchors", hint="It is reserved; choose a name with another beginning."
                )
        if holder.name.startswith(f"{MARK}_"):
            raise InputError(f"{holder.name!r} looks like a token", hint="Names do not begin with dl_.")
        scopes = " ".join(one for one in SCOPES if one in scopes_of(holder.scopes)) if holder.kind == "operator" else None
        row = {"kind": holder.kind, "name": holder.name, "project": holder.project, "agent": holder.agent, "scopes": scopes}
        with self._file.transaction() as cursor:
            cursor.execute(
                "INSERT OR IGNORE INTO holders (kind, name, project, agent, created_at, scopes) "
                "VALUES (:kind, :name, :project, :agent, :now, :scopes)",
                {**row, "now": self._stamp()},
            )
            if not cursor.rowcount:
                hint = f"driftline {holder.kind}s rotate {holder.name} prints another token; names are not reused."
                raise InputError(f"there is {_article(holder.kind)} {holder.name} already", hint=hint)
            return self._issue(cursor, holder.kind, holder.name, lasts)

    def rotate(self, kind: Kind, name: str, grace: timedelta | None = None, lasts: timedelta | None = None) -> str:
        """Issue another token, which expires after `lasts`, or never. The old one stays valid until it is revoked, or for the time of grace.

        InputError if there is no such holder, or if it already has two live tokens.
        """
        with self._file.transaction() as cursor:
            live = self._live(cursor, kind, name)
            if len(live) >= MAX_LIVE:
                shown = " and ".join(f"{MARK}_{prefix}" for prefix in live)
                hint = f"Revoke one of them first: driftline {kind}s revoke {MARK}_{live[0]}"
                raise InputError(f"{kind} {name} has {len(live)} live tokens: {shown}", hint=hint)
            if grace is not None:
                cursor.execute(
                    "UPDATE tokens SET expires_at = min(coalesce(expires_at, :end), :end) WHERE kind = :kind AND name = :name "
                    "AND revoked_at IS NULL",
                    {"kind": kind, "name": name, "end": stamped(self._now() + grace)},
                )
            return self._issue(cursor, kind, name, lasts)

    def revoke(self, kind: Kind, which: str) -> int:
        """Revoke the tokens of a holder, or one by `dl_<prefix>`; return the number of live ones. InputError if nothing matches."""
        values = {"kind": kind, "now": self._stamp(), "which": which.split("_")[1] if which.startswith(f"{MARK}_") else which}
        column = "prefix" if which.startswith(f"{MARK}_") else "name"
        with self._file.transaction() as cursor:
            known = f"SELECT 1 FROM {'tokens' if column == 'prefix' else 'holders'} WHERE kind = :kind AND {column} = :which"  # noqa: S608 - two literals
            if cursor.execute(known, values).fetchone() is None:
                raise InputError(f"there is no {kind} or token {which[:32]!r}", hint=f"`driftline {kind}s list` shows them.")
            cursor.execute(
                f"UPDATE tokens SET revoked_at = :now WHERE kind = :kind AND {column} = :which AND {_LIVE}",  # noqa: S608 - literals
                values,
            )
            return cursor.rowcount

    def holders(self, kind: Kind) -> list[tuple[Holder, list[Token]]]:
        """Return all holders of a kind by name, with their tokens, oldest first."""
        now = self._stamp()
        rows = self._file.rows(f"SELECT {_HOLDER} FROM holders h WHERE kind = ? ORDER BY name", [kind])  # noqa: S608 - a literal
        tokens = self._file.rows(
            "SELECT name, prefix, created_at, expires_at, revoked_at, last_used_at FROM tokens WHERE kind = ? ORDER BY created_at, rowid",
            [kind],
        )
        tokens_of: dict[str, list[Token]] = {}
        for name, prefix, created, expires, revoked, used in tokens:
            token = Token(
                token=f"{MARK}_{prefix}",
                state="revoked" if revoked else "expired" if expires and expires <= now else "live",
                created_at=datetime.fromisoformat(created),
                expires_at=expires and datetime.fromisoformat(expires),
                last_used_at=used and datetime.fromisoformat(used),
            )
            tokens_of.setdefault(name, []).append(token)
        holders = [_holder(row) for row in rows]
        return [(holder, tokens_of.get(holder.name, [])) for holder in holders]

    def projects(self) -> set[str]:
        """Return the projects of connections and operators."""
        return {project for (project,) in self._file.rows("SELECT DISTINCT project FROM holders WHERE project IS NOT NULL")}

    def connected_projects(self) -> set[str]:
        """Return the projects that connections may send records to."""
        return {holder.project for holder, _ in self.holders("connection") if holder.project}

    def holder(self, kind: Kind, name: str) -> Holder | None:
        """Return the holder of that name."""
        rows = self._file.rows(f"SELECT {_HOLDER} FROM holders h WHERE kind = ? AND name = ?", [kind, name])  # noqa: S608 - a literal
        return _holder(rows[0]) if rows else None

    def version(self) -> int:
        """Return a number that changes with every change of the file."""
        return self._file.version()

    def find(self, token: bytes, version: int | None = None) -> Holder | None:
        """Return the holder of a token; None if it is unknown, malformed, expired or revoked, whatever its bytes.

        Valid tokens are cached by digest until the file changes. `version` is the file's version if the caller has just read it.
        """
        given, version = digest_of(token), self.version() if version is None else version
        found = self._found.get(given)
        if found is not None and found.version == version and (found.expires_at is None or found.expires_at > self._stamp()):
            self._used.add(found.prefix)
            return found.holder
        rows = self._file.rows(
            f"SELECT digest, expires_at, prefix, {_HOLDER} FROM tokens JOIN holders h USING (kind, name) WHERE prefix = :prefix AND {_LIVE}",  # noqa: S608 - literals
            {"prefix": prefix_of(token), "now": self._stamp()},
        )
        digest, expires_at, prefix, *holder = rows[0] if rows else (_NOBODY, None, "")
        if not (hmac.compare_digest(digest, given) and rows):
            return None
        # Read the version before the row: a change in between makes the cached version too old, never too new.
        self._found[given] = _Found(_holder(holder), expires_at, version, prefix)
        self._used.add(prefix)
        return self._found[given].holder

    def signed_in(self, cookie: bytes) -> tuple[Holder, str] | None:
        """Return the operator signed in with this cookie, and the token's prefix; None without one, or if the token ended."""
        prefix = self.sign_ins.prefix_of(cookie)
        if prefix is None:
            return None
        rows = self._file.rows(
            f"SELECT {_HOLDER} FROM tokens JOIN holders h USING (kind, name) WHERE prefix = :prefix AND {_LIVE}",  # noqa: S608 - literals
            {"prefix": prefix, "now": self._stamp()},
        )
        if not rows:
            return None
        self._used.add(prefix)
        return _holder(rows[0]), prefix

    def note_use(self) -> int:
        """Record the tokens used since the last call, all with the same time; return their number."""
        used, self._used = self._used, set()
        if used:
            with self._file.transaction() as cursor:
                rows = [(self._stamp(), prefix) for prefix in sorted(used)]
                cursor.executemany("UPDATE tokens SET last_used_at = ? WHERE prefix = ?", rows)
        return len(used)

    def _issue(self, cursor: sqlite3.Cursor, kind: Kind, name: str, lasts: timedelta | None) -> str:
        token = new_token()
        expires = None if lasts is None else stamped(self._now() + lasts)
        values = [prefix_of(token.encode()), digest_of(token.encode()), kind, name, self._stamp(), expires]
        cursor.execute(
            "INSERT INTO tokens (prefix, digest, kind, name, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)", values
        )
        return token

    def _live(self, cursor: sqlite3.Cursor, kind: Kind, name: str) -> list[str]:
        values = {"kind": kind, "name": name, "now": self._stamp()}
        if cursor.execute("SELECT 1 FROM holders WHERE kind = :kind AND name = :name", values).fetchone() is None:
            raise InputError(f"there is no {kind} {name[:64]!r}", hint=f"`driftline {kind}s list` shows them.")
        statement = f"SELECT prefix FROM tokens WHERE kind = :kind AND name = :name AND {_LIVE} ORDER BY created_at"  # noqa: S608 - a literal
        return [prefix for (prefix,) in cursor.execute(statement, values)]

    def _stamp(self) -> str:
        return stamped(self._now())


_HOLDER = "h.kind, h.name, h.project, h.agent, h.scopes"


def _holder(row: Sequence[Any]) -> Holder:
    kind, name, project, agent, scopes = row
    return Holder(kind, name, project, agent, frozenset(SCOPES if scopes is None else scopes.split()))


def _article(kind: Kind) -> str:
    return "an operator" if kind == "operator" else "a connection"


def new_token() -> str:
    """Return a token with a prefix of 48 random bits and a secret of 256."""
    return f"{MARK}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def prefix_of(token: bytes) -> str | None:
    """Return the public part of a token; None if it is not one, whatever its bytes."""
    found = _PREFIX.fullmatch(token)
    return found.group(1).decode() if found else None


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token. The secret is random, so that no salt and no slow hash are needed."""
    return hashlib.sha256(token).digest()
