"""Kept sums: what scores and runs add up to by day and by hour, and the macros that read them."""
