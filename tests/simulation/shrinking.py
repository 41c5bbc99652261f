"""Shrinking: a history that breaks a law becomes the shortest that still breaks it, and a test to paste."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from simulation.history import Fault, History, Step

Item = TypeVar("Item")
Fails = Callable[[History], bool]
"""Tells whether a history breaks the law in question."""


def shrink(history: History, fails: Fails) -> History:
    """The history without the faults and steps that are not needed for its failure, and with plain steps where these do."""
    before = None
    while history != before:
        before = history
        history = _with_fewer_faults(history, fails)
        history = _with_fewer_steps(history, fails)
        history = next(filter(fails, _plainer(history)), history)
    return history


def _with_fewer_faults(history: History, fails: Fails) -> History:
    return replace(history, faults=_shrunk(history.faults, lambda faults: fails(replace(history, faults=faults))))


def _with_fewer_steps(history: History, fails: Fails) -> History:
    return replace(history, steps=_shrunk(history.steps, lambda steps: fails(replace(history, steps=steps))))


def _shrunk(items: tuple[Item, ...], fails: Callable[[tuple[Item, ...]], bool]) -> tuple[Item, ...]:
    """The items without those that can go: halves first, then smaller parts, then each by itself."""
    size = len(items)
    while size:
        start = 0
        while start < len(items):
            left = items[:start] + items[start + size :]
            if fails(left):
                items = left
            else:
                start += size
        size //= 2
    return items


def _plainer(history: History) -> Iterator[History]:
    """Histories with one step that is plainer."""
    for index, step in enumerate(history.steps):
        for plainer in _plainer_steps(step):
            yield replace(history, steps=(*history.steps[:index], plainer, *history.steps[index + 1 :]))


def _plainer_steps(step: Step) -> Sequence[Step]:
    plainer = [replace(step, count=1), replace(step, pause=0.0), replace(step, content=0)]
    return [candidate for candidate in plainer if candidate != step]


def as_test(history: History, law: str) -> str:
    """A test of a history, to be pasted into tests/simulation/test_regressions.py."""
    steps = "".join(f"            {_written(step)},\n" for step in history.steps)
    faults = "".join(f"            {_written(fault)},\n" for fault in history.faults)
    return (
        f"def test_seed_{history.seed}_of_the_{history.world}_world() -> None:\n"
        f'    """Law: {law}."""\n'
        "    history = History(\n"
        f"        {json.dumps(history.world)},\n        {history.seed},\n        policy={history.policy},\n"
        f"        steps=(\n{steps}        ),\n        faults=(\n{faults}        ),\n"
        "    )\n"
        "    assert live(history).broken is None\n"
    )


def _written(item: Step | Fault) -> str:
    """A step or fault as one writes it: without the fields that are as usual."""
    values = {field.name: getattr(item, field.name) for field in fields(item) if getattr(item, field.name) != field.default}
    return f"{type(item).__name__}({', '.join(f'{name}={json.dumps(value)}' for name, value in values.items())})"
