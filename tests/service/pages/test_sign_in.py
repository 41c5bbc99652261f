"""Signing in: a cookie that stands for a token for a limited time and cannot be used by other sites."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import Call, Tokens
from support.builders import incident
from support.pages import COOKIE, HTML, SIGN_IN, SIGN_OUT, cookie, from_page, projects_of, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from service.pages.viewing import local_path
from service.server.server_lifecycle import api_settings
from service.setup.access import SIGN_IN_DURATION, AccessStore, Holder, mark_of
from service.setup.settings import Settings
from service.text.links import read_shared_page
from service.web.authentication import PAGE_MARK, cookie_name
from service.web.bounds import ApiSettings

SHARED_LINKS = "/api/audit/shared-links"
INCIDENT = "/projects/ops/incidents/i1"


def looks(call: Call, value: str) -> httpx2.Response:
    """Return the fleet page as a browser requests it."""
    return call("GET", "/", headers=cookie(value))


def test_a_page_without_a_sign_in_redirects_there_and_back(call: Call) -> None:
    """A link in an alert must reach its target with one sign-in."""
    answer = call("GET", "/?q=a&sort=name", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=%2F%3Fq%3Da%26sort%3Dname"
    page = call("GET", answer.headers["location"], headers=HTML)
    assert page.status_code == 200
    assert 'data-then="/?q=a&amp;sort=name"' in page.text


def test_the_cookie_is_restricted_to_the_browser(call: Call, tokens: Tokens) -> None:
    """No script reads it, no other site sends it with a write, and it is not the token."""
    answer = call("POST", SIGN_IN, tokens.root, json={})
    (crumb,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert crumb["httponly"] is True
    assert crumb["samesite"].lower() == "lax"
    assert crumb["path"] == "/"
    assert crumb["max-age"] == str(int(SIGN_IN_DURATION.total_seconds()))
    assert tokens.root not in answer.headers["set-cookie"]
    assert looks(call, crumb.value).status_code == 200


def test_a_link_signs_in_once_and_only_for_minutes(call: Call, access: AccessStore, tokens: Tokens) -> None:
    """A link stays in chats and terminals, so it must be worthless once it was used, or soon."""
    code = access.sign_ins.create_link(tokens.root)
    answer = call("POST", SIGN_IN, headers={"authorization": f"Link {code}"}, json={})
    (crumb,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert looks(call, crumb.value).status_code == 200
    again = call("POST", SIGN_IN, headers={"authorization": f"Link {code}"}, json={})
    assert (again.status_code, again.json()["error"]) == (401, "the link was used or has expired; sign in with a token")
    other = access.sign_ins.create_link(tokens.root)
    assert call("GET", "/api/audit/projects", headers={"authorization": f"Link {other}"}).status_code == 401
    access.revoke("operator", "root")
    assert call("POST", SIGN_IN, headers={"authorization": f"Link {other}"}, json={}).status_code == 401


@pytest.fixture
def shared(call: Call, tokens: Tokens, store: Store) -> str:
    """Return the code of a link to an incident's page."""
    put(store, "incidents", [incident(), incident(incident_id="i2", project="web")])
    answer = call("POST", SHARED_LINKS, tokens.root, json={"page": INCIDENT})
    assert answer.status_code == 201
    assert answer.json()["link"]["page"] == INCIDENT
    return str(answer.json()["path"].partition("#")[2])


def open_link(call: Call, code: str) -> httpx2.Response:
    """Return the answer to the code of a link, as the page of the sign-in sends it."""
    return call("POST", SIGN_IN, headers={"authorization": f"Link {code}"}, json={})


def look_as_guest(call: Call, path: str, code: str, method: str = "GET") -> httpx2.Response:
    """Return the answer to a request with the cookie of a shared link, even for a path to which browsers do not send it."""
    return call(method, path, headers={"cookie": f"driftline-shared-8321={code}", **HTML})


def test_a_shared_link_opens_its_page_and_nothing_else(call: Call, shared: str, access: AccessStore) -> None:
    """A link leaves the installation, so whoever has it, and whatever they send, may read one page and change nothing."""
    answer = open_link(call, shared)
    (crumb,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (answer.status_code, answer.headers["location"], crumb["path"]) == (204, INCIDENT, INCIDENT)
    assert (crumb["httponly"], crumb["samesite"]) == (True, "strict")
    page = look_as_guest(call, INCIDENT, crumb.value)
    assert page.status_code == 200
    assert "Shared by root" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert not re.findall(r"<form|<a [^>]*href=\"/|driftline-page", page.text)
    assert page.text.count(shared) == 0
    others = (
        "/",
        "/incidents",
        "/projects/ops",
        "/projects/ops/incidents",
        "/projects/web/incidents/i2",
        f"{INCIDENT}/",
        "/admin",
    )
    assert {look_as_guest(call, path, shared).status_code for path in others} <= {303, 404}
    assert look_as_guest(call, f"{INCIDENT}?connection=north", shared).status_code == 303
    for path in (INCIDENT, "/incidents", "/incidents/views"):
        assert look_as_guest(call, path, shared, "POST").status_code in {303, 401, 403, 405, 415}
    for path in ("/api/audit/projects", "/api/audit/ops/incidents/i1", "/api/audit/shared-links", "/metrics"):
        assert look_as_guest(call, path, shared).status_code in {401, 403} or path == "/metrics"
        assert call("GET", path, headers={"authorization": f"Link {shared}"}).status_code in {401, 403}
    assert call("GET", "/api/audit/projects", headers={"cookie": f"{COOKIE}={shared}"}).status_code == 401
    assert access.shared_links.listed()[0].opened == 1


def test_a_shared_link_ends_when_it_is_revoked_or_expires_and_with_the_token_of_its_author(
    call: Call, tokens: Tokens, shared: str, access: AccessStore, tmp_path: Path
) -> None:
    """A person who is gone, or a page that should not have been shared, leaves no open door, not even to opened browsers."""
    (link,) = call("GET", SHARED_LINKS, tokens.root).json()["links"]
    elsewhere = access.add(Holder("operator", "elsewhere", "web", None, frozenset({"read", "review"})))
    assert call("DELETE", f"{SHARED_LINKS}/{link['id']}", elsewhere).status_code == 404
    assert look_as_guest(call, INCIDENT, shared).status_code == 200
    assert call("DELETE", f"{SHARED_LINKS}/{link['id']}", tokens.root).status_code == 204
    assert look_as_guest(call, INCIDENT, shared).status_code == 303
    assert open_link(call, shared).status_code == 401
    other = (
        call("POST", SHARED_LINKS, tokens.root, json={"page": INCIDENT, "expiresInDays": 30}).json()["path"].partition("#")[2]
    )
    assert look_as_guest(call, INCIDENT, other).status_code == 200
    access.revoke("operator", "root")
    assert look_as_guest(call, INCIDENT, other).status_code == 303
    now = [datetime(2026, 10, 1, tzinfo=UTC)]
    with AccessStore(tmp_path / "links.access", lambda: now[0]) as store:
        link, code = store.shared_links.create(read_shared_page(INCIDENT), "ann", None)
        now[0] += timedelta(days=7, seconds=-1)
        assert store.shared_links.find(code.encode()) == link
        now[0] += timedelta(seconds=1)
        assert store.shared_links.find(code.encode()) is None
        assert [entry.state for entry in store.shared_links.listed()] == ["expired"]
    assert code.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("links.access*"))


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("/projects/ops/sessions/a%2Fb?connection=north", 201),
        ("/projects/ops", 400),
        ("/projects/ops/incidents/i1/../../web", 400),
        ("//elsewhere.example/projects/ops/runs/run_1", 400),
        ("https://elsewhere.example/projects/ops/runs/run_1", 400),
        ("/api/audit/ops/incidents/i1", 400),
        ("/projects/web/incidents/i2", 403),
    ],
)
def test_people_share_pages_of_their_projects_only(call: Call, access: AccessStore, page: str, status: int) -> None:
    """A link has no more rights than its author, and leads to no other server."""
    reviewer = access.add(Holder("operator", "sharer", "ops", None, frozenset({"read", "review"})))
    assert call("POST", SHARED_LINKS, reviewer, json={"page": page}).status_code == status
    reader = access.add(Holder("operator", "looker", "ops", None, frozenset({"read"})))
    assert call("POST", SHARED_LINKS, reader, json={"page": INCIDENT}).status_code == 403


def test_guessed_links_are_counted_like_wrong_tokens_and_no_code_is_logged(
    call: Call, shared: str, settings: ApiSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """An address that tries codes has to wait, and a log that is read by others must not open pages."""
    caplog.set_level("INFO")
    assert open_link(call, shared).status_code == 204
    assert look_as_guest(call, INCIDENT, shared).status_code == 200
    assert not [record for record in caplog.records if shared in f"{record.getMessage()} {record.__dict__}"]
    statuses = [open_link(call, "x" * 43).status_code for _ in range(settings.max_failures + 1)]
    assert statuses == [401] * settings.max_failures + [429]


def test_an_https_address_makes_the_cookie_secure(call: Call, tokens: Tokens) -> None:
    """Behind TLS, the cookie must never be sent unencrypted."""
    assert "secure" in call("POST", f"https://localhost:8321{SIGN_IN}", tokens.root, json={}).headers["set-cookie"].lower()
    assert "secure" not in call("POST", SIGN_IN, tokens.root, json={}).headers["set-cookie"].lower()


class TestBehindAProxyThatSpeaksTls:
    """The server under its public address, https://audit.example:8443; the proxy hands on plain HTTP."""

    @pytest.fixture
    def settings(self) -> ApiSettings:
        """The settings that the server derives from that address."""
        return api_settings(Settings(public_url="https://Audit.example:8443/"), [])

    @pytest.mark.parametrize("host", ["audit.example:8443", "AUDIT.example:8443"])
    def test_the_cookie_is_for_encrypted_calls_to_this_host(self, call: Call, tokens: Tokens, host: str) -> None:
        """The browser must not send it unencrypted, and no other host of the domain can set one of its name."""
        set_cookie = call("POST", SIGN_IN, tokens.root, json={}, headers={"host": host}).headers["set-cookie"]
        name, _, attributes = set_cookie.partition("=")
        assert name == "__Host-driftline-8321"
        assert "; secure" in attributes.lower()
        value = attributes.partition(";")[0]
        assert call("GET", "/", headers={"host": host, "cookie": f"{name}={value}", **HTML}).status_code == 200
        assert call("GET", "/", headers={"host": host, "cookie": f"{COOKIE}={value}", **HTML}).status_code == 303

    def test_on_the_machine_itself_one_signs_in_without(self, call: Call, tokens: Tokens) -> None:
        """Browsers keep no secure cookie that came unencrypted."""
        value = signed_in(call, tokens.root)
        assert looks(call, value).status_code == 200


def test_two_servers_on_one_machine_keep_separate_sign_ins(call: Call, tokens: Tokens) -> None:
    """Browsers share cookies between the ports of a host."""
    value = signed_in(call, tokens.root)
    other = cookie_name(8400, encrypted=False)
    assert call("GET", "/", headers={"cookie": f"{other}=abc; {COOKIE}={value}", **HTML}).status_code == 200


@pytest.mark.parametrize("token", [None, "dl_000000000000_x", "odd"])
def test_nobody_signs_in_without_a_valid_token(call: Call, token: str | None) -> None:
    """The sign-in counts failures like every other request."""
    answer = call("POST", SIGN_IN, token, json={})
    assert answer.status_code == 401
    assert answer.headers.get("set-cookie") is None


def test_a_connection_cannot_sign_in(call: Call, tokens: Tokens) -> None:
    """A connection's token is stored on agents' machines and must not open pages."""
    assert call("POST", SIGN_IN, tokens.ops, json={}).status_code == 403


def test_signing_out_ends_the_sign_in_everywhere(call: Call, tokens: Tokens) -> None:
    """A copy of the cookie must become useless."""
    value = signed_in(call, tokens.root)
    answer = call("POST", SIGN_OUT, json={}, headers=from_page(value))
    assert answer.status_code == 204
    assert looks(call, value).status_code == 303
    assert call("GET", "/api/audit/projects", headers=cookie(value)).status_code == 401


def test_revoking_the_token_ends_the_sign_in(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """Revoking a token must take effect immediately."""
    value = signed_in(call, tokens.root)
    assert looks(call, value).status_code == 200
    access.revoke("operator", "root")
    assert looks(call, value).status_code == 303


def test_a_sign_in_expires(tmp_path: Path) -> None:
    """After twelve hours a forgotten browser is signed out, and expired sign-ins are deleted by the next one."""
    now = [datetime(2026, 10, 1, tzinfo=UTC)]
    with AccessStore(tmp_path / "fleet.access", lambda: now[0]) as access:
        token = access.add(Holder("operator", "root", None))
        prefix = token.split("_")[1]
        first = access.sign_ins.begin(prefix).encode()
        assert access.signed_in(first) == (Holder("operator", "root", None), prefix)
        now[0] += SIGN_IN_DURATION - timedelta(seconds=1)
        assert access.signed_in(first)
        now[0] += timedelta(seconds=1)
        assert access.signed_in(first) is None
        access.sign_ins.begin(prefix)
        assert first not in (tmp_path / "fleet.access").read_bytes()


@pytest.mark.parametrize("value", ["", "x", "a" * 43, "ä" * 43, "a" * 10_000, '"; DROP TABLE sign_ins; --'])
def test_a_forged_cookie_is_refused(call: Call, value: str) -> None:
    """No bytes of a cookie may open anything or cause an error."""
    assert call("GET", "/", headers={"cookie": f"{COOKIE}={value}".encode(), **HTML}).status_code == 303


def test_two_cookies_are_refused(call: Call, tokens: Tokens) -> None:
    """Another host of the same site may have set one of them."""
    value = signed_in(call, tokens.root)
    assert call("GET", "/", headers={"cookie": f"{COOKIE}={value}; {COOKIE}=other"}).status_code == 303


FORGED = {
    "no mark": {PAGE_MARK: ""},
    "a wrong mark": {PAGE_MARK: "0" * 32},
    "another origin": {"origin": "https://evil.example"},
    "no origin that a browser names": {"origin": "null"},
    "another site": {"sec-fetch-site": "cross-site"},
    "another host of the site": {"sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("how", FORGED)
def test_a_write_from_another_site_is_refused(call: Call, tokens: Tokens, store: Store, how: str) -> None:
    """Browsers send the cookie with requests caused by any site."""
    put(store, "incidents", [incident()])
    value = signed_in(call, tokens.root)
    path = f"/api/audit/ops/incidents/{incident().incident_id}"
    refused = call("PUT", path, json={"status": "dismissed"}, headers=from_page(value, **FORGED[how]))
    assert refused.status_code == 403
    assert refused.json()["code"] == "forged"
    response = call("PUT", path, json={"status": "dismissed"}, headers=from_page(value))
    assert response.status_code == 200
    assert response.json()["incident"]["status"] == "dismissed"


def test_a_write_without_browser_headers_is_refused(call: Call, tokens: Tokens) -> None:
    """Every browser sends the origin of a write; other clients use tokens."""
    value = signed_in(call, tokens.root)
    headers = {**cookie(value), PAGE_MARK: mark_of(value.encode(), "")}
    assert call("POST", SIGN_OUT, json={}, headers=headers).status_code == 403


def test_the_cookie_has_the_rights_of_its_token(call: Call, tokens: Tokens) -> None:
    """An operator of one project sees that project only."""
    value = signed_in(call, tokens.ops_reader)
    page = looks(call, value).text
    assert projects_of(page) == ["ops"]
    assert call("GET", "/api/audit/web/summary", headers=cookie(value)).status_code == 403


@given(st.text())
def test_the_return_address_is_always_local(address: str) -> None:
    """A link to the sign-in must not be able to redirect to another site."""
    path = local_path(address)
    assert path.startswith("/")
    assert not urlsplit(path).netloc
    assert not path.startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "address", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\n", "http://["]
)
def test_a_foreign_return_address_is_ignored(address: str) -> None:
    """A foreign target is replaced by the fleet."""
    assert local_path(address) == "/"


def test_pages_with_different_content_share_no_form_token(call: Call, tokens: Tokens) -> None:
    """Pages are compressed, so a shared token could be guessed letter by letter from their lengths."""
    value = signed_in(call, tokens.root)
    pages = [call("GET", f"/incidents?text=words-{number}", headers=cookie(value)).text for number in (1, 1, 2)]
    first, repeated, other = (re.findall(r'<meta name="driftline-page" content="([0-9a-f]{64})"', page)[0] for page in pages)
    assert first == repeated
    assert first[:32] != other[:32]
    assert first[32:] != other[32:]
    lines = [
        call("POST", "/api/audit/sign-out", headers={**from_page(value), PAGE_MARK: mark}).status_code
        for mark in (other[:-1] + "x", other)
    ]
    assert lines == [403, 204]
