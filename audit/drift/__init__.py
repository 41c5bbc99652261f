"""Drift statistics over sums of scores: changes of mean and spread, anomaly spikes, slices. Nothing here reads a database."""
