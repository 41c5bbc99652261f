"""Receivers of OpenTelemetry's protocol: what HTTP and gRPC share, and the server of gRPC."""
