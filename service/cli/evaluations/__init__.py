"""Evaluations of finished runs: run here or by a server, and shown as tables, files and summaries."""
