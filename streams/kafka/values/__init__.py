"""Values of topics: framing for schema registries, decoding, and schemas that are safe to decode."""
