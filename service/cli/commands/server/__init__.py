"""Commands that run or set up processes: serve, worker, demo, the simulated judge, doctor, access, alerts."""
