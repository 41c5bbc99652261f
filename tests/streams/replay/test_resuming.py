"""An interrupted replay continues where it stopped, and a complete one does nothing."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from support.effort import SOAK
from support.fleet_histories import two_project_exchanges
from support.replays import Command, create_scored_database, read_scores, replay_path, run_replay
from support.servers import Child, Home, Nursery, nursery, until

from driftline_trial.simulator import running
from service.write import replays
from streams.replay import plan
from streams.replay.plan import ReplayFiles

POLICY = "version: 1\ndefaults: {judgeModel: claude-haiku-5-5}\n"
LOADED_ONCE = """
import multiprocessing
from streams.replay import part
part._SPAWN = multiprocessing.get_context("forkserver")
part._SPAWN.set_forkserver_preload(["service.write.replays", "streams.replay.part"])
"""
"""Has the processes of a replay's parts load their code once, and not each for itself; not run in a soak run."""
BEFORE = "" if SOAK else LOADED_ONCE


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of commands as processes."""
    with nursery() as opened:
        yield opened


def home(database: Path, **environment: str) -> Home:
    """Return the test's folder as a process sees it."""
    test_home = Home(database.parent, POLICY, **environment)
    test_home.environment["DRIFTLINE_DATABASE"] = str(database)
    return test_home


def kill_once(child: Child, condition: object, what: str) -> None:
    """Kill a command as soon as the condition holds; fail if it ended before."""
    assert callable(condition)
    until(lambda: bool(condition()) or child.ended, what)
    assert not child.ended, child.logged
    child.kill()


def test_a_killed_replay_pays_for_no_answer_twice(children: Nursery, database: Path) -> None:
    """Answers are recorded before they are used; interrupted calls are charged and repeated."""
    with running(latency=0.01) as judge:
        fleet = home(database, ANTHROPIC_BASE_URL=judge.base_url)
        arguments = ("replay", "--judge", "live", "--yes", "--label", "killed", "--workers", "2", "--project", "shop", "--json")
        for calls in (10, 30):
            child = children.start(fleet, *arguments, before=BEFORE)
            kill_once(child, lambda calls=calls: judge.requests >= calls, "so many calls")
            assert not replay_path(database, "killed").exists()
        code, printed = children.run(fleet, *arguments, before=BEFORE)
        assert code == 0, fleet.log.read_text()
        document = json.loads(printed)
        calls = document["calls"]
        assert 0 < calls["interrupted"] <= 2 * 2 * 16
        assert judge.requests - calls["interrupted"] <= calls["answered"] <= judge.requests
        resumed = children.run(fleet, *arguments, before=BEFORE)
        assert document == json.loads(resumed[1])
        assert resumed[0] == 0
        assert judge.requests == judge.requests


def test_scores_from_before_a_kill_are_not_computed_again(children: Nursery, database: Path) -> None:
    """Scores, states and position are committed together, so nothing is lost or duplicated."""
    part = database.with_name(f"{database.name}.replays") / "killed.parts" / "part-0.duckdb"
    fleet = home(database)
    arguments = ("replay", "--label", "killed", "--workers", "2", "--json", "--policy", str(fleet.policy))
    fleet.policy.write_text("version: 1\n")
    kill_once(children.start(fleet, *arguments, before=BEFORE), part.exists, "a part to be begun")
    code, printed = children.run(fleet, *arguments, before=BEFORE)
    assert code == 0, fleet.log.read_text()
    assert json.loads(printed)["equal"]
    assert read_scores(database) == read_scores(replay_path(database, "killed"))


def test_a_complete_replay_is_shown_and_not_repeated(driftline: Command, database: Path) -> None:
    """Running a complete replay again shows its result."""
    first = run_replay(driftline, "--workers", "1", "--label", "once")
    before = replay_path(database, "once").stat().st_mtime_ns
    assert first == run_replay(driftline, "--workers", "2", "--label", "once")
    assert replay_path(database, "once").stat().st_mtime_ns == before
    listed = [json.loads(line) for line in driftline("replays", "--json")[1].splitlines()]
    assert [one["label"] for one in listed] == ["once"]
    assert "once" in driftline("replays")[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--project", "ops"], "--project"), (["--judge", "none"], "--judge"), (["--policy", "p.yaml"], "--policy")],
)
def test_a_label_identifies_one_replay(
    driftline: Command, database: Path, tmp_path: Path, arguments: list[str], named: str
) -> None:
    """Two different replays under one label would be confused."""
    (tmp_path / "p.yaml").write_text(POLICY)
    run_replay(driftline, "--workers", "1", "--label", "mine")
    code, _, err = driftline("replay", "--label", "mine", *arguments)
    assert code == 2
    assert f"mine is a replay with another {named}" in err
    assert database.exists()


class EndedError(Exception):
    """Raised where the process ends."""


def ended(*_: object, **__: object) -> NoReturn:
    """End the process."""
    raise EndedError


def test_records_newer_than_the_plan_are_ignored(driftline: Command, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that continues after a week scores its original history, without newer records."""
    before = read_scores(database)
    with monkeypatch.context() as patch:
        patch.setattr(replays, "in_processes", ended)
        with pytest.raises(EndedError):
            driftline("replay", "--label", "old", "--workers", "2")
    create_scored_database(database, records=two_project_exchanges(seed=2, sessions=3))
    assert len(before) < len(read_scores(database))
    run_replay(driftline, "--label", "old", "--workers", "2")
    assert read_scores(replay_path(database, "old")) == before


def test_a_result_is_complete_or_absent(driftline: Command, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a result would look like another policy, and a kill after the merge must not leave the parts behind."""
    arguments = ("--label", "merged", "--workers", "1")
    parts = ReplayFiles(database, "merged").parts
    with monkeypatch.context() as patch:
        patch.setattr(plan, "read_digests", ended)
        with pytest.raises(EndedError):
            driftline("replay", *arguments)
    assert not replay_path(database, "merged").exists()
    assert parts.exists()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", ended)
        with pytest.raises(EndedError):
            driftline("replay", *arguments)
    assert replay_path(database, "merged").exists()
    assert parts.exists()
    assert run_replay(driftline, *arguments)["equal"]
    assert read_scores(database) == read_scores(replay_path(database, "merged"))
    assert not parts.exists()


def test_only_one_process_works_on_a_label(driftline: Command, database: Path) -> None:
    """Two processes would pay for the same answers."""
    files = ReplayFiles(database, "busy")
    files.parts.mkdir(parents=True)
    with files.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = driftline("replay", "--label", "busy", "--workers", "1")
    assert code == 2
    assert re.search("another process .*replay busy", err)
    assert run_replay(driftline, "--label", "busy", "--workers", "1")["equal"]
