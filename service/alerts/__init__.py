"""Alerts: their causes, channels and times. Alerts wait in the database until they are delivered."""
