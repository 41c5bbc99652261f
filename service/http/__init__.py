"""The HTTP API: what may come in, from whom, and what is answered."""
