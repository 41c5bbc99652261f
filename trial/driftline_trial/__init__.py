"""What shows Driftline without a fleet, a key or a cost: the demo and the simulated judge. Nothing in production needs it."""
