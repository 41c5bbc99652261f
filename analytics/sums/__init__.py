"""Kept sums: what scores and runs add up to by day and by hour, what lists read of incidents, and the macros that read them."""
