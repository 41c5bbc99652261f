"""Files on their way in: found, read in one process or several, published in batches."""
