"""Labels: by what a sender tells its exchanges and events apart, such as the version of the agent.

1. Labels are sent as one object, `{"agent_version": "1.4.0", "tenant": "acme"}`; names are lower-case, values are texts.
2. Secrets are taken out before anything else looks at a label. A name that tells of a secret has its whole value taken out.
3. Labels that break a rule are refused as a whole, with the name of the field: half of them would put a score into the wrong slice.
4. `agent` and `model` are fields of the records, and no labels: what is stored once cannot contradict itself.
"""

from __future__ import annotations

from typing import Any

from audit.redaction import Redactor
from schemas.bounds import labels_fault
from schemas.errors import BoundsError
from schemas.records import Label

FIELD = "labels"
"""The name of the field in bodies, files and records."""


def read_labels(sent: Any, redactor: Redactor, where: str = FIELD) -> tuple[Label, ...]:
    """The labels that were sent, without secrets, sorted by name; none for null.

    BoundsError naming the label, below `where`, when the value is no object or a label breaks a rule.
    """
    if sent is None:
        return ()
    if not isinstance(sent, dict):
        raise BoundsError(f"{where}: must be an object of names and texts", hint='Send {"agent_version": "1.4.0"}.')
    clean, _ = redactor.redact_json(sent)
    pairs = [{"name": name, "value": value} for name, value in sorted(clean.items())]
    if fault := labels_fault(pairs):
        raise BoundsError(f"{where}{fault}" if fault.startswith(".") else f"{where}: {fault}")
    return tuple(Label(**one) for one in pairs)


def labels_json(labels: tuple[Label, ...]) -> dict[str, str]:
    """The labels as they are sent and shown."""
    return {one.name: one.value for one in labels}
