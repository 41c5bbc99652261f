"""Scripts of the simulated judge, request by request, to reproduce every fault of a provider.

1. A script is `kind[:argument][*count]`, separated by commas, e.g. `overloaded*2,rate_limited:300,answer`. Requests take the steps in
   the order of their arrival; the last step is repeated. Beside it, a share of the requests can be given a fault drawn by chance.
2. A script for a text applies to each question whose prompt holds the text, separately: every such question starts at the first step,
   independent of the number and order of other questions. So "the judge of this case fails twice of three" is reproducible.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from driftline_trial.simulator.requests import ParsedRequest, Problem
from schemas.errors import SettingsError


class Kind(NamedTuple):
    """A behaviour: its description, and its argument if it takes one."""

    description: str
    argument: float | None = None
    """The default of the argument; None: the kind takes none."""


KINDS: dict[str, Kind] = {
    "answer": Kind("answers"),
    "strict": Kind("answers, each score of an exchange lower by so much of its scale", 0.05),
    "obedient": Kind("answers, with the best scores for an exchange that holds an attempt to sway the judge"),
    "slow": Kind("answers after so many seconds", 1.0),
    "thinking_first": Kind("answers after a thinking block"),
    "rate_limited": Kind("429 with retry-after of so many seconds", 1.0),
    "overloaded": Kind("529"),
    "error500": Kind("500"),
    "bad_request": Kind("400"),
    "unauthorized": Kind("401"),
    "no_structured": Kind("400 that blames output_config where there is one, else answers"),
    "drip": Kind("answers one byte every so many seconds", 0.2),
    "hang": Kind("never answers"),
    "reset": Kind("resets the connection in the middle of the answer"),
    "huge": Kind("an answer of so many megabytes, streamed", 50.0),
    "html": Kind("a web page with status 200"),
    "truncated_json": Kind("half of the answer's JSON, as if it were whole"),
    "wrong_shape": Kind("an answer whose content is an object instead of a list"),
    "no_text": Kind("an answer without a text block"),
    "no_usage": Kind("an answer without usage"),
    "zero_usage": Kind("an answer whose usage is 0"),
    "lying_usage": Kind("an answer whose usage is beyond what the request can use"),
    "refusal": Kind("refuses"),
    "cut_off": Kind("stops in the middle of the text at max_tokens"),
    "garbage": Kind("a text that is no JSON"),
    "out_of_range": Kind("an answer whose numbers lie beyond their scale"),
    "ignores_structured": Kind("the JSON inside of prose"),
}
"""Every kind of behaviour, by name."""
FAULTS = tuple(name for name in KINDS if name not in {"answer", "strict", "obedient", "slow", "thinking_first"})
"""Kinds that make a call fail."""
MAX_COUNT = 1_000_000


class Step(NamedTuple):
    """The behaviour for the next `times` requests."""

    kind: str
    argument: float
    """0 if the kind takes none."""
    times: int

    @property
    def strictness(self) -> float:
        """The part of the scale by which each score is lower."""
        return self.argument if self.kind == "strict" else 0.0


class Play:
    """Returns the step for each request. Safe to use from several threads."""

    def __init__(self, script: str, *, faults: float = 0.0, seed: int = 0) -> None:
        """SettingsError for a script that cannot be read and for a share outside 0 to 1."""
        if not 0 <= faults <= 1:
            raise SettingsError(f"faults: {faults} is no share", hint="Give a number from 0 to 1, such as 0.1.")
        self._steps = list(parse_script(script))
        self._share = faults
        self._seed = seed
        self._lock = threading.Lock()
        self._left = self._steps[0].times
        self.requests = 0
        """Requests so far."""

    def next(self) -> Step:
        """Return the step for the request that has just arrived."""
        with self._lock:
            self.requests += 1
            # One generator per request, so that a draw does not depend on earlier draws.
            random = Random(f"{self._seed}/{self.requests}")  # noqa: S311 - faults to test with, no secrets
            if random.random() < self._share:
                kind = random.choice(FAULTS)
                return Step(kind, KINDS[kind].argument or 0.0, 1)
            if self._left == 0 and len(self._steps) > 1:
                self._steps.pop(0)
                self._left = self._steps[0].times
            self._left = max(0, self._left - 1)
            return self._steps[0]


def parse_script(script: str) -> tuple[Step, ...]:
    """Return the steps of a script; SettingsError names the unreadable one and lists the kinds."""
    return tuple(_step(text.strip()) for text in script.split(","))


def _step(text: str) -> Step:
    step, starred, count = text.partition("*")
    name, colon, argument = step.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise _unreadable(text, f"there is no kind {name!r}")
    if colon and kind.argument is None:
        raise _unreadable(text, f"{name} takes no argument")
    if starred and not (count.isascii() and count.isdigit() and 0 < int(count[:9]) <= MAX_COUNT):
        raise _unreadable(text, f"the count must be a number from 1 to {MAX_COUNT}")
    return Step(name, _argument(text, argument) if colon else kind.argument or 0.0, int(count) if starred else 1)


def _argument(text: str, argument: str) -> float:
    try:
        number = float(argument)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_COUNT:
        raise _unreadable(text, f"the argument must be a number from 0 to {MAX_COUNT}")
    return number


def _unreadable(text: str, reason: str) -> SettingsError:
    return SettingsError(
        f"script: {text!r}: {reason}", hint=f"Write kind[:argument][*count], separated by commas. Kinds: {', '.join(KINDS)}."
    )


MAX_KEPT = 10_000
"""Maximum number of questions in memory; the oldest are dropped."""


class Plays:
    """Returns the step for each request. Safe to use from several threads."""

    def __init__(self, script: str, scripts_for: Mapping[str, str], *, faults: float = 0.0, seed: int = 0) -> None:
        """`scripts_for` are scripts by text; `faults` by chance meet only requests without one.

        SettingsError for a script that cannot be read, an empty text, and a share outside 0 to 1.
        """
        if not all(scripts_for):
            raise SettingsError(
                "script for a text: the text is empty", hint="Write TEXT=STEPS, such as 'rotate the key=garbage*2,answer'."
            )
        for steps in scripts_for.values():
            parse_script(steps)
        self.requests = 0
        """Requests so far."""
        self._for_all = Play(script, faults=faults, seed=seed)
        self._for_texts = dict(scripts_for)
        self._begun: OrderedDict[str, Play] = OrderedDict()
        self._lock = threading.Lock()

    def next(self, read: Callable[[], ParsedRequest | Problem]) -> Step:
        """Return the step for the request that has just arrived; `read` is called only if there are scripts for texts."""
        parsed = read() if self._for_texts else None
        steps = self._script_for(parsed) if isinstance(parsed, ParsedRequest) else None
        with self._lock:
            self.requests += 1
            if parsed is None or isinstance(parsed, Problem) or steps is None:
                return self._for_all.next()
            play = self._begun.setdefault(parsed.key, Play(steps))
            _keep(self._begun, parsed.key)
            return play.next()

    def _script_for(self, parsed: ParsedRequest) -> str | None:
        """Return the script of the first text that occurs in the prompt; None without one."""
        matching = (steps for text, steps in self._for_texts.items() if any(text in block.text for block in parsed.blocks))
        return next(matching, None)


class Arrivals:
    """Counts the arrivals of each question."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, key: str) -> int:
        """Return the number of this arrival, from 1."""
        self._counts[key] = self._counts.get(key, 0) + 1
        _keep(self._counts, key)
        return self._counts[key]


def _keep(newest: OrderedDict[str, Any], key: str) -> None:
    """Make the key the newest, and forget the oldest beyond the limit."""
    newest.move_to_end(key)
    if len(newest) > MAX_KEPT:
        newest.popitem(last=False)
