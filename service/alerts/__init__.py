"""Alerts: what people are told, where it goes, and when. What is to be told waits in the database until it is delivered."""
