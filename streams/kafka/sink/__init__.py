"""The sink: every record of every topic into its table, exactly once."""
