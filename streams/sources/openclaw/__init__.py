"""OpenClaw as a source: transcripts, SQLite state and trajectories become exchanges and events."""
