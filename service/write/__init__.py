"""Writing operations: imports, replays, evaluations, policies, dead letters. Knows no caller."""
