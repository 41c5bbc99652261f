"""The setup of a process: settings, the database, access, the judge and Kafka, wired together."""
