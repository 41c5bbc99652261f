"""Commands that run or set up processes: serve, worker, doctor, access, alerts."""
