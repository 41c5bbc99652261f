"""The six-dimension judge over finished runs: cases, checks, what the judge sees, its answers and the result. Pure, as all of `audit`."""
