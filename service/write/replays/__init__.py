"""Replays: planned, estimated, run and put together, each in a file of its own."""
