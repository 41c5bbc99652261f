"""Judges: the answers to the cascade's questions, live over the Messages API, from recorded calls, or none."""
