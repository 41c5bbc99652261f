"""Analysts' queries: a separate process answers each one from a snapshot, within limits."""
