"""The stages as data, the steps over batches, the runners and the sources."""
