"""From a session's runtime events to its diagnosis: normalized events, folded evidence, verdict, causal graph. Detectors live next door."""
