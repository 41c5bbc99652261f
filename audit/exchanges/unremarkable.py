"""Unremarkable exchanges: one search tells that neither Tier 1 nor the search for tampering finds anything in any of the texts.

It is a first look (`audit.first_looks`): where it does find something, each rule looks for itself. It is for plain texts, in ASCII and
without codes: for those all these rules run on the same text, in small letters with straight apostrophes.
"""

from __future__ import annotations

from functools import cache

from audit.exchanges.tier1 import NEEDED_IN_RESPONSE
from audit.first_looks import FirstLook
from audit.injection.detection import needed_patterns
from audit.injection.hidden_text import BASE64
from audit.injection.text_views import folded, has_codes
from audit.patterns import encode
from audit.policy.methodology import Methodology
from schemas.records import Exchange


def is_unremarkable(exchange: Exchange, methodology: Methodology) -> bool:
    """Tell whether it is certain that no check of Tier 1 fires and that no text tries to sway the judge."""
    response = exchange.agent_response
    whole = "\n".join((response, exchange.user_message, exchange.agent_thinking or ""))
    if methodology.tier1 or not whole.isascii() or has_codes(whole) or not response.strip():
        return False
    (view,) = folded(whole)
    return not _look().found_in(encode(view))


@cache
def _look() -> FirstLook:
    return FirstLook((*NEEDED_IN_RESPONSE.values(), *needed_patterns(), BASE64))
