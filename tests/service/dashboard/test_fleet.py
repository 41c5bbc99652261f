"""The fleet: every project, the worst first."""

from __future__ import annotations

import re

from api_server import Call, Tokens
from browsers import cookie, signed_in
from builders import incident
from watched import put

from analytics.store import Store
from service.access import AccessStore, Holder


def test_an_empty_server_says_what_to_do_first(call: Call, access: AccessStore) -> None:
    """The first page that anybody sees is this one."""
    token = access.add(Holder("operator", "root", None))
    assert "driftline connections add" in call("GET", "/", headers=cookie(signed_in(call, token))).text


def test_the_worst_project_comes_first(call: Call, tokens: Tokens, store: Store) -> None:
    """A red project among a thousand green ones must not have to be looked for."""
    put(store, "incidents", [incident()])
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    names = re.findall(r'data-name="([^"]+)"', shown)
    assert "ops" == names[0]
    assert sorted(names[1:]) == names[1:]
    assert {"capped", "dark", "ops", "web"} == set(names)
    assert re.search(r"1 open incident\b", shown)


def test_a_project_that_is_not_audited_says_so(call: Call, tokens: Tokens) -> None:
    """The green badge is a promise."""
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = dict(re.findall(r'data-name="([^"]+)".*?(Not audited|>Audit<)', shown, re.DOTALL))
    assert ("Not audited", ">Audit<") == (cards["dark"], cards["ops"])
