"""The topology on Kafka: connection and topics, producing, the workers, their state, the sink and the replay."""
