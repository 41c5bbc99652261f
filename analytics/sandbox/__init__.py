"""SQL of analysts: statements are classified, bounded and run against snapshots, with access to nothing else."""
