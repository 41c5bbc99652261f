"""Labels: a sender's properties of exchanges and events, such as the version of the agent.

1. Labels are one object, `{"agent_version": "1.4.0", "tenant": "acme"}`; names are lower case, values are texts.
2. Secrets are replaced before a label is used. If a name indicates a secret, its whole value is replaced.
3. Labels with a problem are refused together, naming the field: with half of them, a score would be in the wrong slice.
4. `agent` and `model` are fields of the records, not labels, so that they are stored only once.
"""

from __future__ import annotations

from typing import Any

from audit.redaction import Redactor
from schemas.bounds import labels_fault
from schemas.errors import BoundsError
from schemas.records import Label

FIELD = "labels"
"""The name of the field in request bodies, files and records."""


def read_labels(value: Any, redactor: Redactor, where: str = FIELD) -> tuple[Label, ...]:
    """Return the labels without secrets, sorted by name; none for None.

    Raises BoundsError naming the label, below `where`, if the value is not an object or a label is invalid.
    """
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise BoundsError(f"{where}: must be an object of names and texts", hint='Send {"agent_version": "1.4.0"}.')
    redacted, _ = redactor.redact_json(value)
    pairs = [{"name": name, "value": text} for name, text in sorted(redacted.items())]
    fault = labels_fault(pairs)
    if fault:
        raise BoundsError(f"{where}{fault}" if fault.startswith(".") else f"{where}: {fault}")
    return tuple(Label(**pair) for pair in pairs)


def labels_json(labels: tuple[Label, ...]) -> dict[str, str]:
    """Return the labels as an object, as they are sent and shown."""
    return {label.name: label.value for label in labels}
