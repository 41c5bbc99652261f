"""The page that connects an agent: lines that work, a token that only who may makes, and what has come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.api_server import BodyBuilder, Call, Tokens
from support.pages import cookie, signed_in

from service.pages.connect import Stack, stacks


@pytest.mark.parametrize("stack", stacks().stacks, ids=lambda stack: stack.key)
def test_each_stack_has_its_lines_with_the_address_filled_in(look: Callable[..., str], stack: Stack) -> None:
    """Users copy lines unchanged, so no placeholder may be left."""
    page = look(f"/connect?stack={stack.key}")

    assert "http://localhost:8321" in page
    assert "{url}" not in page
    assert "{token}" not in page
    assert "dl_…" in page


def test_only_operators_who_may_add_connections_get_the_form(call: Call, tokens: Tokens) -> None:
    """Others see the command instead of a button that would be refused."""
    pages = [call("GET", "/connect", headers=cookie(signed_in(call, token))).text for token in (tokens.root, tokens.ops_reader)]

    assert ["data-connect" in page for page in pages] == [True, False]
    assert "driftline connections add" in pages[1]


def test_the_page_shows_and_links_the_first_session(
    look: Callable[..., str], call: Call, tokens: Tokens, exchange_body: BodyBuilder
) -> None:
    """The page shows when the first session has arrived."""
    waiting = look("/connect?connection=north")
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body())
    page = look("/connect?connection=north")

    assert "Waiting for the first trace of north" in waiting
    assert "<strong>Connected.</strong> 1 exchange and" in page
    assert 'href="/projects/ops' in page


def test_an_unknown_connection_or_stack_is_ignored(look: Callable[..., str]) -> None:
    """Links are shared, and connections are renamed."""
    page = look("/connect?connection=nobody&stack=nothing")

    assert "Create a token above" in page
    look("/connect?connection=Not+a+name", 400)


def test_a_viewer_of_one_project_sees_only_its_connections(call: Call, tokens: Tokens) -> None:
    """Names of other projects' connections must not be shown."""
    value = signed_in(call, tokens.ops_reader)
    page = call("GET", "/connect?connection=south", headers=cookie(value)).text

    assert "south" not in page
