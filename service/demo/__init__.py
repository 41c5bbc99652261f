"""The demo: synthetic conversations and a synthetic fleet with known faults, delivered like real ones."""
