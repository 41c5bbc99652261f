"""OpenClaw's state on disk: its folder, its SQLite file and the rows of transcripts in it."""
