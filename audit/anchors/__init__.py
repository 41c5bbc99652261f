"""Anchors: judged again and again, they tell whether the judge changed, and whether an incident is the agent's or the judge's."""
