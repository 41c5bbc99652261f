"""Receivers of OpenTelemetry's protocol: the part shared by HTTP and gRPC, the process that maps large requests, and the gRPC server."""
