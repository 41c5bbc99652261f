"""Analysts' queries: each is answered by a separate process, from a snapshot, within limits."""
