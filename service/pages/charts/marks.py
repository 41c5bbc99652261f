"""The marks of charts: lines with gaps, dots, bands, bars, and tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from service.pages.charts.axes import BELOW, HEIGHT, Scale, at, visible

_FILLED = 0.72
"""Share of its slot that a bar fills."""
_RADIUS, _DIAMOND = 2.6, 5.0
Place = tuple[float, float]
Triple = tuple[float, float, float]


def runs(places: Sequence[Place | None]) -> list[Markup]:
    """Draw a line through each run of places without a gap."""
    found = [list(run) for is_known, run in groupby(places, key=lambda place: place is not None) if is_known]
    return [
        Markup('<polyline class="line" points="{}"/>').format(
            " ".join(f"{at(place[0])},{at(place[1])}" for place in run if place)
        )
        for run in found
        if len(run) > 1
    ]


def dot(x: float, y: float, *, marked: bool) -> Markup:
    """Draw a number: a dot, or a diamond if it is marked."""
    if not marked:
        return Markup('<circle class="dot" cx="{}" cy="{}" r="{}"/>').format(at(x), at(y), _RADIUS)
    corners = ((x, y - _DIAMOND), (x + _DIAMOND, y), (x, y + _DIAMOND), (x - _DIAMOND, y))
    return Markup('<polygon class="bad" points="{}"/>').format(" ".join(f"{at(one)},{at(other)}" for one, other in corners))


def bands_of(scale: Scale, normal: Sequence[Triple | None]) -> list[Markup]:
    """Draw the normal range at each place behind everything; a step where it changes, nothing where it is unknown."""
    drawn, place = [], 0
    for levels, run in groupby(normal):
        count = len(list(run))
        if levels is not None:
            drawn.append(_band(scale, place, place + count - 1, levels))
        place += count
    return drawn


def _band(scale: Scale, first: int, last: int, levels: Triple) -> Markup:
    left, right = scale.x(first) - scale.slot / 2, scale.x(last) + scale.slot / 2
    bottom, middle, top = map(scale.y, levels)
    return Markup(
        '<rect class="band" x="{}" y="{}" width="{}" height="{}"/><line class="mean" x1="{}" y1="{}" x2="{}" y2="{}"/>'
    ).format(at(left), at(top), at(right - left), at(max(bottom - top, 1)), at(left), at(middle), at(right), at(middle))


def levels_of(scale: Scale, levels: Sequence[float | None]) -> list[Markup]:
    """Draw a level over the places where it holds, such as the normal one before a change."""
    drawn, place = [], 0
    for level, run in groupby(levels):
        count = len(list(run))
        if level is not None:
            left, right = scale.x(place) - scale.slot / 2, scale.x(place + count - 1) + scale.slot / 2
            ends = (at(left), at(scale.y(level)), at(right), at(scale.y(level)))
            drawn.append(Markup('<line class="before" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*ends))
        place += count
    return drawn


def backgrounds(scale: Scale, stands_out: Sequence[bool]) -> list[Markup]:
    """Draw the background behind points that stand out."""
    return [_slot(scale, place, "drift", "") for place, out in enumerate(stands_out) if out]


def hit(scale: Scale, place: int, words: str) -> Markup:
    """Show the number of a slot when one points at it."""
    return _slot(scale, place, "hit", Markup("<title>{}</title>").format(visible(words)))


def deployed(scale: Scale, place: int, words: str) -> Markup:
    """Draw deployments: a line from top to bottom, with the version."""
    x = at(scale.x(place) - scale.slot / 2)
    return Markup('<line class="deployed" x1="{}" y1="0" x2="{}" y2="{}"><title>{}</title></line>').format(
        x, x, at(HEIGHT - BELOW), visible(words)
    )


def columns(scale: Scale, stacks: Sequence[Sequence[float]], bad: Sequence[bool]) -> list[Markup]:
    """Draw bars of parts: positive ones stand on 0, negative ones hang from it."""
    width = scale.slot * _FILLED
    found = []
    for place, stack in enumerate(stacks):
        above = below = 0.0
        for part, value in enumerate(stack):
            begin = above if value > 0 else below
            ends = sorted((scale.y(begin), scale.y(begin + value)))
            if value:
                kind = "bad" if bad[place] else f"part-{part}"
                found.append(
                    Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                        kind, at(scale.x(place) - width / 2), at(ends[0]), at(width), at(max(ends[1] - ends[0], 0.5))
                    )
                )
            above, below = above + max(value, 0.0), below + min(value, 0.0)
    return found


def _slot(scale: Scale, place: int, kind: str, inside: Markup | str) -> Markup:
    left = scale.x(place) - scale.slot / 2
    return Markup('<rect class="{}" x="{}" y="0" width="{}" height="{}">{}</rect>').format(
        kind, at(left), at(scale.slot), at(HEIGHT - BELOW), inside
    )
