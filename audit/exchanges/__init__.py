"""Scoring of exchanges: Tier 1 checks, sampling, prompts, the gate cascade, outcomes."""
