"""Processes of an installation: the server, workers, their children and their periodic tasks."""
