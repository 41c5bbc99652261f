"""Claude Code as a source: its transcripts and those of subagents."""
