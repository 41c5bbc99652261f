"""Records on their way into a log: admission, dead letters, conflicts, commits. Kafka's own side lives in streams.kafka."""
