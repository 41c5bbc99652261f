"""Questions to a Driftline server from a notebook.

VS Code, and Jupyter with jupytext, open this file as a notebook. It also runs as a script:
DRIFTLINE_URL=http://127.0.0.1:8377 DRIFTLINE_TOKEN=… python examples/notebook.py
"""

# %%
import os

from driftline.client import Client

client = Client(os.environ.get("DRIFTLINE_URL", "http://127.0.0.1:8377"), os.environ["DRIFTLINE_TOKEN"])

# %% [markdown]
# Which projects need somebody today?

# %%
projects = client.list("projects").polars()
print(projects.select("project", "health"))

# %% [markdown]
# Answer quality by week, weighted by the exchanges that each judged one represents.

# %%
weeks = client.sql("""
    SELECT project, date_trunc('week', day) AS week, sum(tier2 * weight) / sum(weight) AS quality, count(*) AS judged
    FROM turns WHERE tier2 IS NOT NULL GROUP BY ALL ORDER BY ALL
""")
print(weeks.polars(), "as of", weeks.as_of)

# %% [markdown]
# The open incidents, and the worst answers of the project that has most of them.

# %%
incidents = client.list("incidents", status="open").polars()
if incidents.height:
    project = incidents["project"].mode().sort()[0]
    worst = client.sql(
        "SELECT session_id, tier2 FROM turns WHERE project = $project AND tier2 IS NOT NULL ORDER BY tier2 LIMIT 5",
        project=project,
    )
    print(incidents.select("severity", "project", "title"), worst.polars())
client.close()
