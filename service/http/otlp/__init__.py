"""Receivers of OpenTelemetry's protocol: what HTTP and gRPC share, the process that maps large requests, and the server of gRPC."""
