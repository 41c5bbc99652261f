"""Judged tasks: what is known of them, the budget of their calls, and the way to their record. Judges live next door."""
