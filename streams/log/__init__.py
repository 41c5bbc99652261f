"""The path of records into a log: admission, dead letters, conflicts, commits. The parts for Kafka are in `streams.kafka`."""
