"""Group commit: order is kept, what comes together is committed together, and a failure is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from streams.log.group_commit import GroupCommit


class Ledger:
    """Something to commit to: numbers go in, together or not at all; 13 cannot."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.entered = threading.Event()

    def commit(self, group: Sequence[int]) -> None:
        """Take a group in when the gate is open."""
        self.entered.set()
        assert self.open.wait(60)
        if 13 in group:
            raise ValueError("13 cannot be committed")
        self.groups.append(list(group))


def test_what_comes_while_a_commit_runs_is_committed_together_in_its_order() -> None:
    """That is what makes a hundred calls as fast as one."""
    ledger = Ledger()
    commits = GroupCommit[int](ledger.commit, at_once=5)
    futures = [commits.submit(0)]
    assert ledger.entered.wait(60)
    futures += [commits.submit(number) for number in range(1, 9)]
    ledger.open.set()
    assert [None] * 9 == [future.result(60) for future in futures]
    commits.close()
    assert [[0], [1, 2, 3, 4, 5], [6, 7, 8]] == ledger.groups


def test_a_failure_is_told_to_its_group_and_to_no_other() -> None:
    """Whoever paid for an answer must know whether it is durable."""
    ledger = Ledger()
    commits = GroupCommit[int](ledger.commit, at_once=1)
    futures = [commits.submit(number) for number in (13, 14)]
    ledger.open.set()
    with pytest.raises(ValueError, match="13"):
        futures[0].result(60)
    futures[1].result(60)
    commits.close()
    assert [[14]] == ledger.groups


def test_what_waits_is_committed_before_it_closes() -> None:
    """Nothing that was submitted is lost at the end."""
    ledger = Ledger()
    commits = GroupCommit[int](ledger.commit, at_once=100)
    futures = [commits.submit(number) for number in range(9)]
    ledger.open.set()
    commits.close()
    assert [None] * 9 == [future.result(0) for future in futures]
    assert list(range(9)) == [number for group in ledger.groups for number in group]
