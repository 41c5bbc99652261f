"""Axes of charts: scales, ticks, and the labels that there is room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from audit.prompts.prompt_quoting import hidden_parts
from service.pages.rendering import number

WIDTH, HEIGHT = 400, 170
"""User units of a chart. They are about the pixels of a chart on a phone, where its letters must still be read."""
BELOW = 22
"""Units of the height for the labels below the axis."""
_TOP, _RIGHT, _BESIDE = 8, 8, 8
_LETTER = 6.8
"""Width of a letter of an axis."""
_MOST_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)
_LARGEST, _SMALLEST = 1e300, 1e-300
_FLAT = 1e-9
"""Numbers closer together than this share of themselves are drawn as one."""
_LABEL = 14
"""Characters of a label below an axis; the table has all of it."""
_PLAIN, _WRITTEN_OUT = 1e5, 1e-4
Form = Callable[[float], str]
Limits = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """A number and its label."""

    label: str
    value: float | None
    """None for an unknown value, which is a gap and never 0."""
    short: str = ""
    """The label on the axis."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Places of numbers in a chart of `count` slots."""

    low: float
    high: float
    ticks: tuple[float, ...]
    left: float
    count: int

    @property
    def slot(self) -> float:
        """Return the width of one point's share of the chart."""
        return (WIDTH - self.left - _RIGHT) / max(1, self.count)

    def x(self, place: int) -> float:
        """Return the middle of a slot."""
        return self.left + (place + 0.5) * self.slot

    def y(self, value: float) -> float:
        """Return the height of a number; one beyond the scale stands at its end."""
        reach = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT - BELOW - reach * (HEIGHT - BELOW - _TOP)


def known(value: float | None) -> float | None:
    """Return a number that can be drawn; None for others, or beyond all measure."""
    if value is None or not math.isfinite(value) or abs(value) > _LARGEST:
        return None
    return float(value) if abs(value) > _SMALLEST else 0.0


def ticks_between(low: float, high: float, *, whole: bool = False) -> tuple[float, ...]:
    """Return round numbers from `low` or below to `high` or above, evenly spaced; whole ones if only those make sense."""
    raw = (high - low) / (_MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in _STEPS if factor * power >= raw or factor == _STEPS[-1])
    if whole:
        step = float(max(1, math.ceil(step)))
    places = range(math.floor(low / step), math.ceil(high / step) + 1)
    return tuple(float(f"{place * step:.12g}") for place in places)


def scale_of(values: Iterable[float], count: int, limits: Limits, form: Form | None, *, whole: bool = False) -> Scale:
    """Return the scale that holds all numbers; `limits` are the bounds of the measure itself, None for no bound."""
    lowest, highest = limits
    seen = [min(max(value, _or(lowest, value)), _or(highest, value)) for value in values]
    low, high = min(seen), max(seen)
    if high - low <= _FLAT * max(abs(low), abs(high)):
        room = abs(high) * 0.1 or 1.0
        low, high = max(low - room, _or(lowest, low - room)), min(high + room, _or(highest, high + room))
    ticks = ticks_between(low, high, whole=whole)
    ticks = tuple(one for one in ticks if _or(lowest, one) <= one <= _or(highest, one)) or (low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    widest = max(len(tick_text(one, ticks, form)) for one in ticks)
    return Scale(low, high, ticks, _BESIDE + widest * _LETTER, count)


def tick_text(value: float, ticks: Sequence[float], form: Form | None) -> str:
    """Write a tick with enough digits to distinguish it from the next one."""
    if form is not None:
        text = form(value)
        # An axis has round numbers: what they have behind the point says nothing.
        return text.rstrip("0").rstrip(".") if "." in text and text[-1].isdigit() else text
    largest, step = max(map(abs, ticks)), abs(ticks[1] - ticks[0]) if len(ticks) > 1 else 1.0
    if largest >= _PLAIN or step < _WRITTEN_OUT:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    digits = next((digits for digits in range(5) if math.isclose(round(step, digits), step, rel_tol=1e-6)), 4)
    return number(value, digits)


def frame(scale: Scale, points: Sequence[Point], form: Form | None) -> Markup:
    """Draw grid, ticks and labels."""
    end = WIDTH - _RIGHT
    rows = [
        Markup('<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>').format(
            at(scale.left), at(y), at(end), at(y), at(scale.left - 4), at(y + 4), tick_text(tick, scale.ticks, form)
        )
        for tick in scale.ticks
        for y in [scale.y(tick)]
    ]
    return Markup("").join([*rows, *_labels(scale, points)])


def _labels(scale: Scale, points: Sequence[Point]) -> list[Markup]:
    """Yield every label, or every n-th, counted from the last, so that none overlap."""
    texts = [_cut(visible(point.short or point.label)) for point in points]
    room = (max(map(len, texts), default=0) + 2) * _LETTER
    every = max(1, math.ceil(room / scale.slot))
    shown = [place for place in range(len(texts)) if (len(texts) - 1 - place) % every == 0]
    return [
        Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(at(x), HEIGHT - 6, anchor, texts[place])
        for place in shown
        for x, anchor in [_placed(scale.x(place), len(texts[place]) * _LETTER / 2)]
    ]


def _placed(x: float, half: float) -> tuple[float, str]:
    """Return the place of a label of this half width, within the chart."""
    if x + half > WIDTH:
        return WIDTH, "end"
    return (0.0, "start") if x < half else (x, "middle")


def visible(text: str) -> str:
    """Return a text without markup; invisible characters become their codes."""
    parts = ((seen, f"U+{ord(hidden):04X}" if hidden else "") for seen, hidden in hidden_parts(text))
    return " ".join("".join(part for pair in parts for part in pair).split())


def at(value: float) -> str:
    """Write a coordinate, short and the same on every machine."""
    return f"{value:.1f}".removesuffix(".0")


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _or(limit: float | None, value: float) -> float:
    return value if limit is None else limit
