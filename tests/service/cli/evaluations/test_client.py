"""`driftline evaluate --server`: a server does it, and what is written and printed is what the command would have made itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.sample_evaluations import PROFILE, REFUND, REPORT
from support.servers import Home, Nursery, nursery
from support.stored_sessions import HAIKU, SONNET, filled, session

from analytics.store.store import Store
from audit.evaluation.cases import Case, LoadedProfile, Profile, plans
from driftline_trial.simulator import RunningJudge, running
from schemas.errors import InputError, SettingsError
from service.cli.evaluation_client import EvaluationClient, EvaluationTerms, ServerError, _newest_attempt, is_loopback
from streams.finished_sessions import SessionSelection

Command = Callable[..., tuple[int, str, str]]
BASE = ("evaluate", "--case", "cases", "--profile", "profile.yaml", "--project", "ops")


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Yield a starter of servers."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def simulator() -> Iterator[RunningJudge]:
    """Yield a simulated judge."""
    with running() as judge:
        yield judge


@pytest.fixture
def home(tmp_path: Path, simulator: RunningJudge) -> Home:
    """Return a folder with two finished sessions, copied for a server and for commands, with cases and a profile."""
    (tmp_path / "server").mkdir()
    home = Home(tmp_path / "server", ANTHROPIC_BASE_URL=simulator.base_url, ANTHROPIC_API_KEY="simulated")
    for path in (home.database, tmp_path / "driftline.duckdb"):
        with Store(path) as store:
            filled(store, *session("s1", 1, SONNET), *session("s2", 2, HAIKU))
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "b.yaml").write_text(json.dumps(REFUND))
    (tmp_path / "cases" / "a.yaml").write_text(json.dumps(REPORT))
    (tmp_path / "prompt.md").write_text("Judge it by your own lights.")
    (tmp_path / "profile.yaml").write_text(json.dumps(PROFILE | {"judge_system_prompt_path": "prompt.md"}))
    return home


def read_folder(folder: str) -> dict[str, bytes]:
    """Return the contents of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_server_gives_the_same_result_as_the_command(
    driftline: Command, home: Home, children: Nursery, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, prompts, tables and files are the same, and a repetition calls no judge, wherever the first result was made."""
    url = children.serve(home).serving()
    monkeypatch.setenv("DRIFTLINE_TOKEN", home.operator())
    code, out, err = driftline(*BASE, "--server", url, "--dry-run")
    assert code == 0
    assert out == ""
    assert "4 evaluations to make, 0 reused" in err
    assert "about 12 calls" in err
    code, remote, err = driftline(*BASE, "--server", url, "--yes", "-o", "remote")
    assert code == 0
    assert remote.count(" exec ") == 4
    assert "4 results written to remote" in err
    requests_before = simulator.requests
    code, repeated, err = driftline(*BASE, "--server", url, "--yes", "-o", "again")
    assert code == 0
    assert repeated.count(" exec ") == 0
    assert repeated.count(" reuse ") == 4
    assert requests_before == simulator.requests
    assert read_folder("again") == read_folder("remote")

    monkeypatch.setenv("ANTHROPIC_BASE_URL", simulator.base_url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "simulated")
    _, local, _ = driftline(*BASE, "--yes", "-o", "local")
    local_files, remote_files = read_folder("local"), read_folder("remote")
    assert local_files.keys() == remote_files.keys()
    # A simulated judge says something else each time: that is what repetitions are for.
    prompts = {name for name in local_files if "prompt" in name}
    assert {name: local_files[name] for name in prompts} == {name: remote_files[name] for name in prompts}
    for name in (name for name in local_files if "final_result" in name):
        mine, theirs = json.loads(local_files[name]), json.loads(remote_files[name])
        same = (
            "evaluation_id",
            "case_id",
            "session_id",
            "subject_model",
            "checks",
            "deterministic_dimensions",
            "summary",
            "warnings",
        )
        assert [mine[one] for one in same] == [theirs[one] for one in same]
    assert local.splitlines()[0] == remote.splitlines()[0]
    assert any(b"by your own lights" in content for content in local_files.values())


def test_a_refusal_by_the_server_is_shown_with_its_hint(
    driftline: Command, home: Home, children: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message must never contain the token."""
    url = children.serve(home).serving()
    code, _, err = driftline(*BASE, "--server", url)
    assert code == 2
    assert "DRIFTLINE_TOKEN: is not set" in err
    monkeypatch.setenv("DRIFTLINE_TOKEN", "dl_wrong")
    code, _, err = driftline(*BASE, "--server", url)
    assert code == 2
    assert "401" in err
    monkeypatch.setenv("DRIFTLINE_TOKEN", home.connection("north"))
    code, _, err = driftline(*BASE, "--server", url)
    assert "403 this needs the token of an operator" in err
    monkeypatch.setenv("DRIFTLINE_TOKEN", home.operator())
    code, _, err = driftline(*BASE[:5], "--session", "nobody", "--server", url)
    assert "400 there is no session 'nobody'" in err
    code, _, err = driftline(*BASE, "--server", url)
    assert code == 2
    assert "Use --yes to accept the cost, or --dry-run" in err
    code, _, err = driftline(*BASE, "--server", url, "--db", "driftline.duckdb")
    assert code == 2
    assert "--server" in err
    assert "--db" in err
    assert home.operator() not in err


class _Answers(BaseHTTPRequestHandler):
    """Gives prepared answers in order, and repeats the last one."""

    prepared: list[tuple[int, Any]]
    heard: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.heard.append((self.path, self.headers.get("authorization")))
        status, body = self.prepared.pop(0) if len(self.prepared) > 1 else self.prepared[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        if 300 <= status < 400:
            self.send_header("location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def answering(*prepared: tuple[int, Any]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Yield the address of a server with prepared answers, and the requests it received."""
    heard: list[tuple[str, str | None]] = []
    handler = type("Answers", (_Answers,), {"prepared": list(prepared), "heard": heard})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def terms() -> EvaluationTerms:
    """Return one case with one judge run, over every session."""
    profile = Profile.model_validate_json(json.dumps(PROFILE))
    case = Case.model_validate_json(json.dumps(REFUND))
    return EvaluationTerms([case], LoadedProfile(profile, "p"), plans(profile), SessionSelection(), retry_failed=False)


def request_evaluations(client_of: str, clock: Callable[[], float] = lambda: 0.0) -> Any:
    """Request evaluations from a server, without pauses between polls."""
    with closing(EvaluationClient(client_of, "dl_token", sleep=lambda _: None, clock=clock)) as client:
        return client.evaluate(terms(), lambda _: None)


ASKED = {"id": "e", "attempt": 0, "caseId": "c", "sessionId": "s", "repetition": 1, "reused": False}
PENDING = {"id": "e", "pending": True, "setAside": None, "evaluation": None}
BUSY = (503, {"error": "too many records wait", "code": "busy"})


def test_a_busy_server_is_polled_again_up_to_a_limit() -> None:
    """A starting server or a full queue must not lose an evaluation."""
    with answering(BUSY, BUSY, (202, {"evaluations": []})) as (url, heard):
        assert request_evaluations(url) == []
        assert heard == [("/api/audit/evaluations", "Bearer dl_token")] * 3
    with answering(BUSY) as (url, heard), pytest.raises(ServerError, match="503 too many records wait"):
        request_evaluations(url)
    assert len(heard) == 6


@pytest.mark.parametrize("answer", [(302, {}), (200, b"<html>"), (500, b"\xff"), (404, {"error": 7})], ids=str)
def test_a_foreign_server_is_reported(answer: tuple[int, Any]) -> None:
    """The token must not follow a redirect."""
    with answering(answer) as (url, heard), pytest.raises(ServerError) as caught:
        request_evaluations(url)
    assert len(heard) == 1
    assert "dl_token" not in f"{caught.value} {caught.value.hint}"


def test_a_dead_letter_is_not_waited_for() -> None:
    """No judge will answer it."""
    set_aside = PENDING | {"pending": False, "setAside": "bounds"}
    answers = (202, {"evaluations": [ASKED]}), (200, PENDING), (200, set_aside)
    with answering(*answers) as (url, _), pytest.raises(InputError, match=r"1 of 1 .* c on s \(bounds\)"):
        request_evaluations(url)


def test_a_failed_attempt_after_a_finished_one_is_not_waited_for() -> None:
    """The server shows the finished evaluation, although the requested attempt has ended."""
    assert [
        _newest_attempt({"evaluation": evaluation, "failedAttempt": failed})
        for evaluation, failed in ((None, None), ({"revision": 0}, None), ({"revision": 0}, 2))
    ] == [-1, 0, 2]


def test_waiting_has_a_time_limit() -> None:
    """A build must not hang if there are no workers."""
    ticks = iter(range(0, 10_000, 600))
    answers = (202, {"evaluations": [ASKED]}), (200, PENDING)
    with answering(*answers) as (url, heard), pytest.raises(ServerError, match="nothing was evaluated for 30 minutes"):
        request_evaluations(url, lambda: float(next(ticks)))
    assert len(heard) > 2


@pytest.mark.parametrize("address", ["", "localhost:8377", "ftp://127.0.0.1", "http://", "http://me:secret@127.0.0.1", "http://a/?x=1", "http://[::1"])  # fmt: skip
def test_an_invalid_address_is_refused(address: str) -> None:
    """It is refused before the token is sent, and a password in it is not repeated."""
    with pytest.raises(SettingsError) as caught:
        EvaluationClient(address, "dl_token")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["audit.example.com", "10.0.0.7", "[2001:db8::1]", "localhost.example.com"])
def test_a_token_is_sent_in_plain_text_to_this_machine_only(host: str) -> None:
    """Everybody on the network path could read it and act as the operator, unless the user allows it."""
    with pytest.raises(SettingsError, match="token is readable") as caught:
        EvaluationClient(f"http://{host}:8377", "dl_token")
    assert all(way in caught.value.hint for way in ("https://", "ssh -L", "--insecure"))
    EvaluationClient(f"http://{host}:8377", "dl_token", insecure=True).close()
    EvaluationClient(f"https://{host}:8377", "dl_token").close()
    EvaluationClient("http://127.0.0.1:8377", "dl_token").close()


def test_the_command_refuses_plain_text_without_the_option(
    driftline: Command, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens no connection, and the option is refused where no token is sent."""
    assert home.database.exists()
    monkeypatch.setenv("DRIFTLINE_TOKEN", "dl_token")
    code, out, err = driftline(*BASE, "--server", "http://192.0.2.1:8377")
    assert code == 2
    assert out == ""
    assert "token is readable" in err
    code, _, err = driftline(*BASE, "--insecure")
    assert code == 2
    assert "--insecure needs --server" in err


def test_only_this_machine_is_loopback() -> None:
    """Proxies from the environment apply to other machines only."""
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]")))
    assert not any(map(is_loopback, ("example.com", "10.0.0.1", "localhost.example.com", "")))
