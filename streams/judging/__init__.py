"""Judged tasks: their recorded judgements, the budget of their calls, and the making of their records. Judges are in `streams.judges`."""
