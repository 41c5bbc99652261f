"""Evaluating finished sessions: which are selected, how each is read from the tables, and what is asked of the judge about it."""
