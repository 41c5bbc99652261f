"""Secrets: the kinds that are known, and their replacement in texts before anything is stored or judged."""
