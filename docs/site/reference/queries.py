"""The analysts' views and the named queries."""

from __future__ import annotations

from analytics.queries import queries as named_queries
from analytics.snapshots import load_catalog
from reference.markdown import code, page, table, words


def queries() -> str:
    """Return the page."""
    views = [
        section
        for relation in load_catalog()
        if relation.is_view
        for section in (
            f"### {relation.name}",
            words(relation.description),
            table(
                ("column", "type", "what it is"),
                [(code(column.name), column.kind.lower(), words(column.description)) for column in relation.columns],
            ),
        )
    ]
    rows = [
        (code(query.name), words(query.purpose), words(query.grain), words(query.explained))
        for query in named_queries().values()
    ]
    return page(
        "Queries and views",
        "How to ask, with examples: [Asking about drift in SQL](../sql.md). The tables are those of the [records](records.md).",
        "## Views",
        *views,
        "## Queries by name",
        "`driftline sql NAME --project … --as-of … --set NAME=VALUE` runs one; `driftline sql --list` shows them in a terminal.",
        table(("query", "answers", "grain", "parameters"), rows),
    )
