"""The administration pages: for admins of every project, on empty and full servers, with any texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from support.api_server import PATIENT, BodyBuilder, Call, Tokens
from support.pages import Elements, cookie, from_page, signed_in

from service.server.app import ROUTERS
from service.setup.access import AccessStore, Holder, Write
from service.text.links import Links
from service.text.words import WORDS
from service.web.bounds import DRY_RUNS, ApiSettings
from service.web.middleware import SAFE_METHODS
from service.write.policy_file import SKELETON

PAGES = (
    "/admin",
    "/admin/access",
    "/admin/access/new",
    "/admin/access/people/root",
    "/admin/access/connections/north",
    "/admin/policy",
    "/admin/policy?project=ops",
    "/admin/deletion",
    "/admin/deletion?connection=north&session=s1",
    "/admin/deletion/plan",
    "/admin/deletion/plan?days=1",
    "/admin/audit-log",
    "/admin/audit-log?name=root&project=ops",
)
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
Look = Callable[..., str]


@pytest.fixture
def settings(tmp_path: Path) -> ApiSettings:
    """Return the settings of a server with a policy file."""
    file = tmp_path / "policy.yaml"
    file.write_text(SKELETON, "utf-8")
    return ApiSettings(queries=PATIENT, policy_file=file)


def visit(call: Call, access: AccessStore, name: str, project: str | None, *scopes: str) -> dict[str, str]:
    """Return the headers of a signed-in operator with these rights."""
    return cookie(signed_in(call, access.add(Holder("operator", name, project, scopes=frozenset(scopes)))))


@pytest.mark.usefixtures("tokens")
def test_every_admin_page_requires_admin_of_every_project(call: Call, access: AccessStore) -> None:
    """Operators with fewer rights, or with the same rights in one project, are refused and told who can help."""
    visitors = {
        "admin": (visit(call, access, "chief", None, "read", "admin"), 200),
        "all but admin": (visit(call, access, "analyst", None, "read", "review", "query"), 403),
        "admin of a project": (visit(call, access, "lead", "ops", "read", "review", "admin"), 403),
        "not signed in": ({"accept": "text/html"}, 303),
    }
    answers = {who: {page: call("GET", page, headers=headers) for page in PAGES} for who, (headers, _) in visitors.items()}
    statuses = {who: {page: answer.status_code for page, answer in pages.items()} for who, pages in answers.items()}
    assert statuses == {who: dict.fromkeys(PAGES, status) for who, (_, status) in visitors.items()}
    refused = answers["admin of a project"]["/admin"].text
    assert "lead has read, review, admin for the project ops" in refused
    assert "Ask chief or root" in refused


def test_without_an_admin_the_page_names_a_command(call: Call, access: AccessStore) -> None:
    """The last admin may have left without passing on a token."""
    reader = visit(call, access, "reader", None, "read")
    assert "driftline operators add NAME" in call("GET", "/admin", headers=reader).text


def test_only_admins_see_the_link(call: Call, access: AccessStore) -> None:
    """A link that leads to a refusal is useless."""
    visitors = {
        True: visit(call, access, "chief", None, "read", "admin"),
        False: visit(call, access, "lead", "ops", "read", "admin"),
    }
    assert {one: one for one in visitors} == {
        one: 'href="/admin"' in call("GET", "/", headers=headers).text for one, headers in visitors.items()
    }


def test_a_dry_run_must_come_from_a_page_of_this_server(call: Call, tokens: Tokens) -> None:
    """Another site must not make an admin's browser send a policy, not even for a check."""
    value = signed_in(call, tokens.root)
    body = {"text": "version: 1\ndefaults: {retentionDays: 3}\n"}
    forged = call("POST", "/admin/policy/trial", headers=cookie(value), json=body)
    ours = call("POST", "/admin/policy/trial", headers=from_page(value), json=body)
    assert forged.status_code == 403
    assert ours.status_code == 200
    assert "retentionDays" in ours.text
    assert call("POST", "/admin/policy/trial", json=body).status_code == 401


def test_the_form_offers_the_rights_of_the_viewer(call: Call, access: AccessStore) -> None:
    """A choice that would be refused is not offered."""
    headers = visit(call, access, "chief", None, "read", "review", "admin")
    page = Elements(call("GET", "/admin/access/new", headers=headers).text)
    offered = [one["value"] for tag, one in page.found if tag == "input" and one.get("name") == "scopes"]
    assert offered == ["read", "read review"]
    assert "cannot make its token" not in call("GET", "/admin/access/people/chief", headers=headers).text
    access.add(Holder("operator", "root", None))
    assert "you cannot create a token" in call("GET", "/admin/access/people/root", headers=headers).text


def test_no_page_shows_a_secret(look: Look, tokens: Tokens) -> None:
    """A token is shown once, in the answer that creates it."""
    pages = "".join(look(page) for page in PAGES)
    for token in (tokens.root, tokens.ops, tokens.ops_reader):
        assert token.split("_", 2)[2] not in pages


def test_foreign_texts_are_escaped(look: Look, access: AccessStore) -> None:
    """Subjects in the audit log and agents of connections are untrusted texts."""
    access.add(Holder("connection", "wild", "ops", HOSTILE))
    access.audit_log.begin(Write(kind="command", name=HOSTILE, method="COMMAND", route=HOSTILE, subject=HOSTILE))
    for page in ("/admin/access", "/admin/access/connections/wild", "/admin/audit-log"):
        text = look(page)
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert Elements(text).active() == []
    assert "U+202E" in look("/admin/audit-log")


@pytest.mark.parametrize(
    ("project", "scopes", "words"),
    [
        (None, "read", "Read"),
        ("ops", "read", "Read"),
        ("ops", "read review", "Review"),
        (None, "read query", "Query"),
        ("ops", "read review admin", "read, review, admin"),
        (None, "read review query admin", "Admin"),
        (None, "read admin", "read, admin"),
    ],
)
def test_the_list_shows_the_chosen_role(look: Look, access: AccessStore, project: str | None, scopes: str, words: str) -> None:
    """Scopes that only commands can give are listed by name."""
    access.add(Holder("operator", "one", project, scopes=frozenset(scopes.split())))
    assert f'<p class="soft">{words} · {project or "all projects"}</p>' in look("/admin/access/people/one")


def test_an_unknown_name_is_reported(look: Look) -> None:
    """An unknown name is reported, and the erasure of a reserved name is refused in the dry run."""
    assert "There is no operator ghost." in look("/admin/access/people/ghost", 404)
    assert "reserved for judging anchors" in look("/admin/deletion?connection=anchors")


def test_a_dry_run_shows_the_number_of_rows(look: Look, call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The dry run counts rows by table, and reports if nothing is stored."""
    for number in (1, 2, 3):
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number))
    page = look("/admin/deletion?connection=north&session=s1")
    assert "Session s1" in page
    assert '<td>exchanges</td><td class="number">3</td>' in page
    assert "No records are stored." in look("/admin/deletion?connection=north&session=s2")


def test_a_server_without_a_policy_file_says_so(call: Call, tokens: Tokens, app: object) -> None:
    """Nothing can be saved, but the effective policy is shown."""
    app.state.context.settings = ApiSettings(queries=PATIENT)  # type: ignore[attr-defined]
    text = call("GET", "/admin/policy", headers=cookie(signed_in(call, tokens.root))).text
    assert "started without a policy file" in text
    assert "data-save" not in text
    assert "retentionDays" in text


def test_a_long_audit_log_has_pages(look: Look, access: AccessStore) -> None:
    """A long log must be paged."""
    for number in range(103):
        access.audit_log.begin(Write(kind="operator", name="ada", method="POST", route="/api", subject=f"n{number}."))
    first = look("/admin/audit-log?name=ada")
    following = next(one["href"] for tag, one in Elements(first).found if tag == "a" and one.get("rel") == "next")
    second = look(following)
    assert "n102." in first
    assert "n2." not in first
    assert "n2." in second
    assert "n102." not in second


def test_every_logged_change_has_a_description() -> None:
    """The log must be readable without knowledge of the API's paths."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    changes = {f"{method} {one.path}" for one in routes for method in one.methods - SAFE_METHODS if one.path not in DRY_RUNS}
    commands = {f"COMMAND {kind}s {verb}" for kind in ("connection", "operator") for verb in ("add", "rotate", "revoke")}
    commands |= {"COMMAND links add", "COMMAND links revoke", f"GET {Links.provider_answer}"}
    deeds = WORDS["deeds"]
    assert deeds.keys() == changes | commands
    assert {words.split()[0] for words in deeds.values()} - WORDS["verbs"].keys() == set()


def test_the_log_shows_granted_rights_and_failed_attempts(look: Look, access: AccessStore) -> None:
    """The log shows the granted rights, with the path for details."""
    access.add(Holder("operator", "ada", "ops", scopes=frozenset({"read", "review"})))
    log = access.audit_log
    for subject, outcome in (("ada", "done"), ("eve", "refused")):
        line = log.begin(Write(kind="operator", name="root", method="POST", route="/api/audit/operators", subject=subject))
        log.end(line, outcome, 201)  # type: ignore[arg-type]
    log.begin(Write(kind="operator", name="root", method="PATCH", route="/of/an/older/version", subject="x"))
    page = look("/admin/audit-log")
    assert "Gave ada access: Review on ops<" in page
    assert 'Tried to give eve access <span class="pill warning">refused<' in page
    assert "eve" not in look("/admin/audit-log?since=2098-01-01")
    assert "day: must be from" in look("/admin/audit-log?day=9999-12-31", 400)
    assert "<code>POST /api/audit/operators</code>" in page
    assert "PATCH /of/an/older/version<" in page
