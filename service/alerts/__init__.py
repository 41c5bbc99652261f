"""Alerts: which alerts are sent, where, and when. Alerts wait in the database until they are delivered."""
