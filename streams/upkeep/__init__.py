"""Work of a server beside its stages: anchors, closing idle sessions, erasure, retention, reviews, deployments."""
