"""The rules, pure: same evidence, same result. No clock, no coin, no socket."""
