"""The embedded runner and the engine of a server: the whole topology in one process. The Kafka workers are in `streams.kafka`."""
