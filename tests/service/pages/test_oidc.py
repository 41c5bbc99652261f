"""Signing in at an identity provider: who gets in, with which rights, and what is refused."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from support.api_server import Call, Tokens
from support.identity_providers import CLIENT, SECRET, driftline_side, identity_provider, sign_in_at_provider
from support.pages import COOKIE, HTML, cookie, from_page, signed_in

from schemas.errors import InputError, SettingsError
from service.read.incidents import people_of
from service.setup.access import AccessStore
from service.setup.oidc import IdentityProvider, open_provider
from service.setup.settings import load_settings
from service.web.bounds import ApiSettings

OURS = "http://localhost:8321"
ANSWER = f"{OURS}/sign-in/oidc/callback"
ATTEMPT = f"{COOKIE}-oidc"
QUERY = "/api/audit/query"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    """A running provider."""
    with identity_provider(tmp_path_factory.mktemp("provider"), ANSWER) as started:
        yield started


@pytest.fixture
def settings(provider: IdentityProvider) -> ApiSettings:
    """Settings with the provider."""
    return ApiSettings(identity_provider=provider)


def begin(call: Call, then: str = "/") -> tuple[str, str]:
    """Begin to sign in; return the address at the provider and the attempt's cookie."""
    answer = call("GET", "/sign-in/oidc", params={"next": then}, headers=HTML)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"], SimpleCookie(answer.headers["set-cookie"])[ATTEMPT].value


def finish(call: Call, address: str, attempt: str) -> httpx2.Response:
    """Follow the provider's answer."""
    return call("GET", address.removeprefix(OURS), headers={"cookie": f"{ATTEMPT}={attempt}", **HTML})


def sign_in(call: Call, login: str, then: str = "/") -> httpx2.Response:
    """Sign in at the provider; return our answer to it."""
    address, attempt = begin(call, then)
    return finish(call, sign_in_at_provider(address, login, ANSWER), attempt)


def signed_in_cookie(answer: httpx2.Response) -> str:
    """Return the cookie of a sign-in."""
    assert answer.status_code == 303, answer.text
    cookies = SimpleCookie()
    for value in answer.headers.get_list("set-cookie"):
        cookies.load(value)
    assert cookies[ATTEMPT].value == ""
    return cookies[COOKIE].value


def test_groups_decide_what_a_person_may_do(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Rights are those of the groups at each sign-in; the audit log and the list of sign-ins name the person, and an admin ends it."""
    assert "Sign in with your organization" in call("GET", "/sign-in", headers=HTML).text
    answer = sign_in(call, "ada+support-leads,web-analysts", "/projects/ops?window=7d")
    value = signed_in_cookie(answer)
    assert answer.headers["location"] == "/projects/ops?window=7d"
    person = access.signed_in(value.encode())
    assert person is not None
    assert (person[0].name, person[0].project, person[0].scopes) == ("ada", "ops", {"read", "review"})
    assert person[0].projects_with("query") == {"web"}

    assert [call("GET", f"/projects/{name}", headers=cookie(value)).status_code for name in ("ops", "web", "dark")] == [
        200,
        200,
        403,
    ]
    assert call("POST", QUERY, headers=from_page(value), json={"sql": "SELECT 1"}).status_code == 403
    switched = call("POST", "/api/audit/sign-in/project?project=web", headers=from_page(value), json={})
    assert switched.status_code == 204, switched.text
    assert call("POST", "/api/audit/sign-in/project?project=dark", headers=from_page(value), json={}).status_code == 403
    page = call("GET", "/sql", headers=cookie(value))
    assert page.status_code == 200
    assert '<summary title="The project that lists show">web</summary>' in page.text
    assert call("GET", "/admin/access", headers=cookie(value)).status_code == 403

    listed = call("GET", "/api/audit/operators?project=web", tokens.root).json()["operators"]
    assert [(one["name"], one["grants"]) for one in listed] == [("ada", {"ops": ["read", "review"], "web": ["read", "query"]})]
    assert people_of(access, "web") == ["ada", "root"]
    assert (
        "Review in ops; Query in web"
        in call("GET", "/admin/access/people/ada", headers=cookie(signed_in(call, tokens.root))).text
    )
    assert [sign_in.name for sign_in in access.sign_ins.active()] == ["root", "ada"]
    lines = call("GET", "/api/audit/audit-log?name=ada", tokens.root).json()["lines"]
    assert [(line["route"], line["outcome"]) for line in lines][-1] == ("/sign-in/oidc/callback", "done")
    assert call("POST", "/api/audit/operators/ada/sign-out", tokens.root, json={}).json()["ended"] == 1
    assert access.signed_in(value.encode()) is None


@pytest.mark.usefixtures("tokens")
def test_a_name_of_somebody_else_is_not_taken_over(call: Call, access: AccessStore) -> None:
    """The identity is the issuer's subject; the audit log must not mistake it for the operator of a token."""
    names = [access.signed_in(signed_in_cookie(sign_in(call, login)).encode()) for login in ("root+readers", "root+readers")]

    assert [person and person[0].name for person in names] == ["root-2", "root-2"]
    assert [person and person[0].project for person in names] == [None, None]
    with pytest.raises(InputError, match="identity provider"):
        access.rotate("operator", "root-2")


def test_who_has_no_group_with_a_role_is_refused(call: Call, access: AccessStore, provider: IdentityProvider) -> None:
    """The page says why, and rights from an earlier sign-in end."""
    value = signed_in_cookie(sign_in(call, "bea+platform"))
    access.admit(provider.issuer, "cleo+interns", "cleo", {None: frozenset({"read"})})
    refused = sign_in(call, "cleo+interns")

    assert refused.status_code == 403
    assert "none of your groups has a role here" in refused.text
    assert COOKIE + "=" not in refused.headers["set-cookie"].replace(ATTEMPT, "")
    assert access.signed_in(value.encode()) is not None
    assert [tokens[-1].state for holder, tokens in access.holders("operator") if holder.name == "cleo"] == ["revoked"]


def test_an_answer_works_once_and_only_in_the_browser_that_asked(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    """A stolen or replayed answer signs nobody in, and no code and no secret is logged."""
    caplog.set_level(logging.DEBUG, "service")
    address, attempt = begin(call)
    answer = sign_in_at_provider(address, "dora+platform", ANSWER)
    _, other = begin(call)
    code = parse_qs(urlsplit(answer).query)["code"][0]
    refusals = [
        finish(call, answer, other),
        call("GET", answer.removeprefix(OURS), headers=HTML),
        finish(call, answer.replace("state=", "state=x"), attempt),
        finish(call, answer.replace("code=", "code=x"), attempt),
        finish(call, f"{ANSWER}?iss=https%3A%2F%2Felsewhere.example&state=x&code=x", attempt),
        finish(call, f"{ANSWER}?error=%3Cscript%3Eaccess_denied", attempt),
    ]
    assert [refusal.status_code for refusal in refusals] == [403] * 6
    assert "(scriptaccess_denied)" in refusals[-1].text
    signed_in_cookie(finish(call, answer, attempt))
    assert finish(call, answer, attempt).status_code == 403
    assert [text for text in (code, SECRET, attempt.split(".")[0]) if text in caplog.text] == []


@pytest.mark.parametrize("then", ["https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example"])
def test_the_way_back_stays_on_this_server(call: Call, then: str) -> None:
    """A link to the sign-in must not lead to a copy of it."""
    address, attempt = begin(call, then)

    assert attempt.endswith(".%2F")
    query = parse_qs(urlsplit(address).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == [ANSWER]


KEY, OTHER_KEY = RSAKey.generate_key(2048, {"kid": "k"}), RSAKey.generate_key(2048, {"kid": "k"})
NOW = int(time.time())
COMPLETE = {"oidc_issuer": "http://localhost:1", "oidc_client_id": "c"}
"""Settings that lack only the roles."""
CLAIMS = {"iss": "https://id.example", "sub": "ada", "aud": CLIENT, "exp": NOW + 300, "iat": NOW, "nonce": "n"}


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        ({"exp": NOW - 30}, True),
        ({"iat": NOW + 30}, True),
        ({"aud": [CLIENT]}, True),
        ({"exp": NOW - 90}, False),
        ({"iat": NOW + 90}, False),
        ({"nbf": NOW + 90}, False),
        ({"nonce": "other"}, False),
        ({"nonce": None}, False),
        ({"aud": "other"}, False),
        ({"aud": [CLIENT, "other"]}, False),
        ({"aud": [CLIENT, "other"], "azp": "other"}, False),
        ({"iss": "https://id.example/"}, False),
        ({"sub": ""}, False),
        ({"sub": None}, False),
        ({"exp": None}, False),
    ],
)
def test_an_id_token_is_for_this_client_attempt_and_time(changes: dict[str, object], *, is_valid: bool) -> None:
    """Clocks may differ by a minute."""
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}

    assert accepts(jwt.encode({"alg": "RS256", "kid": "k"}, claims, KEY)) is is_valid


def test_an_id_token_is_signed_by_the_provider() -> None:
    """Neither another key, nor none, nor the client's secret will do."""
    assert not accepts(jwt.encode({"alg": "RS256", "kid": "k"}, CLAIMS, OTHER_KEY))
    valid = jwt.encode({"alg": "RS256", "kid": "k"}, CLAIMS, KEY)
    assert not accepts("eyJhbGciOiJub25lIn0." + valid.split(".")[1] + ".")


def accepts(id_token: str) -> bool:
    """Return whether an ID token signs somebody in."""
    provider = driftline_side("https://id.example")
    provider.keys = dict(KeySet([KEY]).as_dict(private=False))
    try:
        return provider.validate_id_token({"id_token": id_token}, "n", NOW)["sub"] == "ada"
    except Exception:  # noqa: BLE001 - any error refuses
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"oidc_issuer": "http://id.example"}, "OIDC_ISSUER: must begin with https://"),
        ({"oidc_issuer": "https://user:x@id.example"}, "OIDC_ISSUER: must be an address without"),
        ({"oidc_issuer": "https://id.example"}, "OIDC_CLIENT_ID: is missing"),
        (COMPLETE, "OIDC_ROLES: is missing"),
        ({**COMPLETE, "oidc_roles": "platform"}, "'platform' is not like group=role"),
        ({**COMPLETE, "oidc_roles": "platform=king"}, "there is no role 'king'"),
        ({**COMPLETE, "oidc_roles": "platform=admin@"}, "is not like group=role"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, str], message: str) -> None:
    """The server does not start with a sign-in that cannot work."""
    with pytest.raises(SettingsError, match=message):
        open_provider(load_settings(**options))


def test_without_the_extra_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most installations need no identity provider, so the package is not installed with the others."""
    settings = load_settings(**COMPLETE, oidc_roles="platform=admin")
    assert open_provider(settings) is not None
    monkeypatch.setitem(sys.modules, "authlib", None)
    with pytest.raises(SettingsError) as refused:
        open_provider(settings)
    assert refused.value.hint == "pip install 'driftline[oidc]'"


def test_refused_answers_are_counted_by_address(call: Call) -> None:
    """Each may cost a call to the provider."""
    statuses = [call("GET", "/sign-in/oidc/callback?code=x&state=x", headers=HTML).status_code for _ in range(12)]

    assert set(statuses[:9]) == {403}
    assert statuses[-1] == 429
