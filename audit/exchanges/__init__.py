"""Scoring of exchanges: Tier 1 checks, sampling, the gate cascade, outcomes. Texts of prompts and answers live next door."""
