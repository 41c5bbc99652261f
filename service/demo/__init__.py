"""The demo: synthetic conversations and a synthetic fleet with known faults, delivered as real ones are."""
