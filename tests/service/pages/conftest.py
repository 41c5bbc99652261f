"""An application over a real engine, called in one event loop; and the same behind a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.api_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
from support.api_server import Call, Tokens
from support.pages import cookie, signed_in


@pytest.fixture
def look(call: Call, tokens: Tokens) -> Callable[..., str]:
    """Return the text of a page for an operator with every right."""
    value = signed_in(call, tokens.root)

    def looked(path: str, status: int = 200) -> str:
        answer = call("GET", path, headers=cookie(value))
        assert answer.status_code == status, answer.text
        return str(answer.text)

    return looked
