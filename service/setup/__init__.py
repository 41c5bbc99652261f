"""What a process is set up with: settings, the database, access, the judge and Kafka, wired together."""
