"""Charts as SVG, each with its numbers as a table."""
