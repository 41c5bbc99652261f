"""Slots: never more at once than the limit, and no partition is starved."""

from __future__ import annotations

from collections import Counter

from streams.judging.judging_partition import TaskSlots


class JudgeMode:
    """Requests slots and records, in a shared list, when they are granted."""

    def __init__(self, name: str, slots: TaskSlots, begun: list[str]) -> None:
        self._name = name
        self._slots = slots
        self._begun = begun

    def ask(self, count: int) -> None:
        """Request this number of slots."""
        for _ in range(count):
            self._slots.request(self._begin)

    def withdraw(self) -> None:
        """Withdraw all requests."""
        self._slots.withdraw(self._begin)

    def _begin(self) -> None:
        self._begun.append(self._name)


def test_slots_rotate_among_partitions_whatever_their_backlog() -> None:
    """A partition with a long backlog must not occupy the judge."""
    slots, begun = TaskSlots(3), list[str]()
    for name, count in {"a": 100, "b": 4, "c": 4}.items():
        JudgeMode(name, slots, begun).ask(count)
    assert begun == ["a", "a", "a"]
    for _ in range(9):
        slots.release()
    assert begun == list("aaa" + "abc" * 3)


def test_no_more_tasks_start_than_there_are_slots() -> None:
    """Tasks started beyond the limit would only wait for the judge."""
    slots, begun = TaskSlots(2), list[str]()
    JudgeMode("a", slots, begun).ask(5)
    for given_back in range(4):
        assert min(5, 2 + given_back) == len(begun)
        slots.release()


def test_a_withdrawn_request_gets_no_slot_and_costs_none() -> None:
    """A revoked partition must start no further task here."""
    slots, begun = TaskSlots(1), list[str]()
    leaving, staying = JudgeMode("leaving", slots, begun), JudgeMode("staying", slots, begun)
    leaving.ask(3)
    staying.ask(3)
    leaving.withdraw()
    for _ in range(5):
        slots.release()
    assert Counter(begun) == Counter(leaving=1, staying=3)
    staying.ask(2)
    assert Counter(begun)["staying"] == 5
