"""Diagnosis of a session: normalized events, folded evidence, verdict, causal graph. Detectors live next door."""
