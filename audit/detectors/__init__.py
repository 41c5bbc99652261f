"""The failure detectors and the thresholds from which they fire. A detector sees the evidence of one session and nothing else."""
