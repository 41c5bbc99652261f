"""The embedded runner and the engine of a server: the whole topology in one process. Kafka workers live next door."""
