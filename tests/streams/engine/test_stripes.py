"""Lock striping: calls with a shared name run one after another, without deadlocks."""

from __future__ import annotations

import asyncio

from service.web.context import StripedLocks


def test_calls_with_the_same_name_run_one_after_another() -> None:
    """The second of two batches of a session must see the writes of the first."""

    async def work() -> list[str]:
        stripes, order = StripedLocks(8), list[str]()

        async def call(name: str) -> None:
            async with stripes.held(["session", name]):
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await asyncio.gather(call("a"), call("b"))
        return order

    assert asyncio.run(work()) == ["a begins", "a ends", "b begins", "b ends"]


def test_calls_with_the_same_names_in_different_order_do_not_deadlock() -> None:
    """Otherwise each would hold a lock that the other needs."""

    async def work() -> None:
        stripes, names = StripedLocks(4), [f"s{number}" for number in range(20)]

        async def call(names: list[str]) -> None:
            for _ in range(10):
                async with stripes.held(names):
                    await asyncio.sleep(0)

        async with asyncio.timeout(30):
            await asyncio.gather(call(names), call(names[::-1]))

    asyncio.run(work())
