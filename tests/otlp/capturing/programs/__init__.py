"""Small agents, each instrumented by one SDK and run in that SDK's own environment: nothing of Driftline can be imported here."""
