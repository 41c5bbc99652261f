"""Unremarkable exchanges: one search tells that Tier 1, disagreement and the search for tampering find nothing in any of the texts.

It is a first look (`audit.first_looks`): where it does find something, each rule looks for itself. It is for plain texts, in ASCII and
without codes: for those all these rules run on the same text, in small letters with straight apostrophes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from audit.exchanges.sampling import DISAGREEMENT
from audit.exchanges.tier1 import HAS_FIRST_LOOK, NEEDED_IN_RESPONSE
from audit.first_looks import FirstLook
from audit.injection.detection import needed_patterns
from audit.injection.hidden_text import BASE64
from audit.injection.text_views import folded, has_codes
from audit.patterns import encode
from audit.policy.methodology import Methodology
from schemas.records import Exchange


def is_unremarkable(exchange: Exchange, methodology: Methodology) -> bool:
    """Tell whether it is certain that no check of Tier 1 fires and that no text tries to sway the judge."""
    if methodology.tier1 or not HAS_FIRST_LOOK:
        return False
    view = _view(exchange)
    return view is not None and not _look().found_in(view)


def remarkable(exchanges: Sequence[Exchange]) -> list[int]:
    """The places, ascending, of the exchanges that each rule has to look at: of all others it is certain that none finds anything.

    The rules are the structural checks of Tier 1, tampering and disagreement. The checks of a methodology itself are not among them.
    """
    if not HAS_FIRST_LOOK:
        return list(range(len(exchanges)))
    views = [_view(exchange) for exchange in exchanges]
    found = [place for place, view in enumerate(views) if view is None]
    plain = [place for place, view in enumerate(views) if view is not None]
    found += [plain[row] for row in _look().rows([view for view in views if view is not None])]
    return sorted(found)


def _view(exchange: Exchange) -> bytes | None:
    """All texts of an exchange as the rules see them, one below the other; None where one search does not do."""
    response = exchange.agent_response
    whole = "\n".join((response, exchange.user_message, exchange.agent_thinking or ""))
    if not whole.isascii() or has_codes(whole) or not response.strip():
        return None
    (view,) = folded(whole)
    return encode(view)


@cache
def _look() -> FirstLook:
    return FirstLook((*NEEDED_IN_RESPONSE.values(), DISAGREEMENT, *needed_patterns(), BASE64))
