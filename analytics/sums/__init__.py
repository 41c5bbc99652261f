"""Kept sums: sums of scores by day and hour, the outlines of incidents and numbers of runs that lists read, and the macros over them."""
