"""The Python client against a real server: answers as frames, all pages of a list, and refusals in the server's words."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from datetime import UTC, date
from pathlib import Path

import httpx2
import polars as pl
import pytest
from support.api_server import BodyBuilder, LiveServer, Tokens
from support.receivers import Answer, receiving
from support.servers import until

from driftline.client import Client, ClientError, TruncatedWarning
from service.setup.access import AccessStore, Holder

EXAMPLE = Path(__file__).parents[3] / "examples" / "notebook.py"
EXCHANGES = 120


@pytest.fixture
def client(server: LiveServer, tokens: Tokens, exchange_body: BodyBuilder) -> Iterator[Client]:
    """Yield a client of a server with more exchanges than a page of a list holds."""
    bodies = [exchange_body(number) for number in range(1, EXCHANGES + 1)]
    headers = {"authorization": f"Bearer {tokens.ops}"}
    sent = httpx2.post(f"{server.url}/api/audit/exchanges", json=bodies, headers=headers, timeout=60)
    assert sent.status_code == 201
    with Client(server.url, tokens.root) as opened:
        until(lambda: len(opened.list("ops/scores")) == EXCHANGES, "every exchange to have its score")
        yield opened


def test_answers_are_frames_with_types_and_the_time_of_the_snapshot(client: Client) -> None:
    """A notebook plots them without converting texts, and knows how old they are."""
    statement = "SELECT count(*) AS n, $day::DATE AS day FROM turns WHERE list_contains($names, project)"
    answer = client.sql(statement, names=["ops"], day=date(2026, 10, 1))
    assert answer.polars().rows() == [(EXCHANGES, date(2026, 10, 1))]
    assert answer.as_of is not None
    assert answer.as_of.tzinfo == UTC
    assert pl.DataFrame(answer).equals(answer.polars())
    with pytest.warns(TruncatedWarning, match="more than 2 rows"):
        cut = client.sql("FROM range(5)", limit=2)
    assert (len(cut), cut.truncated) == (2, True)
    with pytest.raises(ClientError, match="SHOW TABLES") as refused:
        client.sql("SELECT * FROM nothing")
    assert (refused.value.status, refused.value.code) == (400, "query_refused")


def test_a_list_has_the_rows_of_all_its_pages(client: Client) -> None:
    """A list that ended with its first page would look complete."""
    scores = client.list("ops/scores").polars()
    assert scores["exchangeId"].n_unique() == EXCHANGES
    assert len(client.list("incidents", status="open")) == 0
    with pytest.warns(TruncatedWarning):
        assert len(client.list("ops/scores", limit=110)) == 110


def test_a_refusal_has_the_words_of_the_server_and_no_token(server: LiveServer, access: AccessStore) -> None:
    """The reader of a notebook sees what to change, and a notebook is often shared."""
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    with Client(server.url, token) as reader:
        with pytest.raises(ClientError, match="scope query"):
            reader.sql("SELECT 1")
        with pytest.raises(ClientError, match="status"):
            reader.list("incidents", status="odd")
        assert token not in repr(reader)


def test_what_is_no_server_is_said() -> None:
    """A proxy's sign-in page must not end in a traceback of a parser, nor a redirect take the token elsewhere."""
    with receiving() as proxy, Client(proxy.base_url, "dl_x") as client:
        for answer in (Answer(200, {"content-type": "text/html"}, b"<html>"), Answer(302, {"location": "http://127.0.0.1:9"})):
            proxy.answers = [answer]
            with pytest.raises(ClientError, match="not as Driftline does"):
                client.sql("SELECT 1")
    with Client("http://127.0.0.1:9", "dl_x") as nobody, pytest.raises(ClientError, match="did not answer"):
        nobody.list("projects")
    with pytest.raises(ValueError, match="url"):
        Client("127.0.0.1:8377", "dl_x")
    with pytest.raises(ValueError, match="token"):
        Client("http://127.0.0.1:8377", " ")


@pytest.mark.usefixtures("client")
def test_the_example_runs(
    server: LiveServer, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the first thing that a reader copies."""
    monkeypatch.setenv("DRIFTLINE_URL", server.url)
    monkeypatch.setenv("DRIFTLINE_TOKEN", tokens.root)
    runpy.run_path(str(EXAMPLE))
    assert "ops" in capsys.readouterr().out
