"""Commands on records: import, export, replay, rejudge, delete, dead letters, topics."""
