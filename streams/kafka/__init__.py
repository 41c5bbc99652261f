"""The topology over Kafka: topics, producing, workers, the sink."""
