"""What a server says when it has started: the first thing that whoever starts one reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Home, Nursery, nursery, until

pytestmark = pytest.mark.slow
NOBODY = (
    "note: no operator yet, so nobody can sign in: `driftline operators add NAME` prints a token, even while the server runs"
)


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """What starts servers."""
    with nursery() as opened:
        yield opened


@pytest.mark.parametrize("has_operator", [True, False])
def test_a_server_prints_its_address_and_how_to_create_a_token(
    children: Nursery, tmp_path: Path, *, has_operator: bool
) -> None:
    """A new user does not know where tokens come from."""
    home = Home(tmp_path)
    if has_operator:
        home.operator()
    server = children.serve(home)
    url = server.serving()
    lines = 2 if has_operator else 3
    until(lambda: server.printed.count("\n") >= lines, "it to say who judges, and who cannot sign in")
    first, judge, *notes = server.printed.splitlines()

    assert first.startswith(f"Driftline listens at {url} ")
    assert f"{url}/docs" in first
    assert judge.startswith("no judge: ")
    assert notes == [] if has_operator else notes == [NOBODY]
