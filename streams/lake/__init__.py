"""The lake: a sink of all topics in Delta tables, by any number of processes, and the upkeep of its tables."""
