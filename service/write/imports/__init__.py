"""Importing files: found, read in one process or several, published in batches."""
