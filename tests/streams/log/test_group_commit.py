"""Group commit: order is kept, one bad submission fails alone, a full queue says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from schemas.errors import BusyError
from streams.log.group_commit import GroupCommit


class Ledger:
    """Something to commit to: numbers go in, together or not at all; 13 cannot."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.groups: list[int] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.open.set()

    def commit(self, group: Sequence[int]) -> list[int]:
        """Ten times each number, when the gate is open."""
        self.entered.release()
        self.open.wait(60)
        if 13 in group:
            raise ValueError("13 cannot be committed")
        self.committed += group
        self.groups.append(len(group))
        return [number * 10 for number in group]


@contextmanager
def running(ledger: Ledger, *, capacity: int = 100, at_once: int = 100) -> Iterator[GroupCommit[int, int]]:
    """A group commit over the ledger, closed at the end."""
    commits = GroupCommit[int, int](ledger.commit, lambda: None, capacity=capacity, at_once=at_once)
    commits.start()
    try:
        yield commits
    finally:
        ledger.open.set()
        commits.close()


def test_everybody_gets_the_outcome_of_what_they_submitted_in_the_order_of_submission() -> None:
    """A watermark must not pass a score that is committed later."""
    ledger = Ledger()
    with running(ledger) as commits:
        futures = [commits.submit(number) for number in range(12)]
        assert [number * 10 for number in range(12)] == [future.result(10) for future in futures]
    assert list(range(12)) == ledger.committed


def test_what_comes_while_a_commit_runs_is_committed_together() -> None:
    """That is what makes a hundred clients as fast as one."""
    ledger = Ledger()
    ledger.open.clear()
    with running(ledger) as commits:
        first = commits.submit(0)
        ledger.entered.acquire()
        rest = [commits.submit(number) for number in range(1, 9)]
        ledger.open.set()
        assert [0, *range(10, 90, 10)] == [future.result(10) for future in (first, *rest)]
    assert [1, 8] == ledger.groups


def test_a_submission_that_cannot_be_committed_fails_alone() -> None:
    """One record that breaks the log's contract must not cost its neighbours their place."""
    ledger = Ledger()
    ledger.open.clear()
    with running(ledger) as commits:
        futures = [commits.submit(0)]
        ledger.entered.acquire()
        futures += [commits.submit(number) for number in (1, 13, 2)]
        ledger.open.set()
        assert [0, 10, 20] == [future.result(10) for future in (futures[0], futures[1], futures[3])]
        assert isinstance(futures[2].exception(10), ValueError)
    assert [0, 1, 2] == ledger.committed


def test_a_full_queue_takes_only_what_must_be_taken() -> None:
    """A client can come back later; a call that was paid for cannot be unpaid."""
    ledger = Ledger()
    ledger.open.clear()
    with running(ledger, capacity=2) as commits:
        commits.submit(0)
        ledger.entered.acquire()
        for number in (1, 2):
            commits.submit(number)
        with pytest.raises(BusyError):
            commits.submit(3)
        commits.submit(4, must=True)
    assert [0, 1, 2, 4] == ledger.committed


def test_closing_commits_what_waits_and_takes_nothing_more() -> None:
    """A graceful stop loses nothing that was taken."""
    ledger = Ledger()
    ledger.open.clear()
    with running(ledger) as commits:
        futures = [commits.submit(number) for number in range(5)]
    assert [0, 10, 20, 30, 40] == [future.result(0) for future in futures]
    with pytest.raises(BusyError):
        commits.submit(5)


def test_work_that_can_wait_is_done_when_nothing_else_waits_until_none_is_left() -> None:
    """Diagnosis runs behind what clients wait for, and all of it is done."""
    left, done = [1, 2, 3], threading.Event()

    def rest() -> float | None:
        if left:
            left.pop()
            return 0.0
        done.set()
        return None

    commits = GroupCommit[int, int](list, rest, capacity=1, at_once=1)
    commits.start()
    assert done.wait(60)
    commits.close()
    assert [] == left


def test_a_thread_that_has_nothing_to_commit_takes_no_processor_time() -> None:
    """A replay went at an eighth of its speed: its commit thread asked for work that could wait, again and again."""
    commits = GroupCommit[int, int](list, capacity=0, at_once=1)
    commits.start()
    commits.submit(1, must=True).result(60)
    (thread,) = (one for one in threading.enumerate() if one.name == "group-commit" and one.ident)
    before = time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) - before < 0.05
    commits.close()


def test_who_waits_for_a_commit_is_answered_before_work_that_takes_long() -> None:
    """A landing takes as long as a hundred commits."""
    ledger, order = Ledger(), list[str]()
    ledger.open.clear()

    def commit(group: Sequence[int]) -> list[int]:
        done = ledger.commit(group)
        order.append(f"commit {list(group)}")
        return done

    commits = GroupCommit[int, int](
        commit, after=lambda: order.append("after"), is_ordered=lambda number: number > 0, capacity=100, at_once=100
    )
    commits.start()
    commits.submit(1)
    ledger.entered.acquire()
    for number in (-1, 2, -2, 3):
        commits.submit(number)
    ledger.open.set()
    commits.close()
    assert ["commit [1]", "after", "commit [2, 3]", "commit [-1, -2]", "after"] == order
