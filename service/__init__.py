"""The outside: settings, wiring, command line."""
