"""Upkeep of the lake: nothing of an erased session is left in any file, old partitions go, small files become large ones."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from deltalake import WriterProperties
from support.builders import event, exchange
from support.clocks import NOW
from support.erased_sessions import KEPT, MARKER, SESSION, records_of_session
from support.lakes import TYPES, put, rows
from support.sample_records import SampleMaker

from analytics.lake import Lake
from audit.policy import Policy, load_policy
from schemas.errors import LakeError
from streams.lake.maintenance import KEPT_HOURS, LakeMaintenance
from streams.upkeep.deletion import erasure


def maintenance(root: Path, policy: Policy | None = None) -> LakeMaintenance:
    """Return the upkeep of a lake with a policy that keeps everything, unless another is given."""
    return LakeMaintenance(str(root), policy or Policy(), lambda: NOW)


def files_with(root: Path, text: str) -> list[Path]:
    """Return the files below a folder that contain a text, uncompressed or in a Parquet file's columns."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.fixture
def plain_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files without compression, so that a search of their bytes finds texts."""
    properties = WriterProperties(compression="UNCOMPRESSED")
    monkeypatch.setattr("analytics.lake.writer_properties", lambda: properties)
    monkeypatch.setattr("streams.lake.maintenance.writer_properties", lambda: properties)


@pytest.mark.usefixtures("plain_files")
@pytest.mark.parametrize("session", [SESSION, None])
def test_no_byte_of_an_erased_session_is_left(tmp_path: Path, session: str | None) -> None:
    """A marker in every text of a session must be in no file of any table, nor in the logs of the tables."""
    samples = SampleMaker(7)
    put(tmp_path, records_of_session(samples, SESSION, MARKER))
    put(tmp_path, records_of_session(samples, KEPT, "kept"))
    before = {name: rows(tmp_path, name).height for name in TYPES}
    assert len({path.parts[len(tmp_path.parts)] for path in files_with(tmp_path, MARKER)}) > 12
    put(tmp_path, [("erasures", erasure("local", session, "root", None, NOW))])

    report = maintenance(tmp_path).erase()

    assert files_with(tmp_path, MARKER) == []
    for name in TYPES:
        if session and name not in {"Incident", "Erasure", "Baseline", "Deployment"}:
            assert rows(tmp_path, name).height == before[name] - before[name] // 2, name
    assert rows(tmp_path, "Incident").height == before["Incident"]
    assert report.erased["exchanges"] >= 2
    assert not session or files_with(tmp_path, "kept answer")
    assert not maintenance(tmp_path).erase().erased


@pytest.mark.usefixtures("plain_files")
def test_records_that_arrive_after_an_erasure_are_erased_by_the_next_run(tmp_path: Path) -> None:
    """Another sink may hold records of the session in memory while the erasure runs, or die and leave a file behind."""
    put(tmp_path, [("exchanges", exchange(KEPT, 1)), ("erasures", erasure("local", SESSION, "root", None, NOW))])
    maintenance(tmp_path).run()
    put(tmp_path, [("exchanges", exchange(SESSION, 1, MARKER))])
    (orphan,) = files_with(tmp_path, MARKER)
    late = orphan.with_name("part-orphan.parquet")
    late.write_bytes(orphan.read_bytes())
    maintenance(tmp_path).run()
    assert files_with(tmp_path, MARKER) == [late]
    an_hour_ago = late.stat().st_mtime - KEPT_HOURS * 3600 - 60
    os.utime(late, (an_hour_ago, an_hour_ago))
    maintenance(tmp_path).run()
    assert files_with(tmp_path, MARKER) == []
    assert rows(tmp_path, "Exchange")["session_id"].to_list() == [KEPT]


def test_partitions_past_their_retention_are_dropped(tmp_path: Path) -> None:
    """Each project has its own retention; decisions of people, incidents, baselines and anchors stay."""
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text("version: 1\ndefaults: {retentionDays: 30}\nprojects: {long: {retentionDays: null}}\n")
    old, young = NOW - timedelta(days=31), NOW - timedelta(days=29)
    lake = tmp_path / "lake"
    samples = SampleMaker(7)
    decision = msgspec.structs.replace(samples.records("Review", 1)[0], kind="incident", project="ops", occurred_at=old)
    rating = msgspec.structs.replace(decision, review_id="rating", kind="human_score")
    records = [
        ("exchanges", exchange(f"{project}-{number}", 1, project=project, occurred_at=at, ingested_at=NOW))
        for project in ("ops", "long")
        for number, at in enumerate((old, young))
    ]
    put(lake, [*records, ("reviews", decision), ("reviews", rating)])

    report = maintenance(lake, load_policy(policy_file)).run()

    assert sorted(rows(lake, "Exchange")["session_id"].to_list()) == ["long-0", "long-1", "ops-1"]
    assert rows(lake, "Review")["kind"].to_list() == ["incident"]
    assert report.expired == {"exchanges": 1, "reviews": 1}


def test_small_files_become_one_and_the_rows_stay(tmp_path: Path) -> None:
    """A commit every few seconds leaves thousands of files a day, which slow every reader down."""
    for number in range(5):
        put(tmp_path, [("agent-events", event("s", number))])
    before = rows(tmp_path, "AgentEvent")
    old_files = Lake(str(tmp_path)).table("AgentEvent").file_uris()
    assert len(old_files) == 5
    report = maintenance(tmp_path).run()
    assert report.compacted == 5
    assert rows(tmp_path, "AgentEvent").equals(before)
    assert len(Lake(str(tmp_path)).table("AgentEvent").file_uris()) == 1
    # A reader that has listed the files may still read them.
    assert all(Path(file).exists() for file in old_files)
    assert Lake(str(tmp_path)).position("AgentEvent", ("agent-events", 0)) == 5


def test_upkeep_beside_a_writer_loses_nothing(tmp_path: Path) -> None:
    """Sinks go on while files are compacted and rows are deleted: a commit that conflicts is tried again."""
    put(tmp_path, [("erasures", erasure("local", SESSION, "root", None, NOW))])
    ended = threading.Event()

    def keep_in_order() -> None:
        while not ended.is_set():
            maintenance(tmp_path).run()

    upkeep = threading.Thread(target=keep_in_order)
    upkeep.start()
    try:
        for number in range(40):
            written = False
            while not written:
                with contextlib.suppress(LakeError):
                    put(tmp_path, [("agent-events", event(SESSION if number % 4 == 0 else KEPT, number))])
                    written = True
    finally:
        ended.set()
        upkeep.join()
    maintenance(tmp_path).run()
    assert sorted(rows(tmp_path, "AgentEvent")["seq"].to_list()) == [number for number in range(40) if number % 4]
