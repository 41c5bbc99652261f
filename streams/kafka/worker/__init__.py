"""A worker: chunks of partitions handed to the stages, their offsets, states and calls."""
