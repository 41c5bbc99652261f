"""The Messages API as the simulated judge speaks it: requests, batches, caching, faults on demand."""
