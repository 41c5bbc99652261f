"""An incident explained: reasons, actions and the one line that an alert has room for, as a structure and as JSON."""

from __future__ import annotations

import itertools

import msgspec

from audit.drift.incident_evidence import Count
from schemas.records import Incident
from service.read.why.actions import Action, actions
from service.read.why.facts import Facts
from service.read.why.reasons import PART, UNEXPLAINED, Statement, statements
from service.text.members import Document


class Why(msgspec.Struct, frozen=True):
    """The reasons of an incident, and what to do about it."""

    reasons: list[Statement]
    actions: list[Action]

    @property
    def summary(self) -> str:
        """The most telling reason in one line."""
        return self.reasons[0].text

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
    return Why(statements(facts), actions(facts))


def why_document(incident: Incident) -> Document:
    """Return the explanation as the API documents it."""
    found = why(incident)
    return {
        "summary": found.summary,
        "reasons": [
            {"kind": one.kind, "text": one.text, "counts": [_count(count) for count in one.counts]} for one in found.reasons
        ],
        "actions": [msgspec.to_builtins(one) for one in found.actions],
    }


def _count(count: Count) -> Document:
    return {
        "name": count.name,
        "before": count.before,
        "allBefore": count.all_before,
        "after": count.after,
        "allAfter": count.all_after,
    }
