"""Evaluating finished sessions in this process."""
