"""A partition of a judged stage: order within sessions, independence of sessions, slots, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from support import builders as build
from support.clocks import TickingClock

from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, ScoringTask
from streams.judging.call_budget import StoppedError
from streams.judging.judged_stages import SCORING, JudgedState
from streams.judging.judging_partition import JudgeCalls, JudgingContext, JudgingPartition, PendingTask, TaskSlots
from streams.log.log import Commit

TASK = ScoringTask(
    connection="local", project="ops", session_id="s", exchange_id="s:1", revision=0, exchange=encode(build.exchange("s", 1)),
    turn_number=1, sampling_reason="first_turns", sampling_probability=1.0, tier1_score=1.0, tier1_flags=(),
    methodology="default", rule_version="r", policy_digest="p",
)  # fmt: skip


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a generous time limit."""
    asyncio.run(asyncio.wait_for(work, 120))


async def came(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after many turns of the event loop."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError


class Work:
    """The log of a partition without a judge.

    A task's reason selects its effect: `wait` returns its state when released, `early` is appended when released, `stop` and `fail`
    raise, and any other task counts as done before.
    """

    number = 0
    keeps_calls = False

    def __init__(self, slots: TaskSlots | None = None) -> None:
        self.begun: list[tuple[str, str]] = []
        self.release = asyncio.Event()
        self.failures: list[BaseException] = []
        self.slots = slots or TaskSlots()
        policy = Policy()
        context = JudgingContext(
            stage=SCORING,
            policy=policy,
            judge=None,
            redactor=Redactor(policy.redaction),
            now=TickingClock(),
            calls=JudgeCalls(),
            slots=self.slots,
        )
        self.partition = JudgingPartition(self, context, self.failures.append)

    async def read_state(self, pending: PendingTask) -> JudgedState | None:
        """Return the state of a session, or the test's effect for the task."""
        item = pending.task.sampling_reason
        self.begun.append((pending.key, item))
        await asyncio.sleep(0)
        if item == "wait":
            await self.release.wait()
        if item == "stop":
            raise StoppedError
        if item == "fail":
            raise ZeroDivisionError
        return JudgedState() if item == "early" else None

    async def read_judgements(self, _pending: PendingTask) -> Sequence[Judgement]:
        """Return no calls."""
        return ()

    async def append(self, _commit: Commit, _record: Record) -> None:
        """Wait until the test releases the task."""
        await self.release.wait()

    def put(self, *items: tuple[str, str]) -> None:
        """Add tasks."""
        start = self.partition.next_offset
        rows = [(start + index, key, replace(TASK, sampling_reason=item)) for index, (key, item) in enumerate(items)]
        taking = self.partition.enqueue(rows, start + len(rows), lambda: None)
        with suppress(StopIteration):
            taking.send(None)

    async def idle(self) -> None:
        """Wait until no session has work."""
        await came(lambda: not self.partition.sessions)


def test_a_session_keeps_its_order_and_delays_no_other() -> None:
    """A slow call delays only its session, whose spending must be known before its next exchange."""

    async def work() -> None:
        queue = Work()
        queue.put(("a", "wait"), ("a", "1"), ("b", "1"), ("b", "2"))
        await came(lambda: len(queue.partition.sessions) == 1)
        assert queue.begun == [("a", "wait"), ("b", "1"), ("b", "2")]
        assert "a" in queue.partition.sessions
        assert "b" not in queue.partition.sessions
        queue.release.set()
        await queue.idle()
        assert queue.begun[3:] == [("a", "1")]
        queue.put(("b", "3"))
        await queue.idle()
        assert queue.begun[4:] == [("b", "3")]

    run(work())


def test_at_the_end_running_tasks_get_time_and_no_new_one_starts() -> None:
    """A paid call is worth waiting a few seconds for."""

    async def work() -> None:
        queue = Work()
        queue.put(("a", "wait"), ("a", "1"), ("b", "wait"))
        await came(lambda: len(queue.begun) == 2)
        ending = asyncio.create_task(queue.partition.stop(10))
        await asyncio.sleep(0)
        queue.put(("c", "1"))
        queue.release.set()
        await ending
        assert queue.begun == [("a", "wait"), ("b", "wait")]
        assert "a" in queue.partition.sessions
        assert "b" not in queue.partition.sessions
        assert "c" in queue.partition.sessions

    run(work())


def test_a_task_that_takes_too_long_at_the_end_is_abandoned() -> None:
    """A process must end in time; the next one continues."""

    async def work() -> None:
        queue = Work()
        queue.put(("a", "wait"))
        await came(lambda: bool(queue.begun))
        await queue.partition.stop(0)
        assert "a" in queue.partition.sessions
        assert queue.failures == []

    run(work())


def test_a_stopped_task_ends_quietly_and_a_bug_is_raised() -> None:
    """Continuing after a bug would lose the task; continuing after a stop would waste calls."""

    async def work() -> None:
        for item, failures in (("stop", []), ("fail", [ZeroDivisionError])):
            queue = Work()
            queue.put(("a", item), ("a", "1"))
            await came(lambda one=queue: one.partition.is_closed)
            queue.put(("a", "2"), ("b", "1"))
            await queue.partition.stop(1)
            assert queue.begun == [("a", item)]
            assert failures == [type(error) for error in queue.failures]

    run(work())


def test_the_earliest_task_of_a_free_session_starts_first() -> None:
    """The committed offset waits for the earliest task, so later tasks must not overtake it."""

    async def work() -> None:
        queue = Work(TaskSlots(1))
        queue.put(("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("c", "5"), ("b", "6"))
        await queue.idle()
        assert [item for _, item in queue.begun] == list("123456")

    run(work())


def test_partitions_share_a_limited_number_of_slots_fairly() -> None:
    """All partitions share one judge."""

    async def work() -> None:
        slots = TaskSlots(2)
        first, second = Work(slots), Work(slots)
        first.put(*((f"a{number}", "wait") for number in range(4)))
        second.put(*((f"b{number}", "wait") for number in range(4)))
        await came(lambda: len(first.begun) == 2)
        assert second.begun == []
        first.release.set()
        await came(lambda: len(second.begun) == 2)
        assert len(first.begun) >= 2
        second.release.set()
        await first.idle()
        await second.idle()
        assert len(first.begun) == 4
        assert len(second.begun) == 4

    run(work())


def test_a_slot_may_be_released_before_its_task_ends() -> None:
    """While a result is written, the judge may work on another task; the session still waits."""

    async def work() -> None:
        queue = Work(TaskSlots(1))
        queue.put(("a", "early"), ("a", "1"), ("b", "1"))
        await came(lambda: len(queue.partition.sessions) == 1)
        assert queue.begun == [("a", "early"), ("b", "1")]
        queue.release.set()
        await queue.idle()
        assert queue.begun[-1] == ("a", "1")

    run(work())


def test_a_closed_queue_returns_unused_slots() -> None:
    """A lost slot would be missing for all partitions until the process ends."""

    async def work() -> None:
        slots = TaskSlots(2)
        ending, staying = Work(slots), Work(slots)
        ending.put(("a", "wait"), ("b", "wait"), ("c", "wait"))
        staying.put(("d", "1"), ("e", "1"), ("f", "1"))
        for runner in ending.partition._runners.values():
            runner.cancel()  # it has a turn, and never had a step
        await ending.partition.stop(0)
        await staying.idle()
        assert ending.begun == []
        assert len(staying.begun) == 3

    run(work())


def test_every_slot_is_returned_even_for_finished_tasks() -> None:
    """Losing a slot with each task would use up all slots, and judging would stop."""

    async def work() -> None:
        slots = TaskSlots(4)
        queue = Work(slots)
        queue.release.set()
        for items in ([("a", "1")] * 8, [("a", "early"), ("a", "1")] * 4):
            queue.put(*items)
            await queue.idle()
        waiting = Work(slots)
        waiting.put(*((f"b{number}", "wait") for number in range(6)))
        await came(lambda: len(waiting.begun) == 4)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(waiting.begun) == 4
        waiting.release.set()
        await waiting.idle()

    run(work())
