"""Where records come from: OpenClaw transcripts and event files."""
