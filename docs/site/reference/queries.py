"""Views to read by, and the queries that come with the program."""

from __future__ import annotations

from analytics.queries import queries as named_queries
from analytics.snapshots import readable_catalogue
from reference.markdown import code, page, table, words


def queries() -> str:
    """The page."""
    views = [
        part
        for one in readable_catalogue()
        if one.is_view
        for part in (
            f"### {one.name}",
            words(one.words),
            table(("column", "type", "what it is"), [(code(c.name), c.kind.lower(), words(c.words)) for c in one.columns]),
        )
    ]
    shipped = [
        (f"{code(one.name)}", words(one.purpose), words(one.grain), words(one.explained)) for one in named_queries().values()
    ]
    return page(
        "Queries and views",
        "How to ask, with examples: [Asking about drift in SQL](../sql.md). The tables are those of the [records](records.md).",
        "## Views",
        *views,
        "## Queries by name",
        "`driftline sql NAME --project … --as-of … --set NAME=VALUE` runs one; `driftline sql --list` shows them in a terminal.",
        table(("query", "answers", "grain", "parameters"), shipped),
    )
