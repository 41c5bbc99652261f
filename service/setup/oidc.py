"""Signing in at an identity provider by OpenID Connect: the authorization code flow with PKCE, state and nonce, by Authlib.

1. An attempt is a random secret in a cookie of the browser. State, nonce and code verifier are derived from it, so the server keeps
   nothing, an answer of the provider works only in the browser that asked for it, and without the cookie not a second time.
2. The ID token must be signed by a key of the provider with an asymmetric algorithm, and be issued for this client, this nonce and
   this time. Clocks may differ by a minute.
3. Rights follow from the groups of the person and the setting `oidc_roles`. Groups that are not in the ID token are read from the
   provider's endpoint for user information.
4. No token of the provider outlives the sign-in, and no text of the provider is logged or shown: it could contain secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from schemas.bounds import NAME
from schemas.errors import DriftlineError, InputError, SettingsError
from schemas.lazy import httpx2
from service.setup.access import Grants, RoleMapping, Scope, grants_of, scopes_of_role
from service.setup.settings import Settings
from service.text.links import LOOPBACK_NAMES

CLOCK_SKEW = 60
"""Seconds by which the provider's clock may differ."""
CALL_SECONDS = 10.0
"""Time limit of a call to the provider."""
METADATA_SECONDS = 3600.0
"""How long the provider's addresses and keys are cached."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
Parsed = TypeVar("Parsed")
log = logging.getLogger(__name__)


class SignInRefusedError(DriftlineError):
    """The provider's answer does not sign anyone in; the message is for the person."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A person whom the provider has identified, and the rights of the person's groups."""

    issuer: str
    subject: str
    name: str
    """A name to derive the operator's from."""
    grants: Grants


class Attempt:
    """An attempt to sign in, from the secret in its cookie."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.state, self.nonce, self.verifier = (self._derive(purpose) for purpose in ("state", "nonce", "verifier"))

    @classmethod
    def begin(cls) -> Attempt:
        """Return a new attempt."""
        return cls(secrets.token_urlsafe(32))

    def _derive(self, purpose: str) -> str:
        digest = hmac.new(self.secret.encode(), f"driftline oidc {purpose}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(kw_only=True)
class IdentityProvider:
    """The provider of an installation. It can be shared between requests."""

    issuer: str
    client_id: str
    client_secret: str
    """Empty for a public client."""
    scope: str
    groups_claim: str
    roles: RoleMapping
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the provider says about itself: its addresses."""
    keys: dict[str, Any] = field(default_factory=dict)
    """The provider's public keys (JWK set)."""
    _loaded: float = -METADATA_SECONDS

    async def authorization_url(self, attempt: Attempt, redirect_uri: str) -> str:
        """Return the address at the provider where a person signs in. Raises SignInRefusedError if the provider does not answer."""
        async with self._client(redirect_uri) as client:
            await self._load_metadata(client)
            url, _ = client.create_authorization_url(
                self.metadata["authorization_endpoint"],
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.verifier,
            )
        return str(url)

    async def identify(self, attempt: Attempt, state: str, code: str, redirect_uri: str) -> Identity:
        """Exchange the code of the provider's answer for the person's identity. Raises SignInRefusedError with the reason."""
        if not hmac.compare_digest(state.encode(), attempt.state.encode()):
            raise SignInRefusedError("this sign-in was not begun in this browser, or was used already")
        from authlib.common.errors import AuthlibBaseError  # noqa: PLC0415 - an optional package

        async with self._client(redirect_uri) as client:
            await self._load_metadata(client)
            try:
                token = await client.fetch_token(self.metadata["token_endpoint"], code=code, code_verifier=attempt.verifier)
            except (AuthlibBaseError, httpx2.HTTPError, TypeError, ValueError) as error:
                raise _refuse("the provider did not accept the answer, which works once and for a short time", error) from None
            claims = await self._read_id_token(client, token, attempt.nonce)
            if self.groups_claim not in claims and "userinfo_endpoint" in self.metadata:
                claims = claims | await self._read_user_info(client, token, claims["sub"])
        groups = claims.get(self.groups_claim) or []
        names = [groups] if isinstance(groups, str) else [name for name in groups if isinstance(name, str)]
        name = claims.get("preferred_username") or claims.get("email") or claims["sub"]
        return Identity(self.issuer, claims["sub"], str(name).partition("@")[0], grants_of(names, self.roles))

    def _client(self, redirect_uri: str) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client  # noqa: PLC0415 - an optional package

        methods = self.metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        return AsyncOAuth2Client(
            self.client_id,
            self.client_secret or None,
            scope=self.scope,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            token_endpoint_auth_method=method if self.client_secret else "none",
            timeout=CALL_SECONDS,
            follow_redirects=False,
        )

    async def _load_metadata(self, client: Any, *, force: bool = False) -> None:
        """Read the provider's addresses and keys, unless they were read within the hour."""
        if not force and time.monotonic() - self._loaded < METADATA_SECONDS:
            return
        address = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            metadata = await _get_object(client, address)
            _require(metadata["issuer"] == self.issuer, "the metadata names another issuer than DRIFTLINE_OIDC_ISSUER")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                validate_provider_address(metadata[name].partition("?")[0])
            keys = await _get_object(client, metadata["jwks_uri"])
        except (httpx2.HTTPError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise _refuse("the identity provider cannot be reached, or is not set up; see the server's log", error) from None
        self.metadata, self.keys, self._loaded = metadata, keys, time.monotonic()

    async def _read_id_token(self, client: Any, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError  # noqa: PLC0415 - an optional package

        try:
            try:
                return self.validate_id_token(token, nonce)
            except (InvalidKeyIdError, BadSignatureError):  # the provider may have new keys
                await self._load_metadata(client, force=True)
                return self.validate_id_token(token, nonce)
        except (JoseError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise _refuse("the provider's answer is not valid for this sign-in", error) from None

    def validate_id_token(self, token: Mapping[str, Any], nonce: str, now: int | None = None) -> dict[str, Any]:
        """Return the claims of an ID token. Raises an error of joserfc or Authlib unless it is valid for this client and nonce."""
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415 - an optional package
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        keys = KeySet.import_key_set(self.keys)  # type: ignore[arg-type]
        decoded = jwt.decode(token["id_token"], keys, algorithms=list(ALGORITHMS))
        options = {
            "iss": {"essential": True, "value": self.issuer},
            "aud": {"essential": True, "value": self.client_id},
            "sub": {"essential": True},
            "exp": {"essential": True},
            "iat": {"essential": True},
            "nonce": {"essential": True, "value": nonce},
        }
        params = {"nonce": nonce, "client_id": self.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(decoded.claims, decoded.header, options, params)
        claims.validate(now=now, leeway=CLOCK_SKEW)
        _require(isinstance(claims["sub"], str) and bool(claims["sub"]), "sub is not a text")
        return dict(claims)

    async def _read_user_info(self, client: Any, token: Mapping[str, Any], subject: str) -> dict[str, Any]:
        try:
            validate_provider_address(self.metadata["userinfo_endpoint"])
            headers = {"Authorization": f"Bearer {token['access_token']}"}
            claims = await _get_object(client, self.metadata["userinfo_endpoint"], headers)
            _require(claims.get("sub") == subject, "the user information is about someone else")
        except (httpx2.HTTPError, KeyError, TypeError, ValueError) as error:
            raise _refuse("the provider did not give your groups", error) from None
        return claims


async def _get_object(client: Any, address: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    answer = await client.request("GET", address, headers=headers, withhold_token=True)
    answer.raise_for_status()
    document = answer.json()
    if not isinstance(document, dict):
        raise TypeError("the answer is not a JSON object")
    return document


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _refuse(message: str, error: Exception) -> SignInRefusedError:
    """Return the refusal, and log the kind of the error. Its text may quote a code or a token."""
    reason = str(error) if type(error) is ValueError else type(error).__name__
    log.warning("a sign-in at the identity provider failed: %s (%s)", message, reason)
    return SignInRefusedError(message)


def validate_provider_address(address: str) -> None:
    """Raise ValueError unless an identity provider's address is https, or of this machine."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES):
        raise ValueError("must begin with https://; http:// is only for this machine")
    if not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must be an address without credentials, query and fragment")


def parse_role_mapping(text: str) -> RoleMapping:
    """Parse roles by group. Raises ValueError with a description of the problem."""
    mapping: list[tuple[str, str | None, frozenset[Scope]]] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        group, _, grant = entry.rpartition("=")
        role, at, project = grant.strip().partition("@")
        if not group.strip() or (at and not re.fullmatch(NAME, project)):
            raise ValueError(f"{entry[:64]!r} is not like group=role or group=role@project")
        try:
            mapping.append((group.strip(), project or None, scopes_of_role(role)))
        except InputError as error:
            raise ValueError(f"{entry[:64]!r}: {error}. {error.hint}") from None
    if not mapping:
        raise ValueError("names no group")
    return tuple(mapping)


def open_provider(settings: Settings) -> IdentityProvider | None:
    """Return the identity provider of the settings; None without one. Raises SettingsError for what is missing."""
    if settings.oidc_issuer is None:
        return None
    _parse(settings, "oidc_issuer", validate_provider_address)
    for name in ("oidc_client_id", "oidc_roles"):
        if getattr(settings, name) is None:
            raise SettingsError(f"DRIFTLINE_{name.upper()}: is missing", hint="DRIFTLINE_OIDC_ISSUER needs it.")
    roles = _parse(settings, "oidc_roles", parse_role_mapping)
    if importlib.util.find_spec("authlib") is None:
        raise SettingsError("DRIFTLINE_OIDC_ISSUER: needs the package authlib", hint="pip install 'driftline[oidc]'")
    secret = settings.oidc_client_secret.reveal() if settings.oidc_client_secret else ""
    return IdentityProvider(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id or "",
        client_secret=secret,
        scope=settings.oidc_scope,
        groups_claim=settings.oidc_groups_claim,
        roles=roles,
    )


def _parse(settings: Settings, name: str, parse: Callable[[str], Parsed]) -> Parsed:
    try:
        return parse(getattr(settings, name))
    except ValueError as error:
        raise SettingsError(f"DRIFTLINE_{name.upper()}: {error}", hint="Correct the variable.") from None
