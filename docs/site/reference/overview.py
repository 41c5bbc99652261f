"""The first page of the reference."""

from __future__ import annotations

from reference.markdown import page, table

_PAGES = (
    ("[Commands](commands.md)", "what `driftline` takes, word for word"),
    ("[Settings](settings.md)", "variables that say where things are"),
    ("[Policy](policy.md), [methodology](methodology.md)", "what agents are judged by"),
    ("[The HTTP API](../api.md), [endpoints](endpoints.md)", "what a server answers, to whom"),
    ("[Topics](topics.md), [records](records.md)", "what is kept, field by field"),
    ("[Tiers, states, gates](tiers.md)", "what a score says, and why it is missing"),
    ("[Detectors](detectors.md)", "what goes wrong in sessions"),
    ("[Dialects of traces](dialects.md)", "which names are read, and what came of each instrumentor"),
    ("[Queries and views](queries.md)", "what SQL finds"),
    ("[Alerts](alerts.md), [metrics](metrics.md)", "alerts, to people and to monitoring"),
    ("[Files of an evaluation](../evaluation-files.md)", "cases, profiles, results"),
    ("[Errors](errors.md)", "what each says, and what to do"),
    ("[Packages](packages.md)", "the map of the code"),
)


def overview() -> str:
    """Return the page."""
    return page(
        "Reference",
        "Made from the code (`make generate`), and checked to be up to date: it says what this version does.",
        table(("page", "what it has"), _PAGES),
    )
