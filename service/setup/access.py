"""Access: connections, operators and their tokens, sign-ins, saved views and the audit log, in a separate SQLite file.

DuckDB's file belongs to one process, but this file is shared, so that commands work while the server runs.

Tokens (`AccessStore`):
1. A token is `dl_<prefix>_<secret>`. The prefix (48 random bits) is public and the key of the look-up; the secret has 256 random
   bits. A token is shown once. Only its SHA-256 is stored, and compared as bytes in constant time.
2. A connection's token may send records, and determines their connection and project. An operator's token has the rights of its
   scopes, in every project or in one.
3. A holder has at most two live tokens, so that one can be replaced while the other still works. Names are never reused, because
   records stored under a name stay with its project.

Sign-ins to the pages (`SignIns`):
4. A sign-in is a random cookie that represents a token for a limited time. It is useless without this file, expires, and ends with
   its token. Only its SHA-256 is stored. A link signs in once, within minutes: its code is in the fragment of the address, which browsers
   send to no server, and which no log has.
5. A person who signs in at an identity provider is an operator without a token that anyone has: a name, rights by project that each
   sign-in sets again (`admit`), and the pair of issuer and subject that identifies the person. A name of another operator is not taken over.
6. Browsers send cookies with every request, so an unsafe request must prove that one of our pages made it. It repeats a mark that
   only our pages can read.

Shared links (`SharedLinks`) open one page, read-only, to people without an account:
7. A link's code is used like that of a sign-in link, but until the link expires, after at most 30 days, or is revoked. Opening it sets a cookie
   that browsers send to this page only, and that the server accepts for this page only: an incident, an exchange, a session or a run.
8. Only the SHA-256 of the code is stored. A link ends with the token of the person who made it, and has no more rights than this token.

The audit log (`AuditLog`): one line for each change by an operator over HTTP and for each command that changes access.
9. A line is written before the change is made, and completed with the outcome. A line without an outcome was interrupted, for
   example by a kill, and the change may or may not have been made.
10. A line names the author, the time, the token (by its public prefix), the action (method and route template, or command), the
   project and the subject. Bodies are not kept.
11. A completed line cannot be changed. Lines are deleted by age, and the oldest ones if there are too many.

Saved views of the inbox (`SavedViews`) are personal settings, not audited data. They are not replayed, and they are kept when the
tokens of their owner end.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args
from urllib.parse import urlencode

from msgspec import Meta

from audit.anchors import is_reserved
from schemas.bounds import NAME
from schemas.errors import InputError, StoreError
from service.text.answers import Answer, Moment
from service.text.links import SharedPage

TOKEN_TAG = "dl"  # noqa: S105 - not a secret
"""The beginning of every token, before an underscore. No holder's name begins like a token."""
_PREFIX = re.compile(rb"dl_([0-9a-f]{12})_[A-Za-z0-9_-]{1,64}")
Kind = Literal["connection", "operator"]
Scope = Literal["read", "review", "query", "admin"]
"""Rights of an operator: read; score exchanges and decide on incidents; run SQL; change, purge and manage access."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
ROLES: Mapping[str, frozenset[Scope]] = {
    "viewer": frozenset({"read"}),
    "reviewer": frozenset({"read", "review"}),
    "analyst": frozenset({"read", "query"}),
    "admin": frozenset(SCOPES),
}
"""The scopes of each role."""
Grants = Mapping[str | None, frozenset[str]]
"""Scopes by project; None: every project."""
RoleMapping = Sequence[tuple[str, str | None, frozenset[Scope]]]
"""Groups at the identity provider, each with a project (None: every project) and scopes in it."""
MAX_LIVE_TOKENS = 2
MAX_VIEWS = 50
"""Maximum number of saved views per person."""
MAX_VIEW_NAME = 64
"""Maximum length of a view's name, in characters."""
VIEWS_TABLE = """CREATE TABLE inbox_views (
    owner TEXT NOT NULL, name TEXT NOT NULL, query TEXT NOT NULL, is_shared INTEGER NOT NULL, created_at TEXT NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT"""
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
    (
        """CREATE TABLE sign_in_links (
            digest BLOB PRIMARY KEY, prefix TEXT NOT NULL REFERENCES tokens (prefix), expires_at TEXT NOT NULL
        ) STRICT""",
    ),
    (
        """CREATE TABLE shared_links (
            digest BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, project TEXT NOT NULL, page TEXT NOT NULL, connection TEXT,
            created_by TEXT NOT NULL, prefix TEXT REFERENCES tokens (prefix), created_at TEXT NOT NULL, expires_at TEXT NOT NULL,
            revoked_at TEXT, opened INTEGER NOT NULL DEFAULT 0, last_opened_at TEXT
        ) STRICT""",
    ),
    (
        """CREATE TABLE identities (
            issuer TEXT NOT NULL, subject TEXT NOT NULL, name TEXT NOT NULL UNIQUE, grants TEXT NOT NULL, signed_in_at TEXT NOT NULL,
            PRIMARY KEY (issuer, subject)
        ) STRICT""",
        "ALTER TABLE sign_ins ADD COLUMN project TEXT",
    ),
)
_LIVE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)"
NOBODY_DIGEST = hashlib.sha256(b"").digest()
_HOLDER = """h.kind, h.name, h.project, h.agent, h.scopes,
    (SELECT grants FROM identities AS i WHERE h.kind = 'operator' AND i.name = h.name) AS grants"""
SIGN_IN_DURATION = timedelta(hours=12)
"""Duration of a sign-in."""
IDENTITY_DURATION = timedelta(days=30)
"""How long the links that a person has shared stay open after the last sign-in at the identity provider."""
LINK_DURATION = timedelta(minutes=10)
"""Time within which a link signs in."""
SHARED_DAYS, MAX_SHARED_DAYS = 7, 30
"""Days until a shared link expires: by default, and at most."""
MAX_SHARED_LINKS = 1000
"""Live shared links of an installation."""
MARK_PART_LENGTH = 32
"""Characters of a mark's salt, and of its digest."""
SECRET_FORM = re.compile(rb"[A-Za-z0-9_-]{43}")
Outcome = Literal["done", "refused", "failed"]
LINE_RETENTION = timedelta(days=400)
"""How long lines are kept: a year, and some time to review it."""
MAX_LINES = 1_000_000
PRUNE_INTERVAL = 1000
LINE_COLUMNS = "id, at, kind, name, 'dl_' || token, method, route, project, subject, request_id, status, outcome"
Migrations = Sequence[Sequence[str]]
"""The statements that migrate each version of the file to the next. Released ones never change."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a token, or the guest of a shared link. `project` is None for an operator of every project; `scopes` apply only to operators."""

    kind: Kind | Literal["guest"]
    name: str
    project: str | None
    agent: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)
    grants: Grants = field(default_factory=dict)
    """The rights of a person who signed in at an identity provider, of which `project` and `scopes` are those in use."""

    def acting_on(self, project: str | None) -> Holder:
        """Return a person with the rights in a project (None: in every project), or unchanged without rights of this kind."""
        return self if project not in self.grants else replace(self, project=project, scopes=self.grants[project])

    def projects_with(self, scope: str) -> frozenset[str] | None:
        """Return the projects in which an operator has a scope; None for every project."""
        grants = self.grants or {self.project: self.scopes}
        projects = frozenset(project for project, scopes in grants.items() if scope in scopes)
        return None if None in projects else frozenset(filter(None, projects))


class _TokenRow(NamedTuple):
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
    last_used_at: Annotated[Moment | None, Meta(description="Time of its last use, to the minute; null if unused.")]


def access_file(database: Path) -> Path:
    """Return the file of a database's tokens, which is beside it."""
    return database.with_suffix(".access")


def scopes_of(names: Iterable[str]) -> frozenset[str]:
    """Return the scopes with these names. Raises InputError for an unknown name, or if there is none."""
    scopes = frozenset(names)
    if not scopes or not scopes <= set(SCOPES):
        unknown = ", ".join(sorted(scopes - set(SCOPES)))[:64]
        raise InputError(f"scopes: {unknown or 'none'} cannot be granted", hint=f"Use some of {', '.join(SCOPES)}.")
    return scopes


def scopes_of_role(role: str) -> frozenset[Scope]:
    """Return the scopes of a role. Raises InputError for an unknown one."""
    if role not in ROLES:
        raise InputError(f"role: there is no role {role[:64]!r}", hint=f"Use one of {', '.join(ROLES)}.")
    return ROLES[role]


def grants_of(groups: Iterable[str], mapping: RoleMapping) -> Grants:
    """Return the rights of the members of some groups; empty if no group has a role. Rights in every project hold in each."""
    members = set(groups)
    grants: dict[str | None, frozenset[str]] = {}
    for group, project, scopes in mapping:
        if group in members:
            grants[project] = grants.get(project, frozenset()) | scopes
    everywhere = grants.get(None, frozenset())
    return {project: scopes | everywhere for project, scopes in grants.items() if project is None or not scopes <= everywhere}


class AccessStore:
    """The open file of tokens, created if missing and readable only by its owner. It can be shared between threads.

    Raises StoreError if the file cannot be used.
    """

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self.path = path
        self._now = now
        self._file = SharedFile(path, _MIGRATIONS)
        self._cached_tokens: dict[bytes, _TokenRow] = {}
        self._used: set[str] = set()
        self.audit_log = AuditLog(self._file, now)
        """The changes by operators and commands."""
        self.sign_ins = SignIns(self._file, now)
        """The sign-ins to the pages."""
        self.shared_links = SharedLinks(self._file, now)
        """The links that open one page to people without an account."""
        self.saved_views = SavedViews(self._file, now)
        """The saved views of the inbox."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, holder: Holder, lifetime: timedelta | None = None) -> str:
        """Add a connection or operator, and return its first token, which expires after `lifetime`, or never if that is None.

        Raises InputError if the name is taken or invalid.
        """
        if holder.kind == "guest":
            raise InputError("guests have no token", hint="Share a page with a link.")
        for name in (holder.name, holder.project):
            if name is not None and not re.fullmatch(NAME, name):
                raise InputError(f"{name[:64]!r} is not a valid name", hint="Use a-z, 0-9, _ . - and at most 63 characters.")
            if name is not None and is_reserved(name):
                raise InputError(f"{name!r} is reserved for anchors", hint="This prefix is reserved; choose another name.")
        if holder.name.startswith(f"{TOKEN_TAG}_"):
            raise InputError(f"{holder.name!r} looks like a token", hint="Names do not begin with dl_.")
        scopes = None
        if holder.kind == "operator":
            granted = scopes_of(holder.scopes)
            scopes = " ".join(scope for scope in SCOPES if scope in granted)
        row = {"kind": holder.kind, "name": holder.name, "project": holder.project, "agent": holder.agent, "scopes": scopes}
        with self._file.transaction() as cursor:
            cursor.execute(
                "INSERT OR IGNORE INTO holders (kind, name, project, agent, created_at, scopes) "
                "VALUES (:kind, :name, :project, :agent, :now, :scopes)",
                {**row, "now": self._timestamp()},
            )
            if not cursor.rowcount:
                hint = f"driftline {holder.kind}s rotate {holder.name} prints a new token; names are not reused."
                raise InputError(f"there is {_with_article(holder.kind)} {holder.name} already", hint=hint)
            return self._issue(cursor, holder.kind, holder.name, lifetime)

    def rotate(self, kind: Kind, name: str, grace: timedelta | None = None, lifetime: timedelta | None = None) -> str:
        """Issue another token, which expires after `lifetime`, or never if that is None.

        The old token stays valid until it is revoked, or until the end of `grace`. Raises InputError if there is no such holder, or
        if it already has two live tokens.
        """
        with self._file.transaction() as cursor:
            live_prefixes = self._live_prefixes(cursor, kind, name)
            if kind == "operator" and cursor.execute("SELECT 1 FROM identities WHERE name = ?", [name]).fetchone():
                raise InputError(
                    f"{name} signs in at the identity provider", hint="Add an operator of another name for a token."
                )
            if len(live_prefixes) >= MAX_LIVE_TOKENS:
                tokens = " and ".join(f"{TOKEN_TAG}_{prefix}" for prefix in live_prefixes)
                hint = f"Revoke one of them first: driftline {kind}s revoke {TOKEN_TAG}_{live_prefixes[0]}"
                raise InputError(f"{kind} {name} has {len(live_prefixes)} live tokens: {tokens}", hint=hint)
            if grace is not None:
                cursor.execute(
                    "UPDATE tokens SET expires_at = min(coalesce(expires_at, :end), :end) WHERE kind = :kind AND name = :name "
                    "AND revoked_at IS NULL",
                    {"kind": kind, "name": name, "end": format_timestamp(self._now() + grace)},
                )
            return self._issue(cursor, kind, name, lifetime)

    def revoke(self, kind: Kind, which: str) -> int:
        """Revoke the tokens of a holder, or the token `dl_<prefix>`. Return the number of tokens that were live.

        Raises InputError if nothing matches.
        """
        values = {
            "kind": kind,
            "now": self._timestamp(),
            "which": which.split("_")[1] if which.startswith(f"{TOKEN_TAG}_") else which,
        }
        column = "prefix" if which.startswith(f"{TOKEN_TAG}_") else "name"
        with self._file.transaction() as cursor:
            query = f"SELECT 1 FROM {'tokens' if column == 'prefix' else 'holders'} WHERE kind = :kind AND {column} = :which"  # noqa: S608 - two literals
            if cursor.execute(query, values).fetchone() is None:
                raise InputError(f"there is no {kind} or token {which[:32]!r}", hint=f"`driftline {kind}s list` shows them.")
            cursor.execute(
                f"UPDATE tokens SET revoked_at = :now WHERE kind = :kind AND {column} = :which AND {_LIVE}",  # noqa: S608 - literals
                values,
            )
            return cursor.rowcount

    def admit(self, issuer: str, subject: str, preferred: str, grants: Grants) -> tuple[Holder, str]:
        """Set the rights of a person who signed in at an identity provider; return the operator and the prefix behind sign-ins.

        The first time, the person gets a name like the preferred one that nobody has. No one has the token behind the sign-ins.
        """
        (project, scopes), *_ = sorted(grants.items(), key=lambda grant: grant[0] or "")
        encoded = json.dumps({key or "*": sorted(granted) for key, granted in grants.items()}, sort_keys=True)
        values = {
            "issuer": issuer, "subject": subject, "grants": encoded, "project": project, "now": self._timestamp(),
            "scopes": " ".join(scope for scope in SCOPES if scope in scopes), "expires": format_timestamp(self._now() + IDENTITY_DURATION),
        }  # fmt: skip
        with self._file.transaction() as cursor:
            row = cursor.execute("SELECT name FROM identities WHERE issuer = :issuer AND subject = :subject", values).fetchone()
            name: str = row[0] if row else self._reserve_name(cursor, preferred)
            values["name"] = name
            cursor.execute(
                "INSERT INTO identities VALUES (:issuer, :subject, :name, :grants, :now) ON CONFLICT (issuer, subject) "
                "DO UPDATE SET grants = excluded.grants, signed_in_at = excluded.signed_in_at",
                values,
            )
            cursor.execute(
                "UPDATE holders SET project = :project, scopes = :scopes WHERE kind = 'operator' AND name = :name", values
            )
            if not (prefixes := self._live_prefixes(cursor, "operator", name)):
                self._issue(cursor, "operator", name, IDENTITY_DURATION)
                prefixes = self._live_prefixes(cursor, "operator", name)
            cursor.execute("UPDATE tokens SET expires_at = :expires WHERE prefix = :prefix", values | {"prefix": prefixes[0]})
        return Holder("operator", name, project, scopes=scopes, grants=grants), prefixes[0]

    def dismiss(self, issuer: str, subject: str) -> None:
        """End the sign-ins of a person who has lost all rights at the identity provider."""
        for (name,) in self._file.rows("SELECT name FROM identities WHERE issuer = ? AND subject = ?", [issuer, subject]):
            self.revoke("operator", name)

    def _reserve_name(self, cursor: sqlite3.Cursor, preferred: str) -> str:
        """Add an operator with the preferred name, or with a number after it if the name is taken."""
        base = re.sub(r"[^a-z0-9_.-]+", "-", preferred.lower()).strip("-._")[:56] or "person"
        if base.startswith(f"{TOKEN_TAG}_") or is_reserved(base):
            base = f"person-{base}"
        for number in itertools.count(1):
            name = base if number == 1 else f"{base}-{number}"
            cursor.execute(
                "INSERT OR IGNORE INTO holders (kind, name, created_at, scopes) VALUES ('operator', ?, ?, 'read')",
                [name, self._timestamp()],
            )
            if cursor.rowcount:
                return name
        raise AssertionError

    def holders(self, kind: Kind) -> list[tuple[Holder, list[Token]]]:
        """Return all holders of a kind by name, with their tokens, oldest first."""
        now = self._timestamp()
        rows = self._file.rows(f"SELECT {_HOLDER} FROM holders h WHERE kind = ? ORDER BY name", [kind])  # noqa: S608 - a literal
        tokens = self._file.rows(
            "SELECT name, prefix, created_at, expires_at, revoked_at, last_used_at FROM tokens WHERE kind = ? ORDER BY created_at, rowid",
            [kind],
        )
        tokens_of: dict[str, list[Token]] = {}
        for name, prefix, created, expires, revoked, used in tokens:
            token = Token(
                token=f"{TOKEN_TAG}_{prefix}",
                state="revoked" if revoked else "expired" if expires and expires <= now else "live",
                created_at=datetime.fromisoformat(created),
                expires_at=expires and datetime.fromisoformat(expires),
                last_used_at=used and datetime.fromisoformat(used),
            )
            tokens_of.setdefault(name, []).append(token)
        holders = [_read_holder(row) for row in rows]
        return [(holder, tokens_of.get(holder.name, [])) for holder in holders]

    def projects(self) -> set[str]:
        """Return the projects of connections and operators."""
        return {project for (project,) in self._file.rows("SELECT DISTINCT project FROM holders WHERE project IS NOT NULL")}

    def connected_projects(self) -> set[str]:
        """Return the projects that connections may send records to."""
        return {holder.project for holder, _ in self.holders("connection") if holder.project}

    def holder(self, kind: Kind, name: str) -> Holder | None:
        """Return the holder with this name; None if there is none."""
        rows = self._file.rows(f"SELECT {_HOLDER} FROM holders h WHERE kind = ? AND name = ?", [kind, name])  # noqa: S608 - a literal
        return _read_holder(rows[0]) if rows else None

    def version(self) -> int:
        """Return a number that changes with every change of the file."""
        return self._file.version()

    def find(self, token: bytes, version: int | None = None) -> Holder | None:
        """Return the holder of a token; None if the token is unknown, malformed, expired or revoked.

        Valid tokens are cached by digest until the file changes. `version` is the file's version, if the caller has just read it.
        """
        token_digest = digest_of(token)
        if version is None:
            version = self.version()
        row = self._cached_tokens.get(token_digest)
        if row is not None and row.version == version and (row.expires_at is None or row.expires_at > self._timestamp()):
            self._used.add(row.prefix)
            return row.holder
        rows = self._file.rows(
            f"SELECT digest, expires_at, prefix, {_HOLDER} FROM tokens JOIN holders h USING (kind, name) WHERE prefix = :prefix AND {_LIVE}",  # noqa: S608 - literals
            {"prefix": prefix_of(token), "now": self._timestamp()},
        )
        digest, expires_at, prefix, *holder = rows[0] if rows else (NOBODY_DIGEST, None, "")
        if not (hmac.compare_digest(digest, token_digest) and rows):
            return None
        # The version was read before the row, so a change in between makes the cached version too old, never too new.
        self._cached_tokens[token_digest] = _TokenRow(_read_holder(holder), expires_at, version, prefix)
        self._used.add(prefix)
        return self._cached_tokens[token_digest].holder

    def signed_in(self, cookie: bytes) -> tuple[Holder, str] | None:
        """Return the operator who is signed in with this cookie, and the token's prefix.

        Return None if the cookie is unknown, or if the sign-in or its token has ended.
        """
        sign_in = self.sign_ins.find(cookie)
        signed_in = sign_in and self._find_live(sign_in[0])
        return signed_in and sign_in and (signed_in[0].acting_on(sign_in[1]), signed_in[1])

    def follow_link(self, code: bytes) -> tuple[Holder, str] | None:
        """Use up the code of a sign-in link, and return the operator and the token's prefix; None if it does not sign in."""
        return self._find_live(self.sign_ins.take_link(code))

    def _find_live(self, prefix: str | None) -> tuple[Holder, str] | None:
        """Return the holder of a live token and its prefix."""
        if prefix is None:
            return None
        rows = self._file.rows(
            f"SELECT {_HOLDER} FROM tokens JOIN holders h USING (kind, name) WHERE prefix = :prefix AND {_LIVE}",  # noqa: S608 - literals
            {"prefix": prefix, "now": self._timestamp()},
        )
        if not rows:
            return None
        self._used.add(prefix)
        return _read_holder(rows[0]), prefix

    def record_use(self) -> int:
        """Record the current time as the last use of all tokens used since the last call. Return their number."""
        used = self._used
        self._used = set()
        if used:
            with self._file.transaction() as cursor:
                rows = [(self._timestamp(), prefix) for prefix in sorted(used)]
                cursor.executemany("UPDATE tokens SET last_used_at = ? WHERE prefix = ?", rows)
        return len(used)

    def _issue(self, cursor: sqlite3.Cursor, kind: Kind, name: str, lifetime: timedelta | None) -> str:
        token = new_token()
        expires = None if lifetime is None else format_timestamp(self._now() + lifetime)
        values = [prefix_of(token.encode()), digest_of(token.encode()), kind, name, self._timestamp(), expires]
        cursor.execute(
            "INSERT INTO tokens (prefix, digest, kind, name, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)", values
        )
        return token

    def _live_prefixes(self, cursor: sqlite3.Cursor, kind: Kind, name: str) -> list[str]:
        values = {"kind": kind, "name": name, "now": self._timestamp()}
        if cursor.execute("SELECT 1 FROM holders WHERE kind = :kind AND name = :name", values).fetchone() is None:
            raise InputError(f"there is no {kind} {name[:64]!r}", hint=f"`driftline {kind}s list` shows them.")
        statement = f"SELECT prefix FROM tokens WHERE kind = :kind AND name = :name AND {_LIVE} ORDER BY created_at"  # noqa: S608 - a literal
        return [prefix for (prefix,) in cursor.execute(statement, values)]

    def _timestamp(self) -> str:
        return format_timestamp(self._now())


def _read_holder(row: Sequence[Any]) -> Holder:
    kind, name, project, agent, scopes, grants = row
    return Holder(
        kind,
        name,
        project,
        agent,
        frozenset(SCOPES if scopes is None else scopes.split()),
        {None if key == "*" else key: frozenset(value) for key, value in json.loads(grants or "{}").items()},
    )


def _with_article(kind: Kind) -> str:
    return "an operator" if kind == "operator" else "a connection"


def new_token() -> str:
    """Return a token with a prefix of 48 random bits and a secret of 256."""
    return f"{TOKEN_TAG}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def prefix_of(token: bytes) -> str | None:
    """Return the public part of a token; None if the bytes are not a token."""
    match = _PREFIX.fullmatch(token)
    return match.group(1).decode() if match else None


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token. The secret is random, so it needs no salt and no slow hash."""
    return hashlib.sha256(token).digest()


class SignIn(Answer, frozen=True):
    """An active sign-in."""

    name: Annotated[str, Meta(description="The operator.", examples=["root"])]
    token: Annotated[str, Meta(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])]
    created_at: Moment
    expires_at: Annotated[Moment, Meta(description="Time when it expires.")]


class SignIns:
    """The sign-ins in the file of tokens. It can be shared between threads."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def begin(self, prefix: str, project: str | None = None) -> str:
        """Sign in with the token of this prefix, and return the cookie. Also delete ended sign-ins.

        `project` is the one in use, for a person with rights in several.
        """
        secret = secrets.token_urlsafe(32)
        now = self._now()
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM sign_ins WHERE expires_at <= ?", [format_timestamp(now)])
            cursor.execute(
                "INSERT INTO sign_ins VALUES (?, ?, ?, ?, ?)",
                [
                    _digest_secret(secret.encode()),
                    prefix,
                    format_timestamp(now),
                    format_timestamp(now + SIGN_IN_DURATION),
                    project,
                ],
            )
        return secret

    def create_link(self, token: str) -> str:
        """Return a code that signs in once with a token, within `LINK_DURATION`."""
        code = secrets.token_urlsafe(32)
        now = self._now()
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM sign_in_links WHERE expires_at <= ?", [format_timestamp(now)])
            cursor.execute(
                "INSERT INTO sign_in_links VALUES (?, ?, ?)",
                [_digest_secret(code.encode()), prefix_of(token.encode()), format_timestamp(now + LINK_DURATION)],
            )
        return code

    def take_link(self, code: bytes) -> str | None:
        """Use up the code of a link, and return the token prefix behind it; None if it is unknown, malformed, used or expired."""
        if not SECRET_FORM.fullmatch(code):
            return None
        with self._file.transaction() as cursor:
            row = cursor.execute(
                "DELETE FROM sign_in_links WHERE digest = ? RETURNING prefix, expires_at", [_digest_secret(code)]
            ).fetchone()
        return str(row[0]) if row and row[1] > format_timestamp(self._now()) else None

    def use_project(self, secret: bytes, project: str | None) -> None:
        """Change the project in use (None: every project) of the sign-in with this cookie."""
        with self._file.transaction() as cursor:
            cursor.execute("UPDATE sign_ins SET project = ? WHERE digest = ?", [project, _digest_secret(secret)])

    def find(self, secret: bytes) -> tuple[str, str | None] | None:
        """Return the token prefix behind a cookie, and the project in use; None if the cookie is unknown, malformed or ended."""
        if not SECRET_FORM.fullmatch(secret):
            return None
        values = [_digest_secret(secret), format_timestamp(self._now())]
        rows = self._file.rows("SELECT prefix, project FROM sign_ins WHERE digest = ? AND expires_at > ?", values)
        return tuple(rows[0]) if rows else None

    def active(self) -> list[SignIn]:
        """Return the sign-ins that have not ended and whose token is live, newest first."""
        rows = self._file.rows(
            "SELECT t.name, 'dl_' || s.prefix, s.created_at, s.expires_at FROM sign_ins s JOIN tokens t USING (prefix) "
            "WHERE s.expires_at > :now AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > :now) "
            "ORDER BY s.created_at DESC, s.rowid DESC",
            {"now": format_timestamp(self._now())},
        )
        return [SignIn(name, token, *map(datetime.fromisoformat, times)) for name, token, *times in rows]

    def end_all(self, name: str) -> int:
        """End every sign-in of an operator; return the number of active ones."""
        ended = sum(sign_in.name == name for sign_in in self.active())
        with self._file.transaction() as cursor:
            cursor.execute(
                "DELETE FROM sign_ins WHERE prefix IN (SELECT prefix FROM tokens WHERE kind = 'operator' AND name = ?)", [name]
            )
        return ended

    def end(self, secret: bytes) -> None:
        """Sign out."""
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM sign_ins WHERE digest = ?", [_digest_secret(secret)])


class SharedLink(Answer, frozen=True):
    """A link that opens one page, read-only, to people without an account."""

    id: Annotated[str, Meta(description="Its public id. The code in the address is stored nowhere.", examples=["3f9a77c1b2d4"])]
    project: str
    page: Annotated[str, Meta(description="Path of the page that it opens.", examples=["/projects/ops/incidents/1a2b3c4d"])]
    created_by: Annotated[str, Meta(examples=["root"])]
    created_at: Moment
    expires_at: Moment
    state: Literal["live", "expired", "revoked"]
    opened: Annotated[int, Meta(description="How often it was opened.")]
    last_opened_at: Moment | None
    connection: Annotated[str | None, Meta(description="The connection of a session, if the page is that of one.")] = None

    @property
    def address(self) -> str:
        """The address of the page: its path, with the connection of a session."""
        return self.page if self.connection is None else f"{self.page}?{urlencode({'connection': self.connection})}"


_LINK_COLUMNS = """l.id, l.project, l.page, l.created_by, l.created_at, l.expires_at,
    CASE WHEN l.revoked_at IS NOT NULL OR l.prefix IS NOT NULL AND (t.revoked_at IS NOT NULL OR t.expires_at <= :now) THEN 'revoked'
        WHEN l.expires_at <= :now THEN 'expired' ELSE 'live' END AS state, l.opened, l.last_opened_at, l.connection
    FROM shared_links l LEFT JOIN tokens t USING (prefix)"""


class SharedLinks:
    """The shared links in the file of tokens. It can be shared between threads."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def create(self, page: SharedPage, by: str, prefix: str | None, days: int = SHARED_DAYS) -> tuple[SharedLink, str]:
        """Create a link to a page, and return it with its code. `prefix` is that of the token of its author, None for a command.

        Raises InputError for too many days or links. Also deletes links that ended more than `MAX_SHARED_DAYS` ago.
        """
        if not 1 <= days <= MAX_SHARED_DAYS:
            raise InputError(f"expiresInDays: must be between 1 and {MAX_SHARED_DAYS}", hint="Share it again later.")
        code, identity, now = secrets.token_urlsafe(32), secrets.token_hex(6), self._now()
        created, expires = format_timestamp(now), format_timestamp(now + timedelta(days=days))
        with self._file.transaction() as cursor:
            cursor.execute(
                "DELETE FROM shared_links WHERE expires_at <= ?", [format_timestamp(now - timedelta(days=MAX_SHARED_DAYS))]
            )
            (live,) = cursor.execute(
                "SELECT count(*) FROM shared_links WHERE revoked_at IS NULL AND expires_at > ?", [created]
            ).fetchone()
            if live >= MAX_SHARED_LINKS:
                raise InputError(f"page: there are already {MAX_SHARED_LINKS} live links", hint="Revoke some under Access.")
            cursor.execute(
                "INSERT INTO shared_links (digest, id, project, page, connection, created_by, prefix, created_at, expires_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_digest_secret(code.encode()), identity, *page, by, prefix, created, expires],
            )
        (link,) = self._read("WHERE l.id = :id", id=identity)
        return link, code

    def find(self, code: bytes) -> SharedLink | None:
        """Return the live link with this code; None if it is unknown, malformed, expired or revoked."""
        if not SECRET_FORM.fullmatch(code):
            return None
        return next(
            (link for link in self._read("WHERE l.digest = :digest", digest=_digest_secret(code)) if link.state == "live"), None
        )

    def record_opening(self, identity: str) -> None:
        """Count an opening of a link."""
        with self._file.transaction() as cursor:
            cursor.execute(
                "UPDATE shared_links SET opened = opened + 1, last_opened_at = ? WHERE id = ?",
                [format_timestamp(self._now()), identity],
            )

    def listed(self, project: str | None = None) -> list[SharedLink]:
        """Return the links to pages of one project or all, live ones first, then the newest first."""
        links = self._read("WHERE :project IS NULL OR l.project = :project ORDER BY l.created_at DESC, l.id", project=project)
        return sorted(links, key=lambda link: link.state != "live")

    def revoke(self, identity: str, project: str | None = None) -> bool:
        """Revoke a link to a page of one project or any; return whether it existed."""
        with self._file.transaction() as cursor:
            cursor.execute(
                "UPDATE shared_links SET revoked_at = coalesce(revoked_at, :now) WHERE id = :id AND (:project IS NULL OR project = :project)",
                {"now": format_timestamp(self._now()), "id": identity, "project": project},
            )
            return cursor.rowcount > 0

    def _read(self, condition: str, **values: Any) -> list[SharedLink]:
        rows = self._file.rows(f"SELECT {_LINK_COLUMNS} {condition}", {"now": format_timestamp(self._now()), **values})
        return [
            SharedLink(
                id=identity,
                project=project,
                page=page,
                created_by=by,
                created_at=datetime.fromisoformat(created),
                expires_at=datetime.fromisoformat(expires),
                state=state,
                opened=opened,
                last_opened_at=last and datetime.fromisoformat(last),
                connection=connection,
            )
            for identity, project, page, by, created, expires, state, opened, last, connection in rows
        ]


def mark_of(secret: bytes, page: str) -> str:
    """Return the mark that a page repeats in every unsafe request. It is derived from the cookie and does not disclose it.

    The mark begins with a salt that depends on the page's text, so different pages have different marks. Otherwise an attacker could
    guess a mark from the lengths of compressed pages, because the length reveals repetitions.
    """
    salt = _derive_key(secret, "salt", page)
    return salt + _derive_key(secret, "page", salt)


def is_mark(mark: bytes, secret: bytes) -> bool:
    """Return whether this is the mark of any page for the cookie. The comparison takes constant time."""
    salt = mark[:MARK_PART_LENGTH].decode("latin-1")
    return hmac.compare_digest(mark, (salt + _derive_key(secret, "page", salt)).encode("latin-1"))


def _derive_key(secret: bytes, purpose: str, text: str) -> str:
    return hmac.new(secret, f"driftline {purpose}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[
        :MARK_PART_LENGTH
    ]


def _digest_secret(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A requested change."""

    kind: Literal["operator", "command"]
    name: str
    """The operator, or the account of the machine that ran the command."""
    token: str | None = None
    method: str
    route: str
    project: str | None = None
    subject: str | None = None
    request_id: str | None = None


class AuditLine(Answer, frozen=True):
    """A requested change."""

    id: int
    at: Moment
    kind: Annotated[Literal["operator", "command"], Meta(description="Over HTTP, or by a command on the server's machine.")]
    name: Annotated[str, Meta(description="The operator, or the account of the machine.", examples=["root"])]
    token: Annotated[str | None, Meta(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])]
    method: Annotated[str, Meta(examples=["POST"])]
    route: Annotated[
        str, Meta(description="Template of the address, or the command.", examples=["/api/audit/{project}/rejudge"])
    ]
    project: str | None
    subject: Annotated[str | None, Meta(description="Subject of the change: an id or a name.")]
    request_id: Annotated[str | None, Meta(description="As in X-Request-Id and in the server's log.")]
    status: Annotated[int | None, Meta(description="Status of the HTTP answer.", examples=[202])]
    outcome: Annotated[Outcome | None, Meta(description="null: not finished, or interrupted.")]


class AuditLog:
    """The table `writes` of the file."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def begin(self, write: Write) -> int:
        """Record a requested change, and return the number of its line. Raises StoreError on failure."""
        values = [
            format_timestamp(self._now()),
            write.kind,
            write.name,
            write.token,
            write.method,
            write.route,
            write.project,
            write.subject,
            write.request_id,
        ]
        with self._file.transaction() as cursor:
            cursor.execute(
                "INSERT INTO writes (at, kind, name, token, method, route, project, subject, request_id) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            line = cursor.lastrowid or 0
            if line % PRUNE_INTERVAL == 0:
                oldest = [format_timestamp(self._now() - LINE_RETENTION), line - MAX_LINES]
                cursor.execute("DELETE FROM writes WHERE at < ? OR id <= ?", oldest)
            return line

    def end(self, line: int, outcome: Outcome, status: int | None = None, subject: str | None = None) -> None:
        """Complete a line with the outcome, the HTTP status, and the subject if the line has none."""
        with self._file.transaction() as cursor:
            cursor.execute(
                "UPDATE writes SET outcome = ?, status = ?, subject = coalesce(subject, ?) WHERE id = ?",
                [outcome, status, subject, line],
            )

    def lines(
        self,
        limit: int,
        before: int | None = None,
        *,
        name: str | None = None,
        project: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        signing: bool | None = None,
    ) -> list[AuditLine]:
        """Return lines, newest first. They can be limited to those before a line number, between two times, of a name or of a project.

        `signing` selects sign-ins and sign-outs, or everything else.
        """
        rows = self._file.rows(
            f"SELECT {LINE_COLUMNS} FROM writes WHERE (:before IS NULL OR id < :before) AND (:name IS NULL OR name = :name) "  # noqa: S608 - a literal
            "AND (:project IS NULL OR project = :project) AND (:since IS NULL OR at >= :since) AND (:until IS NULL OR at < :until) "
            "AND (:signing IS NULL OR (route LIKE '/api/audit/sign-%' OR route LIKE '/sign-in/%') = :signing) ORDER BY id DESC LIMIT :limit",
            {
                "before": before,
                "limit": limit,
                "name": name,
                "project": project,
                "since": since and format_timestamp(since),
                "until": until and format_timestamp(until),
                "signing": signing,
            },
        )
        return [AuditLine(number, datetime.fromisoformat(at), *others) for number, at, *others in rows]


class View(Answer, frozen=True):
    """A saved view."""

    name: str
    owner: str
    query: str
    shared: bool


class ViewList(Answer, frozen=True):
    """Your own views, then views shared by others."""

    views: list[View]
    count: int


class SavedViews:
    """The saved views in the file of tokens. It can be shared between threads."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def visible_to(self, owner: str) -> list[View]:
        """Return a person's own views, then views shared by others, each by name."""
        rows = self._file.rows(
            "SELECT name, owner, query, is_shared FROM inbox_views WHERE owner = :owner OR is_shared "
            "ORDER BY owner <> :owner, name COLLATE NOCASE, owner",
            {"owner": owner},
        )
        return [View(name, owner, query, bool(is_shared)) for name, owner, query, is_shared in rows]

    def save(self, view: View) -> None:
        """Save a view, or replace the owner's view of the same name.

        Raises InputError for an invalid name, or one view too many.
        """
        name = validate_view_name(view.name)
        with self._file.transaction() as cursor:
            count = "SELECT count(*) FROM inbox_views WHERE owner = ? AND name <> ?"
            (other_views,) = cursor.execute(count, [view.owner, name]).fetchone()
            if other_views >= MAX_VIEWS:
                raise InputError(f"name: you already have {MAX_VIEWS} views", hint="Delete one you do not need.")
            cursor.execute(
                "INSERT INTO inbox_views VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, name) "
                "DO UPDATE SET query = excluded.query, is_shared = excluded.is_shared",
                [view.owner, name, view.query, int(view.shared), format_timestamp(self._now())],
            )

    def delete(self, owner: str, name: str) -> bool:
        """Delete a view; return whether it existed."""
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM inbox_views WHERE owner = ? AND name = ?", [owner, name])
            return cursor.rowcount > 0


def validate_view_name(name: str) -> str:
    """Return the name of a view, stripped. Raises InputError if it is invalid."""
    stripped = name.strip()
    if not stripped:
        raise InputError("name: is blank", hint="Give the view a name.")
    if len(stripped) > MAX_VIEW_NAME:
        raise InputError(f"name: has {len(stripped)} characters; the limit is {MAX_VIEW_NAME}", hint="Shorten it.")
    if "/" in stripped or not stripped.isprintable():
        raise InputError("name: has a slash or an unprintable character", hint="Use letters, digits and blanks.")
    return stripped


class SharedFile:
    """An open SQLite file, created if missing. It can be shared between threads. Raises StoreError if the file cannot be used.

    Reads have a separate connection, so that they never wait for a writer in this process or another one.
    """

    def __init__(self, path: Path, migrations: Migrations) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reading_lock = threading.Lock()
        with self._wrap_errors():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self._connection = _connect(path)
        try:
            with self._wrap_errors():
                self._migrate(migrations)
                self._reading = _connect(path)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._reading_lock, self._lock:
            self._reading.close()
            self._connection.close()

    def rows(self, statement: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a read-only statement over committed data."""
        with self._reading_lock, self._wrap_errors():
            return self._reading.execute(statement, values).fetchall()

    def version(self) -> int:
        """Return a number that changes with every commit of any process. It is far cheaper than reading a row."""
        with self._reading_lock, self._wrap_errors():
            (version,) = self._reading.execute("PRAGMA data_version").fetchone()
            return int(version)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        """Open a cursor whose changes are committed together."""
        with self._lock, self._wrap_errors(), contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def _migrate(self, migrations: Migrations) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        with self.transaction() as cursor:
            (version,) = cursor.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise StoreError(f"{self.path}: written by a newer Driftline", hint="Upgrade, or use that version.")
            for statements in migrations[version:]:
                for statement in statements:
                    cursor.execute(statement)
            cursor.execute(f"PRAGMA user_version = {len(migrations)}")

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the system as StoreError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path}: {error}", hint="Check the path, its permissions and that it holds tokens."
            ) from error


def copy_shared(source: Path, target: Path) -> None:
    """Copy a consistent snapshot of a shared file, even while it is in use. Raises StoreError if it cannot be read."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connect(source)) as reading, contextlib.closing(_connect(target)) as writing:
            reading.backup(writing)
    except sqlite3.Error as error:
        raise StoreError(f"{source}: {error}", hint="Check its permissions and that it holds tokens.") from error


def format_timestamp(moment: datetime) -> str:
    """Format a time as text that sorts by time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
