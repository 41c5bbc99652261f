"""Processes of an installation: the server with its application, workers, their children and their periodic tasks."""
