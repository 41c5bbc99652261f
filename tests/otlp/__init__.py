"""OpenTelemetry's protocol in: the captures of real instrumentors, and the programs that they are made with."""
