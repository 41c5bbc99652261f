"""An incident explained: reasons, actions and the one line that an alert has room for."""

from __future__ import annotations

import itertools
from typing import Annotated

from msgspec import Meta

from schemas.records import Incident
from service.read.why.actions import Action, actions
from service.read.why.facts import Facts
from service.read.why.reasons import PART, UNEXPLAINED, Statement, statements
from service.text.answers import Answer


class Why(Answer, frozen=True):
    """The explanation of an incident and what to do about it; derived from its evidence."""

    summary: Annotated[str, Meta(description="The most telling reason.")]
    reasons: Annotated[list[Statement], Meta(description="The most telling one first.")]
    actions: Annotated[list[Action], Meta(description="The first thing to do first.")]

    @property
    def lead(self) -> list[Statement]:
        """The most telling reason, and the part that changed with what was deployed then where these follow it."""
        first, *others = self.reasons
        return [first, *itertools.takewhile(lambda one: one.kind in PART, others)]

    @property
    def others(self) -> list[Statement]:
        """The other reasons."""
        return self.reasons[len(self.lead) :]

    @property
    def is_explained(self) -> bool:
        """True if the evidence names a reason."""
        return self.reasons[0].kind != UNEXPLAINED


def why(incident: Incident) -> Why:
    """Explain an incident by the evidence that it carries."""
    return why_of(Facts(incident))


def why_of(facts: Facts) -> Why:
    """Explain an incident by what was read of its evidence."""
    reasons = statements(facts)
    return Why(summary=reasons[0].text, reasons=reasons, actions=actions(facts))
