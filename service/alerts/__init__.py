"""Alerts: their causes, channels and delivery. The database keeps alerts until they are delivered."""
