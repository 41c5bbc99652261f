"""Test cases, evaluation profiles and deterministic checks, and the files they are read from."""
