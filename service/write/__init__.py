"""What changes something: imports, replays, evaluations, policies, dead letters. Knows no caller."""
