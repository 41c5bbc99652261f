"""Signing in to the pages: a random cookie that stands for a token for a limited time.

1. The cookie is not a token: it is useless without this file, expires, and ends with its token.
2. Only its SHA-256 is stored.
3. Browsers send cookies by themselves, so a writing request must prove that one of our pages made it, by repeating a mark that only
   our pages can read.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from service.setup.access.shared_file import SharedFile, stamped
from service.text.answers import Answer, Moment

LASTS = timedelta(hours=12)
"""Duration of a sign-in."""
_HALF = 32
"""Characters of a salt, and of the digest made with it."""
_SECRET = re.compile(rb"[A-Za-z0-9_-]{43}")


class SignIn(Answer, frozen=True):
    """An active sign-in."""

    name: Annotated[str, Meta(description="The operator.", examples=["root"])]
    token: Annotated[str, Meta(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])]
    created_at: Moment
    expires_at: Annotated[Moment, Meta(description="When it ends by itself.")]


class SignIns:
    """The sign-ins in the file of tokens. It can be shared between threads."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def begin(self, prefix: str) -> str:
        """Sign in with the token of this prefix; return the cookie. Also deletes ended sign-ins."""
        secret = secrets.token_urlsafe(32)
        now = self._now()
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM sign_ins WHERE expires_at <= ?", [stamped(now)])
            cursor.execute(
                "INSERT INTO sign_ins VALUES (?, ?, ?, ?)",
                [_digest(secret.encode()), prefix, stamped(now), stamped(now + LASTS)],
            )
        return secret

    def prefix_of(self, secret: bytes) -> str | None:
        """Return the token prefix behind a cookie; None if the cookie is unknown, malformed or ended."""
        if not _SECRET.fullmatch(secret):
            return None
        values = [_digest(secret), stamped(self._now())]
        rows = self._file.rows("SELECT prefix FROM sign_ins WHERE digest = ? AND expires_at > ?", values)
        return str(rows[0][0]) if rows else None

    def going_on(self) -> list[SignIn]:
        """Return the sign-ins that have not ended and whose token is live, newest first."""
        rows = self._file.rows(
            "SELECT t.name, 'dl_' || s.prefix, s.created_at, s.expires_at FROM sign_ins s JOIN tokens t USING (prefix) "
            "WHERE s.expires_at > :now AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > :now) "
            "ORDER BY s.created_at DESC, s.rowid DESC",
            {"now": stamped(self._now())},
        )
        return [SignIn(name, token, *map(datetime.fromisoformat, times)) for name, token, *times in rows]

    def end_all(self, name: str) -> int:
        """End every sign-in of an operator; return the number of active ones."""
        before = sum(one.name == name for one in self.going_on())
        with self._file.transaction() as cursor:
            cursor.execute(
                "DELETE FROM sign_ins WHERE prefix IN (SELECT prefix FROM tokens WHERE kind = 'operator' AND name = ?)", [name]
            )
        return before

    def end(self, secret: bytes) -> None:
        """Sign out."""
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM sign_ins WHERE digest = ?", [_digest(secret)])


def mark_of(secret: bytes, page: str) -> str:
    """Return the mark that a page repeats in every writing request: derived from the cookie without disclosing it.

    It begins with a salt that depends on the page's text. The length of a compressed page reveals repetitions in it, so no two different
    pages share a mark that could be guessed from their lengths.
    """
    salt = _keyed(secret, "salt", page)
    return salt + _keyed(secret, "page", salt)


def is_mark(given: bytes, secret: bytes) -> bool:
    """Tell whether this is a mark derived from the cookie, for any page; compared in constant time."""
    salt = given[:_HALF].decode("latin-1")
    return hmac.compare_digest(given, (salt + _keyed(secret, "page", salt)).encode("latin-1"))


def _keyed(secret: bytes, purpose: str, text: str) -> str:
    return hmac.new(secret, f"driftline {purpose}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:_HALF]


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
