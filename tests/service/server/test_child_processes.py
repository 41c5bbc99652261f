"""Child processes serve while their context is open, report why they fail, and end with the context."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2
import pytest

from schemas.errors import DriftlineError
from service.server.supervisor import ChildError, serving, unwound_by_signals

SIMULATOR = ["simulate-judge", "--port", "0"]


def children() -> set[int]:
    """Return the ids of this process's children."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def answers(url: str) -> bool:
    """Return whether a server answers at the address."""
    try:
        httpx2.get(url, trust_env=False)
    except httpx2.TransportError:
        return False
    return True


def test_a_child_serves_within_its_context_and_ends_with_it(tmp_path: Path) -> None:
    """A context must not leave a process behind."""
    before = children()
    with serving(SIMULATOR, {}, tmp_path / "log") as url:
        assert answers(url)
        assert len(children() - before) == 1
    assert not answers(url)
    assert children() == before


def test_a_child_is_stopped_when_its_user_fails(tmp_path: Path) -> None:
    """The caller's own error is raised, and no process is left behind."""
    before = children()
    with pytest.raises(KeyError), serving(SIMULATOR, {}, tmp_path / "log"):
        raise KeyError
    assert children() == before


def test_a_child_that_fails_to_serve_reports_reason_and_log(tmp_path: Path) -> None:
    """The error must contain the reason and the path of the log."""
    log = tmp_path / "judge.log"
    with pytest.raises(ChildError) as raised, serving([*SIMULATOR, "--script", "nonsense"], {}, log):
        pytest.fail("it serves")
    assert isinstance(raised.value, DriftlineError)
    assert str(raised.value).startswith("driftline simulate-judge ended before it served: ")
    assert "there is no kind 'nonsense'" in str(raised.value)
    assert str(log) in raised.value.hint


def test_a_child_that_does_not_stop_cleanly_is_an_error(tmp_path: Path) -> None:
    """A killed server may have lost records, so its database must not be used as if it were complete."""
    before = children()
    with (  # noqa: PT012 - it is killed inside
        pytest.raises(ChildError, match=r"simulate-judge ended with -9: it logged nothing"),
        serving(SIMULATOR, {}, tmp_path / "log"),
    ):
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
    assert children() == before


def test_a_child_has_our_code_and_not_our_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called `service` in the current directory must not be imported, nor the user's own settings applied."""
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIFTLINE_PORT", "no number")
    database = str(tmp_path / "fleet.duckdb")
    with serving(["serve", "--port", "0", "--db", database], {"DRIFTLINE_JUDGE": "none"}, tmp_path / "log") as url:
        assert answers(f"{url}/healthz")


def test_a_child_gets_the_given_settings(tmp_path: Path) -> None:
    """An invalid setting ends the child."""
    log = tmp_path / "log"
    with pytest.raises(ChildError, match="DRIFTLINE_JUDGE"), serving(["serve"], {"DRIFTLINE_JUDGE": "nobody"}, log):
        pytest.fail("it serves")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_closes_every_open_context(number: signal.Signals) -> None:
    """A process that ends immediately on a signal would orphan its children."""
    unwound = []
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as raised, unwound_by_signals():  # noqa: PT012 - the signal comes inside
        try:
            signal.raise_signal(number)
        finally:
            unwound.append(number)
    assert raised.value.code == 128 + number
    assert unwound == [number]
    assert signal.getsignal(number) == before
