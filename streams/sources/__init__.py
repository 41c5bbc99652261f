"""Sources of records: OpenClaw, Claude Code and Codex transcripts, and event files."""
