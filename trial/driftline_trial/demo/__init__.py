"""The demo: a synthetic fleet, delivered to Driftline as agents deliver, and the report of what was found."""
