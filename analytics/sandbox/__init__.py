"""SQL of analysts: statements are classified, bounded and run against snapshots that can reach nothing else."""
