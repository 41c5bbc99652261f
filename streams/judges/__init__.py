"""Judges: who answers the cascade's questions. Live over the Messages API, or from what was recorded, or nobody."""
