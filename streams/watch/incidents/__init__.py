"""Incidents: findings grouped by change, with their cause, evidence, slices and states, from opening to recovery."""
