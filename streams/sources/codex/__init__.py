"""Codex as a source: its rollouts."""
