"""Commands on finished runs: diagnose, sessions, threshold tuning, evaluations."""
